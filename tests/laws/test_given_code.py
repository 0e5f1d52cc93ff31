"""A compiled program is the code that was given: what changes in it, in whatever way, is what trains next; what cannot
be compiled trains eagerly and is told of."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import lightning as L
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flstudy.algorithms import FedAvg
from flstudy.controllers import Polynomial
from flstudy.execution import loops, program_key, programs
from flstudy.hyper import hyper
from flstudy.tasks.compiler import LibraryFailed
from flstudy.testing.algorithms import compiled_is_eager

from ..worlds import difference, drifting, play, run

CELL = """
class Net(L.LightningModule):
    temperature = {temperature}

    def __init__(self):
        super().__init__()
        self.scale = {scale}
        self.register_buffer("shift", torch.tensor({shift}).double())
        self.first, self.second = nn.Linear(12, 5).double(), nn.Linear(5, 4).double()

    def forward(self, x):
        return self.second(torch.{activation}(self.first(x)) * self.scale) / self.temperature + self.shift

    def example_losses(self, batch):
        return F.cross_entropy(self(batch[0]), batch[1], reduction="none", label_smoothing=SMOOTHING)
"""
USUAL = {"activation": "tanh", "temperature": 1.0, "scale": 1.0, "shift": [0.1, 0.1, 0.1, 0.1]}


def cell(**changes: Any) -> type[L.LightningModule]:
    """The class of a notebook's cell that is run again, with something else in it."""
    space: dict[str, Any] = {"L": L, "nn": nn, "F": F, "torch": torch, "SMOOTHING": 0.0, **changes}
    exec(CELL.format(**{**USUAL, **changes}), space)
    return space["Net"]


def module(kind: type[L.LightningModule]) -> L.LightningModule:
    """An instance with the same first model always."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return kind()


def agrees(algorithm: FedAvg, task: Any = None, rounds: int = 3, **changes: Any) -> Any:
    """The server after some compiled rounds, which is that of eager ones."""
    eager, compiled = (
        run(algorithm, rounds, compile=on, population=drifting(participants=3), task=task and module(task), **changes)
        for on in (False, True)
    )
    assert compiled.executor.programs.compiled
    assert difference(eager.server, compiled.server) <= 1e-12
    return compiled.server


@pytest.fixture(params=[True, False], ids=["loops", "unrolled"])
def looped(request, monkeypatch, without_compiler):
    """Both ways of compiling: loops for CPUs, copies of a step for accelerators."""
    monkeypatch.setattr(programs.Programs, "looped", request.param)


CELLS = {
    "another function in its forward": {"activation": "relu"},
    "another class attribute": {"temperature": 4.0},
    "another attribute": {"scale": 0.5},
    "another global": {"SMOOTHING": 0.5},
    "another buffer": {"shift": [0.4, 0.3, 0.2, 0.1]},
}


@pytest.mark.usefixtures("looped")
@pytest.mark.parametrize("change", CELLS.values(), ids=CELLS)
def test_a_class_that_is_defined_again_is_the_one_that_trains(change):
    """Also after the first one comes back, whose program is still there."""
    first = agrees(FedAvg(lr=0.5), cell())
    compilations = programs.compilations()
    second = agrees(FedAvg(lr=0.5), cell(**change))
    assert difference(first, second) > 1e-3
    assert programs.compilations() == 2 * compilations
    assert difference(agrees(FedAvg(lr=0.5), cell()), first) == 0
    assert programs.compilations() == 2 * compilations


class Prox(FedAvg):
    """A proximal term whose strength is a global, a class attribute, and a helper's."""

    factor = 1.0

    def correct(self, g, y, msg, client):
        return g + STRENGTH * self.factor * helpers.pull(y - msg.x)


STRENGTH = 0.5
helpers = SimpleNamespace(pull=lambda difference: difference)
PATCHES = {
    "a global": ("STRENGTH", 1.5),
    "a class attribute": ("Prox.factor", 3.0),
    "a function in another file": ("helpers.pull", torch.sign),
    "a method, as autoreload does": ("Prox.correct", lambda self, g, y, msg, client: g + 2 * (y - msg.x)),
}


@pytest.mark.usefixtures("looped")
@pytest.mark.parametrize(("path", "value"), PATCHES.values(), ids=PATCHES)
def test_what_a_method_reads_elsewhere_is_read_again(path, value, monkeypatch):
    first = agrees(Prox(lr=0.5))
    compilations = programs.compilations()
    *owner, name = path.split(".")
    monkeypatch.setattr(globals()[owner[0]], name, value) if owner else monkeypatch.setitem(globals(), name, value)
    assert difference(agrees(Prox(lr=0.5)), first) > 1e-3
    assert programs.compilations() == 2 * compilations


