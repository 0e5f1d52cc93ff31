"""Studies under fire: `python tests/benchmark/chaos.py > tests/benchmark/results/chaos.md`.

Each experiment is a study of real drivers, Ray workers and a real store, which something happens to: processes are
killed, a second driver comes, the disk fills, files are damaged. Afterwards every trial must have exactly one MLflow
run, each of its rounds exactly once there and in its records, and the final metrics that the same suggestion gives
where nobody shoots; and no terminal has seen a traceback. Linux only: it finds the workers in /proc, and the full disk
is a tmpfs, which only root may mount. SCAFFOLD on digits, whose devices keep state, so that a forgotten row would show.
"""

import argparse
import contextlib
import json
import math
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from flstudy.config.config import load
from flstudy.study import Status, StudyFolder, Trial
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
        "search": {"algorithm": {"choice": ["Scaffold", "FedAvg"]}, "algorithm.lr": {"loguniform": [1e-3, 1]}},
        "resources": {"cpu": 1},
        "snapshot_s": 1.0,
        "failures": {"retries": 100, "most": None},
    },
}
EXACT = ("valid/accuracy", "valid/loss", "test/accuracy", "train/loss", "server/update_norm")
"""Metrics that must be the same to the last bit; seconds are not."""
TRACEBACK = "Traceback (most recent call last)"


@dataclass
class Study:
    """A study in a place of its own, with what its drivers said."""

    place: Path
    trials: int
    rounds: int
    concurrent: int | None = None
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        study = {**CONFIG["study"], "trials": self.trials, "folder": str(self.place / "studies")}
        study["concurrent"] = self.concurrent
        content = {**CONFIG, "rounds": self.rounds, "store": f"sqlite:///{self.place}/mlflow.db", "study": study}
        self.config.write_text(yaml.safe_dump(content))

    @property
    def config(self) -> Path:
        return self.place / "chaos.yaml"

    @property
    def folder(self) -> StudyFolder:
        return StudyFolder(self.place / "studies" / "chaos")

    @property
    def log(self) -> Path:
        """What all drivers said, outside of the place, which may be full."""
        return self.place.with_suffix(".log")

    def ended(self) -> int:
        """Trials that are over."""
        return sum(trial.is_over for trial in self.folder.read_trials())

    def driver(self, *, resume: bool = False) -> subprocess.Popen[bytes]:
        """A new driver."""
        last = ["--resume", str(self.folder.path)] if resume else [str(self.config)]
        with self.log.open("a") as log:
            return subprocess.Popen([sys.executable, "-m", "flstudy.cli", "tune", *last], stdout=log, stderr=log)

    def until(self, reached: Callable[[], bool], driver: subprocess.Popen[bytes], limit_s: float = 300.0) -> None:
        """Wait for something that a driver brings about."""
        end = time.monotonic() + limit_s
        while not reached() and driver.poll() is None and time.monotonic() < end:
            time.sleep(0.1)

    def run(self, *, resume: bool = False) -> int:
        """A driver from start to end; its exit status."""
        return finish(self.driver(resume=resume))


def finish(driver: subprocess.Popen[bytes], limit_s: float = 900.0) -> int:
    """A driver's exit status; -1 for one that did not end in time."""
    try:
        return driver.wait(limit_s)
    except subprocess.TimeoutExpired:
        driver.kill()
        return -1


# ---- who is shot at --------------------------------------------------------------------------------------------------


def parents() -> dict[int, int]:
    """Parent of each process of this machine."""
    parent_of = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        parent_of[int(stat.parent.name)] = int(fields[1])
    return parent_of


def workers(driver: int) -> list[int]:
    """Processes below ``driver`` in which Ray runs trials, and the one that writes what they say."""
    above = parents()

    def below(pid: int) -> Iterator[int]:
        while pid in above:
            pid = above[pid]
            yield pid

    pids = []
    for pid in above:
        try:
            name = Path(f"/proc/{pid}/cmdline").read_text()
        except OSError:
            continue
        ours = name.startswith("ray::Writer") or (name.startswith("ray::") and "Trainable" in name)
        if ours and driver in below(pid):  # not Ray's own agents
            pids.append(pid)
    return pids


# ---- experiments -----------------------------------------------------------------------------------------------------


