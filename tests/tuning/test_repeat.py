"""Searches that were cut go on to the proposals of searches that were not, and algorithms draw in pairs.

Studies are played without Ray: what a trial reports is a function of its number and values, so that it does not matter
how often it is trained.
"""

import io
import itertools
import math
import random
from typing import Any

import pytest
from ray.tune.search import Searcher
from rich.console import Console

from flstudy.config import Budget, Confirm, Objective
from flstudy.study import StudyFolder, Trial
from flstudy.study.space import Space
from flstudy.study.trial import by_algorithm
from flstudy.tuning import CmaEs, GaussianProcess, GridSearch, Nsga2, OptunaSampler, RandomSearch, Tpe, TwoStep
from flstudy.tuning.progress import StudyProgress
from flstudy.tuning.search import Search
from flstudy.tuning.trial_table import TrialTable
from tests.tiers import in_tiers
from tests.tuning.stand_in import StandIn, report, study

SPACE = {
    "algorithm": {"choice": ["FedAvg", "FedYogi", "Flash"]},
    "algorithm.tau": {"loguniform": [1.0e-4, 1.0e-2]},  # before the shared keys: not all algorithms have it
    "algorithm.lr": {"loguniform": [0.01, 1.0]},
    "population.participants": {"randint": [5, 20]},
    "algorithm.gamma": {"quniform": [0.05, 0.95, 0.1]},
}
GRID = {
    "algorithm": {"choice": ["FedAvg", "FedYogi", "Flash"]},
    "algorithm.lr": {"choice": [0.01, 0.1, 1.0]},
    "algorithm.tau": {"choice": [0.01, 0.1, 1.0]},
}
ENDS = ("finished", "finished", "running", "finished", "diverged", "finished", "failed", "finished")


def outcome(proposal: dict[str, Any]) -> dict[str, Any]:
    """Made up: better near a rate of 0.1; some are stopped by a scheduler, diverge or fail."""
    overrides = proposal["overrides"]
    level = -abs(math.log10(overrides["algorithm.lr"]) + 1) - 0.1 * abs(overrides.get("algorithm.gamma", 0.5) - 0.4)
    status = ENDS[proposal["number"] * 5 % len(ENDS)] if proposal["stage"] == "search" else "finished"
    level = 0.0 if status == "diverged" else level
    return report(status, level, 6 if status == "finished" else 2, traffic__bits=overrides["algorithm.lr"])


class Start:
    """One start of a study: several workers, whose trials end in an order drawn from a seed and their numbers."""

    def __init__(self, place, at_once: int = 1, search: dict[str, Any] | None = None, **settings: Any) -> None:
        (place / "snapshots").mkdir(parents=True, exist_ok=True)
        self.folder, self.at_once = StudyFolder(place), at_once
        past = self.folder.read_trials()
        config: Any = StandIn(study=study(search=search or SPACE, **settings))
        progress = StudyProgress(Console(file=io.StringIO()), name="s", config=config)
        self.table = TrialTable(config, self.folder, progress, past)
        space = Space.parse(config.study.search)
        config.study.sampler.check(space, config)
        self.search = Search(
            space,
            config,
            name="s",
            max_concurrent=lambda: at_once,
            past=past,
            spending=self.table,
            journal=self.folder.journal,
        )
        self.ids = map(str, itertools.count())

    def play(self, most: float = math.inf, *, heard: bool = True) -> list[Trial]:
        """To the end, or until a kill: before so many trials of the study have ended. ``heard``: whether that happens
        before the search, or only the list of trials, is told of the next end."""
        under_way: dict[str, Any] = {}
        ended = sum(trial.is_over for trial in self.table.trials)
        while True:
            while len(under_way) < self.at_once:
                proposed = self.search.suggest(name := next(self.ids))
                if proposed is None or proposed == Searcher.FINISHED:
                    break
                under_way[name] = proposed
                self.table.ensure_started(proposed, anew=True)
            if not under_way:
                return self.table.trials
            # Whoever ends next is a function of who is under way: no start of the study has a say in it.
            numbers = sorted(proposed["number"] for proposed in under_way.values())
            number = random.Random(str(numbers)).choice(numbers)
            name = next(name for name, proposed in under_way.items() if proposed["number"] == number)
            proposed = under_way.pop(name)
            result = outcome(proposed)
            self.table.report(proposed, result)
            if ended >= most and heard:
                return self.table.trials
            self.search.on_trial_complete(name, result)
            if ended >= most:
                return self.table.trials
            self.table.end(proposed, result)
            ended += 1


def values(trials: list[Trial]) -> list[tuple[Any, ...]]:
    """What was proposed, how often, and what the search knew."""
    return [(t.number, t.overrides, t.known, t.stage, t.confirms, str(t.status), t.repeats) for t in trials]


SAMPLERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "Tpe": (Tpe(startup_trials=2), {}),
    "Tpe, jointly": (Tpe(startup_trials=2, multivariate=True), {}),
    "RandomSearch": (RandomSearch(seed=3), {}),
    "GridSearch": (GridSearch(points=2), {"search": GRID}),
    "TwoStep": (TwoStep(tie=[["algorithm.lr", "algorithm.tau"]]), {"search": GRID}),
    "CmaEs": (CmaEs(startup_trials=2), {}),
    "GaussianProcess": (GaussianProcess(startup_trials=3), {"trials": 16}),
    "Nsga2": (Nsga2(population=3), {}),
    "Optuna's QMC": (
        OptunaSampler(
            class_path="optuna.samplers.QMCSampler", init_args={"scramble": True, "warn_independent_sampling": False}
        ),
        {},
    ),
    "own, counting": (OptunaSampler(class_path="tests.tuning.own_samplers.Counting", seed=2), {}),
    "own, climbing": (OptunaSampler(class_path="tests.tuning.own_samplers.Climbing", seed=2), {}),
}
MORE: dict[str, dict[str, Any]] = {
    "": {},
    "free": {"allocation": "free"},
    "bounds": {"constraints": {"traffic/bits": {"max": 0.2}}},
    "front": {"objectives": [Objective(metric="traffic/bits", mode="min")]},
    "confirm": {"confirm": Confirm(top=2, seeds=2)},
}
CASES = [
    (name, more, at_once)
    for name, more, at_once in itertools.product(SAMPLERS, MORE, (1, 4))
    if not (SAMPLERS[name][0].plain_only and more in ("bounds", "front"))
    and not (name == "TwoStep" and more in ("free", "front"))
    and not (at_once > 1 and more)
    and not (name == "GaussianProcess" and (more or at_once > 1))  # a second a trial
]


FIRST = [("Tpe", "", 4)] + [(name, "", 1) for name in SAMPLERS if name != "GaussianProcess"]


@pytest.mark.parametrize(("name", "more", "at_once"), in_tiers(CASES, FIRST))
def test_a_cut_search_proposes_what_an_undisturbed_one_does(tmp_path, caplog, name, more, at_once):
    sampler, sampler_settings = SAMPLERS[name]
    settings = {"trials": 24, **sampler_settings, **MORE[more], "sampler": sampler, "at_once": at_once}
    whole = values(Start(tmp_path / "whole", **settings).play())
    assert len(whole) >= 16
    for time, cut in enumerate((1, 9, 10, 15) if name != "GaussianProcess" else (10,)):
        trials = Start(tmp_path / "cut", **settings).play(cut, heard=time % 2 == 0)
        assert any(not trial.is_over for trial in trials)
    assert values(Start(tmp_path / "cut", **settings).play()) == whole
    assert not caplog.records


FEW = {"algorithm": {"choice": ["FedAvg", "Flash"]}, "algorithm.lr": {"choice": [0.01, 0.1, 1.0]}}


def ends_told(start: Start) -> int:
    """Number of ends that the samplers of all arms were told."""
    return sum(trial.state.is_finished() for arm in start.search.arms for trial in arm.study.trials)


@pytest.mark.parametrize("at_once", [1, 4])
@pytest.mark.parametrize("allocation", ["equal", "free"])
@pytest.mark.parametrize("sampler", [Tpe(startup_trials=2), RandomSearch(seed=3), Nsga2(population=3)], ids=repr)
def test_a_configuration_that_ends_by_itself_is_trained_once_also_in_a_search_that_was_cut(
    tmp_path, caplog, sampler, allocation, at_once
):
    settings = {"trials": 30, "search": FEW, "sampler": sampler, "allocation": allocation, "at_once": at_once}
    start = Start(tmp_path / "whole", **settings)
    whole = start.play()
    assert sum(trial.times_proposed for trial in whole) == 30 == ends_told(start)
    assert len(whole) < 20
    ended = [trial.configuration for trial in whole if trial.status in ("finished", "diverged")]
    assert len(ended) == len(set(ended)) <= 6
    for trial in whole:  # one that a scheduler stopped, or that failed, is tried again
        assert trial.repeats == [] or trial.status in ("finished", "diverged") or at_once > 1
    for time, cut in enumerate((1, 3, 5)):
        Start(tmp_path / "cut", **settings).play(cut, heard=time % 2 == 0)
    assert values(Start(tmp_path / "cut", **settings).play()) == values(whole)
    assert not caplog.records


