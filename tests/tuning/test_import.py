"""Trials that are known from the start: those of an earlier start of the study, and those of another study."""

import io
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from rich.console import Console

from flstudy import cli
from flstudy.config.config import load
from flstudy.federation import Record
from flstudy.study import Status, StudyFolder, Trial, load_study
from flstudy.study.records import RecordWriter
from flstudy.tuning import Asha, MedianStopping, Pbt
from flstudy.tuning.driver import import_trials, tune
from flstudy.tuning.schedulers import History, ray_scheduler, read_history
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
            scheduler.on_trial_remove(controller, trial)
            return place
    scheduler.on_trial_complete(controller, trial, result)
    return len(values)


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
        History(f"past-{number}", Given(number).config, list(enumerate(values[: expected[number]].tolist(), start=1)))
        for number, values in enumerate(series[:6])
    ]
    resumed = scheduled(settings, past)
    assert [played(resumed, Given(number), values) for number, values in enumerate(series[6:], 6)] == expected[6:]
    fresh = scheduled(settings)
    assert [played(fresh, Given(number), values) for number, values in enumerate(series[6:], 6)] != expected[6:]
    other = scheduled(settings, past)
    assert played(other, Given(6, "FedAvg"), series[0] - 100) == ROUNDS  # of another kind: compared with nobody


def test_a_population_forgets_since_its_trials_change_while_they_train():
    past = [History("past-0", Given(0).config, [(1, 0.5), (2, 0.6)])]
    scheduler = scheduled(Pbt(keys=["algorithm.lr"], every=1), past)
    assert not scheduler._kinds


def test_what_was_reported_is_read_from_the_records(tmp_path):
    folder = StudyFolder(tmp_path)
    with RecordWriter(folder.records(0), [0, 44]) as writer:
        for round, value in ((2, 0.2), (4, 0.4), (6, np.nan)):
            writer.append(Record(round, {"valid/accuracy": [value, value + 0.2], "train/loss": [1.0, 1.0]}))
    given = {"algorithm": "Flash", "overrides": {"algorithm.lr": 0.1}}
    trials = [
        Trial(number=0, status=Status.DIVERGED, rounds=6, objective=0.0, **given),
        Trial(number=1, status=Status.INTERRUPTED, rounds=3, objective=0.4, **given),  # goes on, and reports it again
        Trial(number=2, status=Status.FAILED, **given),  # before its first round
    ]
    first, last = read_history(folder, trials, "valid/accuracy")
    assert first.reported == [(2, pytest.approx(0.3)), (4, pytest.approx(0.5)), (6, 0.0)]
    assert (first.trial_id, first.config["overrides"], list(last.reported)) == ("past-0", {"algorithm.lr": 0.1}, [])


@pytest.fixture(scope="module")
def presets(tmp_path_factory, ray_cluster):
    """The config of a search, and a study that tried two algorithms' own values."""
    tmp_path = tmp_path_factory.mktemp("presets")
    content = {
        "task": "Logistic",
        "population": {"dataset": "Digits", "clients": 4, "participants": 2, "steps": 1},
        "algorithm": "Flash",
        "rounds": 3,
        "seeds": [0, 44],
        "compile": False,
        "store": f"sqlite:///{tmp_path}/mlflow.db",
        "study": {
            "name": "presets",
            "folder": str(tmp_path / "studies"),
            "trials": 2,
            "search": SPACE,
            "presets": {"FedAvg": {"lr": 0.5}, "Flash": {"lr": 0.2, "tau": 0.01}},
            "sampler": "RandomSearch",
            "resources": {"cpu": 0.5},
        },
    }
    path = tmp_path / "search.yaml"
    path.write_text(yaml.safe_dump(content))
    tune(load(path, command="tune"), Console(file=io.StringIO()))
    return path, tmp_path / "studies" / "presets"


@pytest.mark.end_to_end
def test_a_search_begins_with_what_another_study_trained_alike(presets):
    path, folder = presets
    config = load(path, options=["--study.name", "search", "--study.trials", "4"], command="tune")
    said = io.StringIO()
    result = tune(config, Console(file=said), import_from=folder)
    assert "search: 2 trials imported from presets" in said.getvalue()
    assert [trial.status for trial in result.trials] == ["finished"] * 4
    assert [trial.source for trial in result.trials] == ["presets/0", "presets/1", None, None]
    assert sorted(trial.algorithm for trial in result.trials[2:]) == ["FedAvg", "Flash"]  # shares stay equal
    first, again = (load_study(one) for one in (folder, result.folder.path))
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


@pytest.mark.end_to_end
@pytest.mark.parametrize(
    ("options", "left"),
    [
        (["--rounds", "4"], []),
        (["--seeds", "[0, 45]"], []),
        (["--study.objective.metric", "valid/loss", "--study.objective.mode", "min"], []),
        (["--study.presets.Flash.tau", "0.02"], ["FedAvg"]),
        (["--study.search.algorithm.lr", "{loguniform: [0.3, 1.0]}"], ["FedAvg"]),  # Flash's .2 lies outside
        (
            ["--study.trials", "9", "--study.scheduler", "Asha", "--study.scheduler.grace_rounds", "1"],
            ["FedAvg", "Flash"],
        ),
    ],
)
def test_nothing_is_taken_over_that_would_be_trained_otherwise(presets, tmp_path, options, left):
    path, folder = presets
    for name in ("records", "snapshots", "models"):
        (tmp_path / "new" / name).mkdir(parents=True)
    taken = import_trials(StudyFolder(folder), StudyFolder(tmp_path / "new"), changed(path, options, tmp_path))
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
