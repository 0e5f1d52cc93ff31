"""Law: a round over two Ray actors is that of one process, to rounding, for every method; and an actor that dies in it
changes nothing."""

import os
import signal

import lightning as L
import pytest
import torch

from flstudy.algorithms import Ditto, FedDyn, Scaffold
from flstudy.controllers import DynamicInitialModel, Restart
from flstudy.execution import actors
from flstudy.execution.sharded import Sharded
from flstudy.population import AlternatingGroups
from flstudy.privacy import Privacy

from ..processes import lane_actors
from ..tiers import in_tiers
from ..worlds import difference, drifting, mlp, run, state, wide
from .cases import OWN, plain

pytestmark = pytest.mark.usefixtures("ray_cluster")
LANES = {"devices": 2, "strategy": "lanes"}
CASES = {**plain(), "by relations": OWN["continuous by relations"], "blended": OWN["blended with delays"]}


def both(algorithm, rounds=2, fit=None, **how):
    """The run in one place, and over two actors."""
    settings = {"seeds": (0, 44), "initial": "seeded", "evaluate": True, **how}
    worlds = settings.pop("worlds", drifting)
    here = run(algorithm, rounds, population=worlds(), fit=fit, **settings)
    return here, run(algorithm, rounds, population=worlds(), fit={**(fit or {}), **LANES}, **settings)


def check_alike(here, there):
    """Servers, rows and metrics are the same but for rounding."""
    assert isinstance(there.executor, Sharded)
    assert difference(state(here), state(there)) <= 1e-12
    for record, other in zip(here.records, there.records, strict=True):
        assert list(record.metrics) == list(other.metrics)
        for name in record.metrics:
            if not name.startswith("time/") and name != "fit/lane_utilization":
                assert other.metrics[name] == pytest.approx(record.metrics[name], rel=1e-9, abs=1e-11, nan_ok=True), (
                    name
                )


@pytest.mark.slow
@pytest.mark.parametrize("name", in_tiers(CASES, ("Scaffold", "Flash", "FedDrift", "Ditto", "by relations")))
def test_two_actors_train_what_one_process_does(name):
    here, there = both(CASES[name])
    check_alike(here, there)
    assert there.last.fit.personal.numel() == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        {"executor": "sequential"},
        {"cohort_memory": 0},
        {"seeds": (0, 44, 56), "worlds": lambda: drifting(participants=1)},
        {"controllers": [Restart(rounds=[2])]},
        {"controllers": [DynamicInitialModel()], "worlds": lambda: wide(availability=AlternatingGroups(rounds=1))},
    ],
    ids=["sequential", "blocks", "fewer jobs than places", "restart", "probe rounds"],
)
def test_whatever_else_a_run_has(how):
    check_alike(*both(Scaffold(lr=0.1), rounds=4, **how))


@pytest.mark.parametrize("worlds", [drifting, lambda: drifting(participants=1)])
def test_private_servers_see_the_same(worlds):
    privacy = Privacy(clip=0.05, noise=1.0, delta=1e-3, orders=[2.0])
    check_alike(*both(FedDyn(lr=0.3, weighting="uniform"), privacy=privacy, worlds=worlds))


class Shot(L.Callback):
    """Kills a place before the second round."""

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == 1:
            self.before = lane_actors()
            os.kill(min(self.before), signal.SIGKILL)

    def on_train_end(self, trainer, pl_module):
        self.after = lane_actors()


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [Scaffold(lr=0.1), Ditto(lr=0.1)])
def test_the_part_of_a_dead_actor_is_done_again_with_the_same_digits(algorithm):
    how = {"seeds": (0, 44), "fit": LANES}
    whole, shot = run(algorithm, 3, population=drifting(), **how), Shot()
    killed = run(algorithm, 3, population=drifting(), callbacks=[shot], **how)
    assert len(shot.before) == len(shot.after) == 2
    assert len(shot.before & shot.after) == 1
    assert difference(state(whole), state(killed)) == 0


@pytest.mark.slow
def test_rows_lie_where_they_were_trained_until_they_are_asked_for(tmp_path):
    class Watch(L.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            self.stale = len(pl_module.bank._stale)
            trainer.save_checkpoint(tmp_path / f"{trainer.current_epoch}.ckpt")
            self.left = len(pl_module.bank._stale)

    watch = Watch()
    whole = run(Scaffold(lr=0.1), 4, population=drifting(), callbacks=[watch], fit=LANES)
    assert watch.stale == 4
    assert watch.left == 0
    resumed = run(Scaffold(lr=0.1), 4, population=drifting(), fit=LANES, ckpt_path=str(tmp_path / "1.ckpt"))
    assert difference(state(whole), state(resumed)) == 0


def test_messages_keep_every_kind_of_tensor():
    tree = {
        "a": torch.arange(3),
        "b": (torch.tensor(2.5, dtype=torch.bfloat16), torch.zeros(0, 2)),
        "c": [None, "word", torch.tensor([[True, False]]).T],
    }
    again = actors.writable(actors.packed(tree))
    assert again["c"][:2] == tree["c"][:2]
    tensors = [(tree["a"], again["a"]), *zip(tree["b"], again["b"], strict=True), (tree["c"][2], again["c"][2])]
    assert all(tensor.dtype == other.dtype and torch.equal(tensor, other) for tensor, other in tensors)


@pytest.mark.slow
def test_auto_begins_in_one_place_and_goes_on_in_all_where_that_pays(monkeypatch, tmp_path):
    from flstudy.execution import sharded

    how = {"executor": "auto", "compile": False, "seeds": (0,)}
    short = run(Scaffold(lr=0.1), 3, population=drifting(), fit=LANES, **how)
    assert not short.executor.spreads
    assert short.executor.choices()["places"] == []
    monkeypatch.setattr(sharded, "START_S", 0.0)

    class Saved(L.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            trainer.save_checkpoint(tmp_path / f"{trainer.current_epoch + 1}.ckpt")

    whole = run(Scaffold(lr=0.1), 4, population=drifting(), fit=LANES, callbacks=[Saved()], **how)
    chosen = torch.load(tmp_path / "2.ckpt", weights_only=True)["flstudy"]["choices"]
    assert chosen["spread"] is True
    assert [place["executor"] for place in chosen["places"]] == [
        chosen["executor"].replace("threads", "sequential")
    ] * 2
    check_alike(run(Scaffold(lr=0.1), 4, population=drifting(), task=mlp(), seeds=(0,)), whole)
