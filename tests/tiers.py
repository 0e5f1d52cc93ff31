"""The two tiers of tests: what `make test` tries, and what only `make test-all` does."""

from collections.abc import Container, Iterable
from typing import Any

import pytest


def in_tiers(cases: Iterable[Any], first: Container[Any]) -> list[Any]:
    """Parameters of a test: `make test` tries those of the first tier, `make test-all` tries all."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if case in first else pytest.mark.thorough,
            id="-".join(map(str, case)) if isinstance(case, tuple) else case,
        )
        for case in dict.fromkeys(cases)
    ]
