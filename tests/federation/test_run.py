"""A run without a Trainer is, bit for bit, the run with one: rounds, evaluations and checkpoints."""

import re
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils import _pytree as pytree

from flstudy import Coordinator, FederatedRun, RunSettings, load_task
from flstudy.algorithms import Apfl, FedAvg, FedDrift, Flash, Scaffold
from flstudy.controllers import DynamicInitialModel, Polynomial, Restart
from flstudy.federation.checkpoint import read_file
from flstudy.metrics.measure import WorstDevices
from flstudy.metrics.panel import Panel
from flstudy.metrics.wireless import Wireless
from flstudy.population import AlternatingGroups
from flstudy.privacy import AdaptiveClip, Privacy

from ..worlds import difference, drifting, examples, mlp, play, run, state, trainer, world

BEFORE = Path(__file__).parent / "before"
"""Checkpoints that commit 23f0e4a wrote after rounds 3 and 5 of the run `long_run`, under PyTorch 2.15.0."""
TWICE = {"seeds": (0, 44), "initial": "seeded"}
CLIPPED = Privacy(clip=1.0, noise=0.1, adaptive_clip=AdaptiveClip(quantile=0.5))


def narrow():
    """The world in single precision."""
    data = examples().examples
    return world(dataset=(data.x.float(), data.y), participants=4)


CASES = {
    "controllers and rows": lambda: (Scaffold(lr=0.1, gamma=0.05), drifting(), {"controllers": [Restart(rounds=[2])]}),
    "own models": lambda: (Apfl(lr=0.1), drifting(), {}),
    "several models": lambda: (FedDrift(lr=0.1), drifting(), {}),
    "sessions and probe rounds": lambda: (
        Scaffold(lr=0.1),
        drifting(availability=AlternatingGroups(rounds=1), participants=2),
        {"controllers": [DynamicInitialModel(gradient_rounds=2)]},
    ),
    "blocks": lambda: (Flash(lr=0.1), drifting(), {"cohort_memory": 1}),
    "privacy": lambda: (FedAvg(lr=0.1, weighting="uniform"), drifting(), {"privacy": CLIPPED}),
    "measurements": lambda: (
        Flash(lr=0.1),
        drifting(),
        {"wireless": Wireless(), "measure": WorstDevices(share=0.3), "panel": Panel(clients=5, examples=4)}
        | {"schedule": Polynomial()},
    ),
    "sequential": lambda: (Flash(lr=0.1), drifting(), {"executor": "sequential"}),
    "single precision": lambda: (Flash(lr=0.1), narrow(), {"precision": "32-true"}),
    "mixed precision": lambda: (Flash(lr=0.1), narrow(), {"precision": "bf16-mixed"}),
}


def clockless(records):
    """Rounds, metrics without seconds, and events."""
    return [
        (number, {name: values for name, values in metrics.items() if not name.startswith("time/")}, events)
        for number, metrics, events, _ in records
    ]


def equal(tree, other):
    """Whether two trees are of one structure and equal bit for bit."""
    (ours, structure), (theirs, same) = pytree.tree_flatten(tree), pytree.tree_flatten(other)
    pairs = zip(ours, theirs, strict=True)
    return structure == same and all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_run_without_a_trainer_is_the_run_with_one(case):
    algorithm, population, settings = CASES[case]()
    under = run(algorithm, 4, trained=True, population=population, evaluate=True, **TWICE, **settings)
    algorithm, population, settings = CASES[case]()
    alone = play(algorithm, 4, population=population, evaluate=True, **TWICE, **settings)
    assert clockless(alone.records) == clockless(under.records)
    assert equal(alone.servers, under.servers)
    assert equal(alone.state_dict(), under.run.state_dict())
    assert equal(dict(alone.task.state_dict()), dict(under.task.state_dict()))


def long_run(build, rounds=5, **more):
    """Five rounds with early stopping, rows, and controllers that act in rounds 2 and 5."""
    controllers = [Restart(rounds=[2]), Restart(rounds=[5], keep_model=True)]
    settings = {**TWICE, "controllers": controllers, "evaluate": True, **more}
    return build(Scaffold(lr=0.1, gamma=0.05), rounds, population=drifting(participants=3), **settings)


