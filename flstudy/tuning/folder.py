"""The folder of a study: what it was, how its trials went, and their rounds. Readable without any server.

studies/<name>/study.yaml              the config
               trials.jsonl            a `TrialSummary` per line; of several lines of one trial the last one counts
               records/<trial>.parquet every metric of every round and replica
               snapshots/<trial>.ckpt  where a trial that still runs would go on after a kill
               snapshots/<trial>.hung  where the threads of a trial stood when a round took too long
               optuna.journal          the search's history, for Optuna's dashboard
               models/<trial>.pt       the trained model of each algorithm's best trial, of its first seed
               ray/                    Ray Tune's own state
"""

import json
import math
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flstudy.config import ConfigError
from flstudy.study.folder import lives
from flstudy.tracking.trials import read_entries
from flstudy.tuning.trial import Status

if TYPE_CHECKING:
    from flstudy.config import Config


@dataclass(kw_only=True)
class TrialSummary:
    """One trial as ``trials.jsonl`` tells it."""

    trial: int
    algorithm: str
    overrides: dict[str, Any]
    status: Status | str = "running"
    rounds: int = 0  # done
    objective: float | None = None  # last one, mean over replicas; the worst value if diverged or failed
    values: Sequence[float] | None = None  # of all objectives, the first one included, once the trial has ended
    feasible: bool = True  # within study.constraints
    stage: str = "search"  # or confirm: trained again on new seeds
    of: int | None = None  # the trial of the search that is confirmed
    source: str | None = None  # STUDY/TRIAL that trained it, if another study did
    started: float | None = None  # seconds since 1970, of the first start
    ended_at: float | None = None
    attempts: int = 0  # starts
    lineage: list[dict[str, Any]] = field(default_factory=list)  # earlier overrides of a population's trial
    synced: bool = True  # MLflow has all of it
    metrics: dict[str, float] = field(default_factory=dict)  # last value of each, mean over replicas
    run_id: str | None = None  # in MLflow
    error: str | None = None  # traceback

    @property
    def ended(self) -> bool:
        """Whether it came to an end of its own, and need not be run again."""
        return self.status in ("finished", "pruned", "diverged", "failed")

    @property
    def counts(self) -> bool:
        """Whether its objective is a measured one, within the constraints."""
        return self.status in ("finished", "pruned") and self.objective is not None and self.feasible


class StudyFolder:
    """The files of one study, newly made."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, config: "Config") -> "StudyFolder":
        """``<folder>/<name>``, or ``<name>-2``, ``-3``, ... where that exists already."""
        parent, name = Path(config.study.folder).absolute(), wanted_name(config)
        taken = 1
        while True:
            path = parent / (name if taken == 1 else f"{name}-{taken}")
            try:
                parent.mkdir(parents=True, exist_ok=True)
                path.mkdir()  # atomic: of two studies started at once, each gets its own
                break
            except FileExistsError as error:
                if not parent.is_dir():
                    raise _unwritable(config, error) from error
                taken += 1
            except OSError as error:
                raise _unwritable(config, error) from error
        (path / "records").mkdir()
        (path / "snapshots").mkdir()
        return cls(path)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def trials(self) -> Path:
        return self.path / "trials.jsonl"

    @property
    def config(self) -> Path:
        return self.path / "study.yaml"

    def records(self, trial: int) -> Path:
        return self.path / "records" / f"{trial}.parquet"

    def snapshot(self, trial: int) -> Path:
        return self.path / "snapshots" / f"{trial}.ckpt"

    def hung(self, trial: int) -> Path:
        return self.path / "snapshots" / f"{trial}.hung"

    def model(self, trial: int) -> Path:
        return self.path / "models" / f"{trial}.pt"

    def write_config(self, config: "Config") -> None:
        import yaml

        self.config.write_text(yaml.safe_dump(config.plain(), sort_keys=False))

    def write_trials(self, trials: list[TrialSummary]) -> None:
        """All of them, a line each."""
        _replace(self.trials, "".join(map(_line, trials)))

    def write_trial(self, trial: TrialSummary) -> None:
        """One of them. A line is added, so that the last of thousands costs no more than the first."""
        with self.trials.open("a") as file:
            file.write(_line(trial))  # flushed by close: a killed driver loses nothing that it has written

    def read_trials(self) -> list[TrialSummary]:
        """The trials as they were last written; a study that was killed before its first one has none."""
        own = {item.name for item in fields(TrialSummary)}
        return [TrialSummary(**{k: v for k, v in entry.items() if k in own}) for entry in read_entries(self.trials)]

    def state(self) -> dict[str, Any]:
        """What `write_state` wrote; empty before that."""
        path = self.path / "state.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def write_state(self, state: Literal["running", "finished", "interrupted", "failed"], **more: Any) -> None:
        """Say how the study stands; one that says it runs while its process does not was killed."""
        now = time.time()
        known = {"format": 2, "started": now, **self.state(), "spent_s": self.spent_s(), **more}
        known |= {"pid": os.getpid(), "host": platform.node(), "since": now}
        ended = None if state == "running" else now
        content = {**known, "state": state, "ended": ended}
        _replace(self.path / "state.json", json.dumps(content, indent=1, default=str))

    @property
    def journal(self) -> Path:
        return self.path / "optuna.journal"

    def spent_s(self) -> float:
        """Seconds that the study has been at work; for one that was killed, as far as its last trial's line."""
        state = self.state()
        known: float = state.get("spent_s", 0.0)
        if state.get("state") != "running":
            return known
        mine = state["pid"] == os.getpid() and state["host"] == platform.node()
        until = time.time() if mine else self.trials.stat().st_mtime if self.trials.exists() else 0.0
        return known + max(0.0, until - state["since"])

    @classmethod
    def resume(cls, path: Path) -> "StudyFolder":
        """The folder of a study that stopped, or was killed; ConfigError for one that still runs."""
        folder = cls(path.absolute())
        state = folder.state()
        if "study_id" not in state:
            raise ConfigError(f"{path} cannot be resumed: it has no state.json with the study's id; start it anew")
        pid, here = state["pid"], state["host"] == platform.node()
        if state["state"] == "running" and here and pid != os.getpid() and lives(pid):
            raise ConfigError(f"study {folder.name} is still running in process {pid}: stop that one first (Ctrl-C)")
        return folder


def _line(trial: TrialSummary) -> str:
    names = {"number": trial.trial, "confirms": trial.of, "ended": trial.ended_at, "values": list(trial.values or ())}
    return json.dumps(_jsonable(asdict(trial) | names), default=str) + "\n"  # as the study's own Trial reads them, too


def _replace(path: Path, content: str) -> None:
    """Write a text so that a reader sees the old one or the new one."""
    hidden = path.with_suffix(".tmp")
    hidden.write_text(content)
    os.replace(hidden, path)


def wanted_name(config: "Config") -> str:
    """The study's name: its own, or that of the config file."""
    name = config.study.name or Path(config.path).stem
    if name in ("", ".", "..") or set(name) & set("/\\\0"):
        raise ConfigError(f"study.name must be usable as a folder name, got {name!r}: leave out slashes")
    return name


def _unwritable(config: "Config", error: OSError) -> ConfigError:
    return ConfigError(
        f"study.folder must be a folder that you may write, got {config.study.folder!r} ({error.strerror}): "
        f"give another one"
    )


def _jsonable(value: Any) -> Any:
    """NaN and infinity become null: they are no JSON."""
    if isinstance(value, dict):
        return {key: _jsonable(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
