"""Fixtures of the references' self-checks."""

import numpy as np
import pytest

from . import cases


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture
def cohort(rng):
    return [cases.make_device(rng, client, n) for client, n in enumerate([5, 12, 9])]


@pytest.fixture
def x0(rng):
    return rng.normal(size=cases.SIZE)
