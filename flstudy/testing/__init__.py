"""Checks that a class of your own obeys the laws of flstudy's classes: each raises an AssertionError that names the law
and the numbers that break it."""

from flstudy.testing.algorithms import check_algorithm
from flstudy.testing.worlds import check_controller, check_dataset, check_drift, check_measure, check_partition

__all__ = [
    "check_algorithm",
    "check_controller",
    "check_dataset",
    "check_drift",
    "check_measure",
    "check_partition",
]
