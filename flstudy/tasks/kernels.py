"""Kernels in C++ for compiled programs on CPUs: their operators, how these map over lanes, and how they are built.

A program that runs eagerly takes torch's own operations: these kernels round differently. One that is traced for a
compiler takes the kernels, if a compiler can build them here and now. They hold no lock of Python's.
"""

import functools
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flstudy.tasks import compiler

SOURCE = Path(__file__).with_name("kernels.cpp")
_building = threading.Lock()


def folded(
    function: Callable[..., tuple[Tensor, ...]],
    size: int,
    mapped: Sequence[int | None],
    arguments: Sequence[Any],
    inputs: Sequence[int],
    outputs: Sequence[int],
) -> tuple[tuple[Tensor, ...], Sequence[int]]:
    """Return the results of a function with mapped arguments, and the places of their mapped axes.

    The function is called once, on more lanes: the mapped axis and an argument's own lanes become one.

    Args:
        function: of tensors with an axis of lanes.
        size: of the mapped axis.
        mapped: its place in each argument [..., size, ...]; None: the argument is not mapped.
        arguments: tensors first, then those that are none.
        inputs: place of the lanes in each tensor that the function takes.
        outputs: place of the lanes in each result; in those returned here, of the mapped axis, before the lanes.
    """
    flat, others = [], arguments[len(inputs) :]
    for argument, place, lanes in zip(arguments, mapped, inputs, strict=False):
        shape = argument.shape
        if place is None:
            argument = argument.unsqueeze(lanes).expand(*shape[:lanes], size, *shape[lanes:])
        else:
            argument = argument.movedim(place, lanes)
        flat.append(argument.flatten(lanes, lanes + 1))
    results = zip(function(*flat, *others), outputs, strict=True)
    return tuple(result.unflatten(lanes, (size, -1)) for result, lanes in results), tuple(outputs)


def maps(operator: str, inputs: Sequence[int], outputs: Sequence[int]) -> None:
    """Register how an operator maps: by more lanes, which its inputs and outputs have at given places."""

    def several(*arguments: Any) -> tuple[Tensor, ...]:
        results = operator_of(operator)(*arguments)
        return results if isinstance(results, tuple) else (results,)

    def rule(info: Any, mapped: tuple[int | None, ...], *arguments: Any) -> Any:
        results, places = folded(several, info.batch_size, mapped, arguments, inputs, outputs)
        return (results, places) if len(outputs) > 1 else (results[0], places[0])

    torch.library.register_vmap(operator, rule)


def operator_of(name: str) -> Callable[..., Any]:
    """Return the operator of a name such as ``flstudy::lstm``."""
    space, _, operator = name.partition("::")
    return getattr(getattr(torch.ops, space), operator)  # type: ignore[no-any-return]


# ---- the operators of `SOURCE` ---------------------------------------------------------------------------------------