def test_a_class_defined_again_with_the_same_code_shares_programs(looped):
    first = agrees(FedAvg(lr=0.5), cell())
    compilations = programs.compilations()
    agrees(FedAvg(lr=0.3), cell())
    assert programs.compilations() == compilations
    assert difference(first, agrees(FedAvg(lr=0.5), cell())) == 0


# ---- types -----------------------------------------------------------------------------------------------------------


class Counted(NamedTuple):
    """State that begins with a counter of integers, or a flag."""

    count: Any
    y: Any
    rule: Any
    steps: Any


@dataclass(frozen=True, kw_only=True)
class Counting(FedAvg):
    """FedAvg whose state's first field is no real number, and steps shorter as it goes on."""

    decay: float = 0.3

    def start(self, x):
        return torch.zeros((), dtype=torch.int64)

    def counted(self, count):
        return count + 1

    def local_start(self, msg, client, layout):
        return Counted(self.start(msg.x), *super().local_start(msg, client, layout))

    def local_step(self, local, batch, grad, msg, client):
        g, loss = grad(local.y, batch)
        step = self.lr / (1 + self.decay * local.count) * g
        return Counted(self.counted(local.count), local.y - step, local.rule, local.steps + 1), loss


class Flagged(Counting):
    """A flag in its place."""

    def start(self, x):
        return torch.ones((), dtype=torch.bool)

    def counted(self, count):
        return ~count


class CountsStepsInIntegers(FedAvg):
    """Also the number of steps is an integer, by which losses are not counted."""

    def local_start(self, msg, client, layout):
        return super().local_start(msg, client, layout)._replace(steps=torch.zeros((), dtype=torch.int64))


@pytest.mark.usefixtures("looped")
@pytest.mark.parametrize("kind", [Counting, Flagged, CountsStepsInIntegers])
@pytest.mark.parametrize("gamma", [None, 0.05])
def test_hyper_parameters_are_of_the_model_s_type_whatever_a_state_begins_with(kind, gamma):
    slow, fast = (agrees(kind(lr=lr, gamma=gamma)) for lr in (0.1, 0.5))
    assert difference(slow, fast) > 1e-3


class Retyped(NamedTuple):
    """State with a sum that begins as an integer."""

    y: Any
    rule: Any
    steps: Any
    v: Any


class AdaGradNorm(FedAvg):
    """Steps divided by the root of the sum of squared norms (Ward et al. 2019), from an integer 0 on."""

    def local_start(self, msg, client, layout):
        return Retyped(*super().local_start(msg, client, layout), torch.tensor(0))

    def local_step(self, local, batch, grad, msg, client):
        g, loss = grad(local.y, batch)
        v = local.v + g.square().sum()
        return Retyped(local.y - self.lr * g / (1 + v).sqrt(), local.rule, local.steps + 1, v), loss


def says_why(algorithm, match, **changes):
    """The server after compiled rounds of what runs eagerly, and says once why."""
    with pytest.warns(UserWarning, match=match) as caught_warnings:
        compiled = play(algorithm, 3, compile=True, population=drifting(participants=3), **changes)
    assert sum("local steps run eagerly" in str(warning.message) for warning in caught_warnings) == 1
    assert not compiled.executor.programs.compiled
    return compiled.state.server


@pytest.mark.usefixtures("looped")
@pytest.mark.parametrize("gamma", [None, 0.05])
def test_a_state_that_changes_its_type_runs_eagerly_and_its_field_is_told(gamma):
    algorithm = AdaGradNorm(lr=0.5, gamma=gamma)
    reason = (
        r"a step of AdaGradNorm changes Retyped.v from torch.int64 \[\] to torch.float64 \[\]; begin with the latter"
    )
    server = says_why(algorithm, reason)
    in_turn = run(algorithm, 3, executor="sequential", population=drifting(participants=3))
    assert difference(server, in_turn.server) <= 1e-12


# ---- fields ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Halves(FedAvg):
    """A proximal term with a strength for each half of the model, from a list and a dict."""

    mus: Sequence[float] = field(default_factory=lambda: [0.1, 0.2])
    more: dict[str, float] = field(default_factory=lambda: {"times": 2.0})

    def correct(self, g, y, msg, client):
        half = len(g) // 2
        mu = torch.cat([g.new_full((half,), self.mus[0]), g.new_full((len(g) - half,), self.mus[1])])
        return g + self.more["times"] * mu * (y - msg.x)


