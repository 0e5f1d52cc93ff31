"""Where examples come from: one file per source. A data set gives examples, and who owns them where it knows."""

from flstudy.population.datasets.base import Dataset, Examples, InMemory
from flstudy.population.datasets.images import Cifar10, Cifar100, Digits, FashionMnist, Mnist, Svhn
from flstudy.population.datasets.landmarks import Landmarks
from flstudy.population.datasets.libsvm import LibSvm
from flstudy.population.datasets.natural import Emnist, Shakespeare, StackOverflow
from flstudy.population.datasets.news import AgNews
from flstudy.population.datasets.synthetic import HeavyTails, Synthetic
from flstudy.population.datasets.tags import StackOverflowTags
from flstudy.population.datasets.tinyimagenet import TinyImageNet

__all__ = [
    "AgNews",
    "Cifar10",
    "Cifar100",
    "Dataset",
    "Digits",
    "Emnist",
    "Examples",
    "FashionMnist",
    "HeavyTails",
    "InMemory",
    "Landmarks",
    "LibSvm",
    "Mnist",
    "Shakespeare",
    "StackOverflow",
    "StackOverflowTags",
    "Svhn",
    "Synthetic",
    "TinyImageNet",
]