def kernel(schema: str, tensors: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Define an operator by its schema, of whose arguments so many are tensors, and by a function that says the shapes
    of its results; all have their lanes first."""
    name, bracket, signature = schema.partition("(")
    operator = f"flstudy::{name}"

    def register(shapes: Callable[..., Any]) -> Callable[..., Any]:
        torch.library.define(operator, bracket + signature)
        torch.library.impl(operator, "CompositeExplicitAutograd")(functools.partial(build_first, operator))
        torch.library.register_fake(operator)(shapes)
        maps(operator, [0] * tensors, [0] * signature.partition("->")[2].count("Tensor"))
        return operator_of(operator)

    return register


def build_first(operator: str, *arguments: Any) -> Any:
    """Stand in for a kernel that is not built yet, as for a program that comes from a disk: builds and calls it."""
    if arguments[0].device.type != "cpu":
        raise NotImplementedError(f"{operator} runs on CPUs only, got {arguments[0].device}")
    build()
    return operator_of(operator)(*arguments)


@kernel("lstm(Tensor projected, Tensor weight) -> (Tensor, Tensor, Tensor)", 2)
def lstm_kernel(projected: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """Forward `recurrence` of projected [L, B, T, 4H] with weight [L, 4H, H]: hidden states [L, B, T, H] and, for the
    gradient, gates [L, B, T, 4H] and cells [L, B, T, H]."""
    width = weight.shape[2]
    return tuple(projected.new_empty(*projected.shape[:3], size) for size in (width, 4 * width, width))


@kernel("lstm_gradient(Tensor grad, Tensor hidden, Tensor gates, Tensor cells, Tensor weight) -> (Tensor, Tensor)", 5)
def lstm_gradient_kernel(
    grad: Tensor, hidden: Tensor, gates: Tensor, cells: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of projected [L, B, T, 4H] and weight [L, 4H, H], from that of the hidden states, ``grad``
    [L, B, T, H]; what follows is as `lstm_kernel` returned it."""
    return gates.new_empty(gates.shape), weight.new_empty(weight.shape)


@kernel("conv3x3(Tensor x, Tensor weight, int padding) -> Tensor", 2)
def conv3x3_kernel(x: Tensor, weight: Tensor, padding: int) -> Tensor:
    """Return the convolution [L, B, H + 2p - 2, W + 2p - 2, O] of images x [L, B, H, W, C] with weight [L, O, C, 3,
    3]."""
    lanes, batch, height, width, _ = x.shape
    more = 2 * padding - 2
    return x.new_empty(lanes, batch, height + more, width + more, weight.shape[1])


@kernel("conv3x3_gradient(Tensor grad, Tensor x, Tensor weight, int padding) -> (Tensor, Tensor)", 3)
def conv3x3_gradient_kernel(grad: Tensor, x: Tensor, weight: Tensor, padding: int) -> tuple[Tensor, Tensor]:
    """Return the gradients of x [L, B, H, W, C] and weight [L, O, C, 3, 3], from that of the convolution, ``grad`` [L,
    B, H + 2p - 2, W + 2p - 2, O]."""
    return x.new_empty(x.shape), weight.new_empty(weight.shape)


# ---- as functions of one lane that can be differentiated once --------------------------------------------------------


class KeepsResults(torch.autograd.Function):
    """Recurrence of (projected, weight) whose gradient needs all that was computed, and the weight."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        """Keep everything that was computed."""
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*output, inputs[1])


class LstmKernel(KeepsResults):
    """LSTM recurrence by the kernel with its derivative: ``torch.func.grad`` does not take an operator's own one."""

    generate_vmap_rule = True

    @staticmethod
    def forward(projected: Tensor, weight: Tensor) -> Any:
        """Return hidden states, gates and cells, as `lstm_kernel` does of projected [L, B, T, 4H] and weight [L, 4H,
        H]."""
        return lstm_kernel(projected, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Return the gradients of the inputs."""
        return (None, None) if grads[0] is None else LstmKernelGradient.apply(grads[0], *ctx.saved_tensors)


class Conv3x3Kernel(torch.autograd.Function):
    """3×3 convolution by the kernel with its derivative: ``torch.func.grad`` does not take an operator's own one."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, padding: int) -> Any:
        """Return the convolution, as `conv3x3_kernel` does of x [L, B, H, W, C] and weight [L, O, C, 3, 3]."""
        return conv3x3_kernel(x, weight, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the inputs."""
        ctx.save_for_backward(*inputs[:2])
        ctx.padding = inputs[2]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Return the gradients of the inputs."""
        return *Conv3x3KernelGradient.apply(grads[0].contiguous(), *ctx.saved_tensors, ctx.padding), None


class OnceDifferentiable(torch.autograd.Function):
    """Gradient that cannot be differentiated again."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        """Keep nothing."""

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Refuse to differentiate again."""
        raise NotImplementedError("a kernel's gradient cannot be differentiated again; do not compile such a method")


class LstmKernelGradient(OnceDifferentiable):
    """Gradient of `LstmKernel`."""

    @staticmethod
    def forward(*arguments: Tensor) -> Any:
        """Return the gradients of the inputs."""
        return lstm_gradient_kernel(*arguments)


class Conv3x3KernelGradient(OnceDifferentiable):
    """Gradient of `Conv3x3Kernel`."""

    @staticmethod
    def forward(*arguments: Any) -> Any:
        """Return the gradients of the inputs."""
        return conv3x3_gradient_kernel(*arguments)


# ---- where they run --------------------------------------------------------------------------------------------------


def compiling(x: Tensor) -> bool:
    """Return whether a computation with x [...] is being traced for a compiler, and may take kernels."""
    suits = x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)
    return compiler.tracing() and suits and not torch.is_autocast_enabled("cpu") and built()


def build() -> None:
    """Compile and load `SOURCE`."""
    with _building:
        compiler.load_source(SOURCE.read_text())


def shims() -> dict[Any, list[str]]:
    """Return the declarations by which C++ calls the kernels: torch's option ``aot_inductor.custom_ops_to_c_shims``."""
    arg, name = "AtenTensorHandle", "AOTITorchError aoti_torch_cpu_"
    by_operator = {
        lstm_kernel: f"{name}lstm({arg}, {arg}, {arg}*, {arg}*, {arg}*)",
        lstm_gradient_kernel: f"{name}lstm_gradient({arg}, {arg}, {arg}, {arg}, {arg}, {arg}*, {arg}*)",
        conv3x3_kernel: f"{name}conv3x3({arg}, {arg}, int64_t, {arg}*)",
        conv3x3_gradient_kernel: f"{name}conv3x3_gradient({arg}, {arg}, {arg}, int64_t, {arg}*, {arg}*)",
    }
    return {operator.default: [shim] for operator, shim in by_operator.items()}  # type: ignore[attr-defined]


@functools.cache
def built() -> bool:
    """Return whether the kernels could be built; warns if not."""
    try:
        build()
    except Exception as error:
        first, *_ = str(error).strip().splitlines() or [""]
        trouble = f"kernels: programs go without those in C++, since these could not be built: {type(error).__name__}"
        warnings.warn(f"{trouble}: {first[:100]}", stacklevel=2)
        return False
    return True
