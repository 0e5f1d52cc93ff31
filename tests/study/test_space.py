"""Search spaces: what can be written, what is refused and how, and which keys a trial gets."""

import optuna
import pytest

from flstudy.config import ConfigError
from flstudy.study import Domain
from flstudy.study.space import Space, nearest_key
from tests.tuning.stand_in import StandIn, study

SEARCH = {
    "algorithm": {"choice": ["FedAvg", "FedYogi", "Flash"]},
    "algorithm.lr": {"loguniform": [1e-3, 1.0]},
    "algorithm.tau": {"loguniform": ["1e-5", 0.1]},
    "algorithm.gamma": {"uniform": [0.0, 0.1]},
    "population.participants": {"randint": [2, 11]},
}


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ({"logunifrom": [1, 2]}, "got 'logunifrom': did you mean 'loguniform'?"),
        (
            {"zipf": [1, 2]},
            "the distribution must be one of choice, lograndint, loguniform, quniform, randint, uniform",
        ),
        (0.5, "must be one of the distributions"),
        ({"uniform": [0, 1], "choice": [1]}, "must be one of the distributions"),
        ({"loguniform": [0.1, 1e-5]}, "loguniform must have low < high, got [0.1, 1e-05]: swap the two bounds"),
        ({"uniform": [1, 1]}, "uniform must have low < high, got [1, 1]: widen it"),
        ({"loguniform": [0, 1]}, "loguniform low must be > 0, got 0: give a small positive bound"),
        ({"lograndint": [0, 8]}, "lograndint low must be >= 1, got 0"),
        ({"uniform": ["a", 1]}, "uniform low must be a finite number, got 'a'"),
        ({"uniform": [0, float("inf")]}, "uniform high must be a finite number, got inf"),
        ({"uniform": [True, 2]}, "uniform low must be a finite number, got True"),
        ({"randint": [1, 2.5]}, "randint high must be an integer, got 2.5"),
        ({"uniform": [1]}, "uniform must be [low, high], got [1]: give 2 numbers"),
        ({"uniform": 3}, "uniform must be [low, high], got 3"),
        ({"quniform": [0, 1]}, "quniform must be [low, high, q], got [0, 1]: give 3 numbers"),
        ({"quniform": [0, 1, 2]}, "quniform q must lie in (0, 1], got 2"),
        ({"choice": []}, "choice must have at least one value, got []"),
        ({"choice": "FedAvg"}, "choice must be a list of values, got 'FedAvg'"),
        ({"choice": [1, 2, 1]}, "choice must have values that a search tells apart, got 1 and 1: remove one"),
        ({"choice": [1, 1.0]}, "choice must have values that a search tells apart, got 1 and 1.0: remove one"),
        ({"choice": [True, 1]}, "choice must have values that a search tells apart, got True and 1: remove one"),
        ({"choice": [0, False, None]}, "choice must have values that a search tells apart, got 0 and False: remove"),
        ({"choice": ["[1, 2]", [1, 2]]}, "values that a search tells apart, got '[1, 2]' and [1, 2]: remove one"),
    ],
)
def test_wrong_domains_are_refused_in_one_sentence(written, sentence):
    with pytest.raises(ConfigError) as refusal:
        Space.parse({"algorithm.lr": written})
    message = str(refusal.value)
    assert message.startswith("study.search.algorithm.lr")
    assert sentence in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("written", "extremes", "inside", "outside"),
    [
        ({"loguniform": ["1e-3", 1]}, (1e-3, 1.0), [1e-3, 0.5, 1], [0, 2, "0.5", None, float("nan")]),
        ({"uniform": [-1, 1]}, (-1, 1), [0, -1], [1.5, True]),
        ({"quniform": [0, 1, 0.3]}, (0, 0.9), [0.3, 0.6, 0.9], [0.5, 1.0]),
        ({"randint": [1, 10]}, (1, 9), [1, 9, 3.0], [10, 2.5]),
        ({"lograndint": [1, 65]}, (1, 64), [8, 64], [65]),
        ({"choice": ["a", 1, None, [1, 2]]}, ("a", 1, None, [1, 2]), ["a", None, [1, 2]], ["b", True, 1.0]),
    ],
)
def test_domains_know_their_values(written, extremes, inside, outside):
    domain = Domain.parse("k", written)
    assert tuple(domain.extremes()) == pytest.approx(extremes) if "choice" not in written else extremes
    assert all(domain.contains(value) for value in inside)
    assert not any(domain.contains(value) for value in outside)


