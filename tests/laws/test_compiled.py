"""Law: what torch's compiler makes of the steps of every method and every task is what eager steps do, in float64 to
1e-12 over three rounds: also for other values, for a class defined again, and in a process that finds programs on disk;
on a GPU, too, where there is one.
"""

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from flstudy.algorithms import Algorithm, FedAvg
from flstudy.execution import loops, programs
from flstudy.population import InMemory
from flstudy.tasks import Quadratic, TagLogistic

from ..accelerator.devices import GPU
from ..tasks.test_task_function import SHAPES, TASKS
from ..worlds import CLASSES, FEATURES, SIZES, difference, drifting, run, shipped, state, taken, world
from .cases import steady
from .test_given_code import cell, module

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not programs.has_compiler(), reason="no C++ compiler"),
]


def compared(fit: Mapping[str, Any], algorithm: Algorithm, **parts: Callable[[], Any]) -> Any:
    """The state after three compiled rounds, which is that of eager ones; ``fit`` are arguments of the Trainer."""
    eager, compiled = (
        run(algorithm, 3, compile=on, fit=dict(fit), **{name: part() for name, part in parts.items()})
        for on in (False, True)
    )
    assert compiled.executor.programs.compiled
    here, there = (pytree.tree_map(torch.Tensor.cpu, state(module)) for module in (eager, compiled))
    assert difference(here, there) <= 1e-12
    return there


@pytest.fixture(
    params=[
        {},
        pytest.param(GPU.trainer(), marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")),
    ],
    ids=["cpu", GPU.name],
)
def agree(request):
    """Compares compiled rounds with eager ones, on the CPU and on a GPU."""
    return partial(compared, request.param)


@pytest.mark.parametrize("name", shipped())
def test_a_method_is_the_same_compiled(name, agree):
    algorithm = steady(name)
    first = agree(algorithm, population=drifting)
    compilations = programs.compilations()
    other = agree(replace(algorithm, **taken(type(algorithm), {"lr": 0.3, "server_lr": 0.7})), population=drifting)
    assert programs.compilations() == compilations
    assert difference(first, other) > 1e-3


def data(name):
    """A data set of the task's kind, the same always."""
    generator, count = torch.Generator().manual_seed(6), sum(SIZES)
    positions = (5,) if name == "Lstm" else ()  # each of whose positions is labelled by what follows
    labels = torch.randint(0, CLASSES, (count, *positions), generator=generator)
    if name == "TagLogistic":
        tags = torch.randint(-1, 6, (count, 3), generator=generator)
        return InMemory((torch.randint(0, 5, (count, 5), generator=generator), tags))
    shape = SHAPES.get(name, (FEATURES,))
    x = torch.randn(count, *shape, dtype=torch.float64, generator=generator)
    return InMemory((x.abs().long() if name in ("Lstm", "FastText") else x, labels))


EVERY_TASK = {
    **TASKS,
    "Quadratic": lambda: Quadratic((FEATURES,)),
    "TagLogistic": lambda: TagLogistic((5,), 6, tokens=5, top=2),
}


@pytest.mark.parametrize("name", EVERY_TASK)
def test_a_task_is_the_same_compiled(name, agree):
    agree(
        FedAvg(lr=0.1),
        population=lambda: world(dataset=data(name), participants=3, epochs=1),
        task=lambda: module(EVERY_TASK[name]),
    )


def test_a_class_that_is_defined_again_is_the_same_compiled(agree):
    tanh, relu = (
        agree(FedAvg(lr=0.5), task=lambda name=name: module(cell(activation=name))) for name in ("tanh", "relu")
    )
    assert difference(tanh, relu) > 1e-3


def found_on_disk() -> None:
    """Train a class defined again by programs that lie on the disk; nothing is compiled."""

    def compiled(*_):
        raise AssertionError("a program was compiled")

    loops.compiled = compiled
    compared({}, FedAvg(lr=0.5), task=lambda: module(cell(activation="relu")))


def test_another_process_finds_the_programs():
    compared({}, FedAvg(lr=0.5), task=lambda: module(cell(activation="relu")))
    code = f"from {__name__} import found_on_disk; found_on_disk()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_process_may_begin_with_a_program_that_pools():
    code = """if True:
        import torch
        from flstudy.tasks import compiler
        pool = compiler.decompositions()[torch.ops.aten.max_pool2d_with_indices.default]
        assert pool(torch.arange(4.0).reshape(1, 1, 2, 2), [2, 2])[0] == 3
    """
    subprocess.run([sys.executable, "-c", code], check=True)
