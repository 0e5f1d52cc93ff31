"""A scheduler of Ray's kind and a sampler of Optuna's kind, each in a file beside the YAML, drive a study."""

import io
import textwrap

import pytest
import yaml
from rich.console import Console

from flstudy.config.config import load
from flstudy.tuning import OptunaSampler, RayScheduler
from flstudy.tuning.driver import tune

SAMPLER = """
from optuna.samplers import BaseSampler

class Ladder(BaseSampler):
    '''One step up from the last trial's value.'''

    def __init__(self, step, seed=None):
        self.step, self.seed = step, seed

    def infer_relative_search_space(self, study, trial):
        return {}

    def sample_relative(self, study, trial, search_space):
        return {}

    def sample_independent(self, study, trial, param_name, param_distribution):
        return param_distribution.low + self.step * trial.number
"""
SCHEDULER = """
from ray.tune.schedulers import FIFOScheduler

class Impatient(FIFOScheduler):
    '''Stops every second trial after so many rounds.'''

    def __init__(self, rounds, metric=None, mode=None):
        super().__init__()
        self.rounds, self.given = rounds, (metric, mode)

    def on_trial_result(self, controller, trial, result):
        assert self.given == ("objective", "max")
        return self.STOP if trial.config["number"] % 2 and result["round"] >= self.rounds else self.CONTINUE
"""


@pytest.mark.end_to_end
@pytest.mark.usefixtures("ray_cluster")
def test_classes_beside_the_config_drive_a_study(tmp_path):
    (tmp_path / "my_ladder.py").write_text(textwrap.dedent(SAMPLER))
    (tmp_path / "my_scheduler.py").write_text(textwrap.dedent(SCHEDULER))
    content = {
        "task": "Logistic",
        "population": {"dataset": "Digits", "clients": 4, "participants": 2, "steps": 1},
        "algorithm": "FedAvg",
        "rounds": 4,
        "compile": False,
        "store": f"sqlite:///{tmp_path}/mlflow.db",
        "study": {
            "folder": str(tmp_path / "studies"),
            "trials": 4,
            "search": {"algorithm.lr": {"uniform": [0.1, 0.9]}},
            "sampler": {"class_path": "my_ladder.Ladder", "init_args": {"step": 0.2}},
            "scheduler": {"class_path": "my_scheduler.Impatient", "init_args": {"rounds": 2}},
        },
    }
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(content))
    config = load(path, command="tune")
    assert isinstance(config.study.sampler, OptunaSampler)
    assert isinstance(config.study.scheduler, RayScheduler)
    result = tune(config, Console(file=io.StringIO()))
    # The first trial is the algorithm's own, 0.1; the sampler counts it.
    assert [trial.overrides["algorithm.lr"] for trial in result.trials[1:]] == pytest.approx([0.3, 0.5, 0.7])
    assert [(trial.status, trial.rounds) for trial in result.trials] == [
        *[("finished", 4), ("pruned", 2)],
        *[("finished", 4), ("pruned", 2)],
    ]
    again = load(result.folder.config, options=["--study.trials", "5"], command="tune")
    more = tune(again, Console(file=io.StringIO()), resume=result.folder.path)
    assert [trial.status for trial in more.trials][4:] == ["finished"]
