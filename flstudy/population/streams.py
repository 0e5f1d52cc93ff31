"""Named independent random streams, counter-based: what a device does in a round never depends on who else is drawn.

A stream is named by (seed, purpose, round, device, ...). ``random_bits`` hashes whole arrays of such names at once:
a cohort's shuffles need no loop; ``generator`` opens a numpy generator for one name where a distribution is needed.
"""

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flstudy.algorithms.parts import draws

GOLDEN = np.uint64(draws.GOLDEN % 2**64)
STEPS = tuple((np.uint64(bits), np.uint64(factor % 2**64)) for bits, factor in draws.STEPS)


def mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply SplitMix64's finalizer (Steele et al. 2014) to words [...]: a bijection of 64-bit words whose output bits
    look independent."""
    for bits, factor in STEPS:
        z = (z ^ (z >> bits)) * factor
    return z ^ (z >> np.uint64(draws.LAST))


def random_bits(seed: Any, purpose: str, *counters: Any) -> NDArray[np.uint64]:
    """Return 64 random bits [...] for every name; ``seed`` and ``counters`` are ints or integer arrays [...] that
    broadcast."""
    with np.errstate(over="ignore"):  # wrapping is the point
        word = mix(np.asarray(seed, dtype=np.uint64) + GOLDEN * np.uint64(1 + zlib.crc32(purpose.encode())))
        for counter in counters:
            word = mixed(word, counter)
    return word


def mixed(word: NDArray[np.uint64], counter: Any) -> NDArray[np.uint64]:
    """Return the random bits [...] of names that go on from words [...] with one more counter, which broadcasts."""
    with np.errstate(over="ignore"):
        return mix(word * GOLDEN + np.asarray(counter, dtype=np.uint64) + np.uint64(1))


def generator(seed: int, purpose: str, *counters: int) -> np.random.Generator:
    """Return a numpy generator for one name."""
    return np.random.Generator(np.random.Philox(key=int(random_bits(seed, purpose, *counters))))


def torch_seed(seed: int, purpose: str) -> int:
    """Return a seed for torch's generators, in [0, 2^63)."""
    return int(random_bits(seed, purpose) >> np.uint64(1))
