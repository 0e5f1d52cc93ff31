"""A study that is shot at: `python tests/benchmark/chaos.py > tests/benchmark/results/chaos.md`.

A random worker of the study is killed (SIGKILL) every 20 s, and its driver twice, each time to be started again with
`flstudy tune --resume`. Afterwards every trial must have exactly one MLflow run, each of its rounds exactly once there
and in its records, and the final metrics that the same suggestion gives where nobody shoots. Linux only: it finds the
workers in /proc. SCAFFOLD on digits, whose devices keep state, so that a forgotten row would show.
"""

import argparse
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from flstudy.config.config import load
from flstudy.study import StudyFolder, Trial
from flstudy.study.records import read_records
from flstudy.tracking.store import open_store
from flstudy.tuning.trial import run_trial

CONFIG: dict[str, Any] = {
    "task": "Logistic",
    "population": {"dataset": "Digits", "clients": 6, "participants": 2, "batch_size": 4, "steps": 4},
    "algorithm": "Scaffold",
    "evaluate_every": 10,
    "compile": False,
    "study": {
        "name": "chaos",
        "search": {"algorithm.lr": {"loguniform": [1e-3, 1]}},
        "resources": {"cpu": 1},
        "snapshot_s": 1.0,
        "failures": {"retries": 100, "most": None},
    },
}
EXACT = ("valid/accuracy", "valid/loss", "test/accuracy", "train/loss", "server/update_norm")
"""Metrics that must be the same to the last bit; seconds are not."""