@dataclass(frozen=True, kw_only=True)
class Derived(FedAvg):
    """A proximal term whose strength is derived, and checked."""

    mu: float = hyper(0.7, "[0, 10]")
    """μ."""
    nu: float = field(init=False, default=0.0)
    """μ²."""

    def __post_init__(self):
        super().__post_init__()
        assert self.mu < 10
        object.__setattr__(self, "nu", self.mu**2)

    def correct(self, g, y, msg, client):
        return g + self.nu * (y - msg.x)


@pytest.mark.usefixtures("looped")
@pytest.mark.parametrize(
    ("algorithm", "other", "shared"),
    [
        (Halves(lr=0.5), Halves(lr=0.5, mus=[0.6, 0.9]), False),
        (Halves(lr=0.5), Halves(lr=0.5, more={"times": 5.0}), False),
        (Halves(lr=0.5), Halves(lr=0.3), True),
        (Derived(lr=0.5), Derived(lr=0.5, mu=2.0), True),
    ],
    ids=["list", "dict", "the same list", "derived"],
)
def test_lists_dicts_and_derived_fields_are_compiled(algorithm, other, shared):
    """Numbers in lists are constants of a program, numbers that fields are or that are derived of them are not."""
    first = agrees(algorithm)
    compilations = programs.compilations()
    assert difference(first, agrees(other)) > 1e-3
    assert programs.compilations() == compilations * (1 if shared else 2)


# ---- what cannot be compiled -----------------------------------------------------------------------------------------


class DrawsElsewhere(FedAvg):
    """Steps of a length that Python draws."""

    draws = staticmethod(random.random)

    def correct(self, g, y, msg, client):
        return self.draws() * g


class DrawsByNumpy(DrawsElsewhere):
    """The same by numpy."""

    draws = staticmethod(np.random.rand)


@pytest.mark.usefixtures("looped")
@pytest.mark.parametrize("kind", [DrawsElsewhere, DrawsByNumpy])
def test_numbers_that_change_from_call_to_call_are_no_constants(kind):
    L.seed_everything(5, verbose=False)
    server = says_why(kind(lr=0.5), "Unrepeatable: its operations, or numbers in them, change from call to call")
    L.seed_everything(5, verbose=False)
    eager = run(kind(lr=0.5), 3, population=drifting(participants=3))
    assert difference(server, eager.server) <= 1e-12


@pytest.mark.usefixtures("without_compiler")
def test_a_program_that_fails_while_it_runs_gives_way_to_eager_steps(monkeypatch):
    def failing(*arguments):
        def library(inputs):
            raise LibraryFailed("a compiled loop failed; the lines above it say where")

        return library

    monkeypatch.setattr(loops, "loaded", failing)
    server = says_why(FedAvg(lr=0.5), "LibraryFailed: a compiled loop failed; the lines above it say where")
    assert difference(server, run(FedAvg(lr=0.5), 3, population=drifting(participants=3)).server) <= 1e-12


@pytest.mark.usefixtures("without_compiler")
@pytest.mark.parametrize(
    ("numbered", "variant"), [(False, "another lr"), (True, "a class defined again")], ids=["a number", "a class"]
)
def test_a_program_of_another_method_breaks_the_law(numbered, variant, monkeypatch):
    """One key for all, with numbers as arguments and without."""
    compiled_is_eager(FedAvg(lr=0.5))
    monkeypatch.setattr(programs, "_compiled", {})
    monkeypatch.setattr(program_key, "program_key", lambda function, *arguments: ("same", function(*arguments)))
    if not numbered:
        monkeypatch.setattr(programs, "with_numbers", lambda method, numbers: method)
    with pytest.raises(AssertionError, match=f"compiled is eager: with {variant} their servers differ by"):
        compiled_is_eager(FedAvg(lr=0.5))


@pytest.mark.usefixtures("looped")
def test_a_schedule_s_rounds_share_a_key(monkeypatch):
    """Its numbers change from round to round, and nothing else."""
    keys, noted = [], program_key.program_key

    def counted(*arguments):
        keys.append(noted(*arguments))
        return keys[-1]

    monkeypatch.setattr(program_key, "program_key", counted)
    scheduled = agrees(FedAvg(lr=0.5), rounds=4, schedule=Polynomial(rounds=4, floor=0.5))
    key_count = len(keys)
    assert difference(scheduled, agrees(FedAvg(lr=0.5), rounds=4)) > 1e-3
    assert len(keys) == 2 * key_count
    assert len({key for key, _ in keys}) == 1 <= programs.compilations() <= key_count
