"""A study's folder as somebody else may have crafted it: it names classes in modules that lie in it."""

import json
from pathlib import Path

import torch
import yaml

from flstudy.config.config import load
from flstudy.federation import Record
from flstudy.study import Status, StudyFolder, Trial
from flstudy.study.folder import FORMAT
from flstudy.study.records import RecordWriter

SEEDS = [0, 44]
CONFIG = {
    "task": "Logistic",
    "population": {"dataset": "Digits", "clients": 6, "participants": 2},
    "algorithm": "FedAvg",
    "rounds": 3,
    "seeds": SEEDS,
    "study": {"trials": 2, "search": {"algorithm.lr": {"loguniform": [1e-3, 1]}}},
}
CANARY = "from pathlib import Path\nPath({canary!r}).write_text(__name__)\n"
MODULES = ("evilnet", "mlflow", "optuna", "pandas", "yaml")  # the first is the config's, the others hide packages


def foreign_study(folder: Path, canary: Path) -> StudyFolder:
    """Write a finished study of two trials, all of whose parts are classes of a module in its folder.

    Args:
        folder: where it lies.
        canary: a file that appears when any module of the folder is imported.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    written = folder.parent / f"{folder.name}.yaml"
    written.write_text(yaml.safe_dump(CONFIG))
    config = load(written, command="tune")
    written.unlink()
    study = StudyFolder(folder)
    study.path.mkdir(parents=True)
    study.write_config(config)
    values = yaml.safe_load(study.config.read_text())
    values["task"] = {"class_path": "evilnet.Net", "init_args": {"width": 3}}
    values["algorithm"]["class_path"] = "evilnet.Method"
    values["population"]["dataset"] = {"class_path": "evilnet.Data"}
    values["study"]["sampler"] = {"class_path": "evilnet.Sampler"}
    study.config.write_text(yaml.safe_dump(values))
    state = {"format": FORMAT, "study_id": "e" * 32, "state": "finished", "started": 1.7e9, "ended": 1.7e9 + 60}
    study.state_file.write_text(json.dumps({**state, "environment": {}, "modules": str(folder), "cwd": str(folder)}))
    trials = []
    for number in range(2):
        accuracy = 0.5 + 0.1 * number
        with RecordWriter(study.records(number), SEEDS) as writer:
            for round in range(1, CONFIG["rounds"] + 1):
                writer.append(Record(round, {"train/loss": [1.0, 2.0], "valid/accuracy": [accuracy, accuracy]}))
        ended = {"status": Status.FINISHED, "rounds": CONFIG["rounds"], "objective": accuracy}
        times = {"started": 1.7e9, "ended": 1.7e9 + 30}
        metrics = {"train/loss": 1.5, "valid/accuracy": accuracy}
        overrides = {"algorithm.lr": 0.1 * (number + 1)}
        trials.append(Trial(number=number, algorithm="Method", overrides=overrides, metrics=metrics, **ended, **times))
    study.write_trials(trials)
    study.model(1).parent.mkdir(exist_ok=True)
    state_dict = {"linear.weight": torch.zeros(10, 64)}
    torch.save({"version": 1, "state": state_dict, "shape": [1, 8, 8], "dtype": "float32"}, study.model(1))
    for module in MODULES:
        (study.path / f"{module}.py").write_text(CANARY.format(canary=str(canary)))
    return study