def test_a_sampler_hears_the_same_end_of_every_proposal_of_a_configuration(tmp_path):
    start = Start(tmp_path, trials=30, search=FEW, sampler=Tpe(startup_trials=2), at_once=2)
    values_by_point: dict[str, set[float]] = {}
    start.play()
    for arm in start.search.arms:
        for trial in arm.study.trials:
            if trial.state.name == "COMPLETE":
                values_by_point.setdefault(str((arm.fixed, trial.params)), set()).add(trial.value)
    assert {len(heard) for heard in values_by_point.values()} == {1}


def test_a_study_that_only_a_budget_ends_is_over_once_nothing_new_is_proposed(tmp_path):
    start = Start(tmp_path, trials=None, budget=Budget(rounds=10_000), search=FEW, sampler=RandomSearch(seed=3))
    trials = start.play()
    assert len({trial.configuration for trial in trials}) == 6
    assert start.table.rounds() < 200
    again = Start(tmp_path, trials=None, budget=Budget(rounds=10_000), search=FEW, sampler=RandomSearch(seed=3))
    assert values(again.play()) == values(trials)


def test_equal_configurations_are_one_row_that_says_how_often_it_was_proposed(tmp_path):
    start = Start(tmp_path, trials=24, search=FEW, sampler=RandomSearch(seed=3), confirm=Confirm(top=3, seeds=2))
    trials = start.play()
    fresh = {trial.configuration for trial in trials if trial.is_confirmation}
    by_number = {trial.number: trial for trial in trials}
    winners = [by_number[trial.confirms].configuration for trial in trials if trial.is_confirmation]
    assert sorted(winners) == sorted({trial.configuration for trial in trials if trial.status == "finished"} - fresh)
    assert sum(t.times_proposed for t in trials if not t.is_confirmation) == 24
    assert start.table._progress.summary().startswith(f"s: {24 + len(winners)}/27 trials")


@pytest.mark.parametrize("sampler", [RandomSearch(seed=3), CmaEs(startup_trials=20)], ids=["RandomSearch", "CmaEs"])
def test_all_algorithms_draw_the_same_values_for_the_keys_that_they_share(tmp_path, sampler):
    settings = {"trials": 24, "sampler": sampler, "at_once": 2}
    Start(tmp_path, **settings).play(7)
    arms = by_algorithm(Start(tmp_path, **settings).play())
    for trials, others in itertools.combinations(arms.values(), 2):
        for left, right in list(zip(trials, others, strict=True))[1:]:  # their own values come first
            shared = set(left.overrides) & set(right.overrides) - {"algorithm"}
            assert {"algorithm.lr", "population.participants"} <= shared
            assert {left.overrides[key] == right.overrides[key] for key in shared} == {True}
    assert len({trial.overrides["algorithm.lr"] for trial in arms["Flash"]}) == 8


def test_what_a_sampler_draws_otherwise_than_before_is_said_once_and_what_was_tried_counts(tmp_path, caplog):
    settings = {"trials": 24, "sampler": Tpe(startup_trials=2)}
    past = Start(tmp_path, **settings).play(10)
    past[7].overrides["algorithm.lr"] = 0.5
    StudyFolder(tmp_path).write_trials(past)
    again = Start(tmp_path, **settings)
    assert [record.message.partition(",")[0] for record in caplog.records] == [
        "the sampler draws other values than in the study's earlier start"
    ]
    assert 0.5 in [trial.params["algorithm.lr"] for arm in again.search.arms for trial in arm.study.trials]
    assert [trial.number for trial in again.play()] == list(range(24))


def test_trials_of_which_nobody_noted_what_the_search_knew_are_told_as_they_are(tmp_path, caplog):
    settings = {"trials": 24, "sampler": RandomSearch()}
    past = Start(tmp_path, **settings).play(10)
    for trial in past:
        trial.known = None
    StudyFolder(tmp_path).write_trials(past)
    Start(tmp_path, **settings).play(15)  # and from there on both kinds
    trials = Start(tmp_path, **settings).play()
    assert [trial.number for trial in trials] == list(range(24))
    assert len({str(trial.overrides) for trial in trials}) == 24
    assert not caplog.records


def test_a_proposal_is_on_disk_before_a_worker_has_it(tmp_path):
    start = Start(tmp_path, trials=6, sampler=Tpe())
    proposed = start.search.suggest("0")
    (stored,) = start.folder.read_trials()
    assert (stored.overrides, stored.known, stored.started, stored.attempts) == (proposed["overrides"], 0, None, 0)


def test_of_two_ends_the_later_one_has_the_larger_time_whatever_the_clock_does(tmp_path, monkeypatch):
    monkeypatch.setattr("flstudy.tuning.trial_table.time.time", itertools.count(1e9, -3600).__next__)
    trials = Start(tmp_path, trials=6, sampler=Tpe()).play()
    assert [trial.ended for trial in trials] == sorted({trial.ended for trial in trials})
