"""Freed memory that stays with the process while it trains.

glibc asks the system for every block above its bound (32 MiB at most) and gives it back at once; each of its pages then
has to be mapped, and zeroed, again when it is first touched. A round makes the same large tensors anew in every step:
on a virtual machine, mapping their pages took a third to a half of the time of a convolution's, or of a wide cohort's.
"""

import ctypes
import os
from typing import Any, Final

# malloc.h: M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_MMAP_MAX
_TRIM, _AHEAD, _BOUND, _BLOCKS = -1, -2, -3, -4
USUAL: Final = {_BLOCKS: 65536, _BOUND: 2**25, _TRIM: 2**26, _AHEAD: 2**17}  # where glibc's moving bounds end
KEEPING: Final = {_BLOCKS: 0, _TRIM: 2**31 - 1, _AHEAD: 2**26}  # as far ahead as the heap of a thread is long
LARGEST: Final = 2**23  # bytes of a model
OWN: Final = (
    "MALLOC_MMAP_MAX_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "GLIBC_TUNABLES",
)
"""Environment variables by which a user sets up malloc; one of them set, it holds."""
_kept = [False]  # by this process, whose allocator has one state for all


def keep_freed_memory(model: int) -> bool:
    """Keep freed memory with this process, under glibc if the environment does not set it up; returns whether it stays.

    Args:
        model: bytes of one. Blocks of many large ones leave holes in which the next do not fit: with 12 million
            parameters a round of 20 devices needed 9.6 GiB instead of 7.0, with 3 million 1.7 instead of 1.2, so that
            there what is freed goes back.
    """
    if model > LARGEST:  # after a fit that failed it may still be kept
        return_freed_memory()
    else:
        _kept[0] = not any(name in os.environ for name in OWN) and _set(KEEPING)
    return _kept[0]


def return_freed_memory() -> bool:
    """Hand back what `keep_freed_memory` kept, and blocks that are freed from now on; returns whether it was done."""
    if not _kept[0] or not _set(USUAL):
        return False
    _kept[0] = False
    _libc().malloc_trim(0)
    return True


def _set(options: dict[int, int]) -> bool:
    """Return whether the C library has these options of malloc and took them."""
    libc = _libc()
    if not hasattr(libc, "gnu_get_libc_version") or not hasattr(libc, "mallopt"):
        return False
    return all(libc.mallopt(option, value) == 1 for option, value in options.items())


def _libc() -> Any:
    """Return the C library that the process runs on; None where it has none to ask."""
    try:
        return ctypes.CDLL(None)
    except (OSError, TypeError):  # Windows
        return None