@pytest.mark.parametrize("written", [{"quniform": [0, 1, 0.3]}, {"randint": [3, 6]}, {"lograndint": [1, 9]}])
def test_suggestions_stay_inside(written):
    domain, sampler = Domain.parse("k", written), optuna.samplers.RandomSampler(seed=0)
    trials = optuna.create_study(sampler=sampler)
    values = {domain.suggest(trials.ask(), "k") for _ in range(60)}
    assert all(domain.contains(value) for value in values)
    assert {*domain.extremes()} <= {*values}


def test_choices_of_lists_come_back_as_lists():
    domain, trials = Domain.parse("k", {"choice": [[1, 2], "a", None]}), optuna.create_study()
    values = [domain.suggest(trials.ask(), "k") for _ in range(40)]
    assert [1, 2] in values
    assert None in values


def test_a_trial_gets_the_keys_of_its_algorithm():
    space, config = Space.parse(SEARCH), StandIn()
    trials = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    seen = set()
    for _ in range(30):
        overrides = space.suggest(trials.ask(), lambda chosen, key: config.with_overrides(chosen).has_key(key))
        expected = {"algorithm", "algorithm.lr", "population.participants"}
        expected |= {"FedAvg": set(), "FedYogi": {"algorithm.tau"}, "Flash": {"algorithm.tau", "algorithm.gamma"}}[
            overrides["algorithm"]
        ]
        assert set(overrides) == expected
        config.with_overrides(overrides)
        seen.add(overrides["algorithm"])
    assert seen == {"FedAvg", "FedYogi", "Flash"}


def test_first_points_are_the_configs_own_values_for_each_algorithm():
    points = Space.parse(SEARCH).defaults(StandIn())
    assert points == [
        {"algorithm": "FedAvg", "algorithm.lr": 0.1, "population.participants": 10},
        {"algorithm": "FedYogi", "algorithm.lr": 0.1, "algorithm.tau": 0.001, "population.participants": 10},
        {
            "algorithm": "Flash",
            "algorithm.lr": 0.1,
            "algorithm.tau": 0.001,
            "algorithm.gamma": 0.05,
            "population.participants": 10,
        },
    ]
    outside = Space.parse({**SEARCH, "algorithm.lr": {"uniform": [0.5, 1]}}).defaults(StandIn())
    assert "algorithm.lr" not in outside[0]


def test_a_space_without_algorithms_has_one_first_point():
    assert Space.parse({"algorithm.lr": SEARCH["algorithm.lr"]}).defaults(StandIn()) == [{"algorithm.lr": 0.1}]
    assert Space.parse({}).defaults(StandIn()) == [{}]


def test_validate_takes_a_good_space():
    config = StandIn(study=study(search=SEARCH))
    Space.parse(SEARCH).validate(config)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"algorithm.tua": {"uniform": [0, 1]}}, "study.search.algorithm.tua must name a key of the config"),
        ({"algorithm.tua": {"uniform": [0, 1]}}, "did you mean 'algorithm.tau'?"),
        ({"algorithm": {"choice": ["FedAvg", "Flahs"]}}, "got 'Flahs'"),
        (
            {"algorithm.lr": {"uniform": [-1, 1]}},
            "study.search.algorithm.lr must hold only values that the config takes",
        ),
    ],
)
def test_validate_refuses_what_no_trial_could_run(changed, message):
    with pytest.raises(ConfigError) as refusal:
        Space.parse({**SEARCH, **changed}).validate(StandIn())
    assert message in str(refusal.value)


def test_nearest_keys_are_siblings_and_never_the_parent():
    keys = ["algorithm", "algorithm.lr", "algorithm.tau", "population.participants"]
    assert nearest_key("algorithm.tua", keys) == "algorithm.tau"
    assert nearest_key("algoritm.tau", keys) == "algorithm.tau"
    assert nearest_key("algorithm.zeta", ["algorithm", "algorithm.lr"]) is None


def test_a_preset_that_the_search_could_not_try_is_refused():
    config = StandIn(study=study(search=SEARCH, presets={"FedYogi": {"lr": 0.1, "tau": 5.0}}))
    with pytest.raises(
        ConfigError, match=r"study.presets.FedYogi.tau must lie in study.search's \{.*\}, got 5.0: widen"
    ):
        Space.parse(SEARCH).validate(config)


def test_a_default_outside_the_search_is_told():
    searched = {"algorithm": {"choice": ["FedAvg", "Flash"]}, "algorithm.tau": {"loguniform": [0.01, 1.0]}}
    sentence = "Flash's own algorithm.tau, 0.001, lies outside study.search's {loguniform: [0.01, 1]}: it is drawn"
    assert Space.parse(searched).outside_remarks(StandIn()) == [sentence]
