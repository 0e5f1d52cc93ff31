"""Arms, budgets, confirmations and resumes: studies played through without Ray."""

import io
import json
import math
from collections import Counter
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from ray.tune.search import Searcher
from rich.console import Console

from flstudy.config import Budget, Confirm, Objective
from flstudy.study import StudyFolder
from flstudy.study.space import Space
from flstudy.tuning import Asha, GaussianProcess, Nsga2, RandomSearch, Tpe
from flstudy.tuning.progress import StudyProgress
from flstudy.tuning.schedulers import ray_scheduler
from flstudy.tuning.search import Search
from flstudy.tuning.trial_table import TrialTable
from tests.tuning.stand_in import StandIn, report, study

SPACE = {
    "algorithm": {"choice": ["FedAvg", "Flash"]},
    "algorithm.lr": {"loguniform": [0.01, 1.0]},
    "algorithm.tau": {"loguniform": [1.0e-4, 1.0e-2]},
}


class Play:
    """A study without Ray: proposals are answered at once by a made-up outcome, through a real list of trials."""

    def __init__(self, folder, past=(), at_once: int = 1, **settings: Any) -> None:
        self.config = StandIn(study=study(search=SPACE, **settings))
        (folder / "snapshots").mkdir(parents=True, exist_ok=True)
        self.folder = StudyFolder(folder)
        progress = StudyProgress(Console(file=io.StringIO()), name="s", config=self.config)  # type: ignore[arg-type]
        self.table = TrialTable(self.config, self.folder, progress, past)  # type: ignore[arg-type]
        self.search = Search(
            Space.parse(SPACE),
            self.config,  # type: ignore[arg-type]
            name="s",
            max_concurrent=lambda: at_once,
            past=past,
            spending=self.table,
            journal=self.folder.journal,
        )
        self.proposals: list[dict[str, Any]] = []

    def start(self) -> dict[str, Any] | None:
        """The next proposal, as a worker gets it; None where there is none now."""
        proposed = self.search.suggest(str(len(self.proposals)))
        if proposed is None or proposed == Searcher.FINISHED:
            return None
        self.proposals.append(proposed)
        self.table.ensure_started(proposed, anew=True)
        return proposed

    def end(self, place: int, status: str = "finished", rounds: int = 6, **metrics: float) -> None:
        """Of the proposal that came as number ``place``."""
        proposed = self.proposals[place]
        bonus = 0.1 if proposed["overrides"]["algorithm"] == "Flash" else 0.0
        level = bonus - abs(math.log10(proposed["overrides"]["algorithm.lr"]) + 1)
        result = report(status, level, rounds, **metrics)
        self.table.report(proposed, result)
        self.search.on_trial_complete(str(place), result)
        self.table.end(proposed, result)

    def play(self) -> list[dict[str, Any]]:
        """To the end."""
        while self.start() is not None:
            self.end(len(self.proposals) - 1)
        return self.proposals

    def algorithms(self) -> Counter[str]:
        return Counter(trial.algorithm for trial in self.table.trials if trial.stage == "search")


def test_every_algorithm_has_an_equal_share_and_a_search_of_its_own(tmp_path):
    play = Play(tmp_path, trials=11)
    proposals = play.play()
    assert play.algorithms() == {"FedAvg": 6, "Flash": 5}
    assert [proposal["number"] for proposal in proposals] == list(range(11))
    assert [proposal["overrides"]["algorithm"] for proposal in proposals[:4]] == ["FedAvg", "Flash", "FedAvg", "Flash"]
    first_values = {"FedAvg": {"algorithm.lr": 0.1}, "Flash": {"algorithm.lr": 0.1, "algorithm.tau": 0.001}}
    for proposal in proposals[:2]:  # the algorithm's own values come first
        assert (
            proposal["overrides"]
            == {"algorithm": proposal["overrides"]["algorithm"]} | first_values[proposal["overrides"]["algorithm"]]
        )
    free = Play(tmp_path / "free", trials=40, allocation="free", sampler=Tpe(startup_trials=4))
    free.play()
    assert free.algorithms()["Flash"] > free.algorithms()["FedAvg"]  # the better one draws the trials to itself


def test_the_history_opens_from_its_journal(tmp_path):
    play = Play(tmp_path, trials=6)
    play.play()
    storage = JournalStorage(JournalFileBackend(str(play.folder.journal)))
    names = [summary.study_name for summary in optuna.get_all_study_summaries(storage)]
    assert sorted(names) == ["s FedAvg", "s Flash"]
    flash_study = optuna.load_study(study_name="s Flash", storage=storage)
    assert [trial.state for trial in flash_study.trials] == [TrialState.COMPLETE] * 3
    assert [trial.user_attrs["trial"] for trial in flash_study.trials] == [1, 3, 5]
    assert set(flash_study.best_trial.params) == {"algorithm.lr", "algorithm.tau"}


