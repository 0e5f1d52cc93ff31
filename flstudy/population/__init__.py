"""Worlds: data sets, partitions, drift, participation and batch plans, all pure functions of (seed, round)."""

from flstudy.population.batches import Batches, Plan
from flstudy.population.datasets import Dataset, Digits, Examples, InMemory, Synthetic
from flstudy.population.drift import Drift, Event, IncrementalDrift, RecurrentDrift, SuddenDrift
from flstudy.population.partition import Dirichlet, Iid, Partition, Shards
from flstudy.population.population import Census, Cohort, Population, Stack

__all__ = [
    "Batches",
    "Census",
    "Cohort",
    "Dataset",
    "Digits",
    "Dirichlet",
    "Drift",
    "Event",
    "Examples",
    "Iid",
    "InMemory",
    "IncrementalDrift",
    "Partition",
    "Plan",
    "Population",
    "RecurrentDrift",
    "Shards",
    "Stack",
    "SuddenDrift",
    "Synthetic",
]
