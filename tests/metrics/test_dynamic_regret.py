"""The regret that a run logs: the sums by hand, a world whose optima are solved once, and a resumed run's."""

import re

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from flstudy.algorithms import FedAvg, HypCluster
from flstudy.config import ConfigError, load
from flstudy.metrics.dynamic_regret import NAMES, DynamicRegret, Regret
from flstudy.metrics.optimum import RoundLoss
from flstudy.metrics.regret import dynamic_regret, variation
from flstudy.population import RepeatedDrift
from flstudy.user_error import UserError

from ..config.test_config import QUICK
from ..worlds import SEEDS, difference, logistic, measured, run, world

ROUNDS, DRIFTS = 9, [4, 7]
REGRET = Regret(tolerance=1e-3)


def go(rounds, path=None, **more):
    population = world(drift=RepeatedDrift(rounds=DRIFTS), batch_size=33, epochs=1)
    saving = [] if path is None else [ModelCheckpoint(path, every_n_epochs=1, save_top_k=-1, filename="{epoch}")]
    fit = {} if path is None else {"enable_checkpointing": True, "default_root_dir": path}
    asks = {"population": population, "task": logistic(), "seeds": SEEDS, "regret": REGRET}
    return run(FedAvg(lr=0.5), rounds, callbacks=saving, fit=fit, **{**asks, **more})


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    path = tmp_path_factory.mktemp("regret")
    return go(ROUNDS, path), path


@pytest.mark.slow
def test_a_run_logs_equation_7(scene):
    module, _ = scene
    round_loss = RoundLoss(module.population, logistic())
    optima = [round_loss.optimum(i + 1, tolerance=1e-3) for i in range(ROUNDS)]
    losses = np.stack([round_loss.loss(i + 1, server.x).numpy() for i, server in enumerate(module.servers)], -1)
    least = np.stack([best.loss.numpy() for best in optima], -1)
    curves = measured(module, "regret/round", "regret/dynamic", "world/variation").numpy()  # [T, 3, S]
    assert difference(curves[:, 0].T, losses - least) <= 1e-12
    assert difference(curves[:, 1].T, dynamic_regret(losses, least)) <= 1e-12
    assert (curves[:, 0] > 0).all()
    for s in range(len(SEEDS)):
        for t in range(1, ROUNDS):
            models = torch.stack([module.servers[t].x[s], optima[t].x[s], optima[t - 1].x[s]])[None].expand(3, -1, -1)
            pair = torch.stack([round_loss.loss(t, models)[s], round_loss.loss(t + 1, models)[s]], -1)
            assert curves[t, 2, s] == pytest.approx(float(variation(pair)[0]), abs=1e-12)
    assert difference(measured(module, "world/drift")[:, 0].numpy(), curves[:, 2].cumsum(0)) <= 1e-12
    moved = [t + 1 for t in range(ROUNDS) if (curves[t, 2] > 0).any()]
    assert moved == DRIFTS


def test_a_resumed_run_logs_the_same_bit_for_bit(scene):
    module, path = scene
    task = logistic()
    with torch.no_grad():
        task.linear.weight.add_(1.0)  # another process's task begins elsewhere
    resumed = go(ROUNDS, ckpt_path=str(path / "epoch=4.ckpt"), task=task)
    assert torch.equal(measured(module, *NAMES)[5:], measured(resumed, *NAMES))


def test_regret_changes_nothing_else(scene):
    module, _ = scene
    plain = go(ROUNDS, regret=None)
    assert torch.equal(plain.server.x, module.server.x)
    assert not any(name.startswith(("regret", "world")) for name in plain.record.metrics)


def test_a_later_round_that_cannot_be_solved_has_no_regret_and_the_rounds_go_on(scene, monkeypatch):
    optimum = DynamicRegret.optimum

    def fails(self, round):
        if round == 4:
            raise UserError("optimum: ‖∇F‖ is 1, above the tolerance")
        return optimum(self, round)

    monkeypatch.setattr(DynamicRegret, "optimum", fails)
    module = go(6)
    assert torch.equal(module.server.x, go(6, regret=None).server.x)
    defined = measured(module, *NAMES).isfinite().all(-1)
    assert defined.tolist() == [[True] * 4] * 3 + [[False] * 4, *[[True, True, False, False]] * 2]
    monkeypatch.setattr(DynamicRegret, "optimum", lambda self, round: fails(self, 4))
    with pytest.raises(UserError, match="above the tolerance"):  # before there are rounds to lose
        go(1)


def test_several_models_are_refused():
    with pytest.raises(ValueError, match="one global model, got 2 of them"):
        run(HypCluster(lr=0.1), 1, population=world(), task=logistic(), regret=REGRET)


def test_a_config_asks_for_it():
    coordinator = load(QUICK, {"regret.tolerance": 1e-4}).build()[0]
    assert coordinator.run.round_metrics.regret == Regret(tolerance=1e-4)
    assert load(QUICK).build()[0].run.round_metrics.regret is None
    for overrides, sentence in (
        ({"regret.tolerance": 0.0}, "regret.tolerance must lie in (0, 1e12], got 0.0"),
        ({"regret.tolerence": 1.0}, "unknown key 'regret.tolerence': did you mean 'regret.tolerance'?"),
        ({"regret.steps": 0}, "steps must lie in [1, 1e9], got 0"),
    ):
        with pytest.raises(ConfigError, match=re.escape(sentence)):
            load(QUICK, overrides)
