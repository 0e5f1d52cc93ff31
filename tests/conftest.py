"""What all tests share: torch's threads, one Ray cluster, and the units into which pytest-xdist divides the suite."""

import functools
import gc
import os
import shutil
from pathlib import Path

import pytest
import torch
from lightning.fabric.utilities import registry

from flstudy.local_ray import close_doors

close_doors()  # before a test imports Ray, whose older releases read then whether they ask for a token

gc.disable()  # until all is imported: looking through it again and again took a fifth of a short run


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    """What was imported stays: with it a full collection takes a second, and there are hundreds of them. What tests
    import and keep makes them dear again, so that they are rarer than usual."""
    gc.freeze()
    gc.set_threshold(700, 10, 50)
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """One thread, or as many as FLSTUDY_TEST_THREADS says: the problems are tiny, and more threads only wait for each
    other, by spinning. A test that has left more of them to the next made its tasks six times as slow."""
    torch.set_num_threads(int(os.environ.get("FLSTUDY_TEST_THREADS", "1")))


@pytest.fixture(scope="session", autouse=True)
def known_plugins():
    """Lightning reads the metadata of all that is installed for every Trainer, of which executors make one per job."""
    registry.entry_points = functools.cache(registry.entry_points)


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


@pytest.fixture(scope="module")
def browser():
    """Debian's chromium by playwright; a test that needs one is skipped where one of the two is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install '.[dev]'")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("needs a browser: apt-get install chromium")
    with playwright.sync_playwright() as started:
        # As root, in a container, chromium's sandbox cannot be set up; the pages are our own.
        launched = started.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield launched
        launched.close()


@pytest.fixture
def shoot(tmp_path, request):
    """Leaves a screenshot of a page in pytest's temporary folder, or in the folder that FLSTUDY_SCREENSHOTS names:

    FLSTUDY_SCREENSHOTS=shots pytest tests/tracking/test_browser.py
    """

    def shot(page, **how):
        folder = Path(os.environ.get("FLSTUDY_SCREENSHOTS", tmp_path))
        page.screenshot(path=folder / f"{request.node.name}.png", **how)

    return shot


@pytest.fixture
def let_go():
    """For tests with models of ten million parameters: a Trainer's cycles would keep gigabytes of them for a while."""
    before = resident()
    yield
    if resident() > before + 2**29:  # collecting takes a second, which the tests with small models need not spend
        gc.collect()


def resident() -> int:
    """Bytes of memory that this process has; 0 where Linux does not say."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0


# What takes longest comes first: nothing long should begin when all the rest is done.
LONG = (
    "tests/test_studies",
    "tests/laws/test_executors",
    "tests/tuning/test_signals",
    "tests/tuning/test_resume_study",
    "tests/tuning/test_study",
    "tests/tuning/test_away",
    "tests/reproduction/test_reproduce",
    "tests/tracking/test_writers",
    "tests/laws/test_resume",
    "tests/laws/test_references",
    "tests/tuning",
    "tests/tracking",
    "tests/reproduction",
    "tests/laws",
    "tests/accelerator",
    "tests/tasks",
    "tests/metrics/test_registry",
    "tests/study/test_damage",
    "tests/controllers/test_masterfl",
    "tests/federation/test_trainer_flags",
)


SLOW_FIXTURES = {"browser", "mlflow", "nodes", "ray_cluster", "server"}
"""They start a cluster, a server or a browser."""
STUDY = "tests/test_studies.py::"
"""The one file whose study on a real Ray `make test` runs."""


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item):
    """Mark as slow what a slow fixture is for."""
    if SLOW_FIXTURES & {*item.fixturenames} and not item.nodeid.startswith(STUDY):
        item.add_marker(pytest.mark.slow)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Put the files that take longest first."""
    items.sort(key=lambda item: next((n for n, name in enumerate(LONG) if item.nodeid.startswith(name)), len(LONG)))


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_make_scheduler(config, log):
    """With ``--dist loadfile`` a worker gets file after file in the order above, not in that of their numbers of tests,
    which say nothing of their length."""
    config.option.loadscopereorder = False