def test_a_budget_of_rounds_is_never_exceeded_and_shared_by_rounds(tmp_path):
    play = Play(tmp_path, trials=None, budget=Budget(rounds=100), at_once=3)
    while (started := play.start()) is not None:
        stopped = started["overrides"]["algorithm"] == "FedAvg"  # a scheduler stops every one of its trials early
        play.end(len(play.proposals) - 1, "running" if stopped else "finished", 2 if stopped else 6)
    assert 100 - 6 < play.table.rounds() <= 100
    assert abs(play.table.rounds("FedAvg") - play.table.rounds("Flash")) <= 6
    assert play.algorithms()["FedAvg"] > 2 * play.algorithms()["Flash"]


def test_a_budget_of_hours_starts_nothing_when_it_is_spent(tmp_path):
    play = Play(tmp_path, trials=None, budget=Budget(hours=1.0))
    assert play.start() is not None
    play.end(0)
    spent = {"started": 0.0, "state": "interrupted", "spent_s": 3601.0, "format": 2}
    (tmp_path / "state.json").write_text(json.dumps(spent))
    assert play.search.suggest("late") == Searcher.FINISHED


def test_winners_are_confirmed_on_new_seeds_when_the_search_is_over(tmp_path):
    play = Play(tmp_path, trials=6, confirm=Confirm(top=2, seeds=3), at_once=2)
    for _ in range(3):
        play.start(), play.start()
        play.end(len(play.proposals) - 2)
        if len(play.proposals) < 6:
            play.end(len(play.proposals) - 1)
    assert play.start() is None  # one of the search is still under way
    play.end(5)
    proposals = play.play()[6:]
    assert len(proposals) == 4
    best = {trial.number: trial for trial in play.table.winners()}
    assert [proposal["confirms"] for proposal in proposals] == list(best)
    assert Counter(trial.algorithm for trial in best.values()) == {"FedAvg": 2, "Flash": 2}
    for proposal in proposals:
        assert proposal["stage"] == "confirm"
        assert proposal["overrides"] == {**best[proposal["confirms"]].overrides, "seeds": [1000, 1001, 1002]}
    confirmed = [trial for trial in play.table.trials if trial.stage == "confirm"]
    assert [trial.number for trial in confirmed] == [6, 7, 8, 9]
    assert play.algorithms().total() == 6  # they are no part of the search


def test_a_configuration_that_was_drawn_several_times_is_confirmed_once(tmp_path):
    play = Play(tmp_path, trials=6, confirm=Confirm(top=2, seeds=1))
    for number, (name, lr) in enumerate([("FedAvg", 0.1), ("FedAvg", 0.1), ("Flash", 0.1), ("FedAvg", 0.3)]):
        overrides = {"algorithm": name, "algorithm.lr": lr}
        play.proposals.append(
            {"number": number, "overrides": overrides, "stage": "search", "confirms": None, "known": 0}
        )
        play.table.ensure_started(play.proposals[-1], anew=True)
        result = report("finished", -abs(math.log10(lr) + 1), 6)
        play.table.report(play.proposals[-1], result)
        play.table.end(play.proposals[-1], result)
    assert [trial.number for trial in play.table.winners()] == [0, 2, 3]


def test_a_trial_whose_worker_died_comes_back_under_its_number(tmp_path):
    play = Play(tmp_path, trials=2)
    first = play.start()
    play.search.on_trial_complete("0", None, error=True)
    play.search.settle_loss(0, restart=True)
    assert play.start() == first
    play.end(1)
    play.start()
    play.search.on_trial_complete("2", None, error=True)
    assert play.start() is None  # not FINISHED: nobody has said yet what becomes of it
    play.search.settle_loss(1, restart=False)
    assert play.search.suggest("3") == Searcher.FINISHED
    states = [trial.state for arm in play.search.arms for trial in arm.study.trials]
    assert states == [TrialState.COMPLETE, TrialState.FAIL]


def test_a_resumed_search_goes_on_where_it_was(tmp_path):
    whole = Play(tmp_path / "whole", trials=12, sampler=RandomSearch(seed=1))
    whole.play()
    cut = Play(tmp_path / "cut", trials=12, sampler=RandomSearch(seed=1), at_once=2)
    for _ in range(3):
        cut.start()
        cut.end(len(cut.proposals) - 1)
    hanging = cut.start()
    past = cut.folder.read_trials()
    assert [trial.status for trial in past] == ["finished", "finished", "finished", "running"]
    again = Play(tmp_path / "cut", past=past, trials=12, sampler=RandomSearch(seed=1))
    proposals = again.play()
    assert proposals[0] == hanging
    assert [proposal["number"] for proposal in proposals] == list(range(3, 12))
    assert again.algorithms() == {"FedAvg": 6, "Flash": 6}
    drawn = [str(trial.overrides) for trial in again.table.trials]
    assert len(set(drawn)) == 12  # none of the first draws again
    optuna_trials = [trial for arm in again.search.arms for trial in arm.study.trials]
    assert sorted(trial.user_attrs["trial"] for trial in optuna_trials) == list(range(12))


