"""For all tests."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """The problems are tiny: more threads only wait for each other."""
    torch.set_num_threads(1)
