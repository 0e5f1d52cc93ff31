"""Helpers for accelerators of any kind: transfers without waiting, memory, and random numbers of their own."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


def accelerated(device: torch.device) -> bool:
    """Return whether a device works on its own while the host goes on."""
    return device.type != "cpu"


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor [...] of the host on a device.

    The host goes on once the numbers are on their way: a plain ``to`` would wait for everything that the device still
    has to do.
    """
    return tensor.to(device, non_blocking=True)


def numbers(values: Sequence[int], device: torch.device) -> Tensor:
    """Return [K]: K integers of the host on a device; the host does not wait, as in `to_device`."""
    return to_device(torch.tensor(values, dtype=torch.int64), device)


def synchronize(device: torch.device) -> None:
    """Wait until a device has done everything."""
    if accelerated(device):
        torch.get_device_module(device).synchronize()


def release_memory(device: torch.device) -> None:
    """Release the device memory that torch's allocator keeps for later."""
    if accelerated(device):
        torch.get_device_module(device).empty_cache()


@contextmanager
def forked_random(device: torch.device, seed: int | None = None) -> Iterator[None]:
    """Fork the random generators of host and device: draws within leave no trace, and with a seed are that seed's."""
    devices = [device] if accelerated(device) else []
    with torch.random.fork_rng(devices, device_type=device.type if devices else "cuda"):
        # Not torch.manual_seed: it keeps the seed, with a stack trace, for every kind of device that may be used later.
        if seed is not None:
            torch.default_generator.manual_seed(seed)
            for _ in devices:
                torch.get_device_module(device).manual_seed(seed)
        yield
