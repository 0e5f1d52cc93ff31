"""Sweeps in two steps: the symmetric grid, the neighbourhood of each algorithm's best, and studies played through
without Ray, in any order and over kills."""

import io
import itertools
import json
import math
import re
from typing import Any

import pytest
from optuna.trial import TrialState
from ray.tune.search import Searcher
from rich.console import Console

from flstudy.config import Budget, ConfigError, Confirm
from flstudy.study import StudyFolder
from flstudy.study.space import Space
from flstudy.tuning import GridSearch, TwoStep
from flstudy.tuning.plan import start_remarks
from flstudy.tuning.progress import StudyProgress
from flstudy.tuning.search import Search
from flstudy.tuning.trial_table import TrialTable
from tests.tuning.stand_in import StandIn, report, study

LR, SERVER = "algorithm.lr", "algorithm.server_lr"
EPS, TAU = "algorithm.eps", "algorithm.tau"
RATES = [0.001, 0.01, 0.1, 1.0]
ADAPTIVITY = [1.0e-5, 1.0e-3]
TIE = [[SERVER, LR], [TAU, EPS]]
SEARCH = {
    "algorithm": {"choice": ["Adaptive", "Joint"]},
    LR: {"choice": RATES},
    SERVER: {"choice": RATES},
    TAU: {"choice": ADAPTIVITY},
    EPS: {"choice": ADAPTIVITY},
}
BEST = {"Adaptive": {LR: 0.1, SERVER: 0.01, TAU: 1.0e-5}, "Joint": {LR: 0.01, SERVER: 0.1, TAU: 1.0e-3, EPS: 1.0e-5}}


@pytest.fixture(autouse=True)
def methods(monkeypatch):
    """One method that is adaptive on the server only, and one on both sides."""
    # Not the module's own: a study before this that was pickled by value left the class with a copy of its globals.
    algorithms = StandIn.flat.__globals__["ALGORITHMS"]
    monkeypatch.setitem(algorithms, "Adaptive", {"lr": 0.1, "server_lr": 0.1, "tau": 1.0e-3})
    monkeypatch.setitem(algorithms, "Joint", {"lr": 0.1, "server_lr": 0.1, "tau": 1.0e-3, "eps": 1.0e-3})


def make_search(
    trials: int | None = 200, search: dict[str, Any] | None = None, **settings: Any
) -> tuple[Space, StandIn]:
    more = {key: settings.pop(key) for key in ("allocation", "confirm", "budget") if key in settings}
    sampler = TwoStep(**({"tie": TIE} | settings))
    config = StandIn(study=study(trials=trials, search=search or SEARCH, sampler=sampler, **more))
    return Space.parse(config.study.search), config


def value(overrides: dict[str, Any]) -> float:
    """Best, 0, at the algorithm's own point; less with every step of the grid."""
    best = BEST[overrides["algorithm"]]
    return -sum(abs(math.log10(overrides[key] / best[key])) for key in best)


class Play:
    """A study without Ray: several workers, whose trials end in any order."""

    def __init__(self, folder, past=(), at_once: int = 1, **settings: Any) -> None:
        self.space, self.config = make_search(**settings)
        self.config.study.sampler.check(self.space, self.config)
        (folder / "snapshots").mkdir(parents=True, exist_ok=True)
        self.folder = StudyFolder(folder)
        progress = StudyProgress(Console(file=io.StringIO()), name="s", config=self.config)
        self.table = TrialTable(self.config, self.folder, progress, past)
        self.search = Search(
            self.space, self.config, name="s", max_concurrent=lambda: at_once, past=past, spending=self.table
        )
        self.proposals: list[dict[str, Any]] = []
        self.finished = False

    def start(self) -> bool:
        proposed = self.search.suggest(str(len(self.proposals)))
        self.finished = proposed == Searcher.FINISHED
        if proposed is None or self.finished:
            return False
        self.proposals.append(proposed)
        self.table.ensure_started(proposed, anew=True)
        return True

    def end(self, place: int, status: str = "finished", rounds: int = 6) -> None:
        proposed = self.proposals[place]
        result = report(status, value(proposed["overrides"]), rounds)
        self.table.report(proposed, result)
        self.search.on_trial_complete(str(place), result)
        self.table.end(proposed, result)

    def play(self, most: int | None = None) -> "Play":
        """To the end, or until so many trials are started; the newest of those under way ends first."""
        under_way: list[int] = []
        while not self.finished and (most is None or len(self.proposals) < most):
            while (most is None or len(self.proposals) < most) and self.start():
                under_way.append(len(self.proposals) - 1)
            if under_way and (most is None or len(self.proposals) < most):
                self.end(under_way.pop())
        return self

    def tried(self, algorithm: str) -> list[dict[str, Any]]:
        """Points of the search, by number."""
        return [
            {key: v for key, v in trial.overrides.items() if key != "algorithm"}
            for trial in self.table.trials
            if trial.algorithm == algorithm and trial.stage == "search"
        ]