def random_kills(study: Study, kills: int) -> str:
    """Kill a worker, the writer or, one time in four, the driver at random moments; the study goes on each time."""
    rng, killed = random.Random(0), {"workers": 0, "writers": 0, "drivers": 0}
    driver = study.driver()
    while driver.poll() is None and sum(killed.values()) < kills:
        with contextlib.suppress(subprocess.TimeoutExpired):
            driver.wait(rng.uniform(0.0, 25.0))
        if driver.poll() is not None:
            break
        targets = workers(driver.pid)
        if rng.random() < 0.25 and study.folder.state().get("study_id"):
            driver.kill()
            driver.wait()
            killed["drivers"] += 1
            time.sleep(rng.uniform(0.0, 5.0))
            driver = study.driver(resume=True)
        elif targets:
            target = rng.choice(targets)
            kind = "writers" if Path(f"/proc/{target}/cmdline").read_text().startswith("ray::Writer") else "workers"
            os.kill(target, signal.SIGKILL)
            killed[kind] += 1
    finish(driver)
    if sum(killed.values()) < kills:
        study.wrong.append(f"the study was over after {sum(killed.values())} of {kills} kills")
    return f"{killed['workers']} workers, {killed['writers']} writers and {killed['drivers']} drivers killed"


def killed_after(study: Study, ended: int) -> None:
    """A study whose driver is killed when so many trials are over."""
    driver = study.driver()
    study.until(lambda: study.ended() >= ended, driver)
    driver.kill()
    driver.wait()
    time.sleep(3)  # Ray ends the workers of a lost driver


def two_drivers(study: Study) -> str:
    """Two drivers go on with a killed study at once, and a third one comes while one of them is at work."""
    killed_after(study, 1)
    both = [study.driver(resume=True), study.driver(resume=True)]
    study.until(lambda: any(driver.poll() is not None for driver in both), both[0])
    third = study.run(resume=True)
    codes = sorted(finish(driver) for driver in both)
    if codes != [0, 2] or third != 2:
        study.wrong.append(f"exit statuses of two drivers {codes}, of a third {third}; wanted [0, 2] and 2")
    return "one ran, the others were refused"


def sigterm(study: Study, number: signal.Signals = signal.SIGTERM) -> str:
    """SIGTERM, as a scheduler sends it, then resumed."""
    driver = study.driver()
    study.until(lambda: study.ended() >= 1, driver)
    driver.send_signal(number)
    code = finish(driver)
    state = study.folder.state()["state"]
    running = [run for run in runs_of(study) if run.info.status == "RUNNING"]
    if state != "interrupted" or running:
        study.wrong.append(f"after {number.name} the study is {state}, {len(running)} runs are RUNNING")
    snapshot_count = len(list((study.folder.path / "snapshots").glob("*.ckpt")))
    again = study.run(resume=True)
    if again:
        study.wrong.append(f"the resumed study exits with {again}")
    return f"exit status {code}, state {state}, {snapshot_count} snapshots; resumed"


def reused_pid(study: Study) -> str:
    """The pid of a killed driver belongs to somebody else now."""
    killed_after(study, 1)
    state = json.loads(study.folder.state_file.read_text())
    with subprocess.Popen(["sleep", "600"]) as other:
        study.folder.state_file.write_text(json.dumps(state | {"pid": other.pid, "state": "running"}))
        code = study.run(resume=True)
        other.kill()
    if code:
        study.wrong.append(f"the resumed study exits with {code}")
    return "resumed beside the process that has its pid"


def full_disk(study: Study) -> str:
    """The disk of study and store fills up in the middle, and is freed."""
    ballast = study.place / "ballast"
    driver = study.driver()
    study.until(lambda: study.ended() >= 1, driver)
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    since = time.monotonic()
    code = finish(driver, 240.0)
    took = time.monotonic() - since
    before = study.ended()
    ballast.unlink()
    again = study.run(resume=True)
    if code in (0, -1) or again:
        study.wrong.append(f"exit statuses {code} when the disk was full and {again} when resumed")
    return f"stopped after {took:.0f} s with {before} trials over and exit status {code}; freed and resumed"


def same_search(study: Study, undisturbed: Study, kills: int = 2) -> str:
    """One trial at a time: the proposals of a study that is killed and resumed are those of one that is not."""
    undisturbed.run()
    killed_after(study, 1)
    for more in range(1, kills):
        driver = study.driver(resume=True)
        study.until(lambda more=more: study.ended() >= 1 + 2 * more, driver)  # type: ignore[misc]
        driver.kill()
        driver.wait()
        time.sleep(3)
    study.run(resume=True)
    pairs = list(zip(undisturbed.folder.read_trials(), study.folder.read_trials(), strict=False))
    equal = sum(trial.overrides == other.overrides for trial, other in pairs)
    if equal != study.trials:
        study.wrong.append(f"{equal} of {study.trials} proposals are those of the undisturbed study")
    return f"{equal} of {study.trials} proposals equal after {kills} kills of the driver"


# ---- damage ----------------------------------------------------------------------------------------------------------


