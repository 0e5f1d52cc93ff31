"""What the ledger keeps of trained models: the best trial's of each algorithm."""

import io

from rich.console import Console

from flstudy.config import Objective
from flstudy.tuning.folder import StudyFolder
from flstudy.tuning.ledger import Ledger
from flstudy.tuning.progress import Progress
from tests.tuning.stand_in import StandIn, study


def kept(tmp_path, mode: str, ends: list[tuple[str, str, float]]) -> list[int]:
    """Trials whose model is there after trials ended with (algorithm, status, objective)."""
    metric = Objective(metric="valid/accuracy", mode=mode)
    config = StandIn(study=study(name="small", folder=str(tmp_path), objective=metric))
    folder = StudyFolder.create(config)
    console = Console(file=io.StringIO())
    progress = Progress(console, name="small", config=config)
    ledger = Ledger(config, folder, progress)
    folder.model(0).parent.mkdir()
    for number, (algorithm, status, objective) in enumerate(ends):
        proposed = {"number": number, "overrides": {"algorithm": algorithm}, "stage": "search", "of": None}
        told = {"objective": objective, "round": 6, "metrics": "{}", "error": None, "run_id": "r", "synced": True}
        ledger.started(proposed)
        folder.model(number).write_bytes(b"weights")
        ledger.reported(proposed, {**told, "status": status})
        ledger.ended(proposed, {**told, "status": status})
    return [number for number in range(len(ends)) if folder.model(number).exists()]


ENDS = [
    ("FedAvg", "finished", 0.5),
    ("FedAvg", "finished", 0.9),
    ("Flash", "finished", 0.7),
    ("FedAvg", "finished", 0.6),
]


def test_the_best_of_each_algorithm_stays(tmp_path):
    assert kept(tmp_path, "max", ENDS) == [1, 2]


def test_the_best_may_be_the_lowest(tmp_path):
    assert kept(tmp_path, "min", ENDS) == [0, 2]


def test_a_diverged_trial_is_no_best_one(tmp_path):
    assert kept(tmp_path, "max", [("FedAvg", "diverged", 0.99), ("Flash", "finished", 0.1)]) == [1]
