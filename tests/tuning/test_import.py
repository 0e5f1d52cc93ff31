"""Trials that are known from the start: those of an earlier start of the study, and those of another study."""

import io
import itertools
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from rich.console import Console

from flstudy import cli
from flstudy.config.config import load
from flstudy.federation import Record
from flstudy.study import Status, StudyFolder, Trial, load_study
from flstudy.study.records import RecordWriter
from flstudy.tuning import Asha, HyperBand, MedianStopping, Pbt
from flstudy.tuning.driver import carry_out
from flstudy.tuning.files import TrialFiles
from flstudy.tuning.history import PastTrial, read_history, snapshot_rounds
from flstudy.tuning.imported_trials import import_trials
from flstudy.tuning.schedulers import ray_scheduler
from flstudy.tuning.trial import run_trial
from tests.small_study import read_study, write_study
from tests.tuning.stand_in import StandIn, study

SPACE = {"algorithm": {"choice": ["FedAvg", "Flash"]}, "algorithm.lr": {"loguniform": [0.01, 1.0]}}
ROUNDS = 20


class Given:
    """A trial as Ray shows it."""

    def __init__(self, number: int, algorithm: str = "Flash") -> None:
        self.trial_id, self.last_result = str(number), None
        self.config = {"number": number, "overrides": {"algorithm": algorithm}, "stage": "search", "confirms": None}


def scheduled(settings, past=()):
    """A scheduler of the settings."""
    return ray_scheduler(StandIn(rounds=ROUNDS, study=study(search=SPACE, scheduler=settings)), past)


def played(scheduler, trial, values):
    """How many rounds of a trial the scheduler lets pass."""
    controller = SimpleNamespace(get_live_trials=list)
    scheduler.on_trial_add(controller, trial)
    for place, value in enumerate(values, start=1):
        result = {"round": place, "objective": value, "training_iteration": place}
        if scheduler.on_trial_result(controller, trial, result) == "STOP":
            break
    scheduler.on_trial_complete(controller, trial, result)
    return place


@pytest.mark.parametrize(
    "settings",
    [Asha(grace_rounds=3, reduction_factor=2), MedianStopping(grace_rounds=3, startup_trials=2)],
    ids=lambda settings: type(settings).__name__,
)
def test_a_scheduler_treats_trials_of_earlier_starts_like_its_own(settings):
    rng = np.random.default_rng(0)
    series = rng.normal(np.linspace(0, 1, 12)[:, None], 0.2, (12, ROUNDS)).cumsum(1)
    series = series[rng.permutation(12)]
    whole = scheduled(settings)
    expected = [played(whole, Given(number), values) for number, values in enumerate(series)]
    assert min(expected[6:]) < ROUNDS  # something is stopped after the break
    past = [
        PastTrial(f"past-{number}", Given(number).config, list(enumerate(values[: expected[number]].tolist(), start=1)))
        for number, values in enumerate(series[:6])
    ]
    resumed = scheduled(settings, past)
    assert [played(resumed, Given(number), values) for number, values in enumerate(series[6:], 6)] == expected[6:]
    fresh = scheduled(settings)
    assert [played(fresh, Given(number), values) for number, values in enumerate(series[6:], 6)] != expected[6:]
    other = scheduled(settings, past)
    assert played(other, Given(6, "FedAvg"), series[0] - 100) == ROUNDS  # of another kind: compared with nobody


@pytest.mark.parametrize(("at_once", "lag"), [(1, 0), (1, 5), (3, 0)])
@pytest.mark.parametrize(
    "settings",
    [
        Asha(grace_rounds=3, reduction_factor=2),
        HyperBand(grace_rounds=2, reduction_factor=2, brackets=2),
        MedianStopping(grace_rounds=3, every=4, startup_trials=2),
    ],
    ids=lambda settings: type(settings).__name__,
)
def test_a_resumed_scheduler_decides_as_an_undisturbed_one(settings, at_once, lag):
    """Trials that were under way go on from snapshots, which may be older than their last reports."""
    rng = np.random.default_rng(0)
    series = rng.normal(np.linspace(0, 1, 16)[:, None], 0.3, (16, ROUNDS)).cumsum(1)[rng.permutation(16)]
    controller = SimpleNamespace(get_live_trials=list)

    def race(scheduler, began: dict[int, int], until: int | None = None):
        """Trials in turns, from the rounds that they have done: who ended when, and how far the others came."""
        trials, done, ends = {}, dict(began), {}
        begun = sorted(number for number, rounds in began.items() if rounds < ROUNDS)
        waiting = iter([*begun, *(number for number in range(16) if number not in began)])
        for reports in itertools.count():
            for number in itertools.islice(waiting, at_once - len(trials)):
                trials[number] = Given(number)
                done.setdefault(number, 0)
                scheduler.on_trial_add(controller, trials[number])
            if not trials or reports == until:
                break
            number = min(trials, key=lambda number: (done[number], number))
            done[number] += 1
            result = {"round": done[number], "objective": series[number, done[number] - 1], "training_iteration": 1}
            decision = scheduler.on_trial_result(controller, trials[number], result)
            if decision == "STOP" or done[number] == ROUNDS:
                scheduler.on_trial_complete(controller, trials.pop(number), result)
                ends[number] = done[number]
        return ends, {number: done[number] for number in trials}

    expected, _ = race(scheduled(settings), {})
    assert min(expected.values()) < ROUNDS
    for until in (9, 40, 57, 90):
        ended, under_way = race(scheduled(settings), {}, until)
        saved_rounds = {number: max(0, rounds - lag) for number, rounds in under_way.items()}
        past = [
            PastTrial(
                f"past-{number}",
                Given(number).config,
                list(enumerate(series[number, :rounds].tolist(), start=1)),
                over=number in ended,
            )
            for number, rounds in (ended | saved_rounds).items()
            if rounds
        ]
        resumed, _ = race(scheduled(settings, past), dict.fromkeys(ended, ROUNDS) | saved_rounds)
        assert ended | resumed == expected


