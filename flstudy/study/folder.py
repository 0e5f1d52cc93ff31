"""The folder of a study, readable without any server. Nobody else knows where a file of it lies.

studies/<name>/study.yaml              the config
               state.json              how the study stands: its format, id, process and store
               lock                    held by the process that drives the study, and names it
               trials.jsonl            a `Trial` per line; of several lines of one trial the last one counts
               events.json             [{"round": 40, "label": "sudden drift"}]; absent where nothing happens
               records/<trial>.parquet every metric of every round and replica
               snapshots/<trial>.ckpt  where a trial that still runs would go on after a kill
               snapshots/<trial>.hung  where the threads of a trial stood when a round took too long
               snapshots/going         there while the study goes on: a `flstudy.tuning.beacon.Beacon`
               models/<trial>.pt       the trained model of each algorithm's best trial, of its first seed
               report/                 report.html, summary.md, curves.png, tables.tex, citations.bib
               best/<Algorithm>.yaml   each algorithm's best trial as a config that runs
               optuna.journal          the search's history, for Optuna's dashboard
               ray/                    Ray Tune's own state, while the study runs
"""

import contextlib
import json
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import yaml

from flstudy.config import ConfigError
from flstudy.study.damage import reason_of
from flstudy.study.lock import FolderLock, Holder, refusal
from flstudy.study.trial import Trial, read_lines, write_line

if TYPE_CHECKING:
    from flstudy.config import Config

FORMAT = 2
"""Of the files; 1 is that of flstudy's first round."""
HOME = "studies"


class StudyFolder:
    """The files of one study."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    # ---- layout ------------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The study's name."""
        return self.path.resolve().name

    @property
    def config(self) -> Path:
        return self.path / "study.yaml"

    @property
    def state_file(self) -> Path:
        return self.path / "state.json"

    @property
    def lock(self) -> FolderLock:
        return FolderLock(self.path / "lock")

    @property
    def trials(self) -> Path:
        return self.path / "trials.jsonl"

    @property
    def events(self) -> Path:
        return self.path / "events.json"

    @property
    def journal(self) -> Path:
        return self.path / "optuna.journal"

    @property
    def report(self) -> Path:
        return self.path / "report"

    @property
    def best(self) -> Path:
        return self.path / "best"

    @property
    def ray(self) -> Path:
        return self.path / "ray"

    def records(self, trial: int) -> Path:
        return self.path / "records" / f"{trial}.parquet"

    def snapshot(self, trial: int) -> Path:
        return self.path / "snapshots" / f"{trial}.ckpt"

    def drop_snapshot(self, trial: int) -> None:
        """Delete it, with the devices' rows that lie beside it."""
        path = self.snapshot(trial)
        if (path.parent / "rows").is_dir():
            from flstudy.federation.checkpoint_rows import remove_with_rows

            remove_with_rows(path)
        path.unlink(missing_ok=True)

    def hung(self, trial: int) -> Path:
        return self.path / "snapshots" / f"{trial}.hung"

    @property
    def going(self) -> Path:
        return self.path / "snapshots" / "going"

    def model(self, trial: int) -> Path:
        return self.path / "models" / f"{trial}.pt"

    @property
    def is_study(self) -> bool:
        """Whether a study has written here."""
        return self.config.is_file() or self.state_file.is_file()

    # ---- making and finding ------------------------------------------------------------------------------------------

    @classmethod
    def create(cls, config: "Config") -> "StudyFolder":
        """``<folder>/<name>``, or ``<name>-2``, ``-3``, ... where that exists already.

        Raises:
            ConfigError: for a folder that cannot be written.
        """
        parent, name = Path(config.study.folder).absolute(), wanted_name(config)
        taken = 1
        while True:
            path = parent / (name if taken == 1 else f"{name}-{taken}")
            try:
                parent.mkdir(parents=True, exist_ok=True)
                path.mkdir()  # atomic: of two studies started at once, each gets its own
                break
            except OSError as error:
                if not isinstance(error, FileExistsError) or not parent.is_dir():
                    raise ConfigError(
                        f"study.folder must be a folder that you may write, got {config.study.folder!r} "
                        f"({error.strerror}): give another one"
                    ) from error
                taken += 1
        for name in ("records", "snapshots", "models"):
            (path / name).mkdir()
        return cls(path)

    @classmethod
    def resume(cls, path: Path, claims: ExitStack) -> "StudyFolder":
        """The folder of a study that stopped or was killed, held by ``claims``; ConfigError for one that runs."""
        folder = cls(path.absolute())
        claims.enter_context(folder.claim())  # before anything is read
        state = folder.state()
        if "study_id" not in state:
            name, reason = folder.name, state.get("damage") or "it has no state.json with the study's id"
            raise ConfigError(f"{name} cannot be resumed: {reason}; start anew with --import-from {name}")
        return folder

    @classmethod
    def named(cls, given: str | os.PathLike[str]) -> "StudyFolder":
        """A study by its folder, or by its name under studies/."""
        path = Path(given)
        return cls(path if path.is_dir() else Path(HOME) / path)

    @property
    def called(self) -> str:
        """What a user types for it: the name, or the path where it lies elsewhere than in studies/."""
        return self.name if self.path.absolute() == Path(HOME, self.name).absolute() else str(self.path)

    # ---- whose it is -------------------------------------------------------------------------------------------------

    def claim(self) -> AbstractContextManager[None]:
        """Hold the folder, as a study's driver does all its life; ConfigError where another process does."""
        return self.lock.held(self.name)

    def busy(self) -> str | None:
        """A sentence that tells who holds the folder; None where nobody does."""
        holder = self.lock.holder()
        return None if holder is None else refusal(self.name, holder)

    # ---- content -----------------------------------------------------------------------------------------------------

    def write_config(self, config: "Config") -> None:
        replace_text(self.config, yaml.safe_dump(config.plain(), sort_keys=False))

    def write_events(self, events: Sequence[Any]) -> None:
        """What happens to the world, each with a round and a label."""
        self.events.write_text(json.dumps([event._asdict() for event in events], indent=2) + "\n")

    def write_trials(self, trials: Iterable[Trial]) -> None:
        """All of them, a line each; a reader sees the old list or the new one."""
        replace_text(self.trials, "".join(map(write_line, trials)))

    def write_trial(self, trial: Trial) -> None:
        """One of them. A line is added, so that the last of thousands costs no more than the first."""
        append_text(self.trials, write_line(trial))

    def make_room(self) -> None:
        """Drop files that were not written to their ends."""
        for pattern in ("*.tmp", "*/*.tmp", "records/*/.*.tmp"):
            for path in self.path.glob(pattern):
                path.unlink(missing_ok=True)

    def read_trials(self, damage: list[str] | None = None) -> list[Trial]:
        """The trials as they were last written; a study that was killed before its first one has none.

        Args:
            damage: gets a sentence for every line that is damaged, and left out.

        Raises:
            ConfigError: for a list of another format, or that cannot be read.
        """
        state = self.state()
        if state and "damage" not in state and state.get("format") != FORMAT:
            raise ConfigError(
                f"study {self.name} has format {state.get('format', 1)}, and this flstudy reads {FORMAT}: use the "
                "flstudy that wrote it, or start the study anew"
            )
        return read_lines(self.trials, damage)

    # ---- how it stands -----------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """How the study stands; ``killed`` where it says that it runs and nobody holds its folder, ``damaged`` where
        state.json cannot be read, with the reason as ``damage``; empty before it started."""
        try:
            known: dict[str, Any] = json.loads(self.state_file.read_bytes())
            _check_state(known)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, RecursionError) as error:
            return {"state": "damaged", "damage": f"{self.state_file} is damaged ({reason_of(error)})"}
        if known.get("state") == "running" and self.lock.holder() is None:
            known["state"] = "killed"
        return known

    def write_state(self, state: Literal["running", "finished", "interrupted", "failed"], **more: Any) -> None:
        """Say how the study stands, and what else is to be remembered of it."""
        now = time.time()
        known = {"format": FORMAT, "started": now, **self.state(), "spent_s": self.spent_s(), **more}
        known |= {**asdict(Holder()), "since": now, "state": state, "ended": None if state == "running" else now}
        known.pop("damage", None)  # of a state.json that is written over
        replace_text(self.state_file, json.dumps(known, indent=1, default=str))

    def spent_s(self) -> float:
        """Seconds that the study has been at work; for one that was killed, as far as its last trial's line."""
        state = self.state()
        known: float = state.get("spent_s") or 0.0
        if state.get("state") not in ("running", "killed"):
            return known
        me = Holder()
        mine = all(state.get(name) == getattr(me, name) for name in ("pid", "boot", "start"))
        until = time.time() if mine else self.trials.stat().st_mtime if self.trials.exists() else 0.0
        return known + max(0.0, until - (state.get("since") or until))


