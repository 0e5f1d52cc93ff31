"""What all tests share: one thread, one Ray cluster, and the units into which pytest-xdist divides the suite."""

import gc
import os

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """The problems are tiny: more threads only wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def ray_cluster():
    """The one local Ray of all studies of the session, each of which joins it; its tests run in one xdist worker.

    A test that shoots at drivers or at Ray itself starts its own, in a process of its own.
    """
    from flstudy.config import Resources
    from flstudy.tuning.cluster import cluster

    os.environ.setdefault("RAY_worker_niceness", "0")  # 15 would let them starve beside the other xdist worker
    with cluster(Resources()):
        yield


@pytest.fixture
def let_go():
    """For tests with models of ten million parameters: a Trainer's cycles would keep gigabytes of them for a while."""
    yield
    gc.collect()


# The longest after Ray: none of them should begin when all others are done.
LONG = (
    "tests/laws/test_executors",
    "tests/tracking",
    "tests/reproduction",
    "tests/laws",
    "tests/tasks",
    "tests/config",
)


def when(item):
    """The place of a test's file in the order of work."""
    if "ray_cluster" in item.fixturenames:
        return -1
    return next((place for place, name in enumerate(LONG) if item.nodeid.startswith(name)), len(LONG))


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the marks
def pytest_collection_modifyitems(items):
    """With ``--dist loadgroup`` a file is a unit of work, except that all tests with Ray are one unit, the first."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            group = "ray" if "ray_cluster" in item.fixturenames else item.nodeid.split("::")[0]
            item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=when)