def test_only_rungs_are_judged_however_often_the_clock_lets_a_trial_report():
    scheduler, controller = scheduled(MedianStopping(grace_rounds=2, every=4, startup_trials=1)), SimpleNamespace()
    controller.get_live_trials = list
    assert played(scheduler, Given(0), np.ones(ROUNDS)) == ROUNDS
    scheduler.on_trial_add(controller, late := Given(1))
    decisions = {}
    for round in (1, 3, 4, 5, 7):  # the first report at or after a rung counts for it
        result = {"round": round, "objective": 0.0 if round > 3 else 1.0, "training_iteration": round}
        decisions[round] = scheduler.on_trial_result(controller, late, result)
    assert list(decisions.values()) == ["CONTINUE"] * 5
    worse = Given(2)
    scheduler.on_trial_add(controller, worse)
    judged = [
        scheduler.on_trial_result(controller, worse, {"round": round, "objective": 0.5, "training_iteration": round})
        for round in (1, 2)
    ]
    assert judged == ["CONTINUE", "STOP"]


def test_a_population_forgets_since_its_trials_change_while_they_train():
    past = [PastTrial("past-0", Given(0).config, [(1, 0.5), (2, 0.6)])]
    scheduler = scheduled(Pbt(keys=["algorithm.lr"], every=1), past)
    assert not scheduler._scheduler_by_kind


def test_what_was_reported_is_read_from_the_records(tmp_path):
    folder = StudyFolder(tmp_path)
    for number in (0, 1, 3):
        with RecordWriter(folder.records(number), [0, 44]) as writer:
            for round, value in ((2, 0.2), (4, 0.4), (6, np.nan)):
                writer.append(Record(round, {"valid/accuracy": [value, value + 0.2], "train/loss": [1.0, 1.0]}))
    folder.snapshot(1).parent.mkdir()
    torch.save({"epoch": 2}, folder.snapshot(1))  # after three rounds
    folder.snapshot(3).write_bytes(b"damaged")
    shared = {"algorithm": "Flash", "overrides": {"algorithm.lr": 0.1}}
    trials = [
        Trial(number=0, status=Status.DIVERGED, rounds=6, objective=0.0, **shared),
        Trial(number=1, status=Status.INTERRUPTED, rounds=5, objective=0.4, **shared),  # goes on from its snapshot
        Trial(number=2, status=Status.FAILED, **shared),  # before its first round
        Trial(number=3, status=Status.INTERRUPTED, rounds=5, objective=0.4, **shared),  # starts anew
    ]
    first, early, last = read_history(folder, trials, "valid/accuracy")
    assert first.reports == [(2, pytest.approx(0.3)), (4, pytest.approx(0.5)), (6, 0.0)]
    assert (first.trial_id, first.config["overrides"], list(last.reports)) == ("past-0", {"algorithm.lr": 0.1}, [])
    assert (early.reports, early.over) == ([(2, pytest.approx(0.3))], False)


def test_a_snapshot_tells_its_rounds(tmp_path):
    """Cut after the report of round 5: the snapshot is that of round 4."""

    def report(trial, save):
        if trial.rounds == 5 and trial.status is Status.RUNNING:
            raise RuntimeError("cut")

    run_trial(
        read_study(tmp_path, {"snapshot_s": 0.0}, rounds=8),
        Trial(number=0, algorithm="FedAvg"),
        report=report,
        files=TrialFiles(tmp_path / "0.parquet", tmp_path / "0.ckpt"),
    )
    assert snapshot_rounds(tmp_path / "0.ckpt") == 4


@pytest.fixture(scope="module")
def presets(tmp_path_factory, ray_cluster):
    """The config of a search, and a study that tried two algorithms' own values."""
    tmp_path = tmp_path_factory.mktemp("presets")
    tried = {"presets": {"FedAvg": {"lr": 0.5}, "Flash": {"lr": 0.2, "tau": 0.01}}, "name": "presets", "trials": 2}
    settings = {**tried, "search": SPACE, "sampler": "RandomSearch", "resources": {"cpu": 0.5}}
    path = write_study(tmp_path, settings, algorithm="Flash", rounds=3, seeds=[0, 44])
    carry_out(load(path, command="tune"), Console(file=io.StringIO()), report=False)
    return path, tmp_path / "studies" / "presets"


