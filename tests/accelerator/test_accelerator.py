"""Law: on an accelerator every method does what it does on the host, without waiting for the device while it trains."""

import gc
import inspect
import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from flstudy.algorithms import FedAvg, Flash, HypCluster, Moon, Scaffold
from flstudy.controllers import DynamicInitialModel, MasterFL, Restart
from flstudy.execution import Vectorized, bank
from flstudy.execution.programs import Programs
from flstudy.metrics.wireless import Wireless
from flstudy.population import AlternatingGroups
from flstudy.privacy import AdaptiveClip, Privacy
from flstudy.tasks import Cnn, Lstm, Mlp

from ..laws.cases import FORMS, OWN, plain
from ..laws.conftest import forget_programs, without_compiler  # noqa: F401  its fixtures
from ..laws.sides import covering
from ..laws.test_executors import sequences
from ..tiers import in_tiers
from ..worlds import CLASSES, FEATURES, difference, drifting, examples, run, state
from . import pretended
from .devices import GPU, PHASES, PRETENDED, WaitsByRound, of_phase
from .waits import check_waits, watching

EPOCHS, SEEDS = 2, (0, 44)


@pytest.fixture(scope="module")
def frozen():
    """Garbage collections, which are many here, need not look at what was there before."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(
    params=[
        PRETENDED,
        pytest.param(GPU, marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")),
    ],
    ids=lambda device: device.name,
)
def device(request, frozen):
    with request.param.there():
        yield request.param


def small(**changes: Any):
    """Three of six ragged devices take part, in large batches; they drift at round 2."""
    return drifting(**{"participants": 3, "batch_size": 8, "epochs": EPOCHS, **changes})


def on(device, algorithm, rounds, **more):
    """A run on the device."""
    fit = {**device.trainer(), **more.pop("fit", {})}
    return run(algorithm, rounds, fit=fit, **{"population": small(), "seeds": SEEDS, **more})


def on_host(algorithm, rounds, **more):
    """The same on the host."""
    return run(algorithm, rounds, **{"population": small(), "seeds": SEEDS, **more})


def values(record):
    """What a round measured, without its times."""
    return {name: torch.tensor(value) for name, value in record.metrics.items() if not name.startswith("time/")}


def check_alike(device, here, host, last=None):
    """Servers, rows and the records of the last rounds: on the pretended device bit for bit."""
    for leaf, other in zip(pytree.tree_leaves(state(here)), pytree.tree_leaves(state(host)), strict=True):
        assert difference(leaf.cpu(), other.cpu()) <= device.tolerance
    for record, other in zip(here.records[-(last or 0) :], host.records[-(last or 0) :], strict=True):
        ours, theirs = values(record), values(other)
        assert ours.keys() == theirs.keys()
        near = {"rtol": device.tolerance, "atol": device.tolerance, "equal_nan": True}
        assert [name for name, value in ours.items() if not torch.allclose(value, theirs[name], **near)] == []


# ---- all methods -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", in_tiers(plain(), ["Scaffold", "Flash"]))
def test_rounds_evaluations_checkpoints_and_resumes_are_those_of_the_host(name, device, tmp_path):
    algorithm = replace(plain()[name], gamma=0.05, weight_decay=0.02)
    host = on_host(algorithm, 2, evaluate=True)
    go = partial(on, device, algorithm, 2, evaluate=True)
    saving = ModelCheckpoint(tmp_path, every_n_epochs=1, save_top_k=-1, filename="{epoch}")
    with watching(PHASES) as waits:
        by_round = WaitsByRound(waits)
        whole = go(callbacks=[saving, by_round], fit={"enable_checkpointing": True, "default_root_dir": tmp_path})
    check_alike(device, whole, host)
    for round in by_round.rounds:
        check_waits(of_phase(round, "fit"), EPOCHS - 1)  # nobody asks after the last one
    check_alike(device, go(ckpt_path=str(tmp_path / "epoch=0.ckpt")), host, last=1)


@pytest.mark.parametrize("name", in_tiers([*plain(), *OWN], covering(plain() | OWN)[::2]))
def test_without_early_stopping_the_host_waits_nowhere_in_a_fit(name, device):
    algorithm = replace((plain() | OWN)[name], gamma=None)
    with watching(PHASES) as waits:
        on(device, algorithm, 1)
    assert len(waits) > len(of_phase(waits, "fit")), "nothing was counted"
    check_waits(of_phase(waits, "fit"), 0)


@pytest.mark.parametrize("name", in_tiers(plain(), FORMS))
def test_where_memory_ends_lanes_are_halved(name, device, monkeypatch):
    task, fit = partial(Mlp, (FEATURES,), CLASSES, hidden=device.hidden), Vectorized.fit
    more = {"seeds": (0,), "initial": "seeded", "population": small(participants=4, batch_size=32, epochs=1)}

    def bounded(self, *work):
        needed = device.peak(lambda: fit(self, *work))[1]
        with device.limited(int(0.98 * needed)):
            return fit(self, *work)

    with monkeypatch.context() as patch, warnings.catch_warnings(record=True) as caught_warnings:
        patch.setattr(Vectorized, "fit", bounded)
        warnings.simplefilter("always")
        patch.setattr(warnings, "filterwarnings", lambda *_, **__: None)  # the run's own filter
        tight = on(device, plain()[name], 1, task=task(), **more)
    assert any("out of memory with" in str(warning.message) for warning in caught_warnings)
    lanes = tight.executor.max_lanes
    assert lanes is not None
    check_alike(device, tight, on_host(plain()[name], 1, task=task(), max_lanes=lanes, **more))


def test_a_checkpoint_of_the_device_goes_on_on_the_host(device, tmp_path):
    saving = ModelCheckpoint(tmp_path, filename="{epoch}")
    on(device, Scaffold(lr=0.1), 1, callbacks=[saving], fit={"enable_checkpointing": True})
    resumed = on_host(Scaffold(lr=0.1), 2, ckpt_path=str(tmp_path / "epoch=0.ckpt"))
    check_alike(device, resumed, on_host(Scaffold(lr=0.1), 2), last=1)


# ---- whatever else a run may have ------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", ["sequential", "trainer"])
def test_the_other_executors_run_there_as_well(executor, device):
    algorithm, more = Flash(lr=0.1, gamma=0.05), {"executor": executor, "population": small(participants=2)}
    check_alike(device, on(device, algorithm, 1, **more), on_host(algorithm, 1, **more))


@pytest.mark.slow
def test_auto_has_no_threads_there(device):
    chosen = on(device, FedAvg(lr=0.1), 2, executor="auto", compile=False).executor
    assert set(chosen.seconds) == {"vectorized", "sequential"}
    assert chosen.chosen in chosen.seconds


COMPILED = [Flash(lr=0.1, gamma=0.05), HypCluster(lr=0.1), Moon(lr=0.1)]


@pytest.mark.parametrize("algorithm", COMPILED, ids=lambda algorithm: type(algorithm).__name__)
def test_compiled_programs_have_no_loop_there_and_wait_no_more(algorithm, device, request):
    """On the pretended device the compiler is left out; on a GPU it waits itself while it compiles."""
    if device is PRETENDED:
        request.getfixturevalue("without_compiler")
    else:
        on(device, algorithm, 1, compile=True)
    with watching(PHASES) as waits:
        here = on(device, algorithm, 1, compile=True)
    check_waits(of_phase(waits, "fit"), EPOCHS - 1 if algorithm.gamma else 0)
    host = on_host(algorithm, 1)
    assert difference(here.server.x.cpu(), host.server.x) < 1e-12


WORLDS: dict[str, dict[str, Any]] = {
    "sessions": {
        "controllers": [DynamicInitialModel(gradient_rounds=1)],
        "population": partial(small, availability=AlternatingGroups(rounds=1)),
    },
    "blocks": {"controllers": [MasterFL(lr="algorithm"), Restart(rounds=[2])]},
    "privacy": {"privacy": Privacy(clip=0.5, noise=0.7, adaptive_clip=AdaptiveClip(count_noise=0.5))},
    "a radio cell": {"wireless": Wireless()},
}


@pytest.mark.parametrize("name", WORLDS)
def test_controllers_noise_and_the_radio_cell_are_those_of_the_host(name, device):
    world = {"population": small, **WORLDS[name]}
    algorithm, rounds = FedAvg(lr=0.1, weighting="uniform"), 3 if name == "sessions" else 2
    host = on_host(algorithm, rounds, **{**world, "population": world["population"]()})
    check_alike(device, on(device, algorithm, rounds, **{**world, "population": world["population"]()}), host)


class Forgetful(Mlp):
    """With dropout, whose masks the device draws."""

    def forward(self, x):
        return self.network(F.dropout(x, 0.3, self.training))


def test_dropout_masks_are_drawn_again_there(device):
    """The device has random numbers of its own, which a round's stream seeds."""
    go = partial(on, device, FedAvg(lr=0.1), 1, initial="seeded")
    torch.rand(3, device=device.trainer()["strategy"].root_device if device is PRETENDED else "cuda")
    first = go(task=Forgetful((FEATURES,), CLASSES, hidden=5))
    again = go(task=Forgetful((FEATURES,), CLASSES, hidden=5))
    assert torch.equal(first.server.x.cpu(), again.server.x.cpu())
    assert difference(first.server.x.cpu(), go(task=Mlp((FEATURES,), CLASSES, hidden=5)).server.x.cpu()) > 1e-3


