"""An accelerator that is pretended on the CPU: what a GPU refuses, it refuses, and what a GPU waits for, it counts.

Its tensors say ``device='pretended:0'``. Each holds an ordinary tensor on which the CPU computes, so that results are
the CPU's, bit for bit. PyTorch knows it as a backend of its own (PrivateUse1): transforms, autograd, modules and
Lightning treat it like any other device. Registered once, it stays for the process, but is there only while
`pretending`. What it does not pretend: speed, kernels of its own, streams.
"""

import functools
import gc
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from lightning.pytorch.accelerators import Accelerator, AcceleratorRegistry
from torch import Tensor
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _DummyPrivateUse1Hook,
    _setup_privateuseone_for_python_backend,
)

from .waits import call_site, note

NAME = "pretended"
DEVICE = torch.device("privateuseone", 0)  # called by its name after the registration below
MIB = 2**20

aten = torch.ops.aten
COPIES = {aten.copy_.default, aten._to_copy.default}
# What takes a tensor of the host beside those of the device, as CUDA's kernels do: they fetch it, or read one number.
TAKES_HOST = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten.fill_.Tensor}


class State:
    """What the device knows."""

    def __init__(self) -> None:
        self.pretending = False
        self.limit: int | None = None  # bytes
        self.used = self.peak = 0
        self.refused: Exception | None = None  # not raised yet
        self.random = torch.Generator().manual_seed(1).get_state()  # not the host's


state = State()


def refuse(error: Exception) -> None:
    """Raise an error; out of a backward pass, which an exception of a Python kernel would end with the process, as soon
    as that is over."""
    state.refused = state.refused or error
    del error  # a frame that holds its own error would hold all memory of the frames before it
    raise_refused()


def raise_refused() -> None:
    """Raise the error, if there is one and it can be raised."""
    if state.refused is not None and torch._C._current_graph_task_id() == -1:
        held = [state.refused]
        state.refused = None
        raise held.pop()


# ---- memory --------------------------------------------------------------------------------------------------------


class Allocation:
    """A storage on the device; its bytes are free again when nobody holds it."""

    def __init__(self, count: int) -> None:
        if state.limit is not None and state.used + count > state.limit:
            free = max(state.limit - state.used, 0) / MIB
            refuse(
                torch.OutOfMemoryError(
                    f"CUDA out of memory. Tried to allocate {count / MIB:.2f} MiB. GPU 0 has a total capacity of "
                    f"{state.limit / MIB:.2f} MiB of which {free:.2f} MiB is free. (pretended, at {call_site()})"
                )
            )
        self.count = count
        state.used += count
        state.peak = max(state.peak, state.used)

    def __del__(self) -> None:
        state.used -= getattr(self, "count", 0)


allocations: weakref.WeakValueDictionary[int, Allocation] = weakref.WeakValueDictionary()  # by address


def allocation(inner: Tensor) -> Allocation:
    """Of a tensor's storage: views share it."""
    storage = inner.untyped_storage()
    entry = allocations.get(storage.data_ptr()) if storage.nbytes() else None
    if entry is None:
        entry = Allocation(storage.nbytes())
        if storage.nbytes():
            allocations[storage.data_ptr()] = entry
    return entry


# ---- tensors -------------------------------------------------------------------------------------------------------