def cut(path: Path) -> None:
    """A file that lost its second half."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def flip(path: Path) -> None:
    """A file with some of its bits flipped in the middle."""
    content = bytearray(path.read_bytes())
    for place in range(len(content) // 2, min(len(content), len(content) // 2 + 16)):
        content[place] ^= 0xFF
    path.write_bytes(bytes(content))


def insert_line(path: Path) -> None:
    """A list of trials with a line that is none, and an unknown field in another."""
    lines = path.read_text().splitlines(keepends=True)
    first = {**json.loads(lines[0]), "unknown": 1}
    path.write_text("".join([json.dumps(first) + "\n", "{]\n", *lines[1:]]))


def damages(folder: StudyFolder) -> dict[str, Callable[[Path], None]]:
    """What is done to a copy of a study's folder, by name."""
    over = next(trial.number for trial in folder.read_trials() if trial.is_over)
    records = folder.records(over).relative_to(folder.path)

    def parquet(change: Callable[[Path], None], path: Path) -> None:
        change(next((path / records).glob("*.parquet")))

    def state(content: Any, path: Path) -> None:
        saved_state = json.loads((path / "state.json").read_text())
        (path / "state.json").write_text(json.dumps(saved_state | content if isinstance(content, dict) else content))

    def snapshots(path: Path) -> None:
        for file in (path / "snapshots").glob("*.ckpt"):
            flip(file)

    return {
        "Parquet of an ended trial cut": partial(parquet, cut),
        "Parquet of an ended trial flipped": partial(parquet, flip),
        "state.json cut": lambda path: cut(path / "state.json"),
        "state.json is []": partial(state, []),
        "state.json with a wild pid": partial(state, {"pid": "many", "state": "running"}),
        "trials.jsonl with a bad line and an unknown field": lambda path: insert_line(path / "trials.jsonl"),
        "snapshots flipped": snapshots,
    }


def damage(study: Study) -> list[tuple[str, str, list[str]]]:
    """(damage, what each command gave, what is wrong) over copies of a study that was stopped."""
    driver = study.driver()
    study.until(lambda: study.ended() >= 2, driver)
    driver.send_signal(signal.SIGINT)
    finish(driver)
    results = []
    for name, harm in damages(study.folder).items():
        wrong: list[str] = []
        place = study.place.with_name("damaged")
        copied = place / "chaos"
        shutil.copytree(study.folder.path, copied)
        harm(copied)
        statuses = []
        for command in ("report", "studies", "show", "sync", "resume"):
            last = {
                "report": ["report", str(copied)],
                "studies": ["studies", str(place)],
                "show": ["show", str(copied), "0"],
                "sync": ["sync", str(copied), "--store", f"sqlite:///{place}/mlflow.db"],
                "resume": ["tune", "--resume", str(copied)],
            }[command]
            done = subprocess.run(
                [sys.executable, "-m", "flstudy.cli", *last], capture_output=True, text=True, timeout=600
            )
            output = done.stdout + done.stderr
            statuses.append(f"{command} {done.returncode}")
            if TRACEBACK in output or done.returncode not in (0, 1, 2):
                wrong.append(f"{name}: {command} gives {done.returncode} and {output.strip().splitlines()[-1][:200]!r}")
        trials = StudyFolder(copied).read_trials() if "state.json" not in name else []
        if trials and any(trial.status is not Status.FINISHED for trial in trials):
            wrong.append(f"{name}: after the resume not all trials are finished")
        results.append((name, ", ".join(statuses), wrong))
        shutil.rmtree(place)
    return results


# ---- what must hold --------------------------------------------------------------------------------------------------


def undisturbed(path: str, overrides: dict[str, Any]) -> dict[str, float]:
    """Final metrics of one suggestion where nobody shoots."""
    import torch

    torch.set_num_threads(1)
    return run_trial(
        load(path, command="tune"), Trial(number=0, algorithm="", overrides=overrides), report=lambda *_: True
    ).metrics


def runs_of(study: Study) -> list[Any]:
    """All runs of the study's store."""
    store = open_store(f"sqlite:///{study.place}/mlflow.db")
    return list(store.client.search_runs([store.experiment_id], max_results=10 * study.trials + 10))


def check(study: Study) -> list[str]:
    """What is wrong, in sentences; nothing if all is well."""
    wrong = list(study.wrong)
    state, trials = study.folder.state(), study.folder.read_trials()
    if state["state"] != "finished" or len(trials) != study.trials:
        wrong.append(f"the study is {state['state']} with {len(trials)} of {study.trials} trials")
    numbers = sorted(run.data.tags.get("flstudy.trial", "study") for run in runs_of(study))
    if numbers != sorted([*(str(number) for number in range(study.trials)), "study"]):
        wrong.append(f"MLflow has the runs {numbers}")
    client = open_store(f"sqlite:///{study.place}/mlflow.db").client
    with ProcessPoolExecutor(2) as pool:
        alone = pool.map(undisturbed, [str(study.config)] * len(trials), [trial.overrides for trial in trials])
        for trial, expected in zip(trials, alone, strict=True):
            wrong += _check_trial(trial, expected, study, client)
    if TRACEBACK in study.log.read_text():
        wrong.append("a driver printed a traceback")
    return wrong


