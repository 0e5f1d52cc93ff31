"""For all tests."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """The problems are tiny: more threads only wait for each other."""
    torch.set_num_threads(1)


def pytest_collection_modifyitems(items):
    """Files with real workers and servers come first: they take longest, so none is left for one process alone."""
    slow = {item.path for item in items if item.get_closest_marker("end_to_end")}
    items.sort(key=lambda item: item.path not in slow)
