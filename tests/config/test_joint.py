"""Joint adaptivity in a config: what is refused before the first round, and in which words."""

import pytest

from flstudy.cli import main
from flstudy.config import ConfigError, load

from .refusal import assert_refused
from .test_config import QUICK

JOINT = {"algorithm": "FedAda2"}
DIRECT = {"algorithm": "DirectJointAdaptivity"}
OPTIMIZERS = "must be one of adagrad, adam, sm3_adagrad, sm3_adam, got 'sgd'"
REFUSED = [
    ({**JOINT, "algorithm.delay": -1}, "algorithm.delay must lie in [1, 1e6], got -1"),
    ({**JOINT, "algorithm.delay": 0}, "algorithm.delay must lie in [1, 1e6], got 0"),
    ({**JOINT, "algorithm.delay": 1.5}, "algorithm.delay must be an integer, got 1.5"),
    ({**JOINT, "algorithm.delay_unit": "round"}, "algorithm.delay_unit must be one of step, epoch, got 'round'"),
    ({**JOINT, "algorithm.warmup": -1}, "algorithm.warmup must lie in [0, 1e6], got -1"),
    ({**JOINT, "algorithm.eps_s": -0.5}, "algorithm.eps_s must lie in [0, 1e12], got -0.5"),
    ({**JOINT, "algorithm.sm3": "III"}, "algorithm.sm3 must be one of I, II, got 'III'"),
    # a device whose optimizer has no second moment has nowhere to put the server's v
    ({**DIRECT, "algorithm.client_optimizer": "sgd"}, f"algorithm.client_optimizer {OPTIMIZERS}"),
    (
        {**DIRECT, "algorithm.client_bias_correction": True},
        "client_bias_correction must be false: the devices' v starts",
    ),
    (
        {**DIRECT, "algorithm.server_optimizer": "sgd"},
        "algorithm.server_optimizer must be one of adagrad, adam, got 's",
    ),
    ({**DIRECT, "algorithm.momentum": 0.9}, "momentum must be 0, got 0.9: adaptive devices have none; take an Adam"),
]


@pytest.mark.parametrize(("overrides", "sentence"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_what_is_wrong_is_said_in_one_sentence(overrides, sentence):
    assert_refused(QUICK, overrides, sentence)


@pytest.mark.parametrize("optimizer", ["adam", "sm3_adagrad", "sm3_adam"])
def test_mismatched_optimizers_are_taken_as_the_paper_sends_them(optimizer):
    assert load(QUICK, {**DIRECT, "algorithm.client_optimizer": optimizer}).build()[0].algorithm.sm3 == "II"


def test_a_warm_up_that_no_device_ends_is_refused_before_the_first_round(capsys, tmp_path, monkeypatch):
    config = load(QUICK, {**JOINT, "population.steps": 12, "algorithm.warmup": 13})
    with pytest.raises(ConfigError, match=r"algorithm\.warmup must be <= 12, the most steps .* a round, got 13: its"):
        config.rehearse()
    load(QUICK, {**JOINT, "population.steps": 12, "algorithm.warmup": 12}).rehearse()
    monkeypatch.chdir(tmp_path)
    assert main(["run", str(QUICK), "--algorithm", "FedAda2", "--algorithm.warmup", "1000"]) == 2
    assert "algorithm.warmup must be <=" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_longest_work_is_counted_in_epochs_of_the_largest_device():
    population = load(QUICK, {"population.epochs": 3, "population.batch_size": 20}).build()[1].settle((0,))
    sizes = [len(device["train"]) for device in population.members[0]]
    cohort = population.cohort(1)
    assert population.plan.longest(int(cohort.sizes.max())) == int(cohort.batches.steps.max())
    assert population.plan.longest(max(sizes)) >= int(cohort.batches.steps.max())
