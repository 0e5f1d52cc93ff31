"""Kernels in C++ for compiled programs on CPUs: their operators, how these map over lanes, and how they are built.

A program that runs eagerly takes torch's own operations: these kernels round differently. One that is traced for a
compiler takes the kernels, if a compiler can build them here and now. They hold no lock of Python's.
"""

import contextlib
import ctypes
import functools
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

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
    """A function with mapped arguments as one on more lanes, which its inputs and outputs have at given places;
    arguments that are no tensors come last and are left out of ``inputs``."""
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
    """The operator of a name such as ``flstudy::lstm``."""
    space, _, own = name.partition("::")
    return getattr(getattr(torch.ops, space), own)  # type: ignore[no-any-return]


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
    """In a kernel's place until it is built, as for a program that comes from a disk."""
    if arguments[0].device.type != "cpu":
        raise NotImplementedError(f"{operator} runs on CPUs only, got {arguments[0].device}")
    build()
    return operator_of(operator)(*arguments)


@kernel("lstm(Tensor projected, Tensor weight) -> (Tensor, Tensor, Tensor)", 2)
def lstm_kernel(projected: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """`recurrence` of projected [L, B, T, 4H] with weight [L, 4H, H]: hidden states [L, B, T, H] and, for the gradient,
    gates [L, B, T, 4H] and cells [L, B, T, H]."""
    width = weight.shape[2]
    return tuple(projected.new_empty(*projected.shape[:3], size) for size in (width, 4 * width, width))


@kernel("lstm_gradient(Tensor grad, Tensor hidden, Tensor gates, Tensor cells, Tensor weight) -> (Tensor, Tensor)", 5)
def lstm_gradient_kernel(
    grad: Tensor, hidden: Tensor, gates: Tensor, cells: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients with respect to projected and weight, from that of the hidden states."""
    return gates.new_empty(gates.shape), weight.new_empty(weight.shape)


@kernel("conv3x3(Tensor x, Tensor weight, int padding) -> Tensor", 2)
def conv3x3_kernel(x: Tensor, weight: Tensor, padding: int) -> Tensor:
    """Images x [L, B, H, W, C] convolved with weight [L, O, C, 3, 3]: [L, B, H + 2p - 2, W + 2p - 2, O]."""
    lanes, batch, height, width, _ = x.shape
    more = 2 * padding - 2
    return x.new_empty(lanes, batch, height + more, width + more, weight.shape[1])


@kernel("conv3x3_gradient(Tensor grad, Tensor x, Tensor weight, int padding) -> (Tensor, Tensor)", 3)
def conv3x3_gradient_kernel(grad: Tensor, x: Tensor, weight: Tensor, padding: int) -> tuple[Tensor, Tensor]:
    """Gradients with respect to x and weight."""
    return x.new_empty(x.shape), weight.new_empty(weight.shape)


# ---- as functions of one lane that can be differentiated once --------------------------------------------------------


class KeepsResults(torch.autograd.Function):
    """A recurrence of (projected, weight), whose gradient needs all that was computed, and the weight."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        """Keep everything that was computed."""
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*output, inputs[1])


class LstmKernel(KeepsResults):
    """``torch.func.grad`` does not take an operator's own derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(projected: Tensor, weight: Tensor) -> Any:
        """Hidden states and what the gradient needs."""
        return lstm_kernel(projected, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Gradients of the inputs."""
        return (None, None) if grads[0] is None else LstmKernelGradient.apply(grads[0], *ctx.saved_tensors)


class Conv3x3Kernel(torch.autograd.Function):
    """The same for a convolution."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, padding: int) -> Any:
        """The convolved images."""
        return conv3x3_kernel(x, weight, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the inputs."""
        ctx.save_for_backward(*inputs[:2])
        ctx.padding = inputs[2]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Gradients of the inputs."""
        return *Conv3x3KernelGradient.apply(grads[0].contiguous(), *ctx.saved_tensors, ctx.padding), None


class OnceDifferentiable(torch.autograd.Function):
    """A gradient, which has none itself."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        """Nothing is kept."""

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Refused."""
        raise NotImplementedError("a kernel's gradient cannot be differentiated again; do not compile such a method")


class LstmKernelGradient(OnceDifferentiable):
    """Of `LstmKernel`."""

    @staticmethod
    def forward(*arguments: Tensor) -> Any:
        """Gradients of the inputs."""
        return lstm_gradient_kernel(*arguments)


class Conv3x3KernelGradient(OnceDifferentiable):
    """Of `Conv3x3Kernel`."""

    @staticmethod
    def forward(*arguments: Any) -> Any:
        """Gradients of the inputs."""
        return conv3x3_gradient_kernel(*arguments)


# ---- where they run --------------------------------------------------------------------------------------------------


def compiling(x: Tensor) -> bool:
    """Whether a computation with x is being traced for a compiler, and may take kernels."""
    traced = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None
    suits = x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)
    return traced and suits and not torch.is_autocast_enabled("cpu") and built()


def build() -> None:
    """Compile `SOURCE` with the compiler and into the cache that torch's own programs use, and load it."""
    from torch._inductor.codecache import CppCodeCache  # seconds of imports, which tracing has done by now

    with _building:
        library = trusting(lambda: CppCodeCache.load(SOURCE.read_text()))
        ctypes.CDLL(library._name, mode=ctypes.RTLD_GLOBAL)  # for programs that call a kernel by its `shims`


def trusting(compile: Callable[[], Any]) -> Any:
    """What a call of torch's compiler returns, which takes for granted that the C++ compiler knows the processor's
    instructions. Otherwise torch compiles and runs an example of each kind, which takes longer than a program; that is
    left for where the compiler turns out to be older than the processor."""
    from torch._inductor import config, cpu_vec_isa
    from torch._inductor.exc import CppCompileError

    try:
        with config.patch({"cpp.vec_isa_ok": True}), no_examples(cpu_vec_isa.VecISA):
            return compile()
    except CppCompileError:
        cpu_vec_isa.valid_vec_isa_list.cache_clear()
        for kind in (cpu_vec_isa.VecAVX512, cpu_vec_isa.VecAVX512VNNI, cpu_vec_isa.VecAMX):
            for remembered in (kind.__bool__, kind.is_avx512_bf16_supported):
                getattr(remembered, "cache_clear", list)()
        for processor in cpu_vec_isa.supported_vec_isa_list:
            vars(processor).pop("_is_avx512_bf16_supported", None)
        return compile()


@contextlib.contextmanager
def no_examples(kind: Any) -> Iterator[None]:
    """Torch's examples of rarer instructions are neither compiled nor run, which takes a second each: the processor
    tells that it has them."""
    probe = vars(kind).get("check_build")
    if probe is None or probe is granted:  # another version, or another thread is here
        yield
        return
    kind.check_build = granted
    try:
        yield
    finally:
        kind.check_build = probe


def granted(kind: Any, code: str) -> bool:
    """In the place of an example's result."""
    return True


def shims() -> dict[Any, list[str]]:
    """How C++ calls the kernels without Python: torch's option ``aot_inductor.custom_ops_to_c_shims``."""
    one, name = "AtenTensorHandle", "AOTITorchError aoti_torch_cpu_"
    by_operator = {
        lstm_kernel: f"{name}lstm({one}, {one}, {one}*, {one}*, {one}*)",
        lstm_gradient_kernel: f"{name}lstm_gradient({one}, {one}, {one}, {one}, {one}, {one}*, {one}*)",
        conv3x3_kernel: f"{name}conv3x3({one}, {one}, int64_t, {one}*)",
        conv3x3_gradient_kernel: f"{name}conv3x3_gradient({one}, {one}, {one}, int64_t, {one}*, {one}*)",
    }
    return {operator.default: [told] for operator, told in by_operator.items()}  # type: ignore[attr-defined]


@functools.cache
def built() -> bool:
    """Whether the kernels could be built; warns if not."""
    try:
        build()
    except Exception as error:
        first, *_ = str(error).strip().splitlines() or [""]
        told = f"kernels: programs go without those in C++, since these could not be built: {type(error).__name__}"
        warnings.warn(f"{told}: {first[:100]}", stacklevel=2)
        return False
    return True