def test_the_first_step_ties_what_an_algorithm_has_and_sweeps_the_rest():
    space, config = make_search()
    points = config.study.sampler.first_points(space, config)[0]
    joint = [point for point in points if point["algorithm"] == "Joint"]
    assert sorted((p[LR], p[SERVER], p[TAU], p[EPS]) for p in joint) == [
        (rate, rate, tau, tau) for rate in RATES for tau in ADAPTIVITY
    ]
    adaptive = [point for point in points if point["algorithm"] == "Adaptive"]
    assert all(EPS not in point and point[LR] == point[SERVER] for point in adaptive)
    assert len(adaptive) == 8
    assert points == config.study.sampler.first_points(space, config)[0]
    assert points != TwoStep(tie=TIE, seed=1).first_points(space, config)[0]


def test_the_first_step_may_take_fewer_values_than_the_second():
    first = {LR: [0.001, 0.1], SERVER: [0.1, 0.001], TAU: [1.0e-3], EPS: [1.0e-3]}
    space, config = make_search(first=first)
    points = [p for p in config.study.sampler.first_points(space, config)[0] if p["algorithm"] == "Joint"]
    assert sorted(point[LR] for point in points) == [0.001, 0.1]
    around = config.study.sampler.second_step(space, {LR: 0.1, SERVER: 0.1, TAU: 1.0e-3, EPS: 1.0e-3}, [])
    assert {point[LR] for point in around} == {0.01, 0.1, 1.0}
    assert {point[EPS] for point in around} == set(ADAPTIVITY)


@pytest.mark.parametrize("radius", [1, 2])
def test_the_second_step_is_the_neighbourhood_nearest_first_without_what_was_run(radius):
    settings = TwoStep(tie=TIE, radius=radius)
    space = Space.parse(SEARCH)
    best = {LR: 1.0, SERVER: 0.1, TAU: 1.0e-5, EPS: 1.0e-5}
    done = [{**best, LR: rate, SERVER: rate} for rate in RATES]
    points = settings.second_step(space, best, done)

    def steps(point: dict[str, Any]) -> list[int]:
        grids = {LR: RATES, SERVER: RATES, TAU: ADAPTIVITY, EPS: ADAPTIVITY}
        return [abs(grid.index(point[key]) - grid.index(best[key])) for key, grid in grids.items()]

    everything = [dict(zip(best, v, strict=True)) for v in itertools.product(RATES, RATES, ADAPTIVITY, ADAPTIVITY)]
    wanted = [p for p in everything if max(steps(p)) <= radius and p not in done and p != best]
    assert sorted(map(str, points)) == sorted(map(str, wanted))
    assert [sum(steps(point)) for point in points] == sorted(sum(steps(point)) for point in points)


def test_names_and_switches_keep_the_best_s_value_in_the_second_step():
    search = {
        LR: {"choice": [0.1, 1.0]},
        "population.participants": {"choice": [True, False]},
        "algorithm": {"choice": ["FedAvg"]},
    }
    best = {LR: 0.1, "population.participants": True}
    assert TwoStep().second_step(Space.parse(search), best, []) == [{LR: 1.0, "population.participants": True}]


@pytest.mark.parametrize("at_once", [1, 3, 50])
def test_each_algorithm_searches_around_its_own_best_once_its_first_step_is_in(tmp_path, at_once):
    play = Play(tmp_path, at_once=at_once).play()
    assert [trial.number for trial in play.table.trials] == list(range(len(play.proposals)))
    for name in ("Adaptive", "Joint"):
        tried = play.tried(name)
        assert all(point[LR] == point[SERVER] for point in tried[:8])
        symmetric = max(tried[:8], key=lambda point: value({"algorithm": name, **point}))
        settings = play.config.study.sampler
        assert sorted(map(_text, tried[8:])) == sorted(
            map(_text, settings.second_step(play.space, symmetric, tried[:8]))
        )
        assert len({_text(point) for point in tried}) == len(tried)
        assert BEST[name] in tried  # one step from the symmetric best, on one side only
    steps = play.config.study.sampler.plan(play.space, play.config)
    assert [arm.first for arm in steps] == [8, 8]
    assert len(play.tried("Joint")) <= steps[1].first + steps[1].second


def _text(point: dict[str, Any]) -> str:
    return json.dumps(point, sort_keys=True)


def test_the_second_step_waits_for_the_first_one_s_last_trial_and_not_for_the_other_algorithm(tmp_path):
    play = Play(tmp_path, at_once=50)
    while play.start():
        continue
    assert len(play.proposals) == 16
    places = [place for place, p in enumerate(play.proposals) if p["overrides"]["algorithm"] == "Joint"]
    for place in places[:-1]:
        play.end(place)
        assert not play.start()
        assert not play.finished
    play.end(places[-1])
    assert play.start()
    assert play.proposals[-1]["overrides"]["algorithm"] == "Joint"


@pytest.mark.parametrize("killed_at", [3, 16, 17, 22])
def test_a_killed_sweep_goes_on_to_the_same_points(tmp_path, killed_at):
    whole = Play(tmp_path / "whole").play()
    Play(tmp_path / "cut", at_once=2).play(most=killed_at)
    past = StudyFolder(tmp_path / "cut").read_trials()
    assert any(not trial.is_over for trial in past)
    again = Play(tmp_path / "cut", past=past, at_once=2).play()
    for name in ("Adaptive", "Joint"):
        assert [*map(_text, again.tried(name))] == [*map(_text, whole.tried(name))]
    assert {p["number"] for p in again.proposals} >= {trial.number for trial in past if not trial.is_over}


