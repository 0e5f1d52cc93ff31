"""Worlds: data sets, partitions, drift, availability, cohorts and batch plans, all pure functions of (seed, round)."""

from flstudy.population.availability import AlternatingGroups, Availability
from flstudy.population.batches import Batches, BatchPlan
from flstudy.population.changes import Change, ComposedSwaps, FeatureShift, LabelSwap, NoChange, Rotation
from flstudy.population.data_stream import DataStream, FreshDraws
from flstudy.population.datasets.base import Dataset, Examples, Split
from flstudy.population.datasets.federated import FederatedParquet
from flstudy.population.datasets.images import Cifar10, Cifar100, Digits, EmnistImages, FashionMnist, Mnist, Svhn
from flstudy.population.datasets.in_memory import InMemory
from flstudy.population.datasets.landmarks import Landmarks
from flstudy.population.datasets.leaf import LeafFemnist, LeafShakespeare
from flstudy.population.datasets.libsvm import LibSvm
from flstudy.population.datasets.natural import Emnist, Shakespeare, StackOverflow
from flstudy.population.datasets.news import AgNews
from flstudy.population.datasets.synthetic import HeavyTails, Synthetic
from flstudy.population.datasets.table import TableFile
from flstudy.population.datasets.tags import StackOverflowTags
from flstudy.population.datasets.tinyimagenet import TinyImageNet
from flstudy.population.device_data import DeviceData, EvaluationIndex
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
    ClientLists,
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
from flstudy.population.selection import BySize, ByWeight, PowerOfChoice, Selection
from flstudy.registry import import_modules

import_modules(__name__, __path__)  # a partition or drift that is not listed above can be named in configs, too