class Pretended(Tensor):
    """A tensor on the device."""

    inner: Tensor  # that the CPU computes with

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Pretended":
        held = allocation(inner)
        tensor = Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
        )
        tensor.inner, tensor.held = inner, held  # type: ignore[attr-defined]
        return tensor  # type: ignore[return-value]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})

    def __repr__(self) -> str:  # type: ignore[override]
        return f"{self.inner!r} on {NAME}"

    def tolist(self) -> Any:
        """As of any tensor; torch refuses it for subclasses."""
        return self.cpu().tolist()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Saved as what a checkpoint is loaded as: a tensor of the host."""
        return self.cpu().__reduce_ex__(protocol)


def inside(value: Any) -> Any:
    """Arguments with ordinary tensors."""
    if isinstance(value, Pretended):
        return value.inner
    if isinstance(value, list | tuple):
        return type(value)(map(inside, value))
    return value


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors of some arguments."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors(part)


class Kind(NamedTuple):
    """What an operation is like."""

    pointwise: bool
    host_reads: bool  # its result, or the shape of it, is told to the host
    random: bool
    changes: bool  # its first argument


@functools.cache
def kind(func: Any) -> Kind:
    """Of an operation."""
    first = func._schema.arguments[0] if func._schema.arguments else None
    host_reads = torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags
    return Kind(
        pointwise=torch.Tag.pointwise in func.tags,
        host_reads=host_reads and func is not aten.index.Tensor,  # that only where it is given a mask
        random=torch.Tag.nondeterministic_seeded in func.tags,
        changes=first is not None and first.alias_info is not None and first.alias_info.is_write,
    )


def check(func: Any, operands: list[Tensor]) -> None:
    """Raise RuntimeError where a GPU would: for operands on the host, other than the numbers that kernels take."""
    strangers = [tensor for tensor in operands if not isinstance(tensor, Pretended)]
    if not strangers or func in COPIES:
        return
    written = kind(func).changes and not isinstance(operands[0], Pretended)
    if not written and (func in TAKES_HOST or kind(func).pointwise) and all(t.dim() == 0 for t in strangers):
        return
    indices = func in TAKES_HOST and all(t.dtype in (torch.int64, torch.bool) for t in strangers)
    if indices and isinstance(operands[0], Pretended):
        note(f"{func} with an index on the host")  # which is copied first
        return
    shapes = ", ".join(str(tuple(tensor.shape)) for tensor in strangers)
    refuse(
        RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {NAME}:0 and cpu! "
            f"{func} was given {shapes} of the host at {call_site()}"
        )
    )


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operation on the device, or from and to it."""
    raise_refused()
    operands = [*tensors(args), *tensors(tuple(kwargs.values()))]
    check(func, operands)
    plain = {name: inside(value) for name, value in kwargs.items()}
    to = plain.get("device")
    if to is not None and to.type == DEVICE.type:
        plain["device"] = torch.device("cpu")
    away = to is not None and to.type == "cpu"
    how = kind(func)
    masked = func in TAKES_HOST and any(t.dtype in (torch.bool, torch.uint8) for t in tensors(args[1]))
    if how.host_reads or masked:
        note(str(func))
    if func in COPIES:
        source = args[1] if func is aten.copy_.default else args[0]
        target_here = not away if func is aten._to_copy.default else isinstance(args[0], Pretended)
        if isinstance(source, Pretended) != target_here and (not target_here or not waits_not(args, kwargs)):
            note(f"{func} to the {'device' if target_here else 'host'}")
    if how.random and kwargs.get("generator") is not None:
        raise RuntimeError(f"Expected a '{NAME}' device type for generator but found 'cpu' at {call_site()}")
    with own_random() if how.random else nothing():
        out = func(*inside(args), **plain)
    if away:
        return out
    wrappers = {id(t.inner): t for t in operands if isinstance(t, Pretended)}
    changed = [t for t in operands[:1] if how.changes and isinstance(t, Pretended)]
    assert all(t.shape == t.inner.shape for t in changed), f"{func} changes a shape in place: not pretended yet"
    if how.changes and not isinstance(operands[0], Pretended):
        return out  # a tensor of the host, copied to
    return outside(out, wrappers)


def outside(value: Any, wrappers: Mapping[int, Pretended]) -> Any:
    """Results as tensors of the device; what was changed in place stays itself."""
    if isinstance(value, Tensor):
        return wrappers.get(id(value)) if id(value) in wrappers else Pretended(value)
    if isinstance(value, list | tuple):
        return type(value)(outside(part, wrappers) for part in value)
    return value