TASKS: dict[str, Any] = {
    "Cnn": (
        lambda: small(dataset=examples((1, 6, 6)), drift=None),
        lambda: Cnn((1, 6, 6), CLASSES, channels=(2, 3), dense=4),
    ),
    "Lstm": (sequences, lambda: Lstm((5,), CLASSES, embedding=3, hidden=4)),
}


@pytest.mark.parametrize("name", TASKS)
def test_networks_of_other_kinds_run_there(name, device):
    population, task = TASKS[name]
    go = partial(run, FedAvg(lr=0.1), 1, initial="seeded", evaluate=True)
    with watching(PHASES) as waits:
        here = go(task=task(), population=population(), fit=device.trainer())
    check_waits(of_phase(waits, "fit"), 0)
    check_alike(device, here, go(task=task(), population=population()))


# ---- faults that it finds --------------------------------------------------------------------------------------------


def line_of(function, text):
    """file:line of the line of a function that holds a text."""
    lines, first = inspect.getsourcelines(function)
    return f"tests/accelerator/test_accelerator.py:{first + next(k for k, line in enumerate(lines) if text in line)}"


def test_a_constant_on_the_host_is_found(monkeypatch):
    def correct(self, g, y, msg, client):
        return g * torch.ones(len(g), dtype=g.dtype)

    monkeypatch.setattr(FedAvg, "correct", correct)
    with pretended.pretending(), pytest.raises(RuntimeError, match=line_of(correct, "torch.ones")) as failure:
        on(PRETENDED, FedAvg(lr=0.1), 1)
    assert "found at least two devices, pretended:0 and cpu" in str(failure.value)


