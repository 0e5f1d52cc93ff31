"""Laws for classes of one's own, those that flstudy's own classes obey: each raises AssertionError that names the law
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
