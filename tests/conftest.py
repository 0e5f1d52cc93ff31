"""What all tests share: one thread, one Ray cluster, and the units into which pytest-xdist divides the suite."""

import gc
import os

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """The problems are tiny: more threads only wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory):
    """The list of stores that a user has chosen is not that of who runs the tests."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session")
def ray_cluster():
    """The one local Ray of all studies of a session (of pytest-xdist: of each worker), which they join.

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


# What takes longest comes first: nothing long should begin when all the rest is done.
LONG = (
    "tests/tuning/test_study",
    "tests/tuning/test_away",
    "tests/laws/test_executors",
    "tests/reproduction/test_reproduce",
    "tests/tuning/test_resume",
    "tests/tuning",
    "tests/tracking",
    "tests/reproduction",
    "tests/laws",
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Put the files that take longest first."""
    items.sort(key=lambda item: next((n for n, name in enumerate(LONG) if item.nodeid.startswith(name)), len(LONG)))


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_make_scheduler(config, log):
    """With ``--dist loadfile`` a worker gets file after file in the order above, not in that of their numbers of tests,
    which say nothing of their length."""
    config.option.loadscopereorder = False
