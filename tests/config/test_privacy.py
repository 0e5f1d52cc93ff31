"""The privacy section of a config."""

import pytest

from flstudy.cli import main
from flstudy.config import ConfigError, load
from flstudy.tuning.plan import start_remarks

from .refusal import assert_refused
from .test_config import QUICK

PRIVATE = {
    "algorithm.weighting": "uniform",
    "privacy.clip": 0.5,
    "privacy.noise": 2.0,
    "privacy.delta": 0.01,
    "privacy.orders": [2.0, 8.0],
}
SESSIONS = {"population.availability": "AlternatingGroups", "population.availability.rounds": 10}
REFUSED = [
    ({"privacy.clipp": 1.0}, "unknown key 'privacy.clipp': did you mean 'privacy.clip'?"),
    ({"privacy.noise": -1.0}, "privacy.noise must lie in [0, 1e12], got -1.0"),
    ({"privacy.accountant": "rpd"}, "privacy.accountant must be one of rdp, pld, got 'rpd': did you mean 'rdp'?"),
    ({"privacy.adaptive_clip.quantile": 1.0}, "privacy.adaptive_clip.quantile must lie in (0, 1), got 1.0"),
    ({"privacy.noise": 1.0}, "noise = 1.0 needs a bound of what one device can do, got clip = null: set clip"),
    ({**PRIVATE, "algorithm.weighting": "examples"}, "algorithm.weighting must be uniform"),
    ({**PRIVATE, "algorithm": "Mime"}, "privacy: the devices of Mime answer a survey (gradient)"),
    ({**PRIVATE, "privacy.sampling": "poisson"}, "sampling must be the population's, fixed, got poisson"),
    ({**PRIVATE, "population.sampling": "coins"}, "population.sampling must be one of fixed, poisson, got 'coins'"),
    ({"privacy.clip": 0.0, "privacy.adaptive_clip.lr": 0.1}, "privacy.clip must lie in (0, 1e12], got 0.0"),
    ({"privacy.clip": -1.0}, "privacy.clip must lie in (0, 1e12], got -1.0"),
    ({"privacy.adaptive_clip.lr": 0.1}, "adaptive_clip needs a bound of what one device can do, got clip = null: set"),
    ({**PRIVATE, "privacy.adaptive_clip.count_noise": 0.5}, "count_noise must be > noise / 2 = 1, or the count"),
    (
        {**PRIVATE, "privacy.target_epsilon": 1e-3},
        "target_epsilon = 0.001 is out of reach: one round with noise = 2 spends ",
    ),
    (
        {**PRIVATE, "privacy.noise": 0.0, "privacy.solve": True, "privacy.target_epsilon": 0.1, "privacy.delta": 1e-9},
        "target_epsilon = 0.1 is out of reach in 60 rounds at δ = 1e-09, whatever the noise: raise it, or plan fewer",
    ),
    (
        {**PRIVATE, "privacy.noise": 0.0, "privacy.target_epsilon": 5.0},
        "target_epsilon = 5.0 is out of reach without noise: set noise, or solve",
    ),
    ({**PRIVATE, "algorithm": "HypCluster"}, "privacy: the devices of HypCluster answer a survey (loss)"),
    ({**PRIVATE, "algorithm": "Oracle"}, "privacy: the server of Oracle needs to know single devices' concepts"),
    (
        {**PRIVATE, "controller": "MasterFL", "controller.rounds": 60},
        "privacy: MasterFL decides by the devices' losses, which no noise covers; use another controller, or privacy",
    ),
    (
        {**PRIVATE, **SESSIONS, "controller": "DynamicInitialModel"},
        "privacy: DynamicInitialModel plays probe rounds, whose uploads no noise covers; use another controller",
    ),
    (
        {**PRIVATE, "population.sampling": "poisson", "population.participants": 0},
        "population.participants must lie in [1, 1e6], got 0",
    ),
]


@pytest.mark.parametrize(("overrides", "sentence"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_what_is_wrong_is_said_in_one_sentence(overrides, sentence):
    assert_refused(QUICK, overrides, sentence)


def test_a_section_reaches_the_coordinator_and_is_written_down():
    config = load(QUICK, {**PRIVATE, "privacy.noise": 0.9, "privacy.adaptive_clip.lr": 0.1})
    aggregator = config.build()[0].run.aggregator
    assert aggregator.private
    assert aggregator.privacy.orders == [2.0, 8.0]
    assert aggregator.privacy.adaptive_clip.lr == 0.1
    assert config.flat()["privacy.clip"] == 0.5
    assert config.plain()["privacy"]["adaptive_clip"]["quantile"] == 0.5
    assert not load(QUICK).build()[0].run.aggregator.private


def test_a_study_does_not_let_its_trials_end_early():
    short = {**PRIVATE, "privacy.target_epsilon": 20.0}
    assert load(QUICK, short).rounds == 60  # a run ends when it must
    with pytest.raises(ConfigError, match=r"target_epsilon = 20 would end trials before round 60 \(ε = .*solve"):
        load(QUICK, short, command="tune")
    load(QUICK, {**short, "privacy.target_epsilon": 1e6}, command="tune")
    load(QUICK, {**short, "privacy.noise": 0.0, "privacy.solve": True}, command="tune")


def test_a_delta_that_promises_nothing_is_warned_of_before_any_round():
    with pytest.warns(UserWarning, match=r"privacy\.delta = 0\.05 is not below 1 / N = 0\.05: such a promise"):
        load(QUICK, {**PRIVATE, "privacy.delta": 0.05})


@pytest.mark.parametrize("command", ["run", "tune"])
def test_the_command_line_refuses_it_before_any_work(command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = {**PRIVATE, "privacy.target_epsilon": 1e-3, "privacy.orders": "[2.0, 8.0]"}
    arguments = [text for key, value in options.items() for text in (f"--{key}", str(value))]
    assert main([command, str(QUICK), *arguments]) == 2
    assert "privacy: target_epsilon = 0.001 is out of reach: one round" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_private_study_says_first_that_tuning_spends_budget():
    (line,) = start_remarks(load(QUICK, PRIVATE, command="tune"), [])
    assert "choosing among them spends more of the privacy budget, which is not counted here" in line
    assert start_remarks(load(QUICK, {"privacy.clip": 0.5}, command="tune"), []) == []
