"""How tests wait: for a condition, with a limit that no machine is too slow for."""

import time
from collections.abc import Callable

LIMIT_S = 300.0  # only what never happens takes as long


def wait_until(condition: Callable[[], object], poll: Callable[[], int | None] = lambda: None) -> None:
    """Wait for what another process or thread brings about.

    Args:
        condition: true once it has come about; asked again and again.
        poll: the exit status of a process that must not end before, such as a Popen's `poll`; None while it runs.

    Raises:
        AssertionError: the condition did not come about within `LIMIT_S`, or the process ended before it did.
    """
    until = time.monotonic() + LIMIT_S
    while True:
        status = poll()
        if condition():
            return
        assert status is None, f"the process ended before, with {status}"
        assert time.monotonic() < until, f"nothing came about in {LIMIT_S:.0f} s"
        time.sleep(0.02)
