"""Worlds: data sets, partitions, drift, presence, cohorts and batch plans, all pure functions of (seed, round)."""

from flstudy.population.arrivals import Arrivals, FreshDraws
from flstudy.population.batches import Batches, Plan
from flstudy.population.changes import Change, ComposedSwaps, FeatureShift, LabelSwap, NoChange, Rotation
from flstudy.population.datasets import Dataset, Digits, Examples, InMemory, Synthetic
from flstudy.population.division import Split
from flstudy.population.drift import Drift, Event, IncrementalDrift, RecurrentDrift, StaggeredDrift, SuddenDrift
from flstudy.population.heavytails import HeavyTails
from flstudy.population.holdings import Census, Holdings
from flstudy.population.images import Cifar10, Cifar100, FashionMnist, Mnist, Svhn
from flstudy.population.introduction import ClassIntroduction
from flstudy.population.labels import Distinct, Half, LabelGroups, PartialOverlap, TwoShard
from flstudy.population.libsvm import LibSvm
from flstudy.population.natural import Emnist, Shakespeare, StackOverflow
from flstudy.population.news import AgNews
from flstudy.population.partition import BalancedDirichlet, Dirichlet, Iid, Partition, Shards
from flstudy.population.population import Cohort, Population, Stack
from flstudy.population.presence import AlternatingGroups, Presence, ScheduledPresence
from flstudy.population.repeated import RepeatedDrift
from flstudy.population.scheduled import ScheduledDrift
from flstudy.population.tinyimagenet import TinyImageNet

__all__ = [
    "AgNews",
    "AlternatingGroups",
    "Arrivals",
    "BalancedDirichlet",
    "Batches",
    "Census",
    "Change",
    "Cifar10",
    "Cifar100",
    "ClassIntroduction",
    "Cohort",
    "ComposedSwaps",
    "Dataset",
    "Digits",
    "Dirichlet",
    "Distinct",
    "Drift",
    "Emnist",
    "Event",
    "Examples",
    "FashionMnist",
    "FeatureShift",
    "FreshDraws",
    "Half",
    "HeavyTails",
    "Holdings",
    "Iid",
    "InMemory",
    "IncrementalDrift",
    "LabelGroups",
    "LabelSwap",
    "LibSvm",
    "Mnist",
    "NoChange",
    "PartialOverlap",
    "Partition",
    "Plan",
    "Population",
    "Presence",
    "RecurrentDrift",
    "RepeatedDrift",
    "Rotation",
    "ScheduledDrift",
    "ScheduledPresence",
    "Shakespeare",
    "Shards",
    "Split",
    "Stack",
    "StackOverflow",
    "StaggeredDrift",
    "SuddenDrift",
    "Svhn",
    "Synthetic",
    "TinyImageNet",
    "TwoShard",
]
