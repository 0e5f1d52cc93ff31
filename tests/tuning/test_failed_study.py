"""A study whose trials failed says so wherever somebody asks: its state, MLflow, the exit status, a script."""

import contextlib
import io
import sys

import pytest
from mlflow import MlflowClient
from rich.console import Console

from flstudy import Study
from flstudy.config import Failures
from flstudy.studies import StudyFailedError
from flstudy.study import StudyFolder, Trial
from flstudy.study.results import list_studies
from flstudy.study.resuming import load_study_config
from flstudy.tuning.driver import run_study
from flstudy.tuning.progress import StudyProgress
from flstudy.tuning.proposals import result_of
from flstudy.tuning.shortage import MEMORY
from flstudy.tuning.trial_table import TrialTable
from tests.tuning.stand_in import StandIn, proposal, study

OWN = """
from flstudy.tasks import Logistic

class Broken(Logistic):
    def example_losses(self, batch):
        if len(batch[1]) == 6:  # as many as are looked at before a trial's first round
            return super().example_losses(batch)
        raise RuntimeError("no such sensor")
"""


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_a_study_whose_trials_all_failed_is_failed_everywhere(tmp_path, monkeypatch):
    (tmp_path / "lab_of_sensors.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    broken = Study(
        "./lab_of_sensors.py:Broken", {"dataset": "Digits", "clients": 4, "participants": 2}, "FedAvg",
        {"algorithm.lr": {"loguniform": [0.01, 0.3]}}, name="sensors", rounds=2, compile=False, study={"trials": 2},
        store=f"sqlite:///{tmp_path}/mlflow.db",
    )  # fmt: skip
    reason = r"2 of 2 trials failed, trial 0 with: RuntimeError: no such sensor.* \(see .*studies/sensors/report/repo"
    with pytest.raises(StudyFailedError, match=f"study sensors failed: {reason}") as raised:
        broken.run(quiet=True)
    assert raised.value.folder == broken.folder
    assert (broken.folder / "report" / "report.html").is_file()
    assert broken.trials["status"].tolist() == ["failed"] * 2  # what it has is there
    assert [(entry["study"], entry["state"]) for entry in list_studies("studies")] == [("sensors", "failed")]
    assert statuses(tmp_path) == {"sensors": "FAILED", "0 FedAvg": "FAILED", "1 FedAvg": "FAILED"}

    with pytest.raises(ValueError, match=r"study\.trials must be > 2"):
        broken.resume(quiet=True)
    console = Console(file=io.StringIO(), width=300)
    folder = StudyFolder(broken.folder)
    assert run_study(load_study_config(folder, {"study.trials": 3}), console, folder.path) == 1
    assert "the study failed: 3 of 3 trials failed, trial 0 with: RuntimeError: no such" in console.file.getvalue()
    assert folder.state()["state"] == "failed"
    assert statuses(tmp_path)["sensors"] == "FAILED"
    with contextlib.suppress(KeyError):
        del sys.modules["lab_of_sensors"]


def statuses(place):
    """Of all runs in the store, by their names."""
    client = MlflowClient(f"sqlite:///{place}/mlflow.db")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    return {run.info.run_name: run.info.status for run in client.search_runs(experiments)}


def ended(table, *trials):
    """The table, told how trials ended."""
    for number, status, error in trials:
        table.ensure_started(proposal(number), anew=True)
        trial = Trial(number=number, algorithm="FedAvg", status=status, rounds=2, objective=0.1, error=error)
        table.report(proposal(number), result_of(trial))
        table.end(proposal(number), result_of(trial))
    return table


@pytest.fixture
def table_of(tmp_path):
    """What makes the table of a study of these past trials, which gives up after two failures."""
    config = StandIn(study=study(folder=str(tmp_path), failures=Failures(most=2)))
    folder = StudyFolder.create(config)

    def make(past=()):
        return TrialTable(
            config, folder, StudyProgress(Console(file=io.StringIO()), name="s", config=config, quiet=True), past
        )

    return make


def test_trials_that_diverged_or_were_stopped_do_not_make_a_study_failed(table_of):
    for status in ("finished", "pruned", "interrupted", "diverged"):
        table = ended(table_of(), (0, "diverged", None), (1, status, None))
        table.close(complete=True)
        assert (table.failed, table.hopeless) == (False, None)
    for status in ("finished", "pruned", "interrupted"):
        table = ended(table_of(), (0, "failed", "ValueError: no"), (1, status, None))
        table.close(complete=True)
        assert (table.failed, table.hopeless) == (False, None)
    table = ended(table_of(), (0, "diverged", None), (1, "failed", "ValueError: no"))
    table.close(complete=True)
    assert (table.failed, table.hopeless) == (True, "1 of 2 trials failed and 1 diverged, trial 1 with: ValueError: no")


@pytest.mark.parametrize("failure", [("failed", "KeyError: 'a'"), ("interrupted", f"Traceback ...\n{MEMORY}")])
def test_a_study_that_gave_up_goes_on_until_as_many_fail_again(table_of, failure):
    table = ended(table_of(), (0, "finished", None), (1, *failure), (2, *failure))
    reason = failure[1].splitlines()[-1]
    assert (table.failed, table.hopeless) == (True, f"2 trials failed (study.failures.most), trial 1 with: {reason}")
    again = table_of(table.trials)
    assert (again.failed, again.hopeless) == (False, None)
    ended(again, (3, "finished", None), (1, "finished", None), (4, *failure))
    assert again.hopeless is None
    ended(again, (5, *failure))
    assert again.hopeless == f"2 trials failed (study.failures.most), trial 4 with: {reason}"