def waits_not(args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether a copy to the device was asked to be ``non_blocking``."""
    return bool(kwargs.get("non_blocking", args[2] if len(args) > 2 else False))


@contextmanager
def nothing() -> Iterator[None]:
    """No change."""
    yield


@contextmanager
def own_random() -> Iterator[None]:
    """The device's random numbers."""
    generator = torch.random.default_generator
    host = generator.get_state()
    generator.set_state(state.random)
    try:
        yield
    finally:
        state.random = generator.get_state()
        generator.set_state(host)


# ---- the backend ---------------------------------------------------------------------------------------------------


class Module(_DummyBackendModule):
    """``torch.pretended``."""

    def is_available(self) -> bool:
        return state.pretending

    def device_count(self) -> int:
        return int(state.pretending)

    def manual_seed_all(self, seed: int) -> None:
        state.random = torch.Generator().manual_seed(seed).get_state()

    manual_seed = manual_seed_all  # there is but one

    def get_rng_state(self, device: Any = None) -> Tensor:
        return state.random

    def set_rng_state(self, new: Tensor, device: Any = None) -> None:
        state.random = new

    def synchronize(self, device: Any = None) -> None:
        note("synchronize")

    def empty_cache(self) -> None:
        """Nothing is cached."""


class Hook(_DummyPrivateUse1Hook):
    """Says to torch itself whether there is such a device."""

    def is_available(self) -> bool:
        return state.pretending


def creator(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function that makes tensors, on the device."""

    def make(*args: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None,
             **more: Any) -> Tensor:  # fmt: skip
        return Pretended(function(*args, dtype=dtype, **more))

    return make


def copy_(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """What ``torch.tensor(…, device=…)`` ends with, past the subclass."""
    done: Tensor = run(aten.copy_.default, (target, source, non_blocking), {})
    return done


class PretendedAccelerator(Accelerator):
    """Lightning's view."""

    def setup_device(self, device: torch.device) -> None: ...

    def teardown(self) -> None: ...

    @staticmethod
    def parse_devices(devices: Any) -> Any:
        return devices

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        return [DEVICE]

    @staticmethod
    def auto_device_count() -> int:
        return 1

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def name() -> str:
        return NAME


@functools.cache
def register() -> torch.library.Library:
    """Make the device known to torch and Lightning, once."""
    _setup_privateuseone_for_python_backend(NAME, Module(), Hook())
    kernels = torch.library.Library("aten", "IMPL")
    kernels.impl("empty.memory_format", creator(torch.empty), "PrivateUse1")
    kernels.impl("empty_strided", creator(torch.empty_strided), "PrivateUse1")
    for overload in ("arange", "arange.start", "arange.start_step"):
        kernels.impl(overload, creator(torch.arange), "PrivateUse1")
    kernels.impl("copy_", copy_, "PrivateUse1")
    AcceleratorRegistry.register(NAME, PretendedAccelerator)
    return kernels


# ---- using it ------------------------------------------------------------------------------------------------------


@contextmanager
def pretending() -> Iterator[torch.device]:
    """The device is there. Gradients are computed in the caller's thread, which knows the lines that asked for them."""
    register()
    state.pretending = True
    try:
        with torch.autograd.set_multithreading_enabled(False):
            yield DEVICE
    finally:
        state.pretending, state.refused = False, None


def peak(call: Callable[[], Any]) -> tuple[Any, int]:
    """What a call returns, and the bytes that it needed beside those held before."""
    gc.collect()  # or what earlier runs left in cycles would be freed within the call
    state.peak = before = state.used
    done = call()
    return done, state.peak - before  # what it returns included


@contextmanager
def limited(count: int) -> Iterator[None]:
    """The device with so many bytes more than it holds now."""
    gc.collect()
    state.limit = state.used + count
    try:
        yield
    finally:
        state.limit = None
