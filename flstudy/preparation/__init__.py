"""Data sets before anything trains: copied into Federated Parquet, listed, and drawn as a run would meet them."""
