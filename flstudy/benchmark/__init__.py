"""Benchmark of every executor against a plain PyTorch loop: ``flstudy bench``, or ``python -m flstudy.benchmark`` where
only torch, lightning and numpy are installed."""
