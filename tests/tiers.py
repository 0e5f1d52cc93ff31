"""The cases of a test that `make test` runs; `make test-all` runs all of them."""

from collections.abc import Container, Iterable
from typing import Any

import pytest


def in_tiers(cases: Iterable[Any], first: Container[Any]) -> list[Any]:
    """Mark the cases of a parametrized test as slow, all but some.

    Args:
        cases: the test's arguments, one or a tuple of them for each case.
        first: the cases that `make test` runs.
    """
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if case in first else pytest.mark.slow,
            id="-".join(_name(argument) for argument in (case if isinstance(case, tuple) else (case,))),
        )
        for case in dict.fromkeys(cases)
    ]


def _name(argument: Any) -> str:
    return argument.__name__ if isinstance(argument, type) else str(argument)
