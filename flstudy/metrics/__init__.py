"""Metrics by which runs are judged: accuracy over devices, and what a drift does to it."""
