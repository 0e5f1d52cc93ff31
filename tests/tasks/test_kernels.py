"""The kernels in C++ against torch's own operations, in double precision, and what is done without them."""

import ctypes

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from flstudy.tasks import compiler, kernels
from flstudy.tasks.convolutional import convolution
from flstudy.tasks.recurrent import recurrence

from ..worlds import difference


def random(*shape, seed=0, dtype=torch.double):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double).to(dtype)


def gradients(function, *inputs):
    """A function's value and what a weighted sum of it gives each input."""

    def value(*inputs):
        result = function(*inputs)
        weight = torch.linspace(-1, 1, result.numel(), dtype=result.dtype).reshape(result.shape)
        return (result * weight).sum(), result

    by, result = torch.func.grad(value, argnums=tuple(range(len(inputs))), has_aux=True)(*inputs)
    return [result, *by]


def traced(function, *inputs):
    """The program that a compiler would be given."""
    return make_fx(function)(*inputs)


def operators(program):
    return [str(node.target) for node in program.graph.nodes if str(node.target).startswith("flstudy")]


@pytest.mark.parametrize("dtype", [torch.double, torch.float], ids=str)
@pytest.mark.parametrize(
    ("channels", "maps", "size", "padding"), [(4, 5, (9, 7), 0), (5, 19, (6, 8), 1), (20, 3, (3, 3), 0)]
)
def test_convolution_by_tiles(channels, maps, size, padding, dtype):
    """Sizes that are no multiples of tiles or vectors."""
    near = 1e-13 if dtype == torch.double else 1e-4
    inputs = random(2, channels, *size), random(maps, channels, 3, 3, seed=1), random(maps, seed=2)
    inputs = [tensor.to(dtype) for tensor in inputs]

    def ours(*inputs):
        return gradients(lambda x, w, b: convolution(x, w, b, padding), *inputs)

    program = traced(ours, *inputs)
    assert operators(program) == ["flstudy.conv3x3.default", "flstudy.conv3x3_gradient.default"]
    expected = gradients(lambda x, w, b: F.conv2d(x, w, b, padding=padding), *inputs)
    scale = max(float(tensor.abs().max()) for tensor in expected)
    assert difference(*([tensor / scale for tensor in tensors] for tensors in (program(*inputs), expected))) <= near
    assert difference(ours(*inputs), expected) == 0  # eagerly it is torch's own


@pytest.mark.parametrize("padding", [0, 1])
def test_convolution_of_few_channels_as_a_product(padding):
    inputs = random(2, 3, 6, 7), random(5, 3, 3, 3, seed=1), random(5, seed=2)
    program = traced(lambda *inputs: gradients(lambda x, w, b: convolution(x, w, b, padding), *inputs), *inputs)
    assert operators(program) == []
    assert difference(program(*inputs), gradients(lambda x, w, b: F.conv2d(x, w, b, padding=padding), *inputs)) <= 1e-12


@pytest.mark.parametrize(("hidden", "length"), [(16, 4), (3, 5), (20, 1)])
def test_recurrence(hidden, length):
    p, weight = random(2, length, 4 * hidden), random(4 * hidden, hidden, seed=1)
    program = traced(lambda *inputs: gradients(recurrence, *inputs), p, weight)
    assert operators(program) == ["flstudy.lstm.default", "flstudy.lstm_gradient.default"]
    assert difference(program(p, weight), gradients(recurrence, p, weight)) <= 1e-13


def test_programs_map_over_lanes():
    """A traced program is mapped, as compiled ones are; operators whose arguments are not all mapped, too."""

    def step(x, p, weight, across):
        return [
            *gradients(lambda x, w: convolution(x, w, w[:, 0, 0, 0], 0), x, weight),
            *gradients(recurrence, p, across),
        ]

    inputs = [random(3, 2, 4, 6, 5), random(3, 2, 3, 12, seed=1), random(5, 4, 3, 3, seed=2), random(3, 12, 3, seed=3)]
    program = traced(step, *(inputs[0][0], inputs[1][0], inputs[2], inputs[3][0]))
    mapped = torch.vmap(program, (0, 0, None, 0))(*inputs)
    for lane in range(3):
        lane_result = step(inputs[0][lane], inputs[1][lane], inputs[2], inputs[3][lane])
        assert difference([result[lane] for result in mapped], lane_result) <= 1e-12


def test_autocast_and_half_precision_take_torchs_own():
    x, w, b = random(1, 4, 5, 5), random(2, 4, 3, 3), random(2)

    def mixed(*inputs):
        with torch.autocast("cpu", torch.bfloat16):
            return convolution(*inputs, 0)

    for function, dtype in ((mixed, torch.float), (lambda *inputs: convolution(*inputs, 0), torch.bfloat16)):
        assert operators(traced(function, *(tensor.to(dtype) for tensor in (x, w, b)))) == []


@pytest.mark.slow
def test_a_compiler_that_fails(monkeypatch, tmp_path):
    """One warning, the same numbers."""
    broken = tmp_path / "kernels.cpp"
    broken.write_text("no C++")
    monkeypatch.setattr(kernels, "SOURCE", broken)
    kernels.built.cache_clear()
    p, weight = random(2, 4, 12), random(12, 3, seed=1)
    with pytest.warns(UserWarning, match="kernels: programs go without those in C") as caught_warnings:
        first, second = (traced(lambda *inputs: gradients(recurrence, *inputs), p, weight) for _ in range(2))
    kernels.built.cache_clear()
    assert len(caught_warnings) == 1
    assert operators(first) == operators(second) == ["flstudy.lstm_forward.default", "flstudy.lstm_backward.default"]
    assert difference(first(p, weight), gradients(recurrence, p, weight)) <= 1e-15


def test_kernels_are_for_cpus():
    with pytest.raises(NotImplementedError, match="flstudy::lstm runs on CPUs only, got meta"):
        kernels.build_first("flstudy::lstm", torch.empty(1, 2, 3, 4, device="meta"))


def test_shims_are_found_by_programs_that_are_libraries():
    kernels.build()
    everything = ctypes.CDLL(None)
    for (declared,) in kernels.shims().values():
        assert hasattr(everything, declared.partition("(")[0].split()[1])


def test_a_compiler_older_than_the_processor_is_asked_what_it_knows():
    from torch._inductor import config
    from torch._inductor.exc import CppCompileError

    trusted = []

    def compile():
        trusted.append(config.cpp.vec_isa_ok)
        if trusted[-1]:
            raise CppCompileError(["g++"], "unrecognized option")
        return "made"

    assert compiler.trusting(compile) == "made"
    assert trusted == [True, None]


def test_examples_of_instructions_are_left_out_only_meanwhile():
    from torch._inductor.cpu_vec_isa import VecISA

    probe = VecISA.check_build
    with compiler.no_examples(VecISA), compiler.no_examples(VecISA):
        assert VecISA().check_build("no C++")
    assert VecISA.check_build is probe