def written(folder: Path, trials: int, rounds: int) -> Path:
    """The study's config, with its store and its folder below ``folder``."""
    study = {**CONFIG["study"], "trials": trials, "folder": str(folder / "studies")}
    content = {**CONFIG, "rounds": rounds, "store": f"sqlite:///{folder}/mlflow.db", "study": study}
    path = folder / "chaos.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def parents() -> dict[int, int]:
    """Parent of each process of this machine."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        found[int(stat.parent.name)] = int(fields[1])
    return found


def workers(driver: int) -> list[int]:
    """Processes below ``driver`` in which Ray runs trials."""
    above = parents()

    def below(pid: int) -> Iterator[int]:
        while pid in above:
            pid = above[pid]
            yield pid

    found = []
    for pid in above:
        try:
            name = Path(f"/proc/{pid}/cmdline").read_text()
        except OSError:
            continue
        if name.startswith("ray::") and "Trainable" in name and driver in below(pid):  # not Ray's own agents
            found.append(pid)
    return found


def shoot(path: Path, folder: Path, *, trials: int, every_s: float, driver_kills: int, seed: int = 0) -> dict[str, int]:
    """Run the study to its end under fire; how often a worker and the driver were killed."""
    rng, killed = random.Random(seed), {"workers": 0, "driver": 0}
    command = [sys.executable, "-m", "flstudy.cli", "tune"]
    log = (path.parent / "driver.log").open("w")
    driver = subprocess.Popen([*command, str(path)], stdout=log, stderr=log)
    next_at = time.monotonic() + every_s
    try:
        while driver.poll() is None:
            time.sleep(0.2)
            ended = sum(trial.is_over for trial in StudyFolder(folder).read_trials())
            if killed["driver"] < driver_kills and ended >= trials * (killed["driver"] + 1) / (driver_kills + 1):
                driver.send_signal(signal.SIGKILL)
                driver.wait()
                killed["driver"] += 1
                time.sleep(5)  # Ray ends the workers of a lost driver
                driver = subprocess.Popen([*command, "--resume", str(folder)], stdout=log, stderr=log)
                next_at = time.monotonic() + every_s
            elif time.monotonic() > next_at:
                next_at = time.monotonic() + every_s
                targets = workers(driver.pid)
                if targets:
                    os.kill(rng.choice(targets), signal.SIGKILL)
                    killed["workers"] += 1
    finally:
        if driver.poll() is None:
            driver.terminate()
        log.close()
    return killed


def undisturbed(path: str, overrides: dict[str, Any]) -> dict[str, float]:
    """Final metrics of one suggestion where nobody shoots."""
    import torch

    torch.set_num_threads(1)
    return run_trial(
        load(path, command="tune"), Trial(number=0, algorithm="", overrides=overrides), report=lambda *_: True
    ).metrics


def check(path: Path, folder: Path, trials: int, rounds: int) -> list[str]:
    """What is wrong, in sentences; nothing if all is well."""
    wrong = []
    state, found = StudyFolder(folder).state(), StudyFolder(folder).read_trials()
    if state["state"] != "finished" or len(found) != trials:
        wrong.append(f"the study is {state['state']} with {len(found)} of {trials} trials")
    store = open_store(str(state["store"]))
    runs = store.client.search_runs([store.experiment_id], max_results=10 * trials + 10)
    numbers = sorted(run.data.tags.get("flstudy.trial", "study") for run in runs)
    if numbers != sorted([*(str(number) for number in range(trials)), "study"]):
        wrong.append(f"MLflow has the runs {numbers}")
    with ProcessPoolExecutor(2) as pool:
        alone = pool.map(undisturbed, [str(path)] * len(found), [trial.overrides for trial in found])
        for trial, expected in zip(found, alone, strict=True):
            wrong += _check_trial(trial, expected, folder, store.client, rounds)
    return wrong


def _check_trial(trial: Trial, expected: dict[str, float], folder: Path, client: Any, rounds: int) -> Sequence[str]:
    wrong, every = [], list(range(1, rounds + 1))
    if trial.status != "finished":
        return [f"trial {trial.number} is {trial.status}: {trial.error}"]
    if trial.run_id is None or client.get_run(trial.run_id).info.status != "FINISHED":
        wrong.append(f"trial {trial.number} has run {trial.run_id}, which is not finished")
    steps = [metric.step for metric in client.get_metric_history(trial.run_id, "train/loss")]
    if sorted(steps) != every:
        wrong.append(f"trial {trial.number} has {len(steps)} rounds in MLflow ({len(set(steps))} different)")
    table = read_records(folder / "records" / f"{trial.number}.parquet")
    told = [r for r, name in zip(table["round"].to_pylist(), table["metric"].to_pylist(), strict=True)
            if name == "train/loss"]  # fmt: skip
    if told != every:
        wrong.append(f"trial {trial.number} has {len(told)} rounds in its records")
    for name in EXACT:
        if not (trial.metrics[name] == expected[name] or math.isnan(expected[name])):
            wrong.append(f"trial {trial.number}: {name} is {trial.metrics[name]!r}, undisturbed {expected[name]!r}")
    return wrong


def main() -> int:
    """Shoot, check, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--every_s", type=float, default=20.0)
    parser.add_argument("--driver_kills", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="chaos-") as place:
        path, folder = written(Path(place), options.trials, options.rounds), Path(place) / "studies" / "chaos"
        start = time.perf_counter()
        killed = shoot(path, folder, trials=options.trials, every_s=options.every_s, driver_kills=options.driver_kills)
        wall = time.perf_counter() - start
        found = StudyFolder(folder).read_trials()
        attempts = [trial.attempts for trial in found]
        wrong = check(path, folder, options.trials, options.rounds)
        if wrong:
            print((Path(place) / "driver.log").read_text()[-3000:], file=sys.stderr)
    print("# A study under fire\n")
    print(f"`python tests/benchmark/chaos.py {' '.join(sys.argv[1:])}`".rstrip("` ") + "`\n")
    print("| figure | |\n|---|---:|")
    for name, value in {
        "trials × rounds": f"{options.trials} × {options.rounds}",
        "wall, s": f"{wall:.0f}",
        "workers killed": killed["workers"],
        "drivers killed": killed["driver"],
        "trials with one MLflow run, every round once, and the metrics of an undisturbed run": (
            f"{options.trials - len({text.split(':')[0].split(' has ')[0] for text in wrong})} of {options.trials}"
        ),
        "starts of a trial since the last resume, most": max(attempts, default=0),
    }.items():
        print(f"| {name} | {value} |")
    print("\n" + ("\n".join(f"- {text}" for text in wrong) or f"Compared to the last bit: {', '.join(EXACT)}."))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