@pytest.mark.slow
def test_a_search_begins_with_what_another_study_trained_alike(presets):
    path, folder = presets
    config = load(path, options=["--study.name", "search", "--study.trials", "4"], command="tune")
    output = io.StringIO()
    result = carry_out(config, Console(file=output), import_from=folder, report=False)
    assert "search: 2 trials imported from presets" in output.getvalue()
    assert [trial.status for trial in result.trials] == ["finished"] * 4
    assert [trial.source for trial in result.trials] == ["presets/0", "presets/1", None, None]
    assert sorted(trial.algorithm for trial in result.trials[2:]) == ["FedAvg", "Flash"]  # shares stay equal
    first, again = (load_study(study_path) for study_path in (folder, result.folder.path))
    for mine, theirs in zip(again.trials[:2], first.trials, strict=True):
        assert (mine.overrides, mine.objective) == (theirs.overrides, theirs.objective)
        np.testing.assert_array_equal(again.curve(mine, "train/loss")[1], first.curve(theirs, "train/loss")[1])
    client = result.run.store.client
    runs = [client.get_run(trial.run_id) for trial in result.trials]
    assert {run.data.tags["mlflow.parentRunId"] for run in runs} == {result.run.run_id}
    assert [run.data.metrics["valid/accuracy"] for run in runs] == [
        pytest.approx(trial.metrics["valid/accuracy"]) for trial in result.trials
    ]
    assert cli.main(["tune", str(path), "--import-from", str(folder), "--study.name", "nothing-new"]) == 0
    full = load_study(folder.with_name("nothing-new"))  # it has all its trials: none is run
    assert [trial.source for trial in full.trials] == ["presets/0", "presets/1"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "left", "reason"),
    [
        (["--rounds", "4"], [], "there, 4 here"),
        (["--seeds", "[0, 45]"], [], "there, [0, 45] here"),
        (["--study.objective.metric", "valid/loss", "--study.objective.mode", "min"], [], "different objectives"),
        (["--study.presets.Flash.tau", "0.02"], ["FedAvg"], "algorithm.tau is 0.01 there, 0.02 here"),
        (
            ["--study.search.algorithm.lr", "{loguniform: [0.3, 1.0]}"],  # Flash's .2 lies outside
            ["FedAvg"],
            "its algorithm.lr lies outside {loguniform: [0.3, 1]}",
        ),
        (["--study.search.algorithm", "{choice: [FedAvg, FedYogi]}"], ["FedAvg"], "there is no arm Flash here"),
        (
            ["--study.trials", "9", "--study.scheduler", "Asha", "--study.scheduler.grace_rounds", "1"],
            ["FedAvg", "Flash"],
            "",
        ),
    ],
)
def test_nothing_is_taken_over_that_would_be_trained_otherwise(presets, tmp_path, options, left, reason):
    path, folder = presets
    for name in ("records", "snapshots", "models"):
        (tmp_path / "new" / name).mkdir(parents=True)
    new = StudyFolder(tmp_path / "new")
    taken, refused = import_trials(StudyFolder(folder), new, changed(path, options, tmp_path))
    assert sum(refused.values()) == 2 - len(left)
    assert all(reason in why for why in refused)
    assert [trial.algorithm for trial in taken] == left
    assert [trial.number for trial in taken] == list(range(len(left)))
    assert len(list((tmp_path / "new" / "records").iterdir())) == len(left)


def changed(path: Path, options, folder: Path):
    """The config with options, those of dictionaries written into the file."""
    content = yaml.safe_load(path.read_text())
    plain = []
    for key, value in zip(options[::2], options[1::2], strict=True):
        parts = key.removeprefix("--study.").split(".", 1)
        if parts[0] == "presets":
            algorithm, name = parts[1].split(".")
            content["study"]["presets"][algorithm][name] = float(value)
        elif parts[0] == "search":
            content["study"]["search"][parts[1]] = yaml.safe_load(value)
        else:
            plain += [key, value]
    (folder / "search.yaml").write_text(yaml.safe_dump(content))
    return load(folder / "search.yaml", options=plain, command="tune")


@pytest.mark.slow
def test_a_study_that_goes_on_takes_an_arm_more(presets, tmp_path):
    _, folder = presets
    grown = shutil.copytree(folder, tmp_path / "presets")
    arm = "{class_path: Flash, init_args: {tau: 0.5}, search: {server_lr: {uniform: [0.5, 0.6]}}}"
    assert cli.main(["tune", "--resume", str(grown), "--study.arms.Calm", arm]) == 0
    before, after = load_study(folder), load_study(grown)
    assert [trial.algorithm for trial in after.trials] == ["FedAvg", "Flash", "Calm"]  # as many as the others have
    assert after.trials[:2] == before.trials
    calm = after.trial_config(after.trials[2])["algorithm"]
    assert (calm["class_path"], calm["init_args"]["tau"]) == ("Flash", 0.5)
    assert 0.5 <= calm["init_args"]["server_lr"] <= 0.6
    assert (grown / "best" / "Calm.yaml").is_file()