def _check_trial(trial: Trial, expected: dict[str, float], study: Study, client: Any) -> Sequence[str]:
    wrong, every = [], list(range(1, study.rounds + 1))
    if trial.status != "finished":
        return [f"trial {trial.number} is {trial.status}: {trial.reason}"]
    if trial.run_id is None or client.get_run(trial.run_id).info.status != "FINISHED":
        wrong.append(f"trial {trial.number} has run {trial.run_id}, which is not finished")
    with contextlib.closing(sqlite3.connect(study.place / "mlflow.db")) as rows:  # as stored, not as a client shows it
        query = "SELECT step FROM metrics WHERE run_uuid = ? AND key = 'train/loss'"
        steps = [step for (step,) in rows.execute(query, (trial.run_id,))]
    if sorted(steps) != every:
        wrong.append(f"trial {trial.number} has {len(steps)} rounds in MLflow ({len(set(steps))} different)")
    table = read_records(study.folder.records(trial.number))
    names = zip(table["round"].to_pylist(), table["metric"].to_pylist(), strict=True)
    recorded = [round for round, name in names if name == "train/loss"]
    if recorded != every:
        wrong.append(f"trial {trial.number} has {len(recorded)} rounds in its records")
    for name in EXACT:
        if not (trial.metrics[name] == expected[name] or math.isnan(expected[name])):
            wrong.append(f"trial {trial.number}: {name} is {trial.metrics[name]!r}, undisturbed {expected[name]!r}")
    return wrong


@contextlib.contextmanager
def small_disk(place: Path, megabytes: int) -> Iterator[None]:
    """A disk of its own at ``place``; PermissionError where none can be mounted."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(place)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise PermissionError(done.stderr.strip())
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


def main() -> int:
    """Shoot, check, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    experiments = ("kills", "drivers", "sigterm", "pid", "disk", "search", "damage")
    parser.add_argument("--experiments", nargs="+", choices=experiments, default=experiments)
    parser.add_argument("--trials", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--kills", type=int, default=20)
    options = parser.parse_args()
    print("# Studies under fire\n")
    print(f"`python tests/benchmark/chaos.py {' '.join(sys.argv[1:])}`".replace(" `", "`") + "\n")
    print(
        "| experiment | what was seen | trials with one run, every round once, and the metrics of an undisturbed run |"
    )
    print("|---|---|---:|", flush=True)
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="chaos-") as base:

        def tried(name: str, experiment: Callable[[Study], str], **more: Any) -> None:
            place = Path(base) / name
            with small_disk(place, 200) if name == "disk" else contextlib.nullcontext():
                place.mkdir(exist_ok=True)
                study = Study(place, more.get("trials", options.trials), options.rounds, more.get("concurrent"))
                seen = experiment(study)
                problems = check(study)
            lost = {
                text.split(":")[0].split(" has ")[0].split(" is ")[0] for text in problems if text.startswith("trial ")
            }
            print(f"| {experiment_names[name]} | {seen} | {study.trials - len(lost)} of {study.trials} |", flush=True)
            wrong.extend(f"{name}: {text}" for text in problems)
            if problems:
                print(study.log.read_text()[-3000:], file=sys.stderr)

        experiment_names = {
            "kills": f"{options.kills} kills at random moments",
            "drivers": "two drivers at once, then a third",
            "sigterm": "SIGTERM",
            "pid": "a reused pid",
            "disk": "disk full and freed",
            "search": "a resumed search, one trial at a time",
        }
        if "kills" in options.experiments:
            tried("kills", partial(random_kills, kills=options.kills), trials=4 * options.trials)
        for name, experiment in {"drivers": two_drivers, "sigterm": sigterm, "pid": reused_pid}.items():
            if name in options.experiments:
                tried(name, experiment)
        if "disk" in options.experiments:
            try:
                tried("disk", full_disk)
            except PermissionError as error:
                print(f"| disk full and freed | not tried: {error} | |")
        if "search" in options.experiments:
            (alone := Path(base) / "alone").mkdir()
            reference = Study(alone, options.trials, options.rounds, concurrent=1)
            tried("search", partial(same_search, undisturbed=reference), concurrent=1)
        if "damage" in options.experiments:
            (place := Path(base) / "damage").mkdir()
            print("\n| damage | exit statuses | what is wrong |\n|---|---|---|", flush=True)
            for name, statuses, problems in damage(Study(place, options.trials, options.rounds)):
                print(f"| {name} | {statuses} | {'; '.join(problems) or 'nothing'} |", flush=True)
                wrong += problems
    print("\n" + ("\n".join(f"- {text}" for text in wrong) or f"Compared to the last bit: {', '.join(EXACT)}."))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