def test_a_number_of_the_host_is_no_fault(monkeypatch):
    monkeypatch.setattr(FedAvg, "correct", lambda self, g, y, msg, client: g * torch.tensor(1.0, dtype=g.dtype))
    with pretended.pretending():
        here = on(PRETENDED, FedAvg(lr=0.1), 1)
    assert difference(here.server.x.cpu(), on_host(FedAvg(lr=0.1), 1).server.x) == 0


def test_a_hidden_item_is_found(monkeypatch):
    steps = Programs.run

    def stepping(self, *work, **more):
        local, losses, executed = steps(self, *work, **more)
        assert losses.isfinite().all().item()
        return local, losses, executed

    monkeypatch.setattr(Programs, "run", stepping)
    with pretended.pretending(), watching(PHASES) as waits:
        on(PRETENDED, FedAvg(lr=0.1), 1)
    with pytest.raises(
        AssertionError, match=rf"waited 1 times .*{line_of(stepping, 'item()')} \(aten._local_scalar_dense"
    ):
        check_waits(of_phase(waits, "fit"), 0)


def test_a_row_left_behind_is_found(monkeypatch):
    monkeypatch.setattr(bank, "to_device", lambda tensor, device: tensor)
    with (
        pretended.pretending(),
        pytest.raises(RuntimeError, match=r"of the host at flstudy/algorithms/scaffold\.py:\d+"),
    ):
        on(PRETENDED, Scaffold(lr=0.1), 1)
