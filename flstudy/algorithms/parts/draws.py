"""Random numbers of devices as functions of a key: the same in every executor, compiled or not, on every machine.

Torch's generators have a state, which devices that are mapped together cannot share. Words have 64 bits, as integers
whose products wrap.
"""

import math

import torch
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # 2^64 by the golden ratio, as all factors a signed number
STEPS = (30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64)  # shifts and factors of `_mix`
LAST = 31  # shift at its end


def _mix(z: Tensor) -> Tensor:
    """Apply SplitMix64's finalizer (Steele et al. 2014) of words [...]."""
    for bits, factor in STEPS:
        z = (z ^ _shifted(z, bits)) * factor
    return z ^ _shifted(z, LAST)


def _shifted(z: Tensor, bits: int) -> Tensor:
    """Return the words [...] without their lowest bits, zeros coming in from above."""
    return torch.bitwise_and(z >> bits, 2 ** (64 - bits) - 1)


def _mixed(word: Tensor, counter: Tensor) -> Tensor:
    """Return the random words of names that go on with one more counter."""
    return _mix(word * GOLDEN + counter + 1)


def fold_in(key: Tensor, number: Tensor | int) -> Tensor:
    """Return another key [], of a key [] and a number from 0, as of a local step: ``fold_in(msg.key, local.steps)``."""
    return _mixed(key, torch.as_tensor(number, device=key.device).long())


def uniform(key: Tensor, like: Tensor) -> Tensor:
    """Return independent numbers from [0, 1) for a key [], of the shape and type of ``like``; one key gives the same
    ones."""
    digits = 1 - int(math.log2(torch.finfo(like.dtype).eps))  # with more of them a number would be rounded up to 1
    return _shifted(_words(key, like), 64 - digits).to(like.dtype) * 2.0**-digits


def normal(key: Tensor, like: Tensor) -> Tensor:
    """Return independent standard normal numbers for a key [], of the shape and type of ``like`` (Box and Muller
    1958)."""
    words, real = _words(key, like), torch.promote_types(like.dtype, torch.float32)  # half precision has no tails
    radius = ((_shifted(words, 32).to(real) + 0.5) * 2.0**-32).log().mul(-2).sqrt()
    angle = (words & 2**32 - 1).to(real) * (2 * math.pi * 2.0**-32)
    return (radius * angle.cos()).to(like.dtype)


def _words(key: Tensor, like: Tensor) -> Tensor:
    """Return a word for each entry of ``like``."""
    return _mixed(key, torch.arange(like.numel(), device=like.device).view(like.shape))