@pytest.mark.slow
def test_a_saved_run_goes_on_bit_for_bit_with_a_trainer_s_checkpoint_too(tmp_path):
    saving = ModelCheckpoint(
        tmp_path, every_n_epochs=3, save_top_k=-1, filename="trainer", save_on_train_epoch_end=True
    )
    whole = long_run(run, callbacks=[saving], fit={"enable_checkpointing": True})
    half = long_run(play, 3)
    half.save(tmp_path / "alone.ckpt")
    assert equal(read_file(tmp_path / "alone.ckpt")["flstudy"], read_file(tmp_path / "trainer.ckpt")["flstudy"])
    for name in ("alone.ckpt", "trainer.ckpt"):
        resumed = long_run(play, resume=tmp_path / name)
        assert clockless(resumed.records) == clockless(whole.records[3:])
        assert equal(resumed.state_dict(), whole.run.state_dict())
    back = Coordinator.load_from_checkpoint(tmp_path / "alone.ckpt")
    assert equal(back.server, half.state.server)
    assert equal(dict(load_task(tmp_path / "alone.ckpt").state_dict()), dict(half.task.state_dict()))
    with pytest.raises(ValueError, match="was written with algorithm 'Scaffold', but this run has 'FedAvg'"):
        play(FedAvg(lr=0.1), resume=tmp_path / "alone.ckpt", **TWICE)


def test_a_checkpoint_of_the_version_before_is_taken_up_and_gone_on_with():
    """Its digits are of another machine: what is computed since may differ from what it computed by rounding."""
    old, later = (torch.load(BEFORE / f"round-{number}.ckpt", weights_only=True) for number in (3, 5))
    unmoved = long_run(play, 3, resume=BEFORE / "round-3.ckpt")
    taken_up, names = unmoved.state_dict(), old["flstudy"]["made"]["parts"]["algorithm"]["init_args"]
    fields = taken_up["made"]["parts"]["algorithm"]["init_args"]
    taken_up["made"]["parts"]["algorithm"]["init_args"] = {name: fields[name] for name in names}  # there are more since
    assert equal(sorted(taken_up.items()), sorted(old["flstudy"].items()))
    under = long_run(run, ckpt_path=str(BEFORE / "round-3.ckpt"))
    assert [record.round for record in under.records] == [4, 5]
    resumed = long_run(play, resume=BEFORE / "round-3.ckpt")
    assert equal(resumed.state_dict(), under.run.state_dict())
    assert under.record.events == tuple(map(tuple, later["flstudy"]["record"][2]))
    now, then = under.run.state_dict(), later["flstudy"]
    measured = {name: now["record"][1][name] for name in then["record"][1]}  # more is measured since
    assert difference(measured, then["record"][1]) <= 1e-13
    for part in ("server", "bank", "control"):
        assert difference(now[part], then[part]) <= 1e-13
    back = Coordinator.load_from_checkpoint(BEFORE / "round-5.ckpt")
    assert equal(list(back.server), then["server"])


@pytest.mark.slow
def test_a_run_is_played_until_its_end_or_as_long_as_privacy_allows():
    alone = FederatedRun(mlp(), FedAvg(lr=0.1), RunSettings(compile=False))
    with pytest.raises(ValueError, match=r"the run has not begun: call start\(population, rounds=\.\.\.\) first"):
        alone.play_round()
    with pytest.raises(ValueError, match="nothing to evaluate before the first round"):
        alone.evaluate()
    alone.start(drifting(), rounds=5)
    evaluated = [record.round for record in alone.play(evaluate_every=2) if "valid/loss" in record.metrics]
    assert (evaluated, alone.state.round) == ([2, 4, 5], 5)  # the last one always
    assert torch.equal(torch.cat([p.detach().flatten() for p in alone.task.parameters()]), alone.state.server.x[0])
    settings = {"privacy": Privacy(clip=1.0, noise=4.0, target_epsilon=3.0)}
    short = play(FedAvg(lr=0.1, weighting="uniform"), 50, population=drifting(), **settings)
    under = run(FedAvg(lr=0.1, weighting="uniform"), 50, population=drifting(), **settings)
    assert 1 < short.state.round == under.record.round < 50


def test_settings_as_arguments_of_their_own_are_deprecated():
    with pytest.warns(DeprecationWarning, match=re.escape("RunSettings(seeds=..., executor=...)")):
        earlier = Coordinator(mlp(), FedAvg(lr=0.1), seeds=(3, 4), executor="sequential", schedule=Polynomial())
    assert earlier.run.settings == RunSettings(seeds=(3, 4), executor="sequential")
    with pytest.raises(TypeError, match="Coordinator\\(\\) has no argument 'seed'"):
        Coordinator(mlp(), FedAvg(lr=0.1), seed=3)
    trainer(1).fit(earlier, datamodule=drifting())
    assert state(earlier)[0].x.shape[0] == 2
