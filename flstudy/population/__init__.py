"""Worlds: data sets, partitions, drift, availability, cohorts and batch plans, all pure functions of (seed, round)."""

from flstudy.population.availability import AlternatingGroups, Availability
from flstudy.population.batches import Batches, BatchPlan
from flstudy.population.changes import Change, ComposedSwaps, FeatureShift, LabelSwap, NoChange, Rotation
from flstudy.population.data_stream import DataStream, FreshDraws
from flstudy.population.datasets import (
    AgNews,
    Cifar10,
    Cifar100,
    Dataset,
    Digits,
    Emnist,
    Examples,
    FashionMnist,
    HeavyTails,
    InMemory,
    Landmarks,
    LibSvm,
    Mnist,
    Shakespeare,
    StackOverflow,
    StackOverflowTags,
    Svhn,
    Synthetic,
    TinyImageNet,
)
from flstudy.population.device_data import DeviceData, EvaluationIndex, Split
from flstudy.population.drift import (
    ClassIntroduction,
    Drift,
    Event,
    IncrementalDrift,
    RecurrentDrift,
    RepeatedDrift,
    StaggeredDrift,
    SuddenDrift,
)
from flstudy.population.partition import (
    BalancedDirichlet,
    Dirichlet,
    Distinct,
    Half,
    Iid,
    LabelGroups,
    PartialOverlap,
    Partition,
    Shards,
    TwoShard,
)
from flstudy.population.population import Cohort, ExampleStore, Population
from flstudy.population.scheduled import ScheduledAvailability, ScheduledDrift
from flstudy.registry import import_modules

__all__ = [
    "AgNews",
    "AlternatingGroups",
    "Availability",
    "BalancedDirichlet",
    "BatchPlan",
    "Batches",
    "Change",
    "Cifar10",
    "Cifar100",
    "ClassIntroduction",
    "Cohort",
    "ComposedSwaps",
    "DataStream",
    "Dataset",
    "DeviceData",
    "Digits",
    "Dirichlet",
    "Distinct",
    "Drift",
    "Emnist",
    "EvaluationIndex",
    "Event",
    "ExampleStore",
    "Examples",
    "FashionMnist",
    "FeatureShift",
    "FreshDraws",
    "Half",
    "HeavyTails",
    "Iid",
    "InMemory",
    "IncrementalDrift",
    "LabelGroups",
    "LabelSwap",
    "Landmarks",
    "LibSvm",
    "Mnist",
    "NoChange",
    "PartialOverlap",
    "Partition",
    "Population",
    "RecurrentDrift",
    "RepeatedDrift",
    "Rotation",
    "ScheduledAvailability",
    "ScheduledDrift",
    "Shakespeare",
    "Shards",
    "Split",
    "StackOverflow",
    "StackOverflowTags",
    "StaggeredDrift",
    "SuddenDrift",
    "Svhn",
    "Synthetic",
    "TinyImageNet",
    "TwoShard",
]

import_modules(
    __name__, __path__
)  # a data set, partition or drift that is not listed above can be named in configs, too
import_modules(f"{__name__}.datasets", [f"{folder}/datasets" for folder in __path__])
