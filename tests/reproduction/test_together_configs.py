"""The study of the four papers together: its methods get the same number of trials, its drifts come inside sessions,
and its own method, FLASH's server over SM3 on devices, is FLASH where SM3 adapts nothing."""

from pathlib import Path

import pytest

from flstudy.reproduction.plan import read_paper, stage_config, stages_of
from tests.population.datasets.on_disk import accept_any_checksum, write_idx

PLAN = read_paper("together", Path(__file__).parents[2] / "tune_configs")
MADE = {stage.name: stage_config(PLAN, stage) for stage in stages_of(PLAN)}
OWN = "./flash_over_sm3.py:FlashAda2"
SMALL = {
    "population.clients": 4,
    "population.participants": 2,
    "population.partition.alpha": 5.0,
    "population.availability.rounds": 2,
    "population.drift.rounds": [2, 4],
    "population.valid": 0.1,
    "population.test": 0.1,
    "rounds": 4,
    "evaluate_every": 2,
    "seeds": [0, 44, 56],
}


def test_every_method_has_the_same_number_of_trials_and_nobody_is_stopped():
    shares = {config.study.trials / len(config.study.search["algorithm"]["choice"]) for config in MADE.values()}
    assert len(shares) == 1
    assert {config.study.scheduler for config in MADE.values()} == {None}
    assert len({(config.study.confirm.top, config.study.confirm.seeds) for config in MADE.values()}) == 1


def test_labels_drift_while_a_session_lasts_and_each_drift_is_evaluated_at_once():
    for config in MADE.values():
        sessions, drifts = config.session_rounds(), config.drift_rounds()
        assert len(drifts) == 2
        assert all(drift - max(first for first in sessions if first <= drift) >= 5 for drift in drifts)
        assert not any(drift % config.flat()["evaluate_every"] for drift in drifts)


@pytest.mark.parametrize("name", MADE)
def test_it_runs_on_small_files_with_its_own_class(name, tmp_path, monkeypatch):
    write_idx(tmp_path, "FashionMNIST", 600)
    accept_any_checksum(monkeypatch)
    rate, losses = 0.03, []
    many = {"algorithm.lr": 1e6 * rate, "algorithm.eps": 1e6}
    for algorithm, more in ((OWN, many), ("Flash", {"algorithm.lr": rate, "algorithm.clamp": 0.1})):
        records, base = [], {"population.dataset.root": str(tmp_path), "algorithm": algorithm, "algorithm.gamma": None}
        base["algorithm.server_lr"] = 0.01
        if name == "DynamicInitialModel":
            base["rounds"] = 6  # it needs three sessions
        MADE[name].with_overrides({**SMALL, **base, **more}).run(records.append)
        losses.append(records[-1].metrics["test/loss"][0])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
