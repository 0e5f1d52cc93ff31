"""Random numbers of devices as functions of a key: the same in every executor, compiled or not, on every machine.

Threefry-2x32 with twenty rounds (Salmon et al. 2011): torch's generators have a state, which devices that are mapped
together cannot share. Words of 32 bits lie in integers of 64, so that no sum or shift overflows.
"""

import math

import torch
from torch import Tensor

WORD = 2**32 - 1
PARITY = 0x1BD11BDA  # of the key schedule
ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)


def threefry(key: tuple[Tensor, Tensor], counter: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Two random words [...] for each counter, a pair of words [...] as the key is."""
    keys = (*key, key[0] ^ key[1] ^ PARITY)
    a, b = ((word + part) & WORD for word, part in zip(counter, key, strict=True))
    for number in range(1, 6):
        for bits in ROTATIONS[(number - 1) % 2]:
            a = (a + b) & WORD
            b = a ^ ((b << bits | b >> (32 - bits)) & WORD)
        a, b = (a + keys[number % 3]) & WORD, (b + keys[(number + 1) % 3] + number) & WORD
    return a, b


def fold_in(key: Tensor, number: Tensor | int) -> Tensor:
    """Another key [], of a key [] and a number from 0, as of a local step: ``fold_in(msg.key, local.steps)``."""
    low, high = threefry(_words(key), _words(torch.as_tensor(number, device=key.device).long()))
    return low | (high >> 1) << 32


def uniform(key: Tensor, like: Tensor) -> Tensor:
    """Independent numbers from [0, 1) for a key [], of the shape and type of ``like``; one key gives the same ones."""
    low, high = _bits(key, like)
    if like.dtype == torch.float64:
        return ((low >> 5).double() * 2**26 + (high >> 6).double()) * 2.0**-53
    digits = -int(math.log2(torch.finfo(like.dtype).eps)) + 1  # fewer than a type has would be rounded up to 1
    return (low >> (32 - digits)).to(like.dtype) * 2.0**-digits


def normal(key: Tensor, like: Tensor) -> Tensor:
    """Independent standard normal numbers for a key [], of the shape and type of ``like`` (Box and Muller 1958)."""
    low, high = _bits(key, like)
    real = torch.promote_types(like.dtype, torch.float32)  # half precision would have no tails
    radius = (((low + 1).to(real) * 2.0**-32).log() * -2).sqrt()
    return (radius * (high.to(real) * (2 * math.pi * 2.0**-32)).cos()).to(like.dtype)


def _bits(key: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Two words for each entry of ``like``."""
    places = torch.arange(like.numel(), device=like.device).view(like.shape)
    return threefry(_words(key), _words(places))


def _words(number: Tensor) -> tuple[Tensor, Tensor]:
    """The lower and the upper word of integers of 64 bits."""
    return number & WORD, number >> 32 & WORD
