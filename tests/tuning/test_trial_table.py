"""The models that stay: those of the best trials, confirmed or not."""

import io

from rich.console import Console

from flstudy.config import Confirm, Objective
from flstudy.study import StudyFolder
from flstudy.tuning.progress import StudyProgress
from flstudy.tuning.trial_table import TrialTable
from tests.tuning.stand_in import StandIn, proposal, report, study


def table(tmp_path, mode: str, ends: list[tuple[str, str, float]], **settings) -> tuple[TrialTable, StudyFolder]:
    """The table after trials ended with (algorithm, status, objective), each of which left a model."""
    metric = Objective(metric="valid/accuracy", mode=mode)
    config = StandIn(study=study(name="small", folder=str(tmp_path), objective=metric, **settings))
    folder = StudyFolder.create(config)
    trial_table = TrialTable(config, folder, StudyProgress(Console(file=io.StringIO()), name="small", config=config))
    for number, (algorithm, status, objective) in enumerate(ends):
        proposed = proposal(number, algorithm)
        proposed["overrides"]["algorithm.lr"] = 0.1 * (number + 1)
        trial_table.ensure_started(proposed)
        folder.model(number).write_bytes(b"weights")
        trial_table.report(proposed, report(status, objective, 6))
        trial_table.end(proposed, report(status, objective, 6))
    return trial_table, folder


def find_models(folder: StudyFolder) -> list[int]:
    """Trials whose model is there."""
    return [number for number in range(9) if folder.model(number).exists()]


ENDS = [
    ("FedAvg", "finished", 0.5),
    ("FedAvg", "finished", 0.9),
    ("Flash", "finished", 0.7),
    ("FedAvg", "finished", 0.6),
]


def test_the_best_of_each_algorithm_stays(tmp_path):
    assert find_models(table(tmp_path, "max", ENDS)[1]) == [1, 2]


def test_the_best_may_be_the_lowest(tmp_path):
    assert find_models(table(tmp_path, "min", ENDS)[1]) == [0, 2]


def test_a_diverged_trial_is_no_best_one(tmp_path):
    assert find_models(table(tmp_path, "max", [("FedAvg", "diverged", 0.99), ("Flash", "finished", 0.1)])[1]) == [1]


def test_a_confirmation_decides_whose_model_stays(tmp_path):
    trial_table, folder = table(tmp_path, "max", ENDS, confirm=Confirm(top=2, seeds=3))
    assert find_models(folder) == [1, 2, 3]  # both of FedAvg may still be the best
    for number, confirms, value in ((4, 1, 0.3), (5, 3, 0.4)):
        again = proposal(number, "FedAvg", stage="confirm", confirms=confirms)
        trial_table.ensure_started(again)
        trial_table.report(again, report("finished", value, 6))
        trial_table.end(again, report("finished", value, 6))
    trial_table.close(complete=True)
    assert [best.trial.number for best in trial_table.best] == [2, 3]
    assert find_models(folder) == [2, 3]
