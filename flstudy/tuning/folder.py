"""The folder of a study: what it was, how its trials went, and their rounds. Readable without any server.

studies/<name>/study.yaml              the config
               trials.json             a list of `TrialSummary`, rewritten whenever a trial ends
               records/<trial>.parquet every metric of every round and replica
               ray/                    Ray Tune's own state
"""

import json
import math
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flstudy.config import ConfigError
from flstudy.tuning.trial import Status

if TYPE_CHECKING:
    from flstudy.config import Config


@dataclass(kw_only=True)
class TrialSummary:
    """One trial as ``trials.json`` tells it."""

    trial: int
    algorithm: str
    overrides: dict[str, Any]
    status: Status | str = "running"
    rounds: int = 0  # done
    objective: float | None = None  # last one, mean over replicas; the worst value if diverged or failed
    metrics: dict[str, float] = field(default_factory=dict)  # last value of each, mean over replicas
    run_id: str | None = None  # in MLflow
    error: str | None = None  # traceback

    @property
    def counts(self) -> bool:
        """Whether its objective is a measured one."""
        return self.status in ("finished", "pruned") and self.objective is not None


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
        return cls(path)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def trials(self) -> Path:
        return self.path / "trials.json"

    @property
    def config(self) -> Path:
        return self.path / "study.yaml"

    def records(self, trial: int) -> Path:
        return self.path / "records" / f"{trial}.parquet"

    def write_config(self, config: "Config") -> None:
        import yaml

        self.config.write_text(yaml.safe_dump(config.plain(), sort_keys=False))

    def write_trials(self, trials: list[TrialSummary]) -> None:
        told = [_jsonable(asdict(trial)) for trial in trials]
        hidden = self.trials.with_suffix(".tmp")
        hidden.write_text(json.dumps(told, indent=1, default=str))
        os.replace(hidden, self.trials)  # a reader sees the old list or the new one


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
