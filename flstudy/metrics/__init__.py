"""What runs are judged by: accuracy over devices, and what a drift does to it."""
