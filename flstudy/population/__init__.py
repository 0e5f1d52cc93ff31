"""Worlds: data sets, partitions, drift, availability, cohorts and batch plans, all pure functions of (seed, round)."""

from flstudy.population.availability import AlternatingGroups, Availability, ScheduledAvailability
from flstudy.population.batches import Batches, Plan
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
from flstudy.population.device_data import DeviceData, EvaluationIndex
from flstudy.population.division import Split
from flstudy.population.drift import Drift, Event, IncrementalDrift, RecurrentDrift, StaggeredDrift, SuddenDrift
from flstudy.population.introduction import ClassIntroduction
from flstudy.population.labels import Distinct, Half, LabelGroups, PartialOverlap, TwoShard
from flstudy.population.partition import BalancedDirichlet, Dirichlet, Iid, Partition, Shards
from flstudy.population.population import Cohort, ExampleStore, Population
from flstudy.population.repeated import RepeatedDrift
from flstudy.population.scheduled import ScheduledDrift

__all__ = [
    "AgNews",
    "AlternatingGroups",
    "Availability",
    "BalancedDirichlet",
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
    "Plan",
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