def test_a_search_that_was_killed_before_any_trial_ended_draws_nothing_twice(tmp_path):
    cut = Play(tmp_path, trials=12, sampler=RandomSearch(seed=1), at_once=6)
    for _ in range(6):
        cut.start()
    again = Play(tmp_path, past=cut.folder.read_trials(), trials=12, sampler=RandomSearch(seed=1))
    proposals = again.play()
    assert [proposal["number"] for proposal in proposals] == list(range(12))
    assert len({str(proposal["overrides"]) for proposal in proposals}) == 12


@pytest.mark.slow
@pytest.mark.parametrize("sampler", [Tpe(startup_trials=4), Nsga2(population=4), GaussianProcess(startup_trials=4)])
def test_constraints_keep_the_search_inside(tmp_path, sampler):
    bounds = {"traffic/bits": {"max": -1.5}}  # bits are made up as log10 of lr; the best rate, 0.1, lies outside
    play = Play(tmp_path, trials=30, sampler=sampler, constraints=bounds, allocation="free")
    while (started := play.start()) is not None:
        play.end(len(play.proposals) - 1, traffic__bits=math.log10(started["overrides"]["algorithm.lr"]))
    excess = []
    for trial in play.table.trials:
        excess.append(max(0.0, math.log10(trial.overrides["algorithm.lr"]) + 1.5))
        assert trial.feasible == (excess[-1] == 0.0)
    free = Play(tmp_path / "free", trials=30, sampler=sampler, allocation="free")
    outside = sum(trial["overrides"]["algorithm.lr"] > 10**-1.5 for trial in free.play())
    assert sum(value > 0 for value in excess) < outside  # the same search without bounds, by the same seed


def test_several_objectives_make_a_front(tmp_path):
    bits = Objective(metric="traffic/bits", mode="min")
    play = Play(tmp_path, trials=20, objectives=[bits], allocation="free", sampler=Nsga2(population=5))
    while (started := play.start()) is not None:
        play.end(len(play.proposals) - 1, traffic__bits=started["overrides"]["algorithm.lr"])
    front = play.search.arms[0].study.best_trials
    assert 1 <= len(front) < 20
    assert all(trial.values[1] == trial.params["algorithm.lr"] for trial in front)
    for trial in play.table.trials:
        assert trial.values == (trial.objective, trial.overrides["algorithm.lr"])
    again = Play(tmp_path, past=play.folder.read_trials(), trials=20, objectives=[bits], allocation="free")
    assert [trial.values for trial in again.search.arms[0].study.best_trials] == [trial.values for trial in front]


def test_privacy_may_be_an_objective_beside_accuracy(tmp_path):
    """More noise, less ε, less accuracy: the search is told both, and keeps what none beats."""
    epsilon = Objective(metric="privacy/epsilon", mode="min")
    play = Play(tmp_path, trials=12, objectives=[epsilon], allocation="free", sampler=RandomSearch(seed=2))
    while (started := play.start()) is not None:
        play.end(len(play.proposals) - 1, privacy__epsilon=10 * started["overrides"]["algorithm.lr"])
    values_by_trial = {trial.number: trial.values for trial in play.table.trials}
    assert all(
        spent == 10 * play.table.trials[number].overrides["algorithm.lr"]
        for number, (_, spent) in values_by_trial.items()
    )
    front = {trial.user_attrs["trial"] for trial in play.search.arms[0].study.best_trials}
    beaten = {
        a
        for a, values in values_by_trial.items()
        for others in values_by_trial.values()
        if others[0] >= values[0] and others[1] <= values[1] and others != values
    }
    assert front == set(values_by_trial) - beaten
    assert 1 < len(front) < 12


def test_trials_are_only_compared_with_their_own_kind(tmp_path):
    class Given:
        def __init__(self, number: int, algorithm: str, stage: str = "search") -> None:
            self.trial_id = str(number)
            self.config = {"number": number, "overrides": {"algorithm": algorithm}, "stage": stage}

    def decisions(allocation: str) -> list[str]:
        asha = Asha(grace_rounds=2, reduction_factor=2)
        config = StandIn(study=study(search=SPACE, scheduler=asha, allocation=allocation))
        scheduler = ray_scheduler(config)  # type: ignore[arg-type]
        verdicts = []
        reports = [("FedAvg", 0.9), ("FedAvg", 0.8), ("Flash", 0.3), ("Flash", 0.2)]
        for number, (algorithm, value) in enumerate(reports):
            trial = Given(number, algorithm)
            scheduler.on_trial_add(None, trial)
            result = {"round": 2, "objective": value, "training_iteration": 1}
            verdicts.append(scheduler.on_trial_result(None, trial, result))
        confirmation = Given(9, "Flash", "confirm")
        scheduler.on_trial_add(None, confirmation)
        assert scheduler.on_trial_result(None, confirmation, {"round": 2, "objective": 0.0}) == "CONTINUE"
        return verdicts

    assert decisions("equal") == ["CONTINUE", "STOP", "CONTINUE", "STOP"]
    assert decisions("free") == ["CONTINUE", "STOP", "STOP", "STOP"]