def test_trials_bound_the_second_step_and_winners_are_confirmed_after_it(tmp_path):
    play = Play(tmp_path, trials=25, confirm=Confirm(top=1, seeds=2), at_once=3).play()
    assert (len(play.tried("Adaptive")), len(play.tried("Joint"))) == (13, 12)
    assert [arm.second for arm in play.config.study.sampler.plan(play.space, play.config)] == [5, 4]
    confirmed = [trial for trial in play.table.trials if trial.stage == "confirm"]
    assert len(confirmed) == 2
    assert min(trial.number for trial in confirmed) == 25
    spent = Play(tmp_path / "budget", trials=None, budget=Budget(rounds=20 * 6)).play()
    assert len(spent.proposals) == 20


def test_what_diverged_or_was_stopped_early_is_no_centre(tmp_path):
    play = Play(tmp_path)
    for place in range(16):
        play.start()
        overrides = play.proposals[place]["overrides"]
        ends = {0.01: ("diverged", 2), 0.1: ("running", 2), 0.001: ("finished", 6), 1.0: ("failed", 3)}
        play.end(place, *ends[overrides[LR]])
    play.start()
    centre = play.proposals[16]["overrides"]
    assert {centre[LR], centre[SERVER]} <= {0.001, 0.01}  # around 0.001, the only one that did all rounds
    states = {trial.state for trial in play.search.arms[0].study.trials}
    assert {TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL} <= states
    none = Play(tmp_path / "none")
    while none.start():
        none.end(len(none.proposals) - 1, "diverged", 2)
    assert (none.finished, len(none.proposals)) == (True, 16)


def test_the_plan_is_told_before_it_begins():
    def describe(space: Space, config: StandIn) -> list[str]:
        return start_remarks(config, config.study.sampler.plan(space, config))

    assert describe(*make_search(trials=40)) == ["step 1: 16 trials, step 2: up to 24 (Adaptive 8 + 12, Joint 8 + 12)"]
    alone = {LR: {"choice": RATES}, SERVER: {"choice": RATES}}
    space, config = make_search(search=alone, tie=[[LR, SERVER]])
    config.values["algorithm"] = "Joint"
    assert describe(space, config) == ["step 1: 4 trials, step 2: up to 6"]
    assert GridSearch().plan(space, config) == []
    assert start_remarks(config, []) == []


RANGE = {**SEARCH, LR: {"loguniform": [0.01, 1.0]}}
OTHER = {**SEARCH, SERVER: {"choice": [0.001, 0.01, 0.1, 5.0]}}
NAMED = {**SEARCH, "population.participants": {"choice": ["a", "b"]}}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"search": RANGE}, "study.search.algorithm.lr must be a choice with TwoStep, got loguniform: list its grid"),
        ({"tie": [[LR]]}, "study.sampler.tie must hold lists of two keys or more, got ['algorithm.lr']"),
        ({"tie": [[LR, "algorithm.sever_lr"]]}, "got 'algorithm.sever_lr': did you mean 'algorithm.server_lr'?"),
        ({"tie": [[LR, "rounds"]]}, "must name keys of study.search, got 'rounds': search it over the same values"),
        ({"tie": [[LR, SERVER], [LR, TAU]]}, "must name a key once, got 'algorithm.lr' twice"),
        (
            {"search": NAMED, "tie": [["population.participants", LR]]},
            "must name keys with grids of numbers, got 'popu",
        ),
        (
            {"search": OTHER},
            "study.sampler.tie: algorithm.lr must take the values of algorithm.server_lr in step 1, "
            "[0.001, 0.01, 0.1, 5.0], got [0.001, 0.01, 0.1, 1.0]: give both one choice",
        ),
        ({"first": {"algorithm.mu": [1]}}, "study.sampler.first.algorithm.mu must name a value searched for"),
        ({"first": {LR: [0.5]}}, "study.sampler.first.algorithm.lr must hold values of study.search.algorithm.lr, [0."),
        ({"first": {LR: []}}, "study.sampler.first.algorithm.lr must be a list of values"),
        ({"first": {LR: [0.1]}}, "study.sampler.tie: algorithm.lr must take the values of algorithm.server_lr"),
        ({"allocation": "free"}, "study.allocation must be equal with TwoStep, got 'free'"),
        ({"tie": []}, "study.sampler leaves step 2 nothing to try, since step 1 is the whole grid: name keys that"),
        ({"trials": 17}, "study.trials must be >= 18 with TwoStep, got 17: step 1 of Joint takes 8 of its share of 8"),
    ],
)
def test_sweeps_that_cannot_be_made_are_refused_before_anything_runs(settings, message):
    space, config = make_search(**settings)
    with pytest.raises(ConfigError, match=re.escape(message)):
        config.study.sampler.check(space, config)