_STATES = ("running", "finished", "interrupted", "failed")
_TEXTS, _TIMES = ("study_id", "store", "modules"), ("started", "since", "ended", "spent_s")


def _check_state(known: Any) -> None:
    """Raise TypeError for what a state.json cannot hold."""
    if not isinstance(known, dict):
        raise TypeError(f"it holds a {type(known).__name__}")
    if known.get("format", 1) != FORMAT:
        return  # another flstudy's, which `read_trials` refuses
    if known.get("state") not in _STATES:
        raise TypeError(f"its state is {known.get('state')!r}")
    for name in _TEXTS:
        if name in known and not isinstance(known[name], str):
            raise TypeError(f"its {name} is {known[name]!r}")
    for name in _TIMES:
        value = known.get(name)
        if value is not None and not (type(value) in (int, float) and abs(value) < 1e11):  # year 5138
            raise TypeError(f"its {name} is {value!r}")
    tags = known.get("environment", {})
    if not isinstance(tags, dict) or not all(isinstance(value, str) for value in tags.values()):
        raise TypeError("its environment is no object of texts")


def replace_text(path: Path, content: str) -> None:
    """Write a text so that a reader sees the old one or the new one."""
    hidden = path.with_suffix(".tmp")
    try:
        with private(hidden, "w") as file:
            file.write(content)
        os.replace(hidden, path)
    except OSError:
        with contextlib.suppress(OSError):
            hidden.unlink(missing_ok=True)  # half of it would take room on a full disk
        raise


def append_text(path: Path, content: str) -> None:
    """Add all of a text to a file, or nothing: the next one must not follow half of it, which a full disk has taken.

    Unbuffered: a killed process loses nothing that it has written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        size, rest = os.fstat(descriptor).st_size, content.encode()
        try:
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        except OSError:
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)


def private(path: Path, mode: Literal["a", "w"]) -> IO[str]:
    """A text file that is made for this user's eyes only: tracebacks may quote more than anybody foresees."""
    return open(path, mode, encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600))


def free_path(wanted: Path) -> Path:
    """A folder's path, or that with -2, -3, … after it where there is one already."""
    path, number = wanted, 2
    while path.exists():
        path, number = wanted.with_name(f"{wanted.name}-{number}"), number + 1
    return path


def wanted_name(config: "Config") -> str:
    """The study's name: its own, or that of the config file."""
    name = config.study.name or Path(config.path).stem
    if name in ("", ".", "..") or set(name) & set("/\\\0"):
        raise ConfigError(f"study.name must be usable as a folder name, got {name!r}: leave out slashes")
    return name
