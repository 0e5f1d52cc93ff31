"""Population-based training on real workers: who is behind goes on from who leads."""

import io
from collections import Counter
from dataclasses import replace

import pytest
import ray
from rich.console import Console

from flstudy.config import ConfigError
from flstudy.study.records import read_records
from flstudy.tuning import Pbt, RandomSearch, Tpe
from flstudy.tuning.driver import carry_out
from tests.small_study import read_study

STUDY = {
    "trials": 4,
    "search": {"algorithm.server_lr": {"loguniform": [1e-5, 1.0]}},
    "sampler": "RandomSearch",
    "scheduler": {"class_path": "Pbt", "init_args": {"every": 4, "quantile": 0.5, "resample": 0.0}},
}


def read(folder, **study):
    return read_study(folder, STUDY | study, rounds=12, evaluate_every=2)


@pytest.mark.slow
def test_who_is_behind_goes_on_from_who_leads(tmp_path, ray_cluster):
    # One trial at a time, so that trials wait for each other at round 4 and 8 on any machine.
    whole = {"cpu": ray.cluster_resources()["CPU"]}
    result = carry_out(read(tmp_path, resources=whole), Console(file=io.StringIO()), report=False)
    assert [(trial.status, trial.rounds) for trial in result.trials] == [("finished", 12)] * 4
    moved = [trial for trial in result.trials if trial.lineage]
    assert moved, "four trials in halves: somebody must have been behind"
    begun = {(trial.lineage or [{"overrides": trial.overrides}])[0]["overrides"]["algorithm.server_lr"]
             for trial in result.trials}  # fmt: skip
    assert len(begun) == 4
    for trial in moved:
        assert 1e-5 <= trial.overrides["algorithm.server_lr"] <= 1.0
        assert trial.overrides != trial.lineage[-1]["overrides"]
    client = result.run.store.client
    for trial in result.trials:
        table = read_records(result.folder.path / "records" / f"{trial.number}.parquet")
        names = table["metric"].to_pylist()
        rounds = [r for r, name in zip(table["round"].to_pylist(), names, strict=True) if name == "train/loss"]
        assert rounds == list(range(1, 13))
        steps = Counter(metric.step for metric in client.get_metric_history(trial.run_id, "train/loss"))
        assert sorted(steps) == list(range(1, 13))
        assert client.get_run(trial.run_id).data.tags["pruned"] == "false"


@pytest.mark.parametrize(
    ("scheduler", "sampler", "message"),
    [
        (Pbt(keys=[]), RandomSearch(), "study.scheduler.keys must name at least one searched key"),
        (Pbt(keys=["algorithm.lr"]), RandomSearch(), "got 'algorithm.lr', which is not searched"),
        (Pbt(every=12), RandomSearch(), r"study.scheduler.every must lie in \[1, 11\], got 12"),
        (Pbt(), Tpe(), "study.sampler must be RandomSearch with Pbt, got Tpe"),
    ],
)
def test_populations_that_cannot_work_are_refused(tmp_path, scheduler, sampler, message):
    config = read(tmp_path)
    config.study = replace(config.study, scheduler=scheduler, sampler=sampler)
    with pytest.raises(ConfigError, match=message):
        scheduler.check(config)
