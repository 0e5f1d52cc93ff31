"""Layout and content of a study's folder, readable without any server. No other module knows where its files lie.

studies/<name>/study.yaml              the config
               state.json              the study's status, format, id, process and store
               lock                    held by the process that drives the study, and names it
               trials.jsonl            a `Trial` per line; of several lines of one trial the last one counts
               events.json             [{"round": 40, "label": "sudden drift"}]; absent where there are no events
               records/<trial>.parquet every metric of every round and replica
               snapshots/<trial>.ckpt  checkpoint from which a running trial would go on after a kill
               snapshots/rows/         rows of devices' states that snapshots need
               snapshots/going         present while the study goes on: a `flstudy.tuning.stop_signal.StopSignal`
               tracking/<trial>.json   the batch of metrics last sent to MLflow, which may not have arrived
               hyper_parameters/<trial>.json  of a trial, with those that its classes have beyond the config
               models/<trial>.pt       the trained model of each algorithm's best trial, of its first seed
               models/<trial>.parquet  that trial's results on each device, of all seeds
               report/                 report.html, summary.md, curves.png, tables.tex, citations.bib
               best/<Algorithm>.yaml   each algorithm's best trial as a config that runs
               optuna.journal          the search's history, for Optuna's dashboard
               ray/                    Ray Tune's own state, while the study runs
"""

import contextlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Literal

import yaml

from flstudy.config import ConfigError
from flstudy.config.composition import EARLIER, whole_study
from flstudy.config.reading import content_of, text_of
from flstudy.config.values import anchored
from flstudy.remote import RemoteError, RemoteFolder, child_uri, is_uri
from flstudy.study.damage import DamageError, parse_json, read_bounded, reason_of
from flstudy.study.lock import FolderLock, Holder, refusal
from flstudy.study.trial import Trial, read_lines, write_line
from flstudy.study.working_copy import WorkingCopy, home_of
from flstudy.whole_file import whole_file

if TYPE_CHECKING:
    from flstudy.config import Config

FORMAT, EARLIER_FORMAT = 3, 2
"""Format of the files. In study.yaml of format 2 another class than the config's starts from its own defaults, and arms
have no names of their own; format 1 is not read any more."""
HOME = "studies"


class StudyFolder:
    """The files of one study."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    # ---- layout ------------------------------------------------------------------------------------------------------

    def inside(self, *names: str) -> Path:
        """Return the path of a file or folder of the study; the study's folder itself may be a link.

        Raises:
            DamageError: for a link on the way, which may lead out of the study.
        """
        path = self.path
        for name in names:
            path = path / name
            if path.is_symlink():
                raise DamageError(f"{path} must lie in the study, but is a link: put what it links to in its place")
        return path

    @property
    def name(self) -> str:
        """The study's name."""
        return self.path.resolve().name

    @property
    def config(self) -> Path:
        return self.inside("study.yaml")

    @property
    def state_file(self) -> Path:
        return self.inside("state.json")

    @property
    def lock(self) -> FolderLock:
        return FolderLock(self.path / "lock")

    @property
    def writer_lock(self) -> FolderLock:
        """The lock of the process that writes records, snapshots and models."""
        return FolderLock(self.path / "writer")

    @property
    def trials(self) -> Path:
        return self.inside("trials.jsonl")

    @property
    def events(self) -> Path:
        return self.inside("events.json")

    @property
    def journal(self) -> Path:
        return self.inside("optuna.journal")

    @property
    def report(self) -> Path:
        return self.inside("report")

    @property
    def best(self) -> Path:
        return self.inside("best")

    @property
    def ray(self) -> Path:
        return self.inside("ray")

    def records(self, trial: int) -> Path:
        return self.inside("records", f"{trial}.parquet")

    def snapshot(self, trial: int) -> Path:
        return self.inside("snapshots", f"{trial}.ckpt")

    def drop_snapshot(self, trial: int) -> None:
        """Delete a trial's snapshot, with the devices' rows that lie beside it."""
        path = self.snapshot(trial)
        if (path.parent / "rows").is_dir():
            from flstudy.federation.checkpoint_rows import remove_with_rows

            remove_with_rows(path)
        path.unlink(missing_ok=True)

    @property
    def stop_signal_file(self) -> Path:
        """File of the study's `flstudy.tuning.stop_signal.StopSignal`."""
        return self.inside("snapshots", "going")

    def metrics_batch_file(self, trial: int | None) -> Path:
        """Return the path of the batch of metrics last sent to MLflow, of a trial or, for None, of the study itself."""
        return self.inside("tracking", f"{'study' if trial is None else trial}.json")

    def hyper_parameters(self, trial: int) -> Path:
        """Return the path of a trial's hyper-parameters, with those that its parts know beyond the config."""
        return self.inside("hyper_parameters", f"{trial}.json")

    def model(self, trial: int) -> Path:
        return self.inside("models", f"{trial}.pt")

    def by_device(self, trial: int) -> Path:
        return self.inside("models", f"{trial}.parquet")

    @property
    def is_study(self) -> bool:
        """True if a study has written here."""
        return any((self.path / name).is_file() for name in ("study.yaml", "state.json"))

    # ---- making and finding ------------------------------------------------------------------------------------------

    @classmethod
    def create(cls, config: "Config") -> "StudyFolder":
        """Make ``<folder>/<name>``, or ``<name>-2``, ``-3``, ... where that exists already; for a folder by URI, the
        working copy.

        Raises:
            ConfigError: for a folder that cannot be written.
        """
        uri, name, there = config.study.folder, wanted_name(config), list[str]()
        if is_uri(uri):
            try:
                there = RemoteFolder.open(uri).folders()
            except RemoteError as error:
                raise ConfigError(str(error)) from error
        parent = home_of(uri).absolute()
        taken = 1
        while True:
            path = parent / (name if taken == 1 else f"{name}-{taken}")
            if path.name in there:
                taken += 1
                continue
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
        if is_uri(uri):
            WorkingCopy.of(child_uri(uri, path.name)).note(token=None)  # nothing there is newer
        folder = cls(path)
        folder._make_subfolders()
        return folder

    def _make_subfolders(self) -> None:
        for name in ("records", "snapshots", "models"):
            self.inside(name).mkdir(exist_ok=True)

    @classmethod
    def resume(cls, path: Path, claims: ExitStack) -> "StudyFolder":
        """Return the folder of a study that stopped or was killed, held by ``claims``; ConfigError for one that
        runs."""
        folder = cls(path.absolute())
        claims.enter_context(folder.claim())  # before anything is read
        folder._make_subfolders()  # a copy from a bucket lacks empty folders
        state = folder.state()
        if "study_id" not in state:
            name, reason = folder.name, state.get("damage") or "it has no state.json with the study's id"
            raise ConfigError(f"{name} cannot be resumed: {reason}; start anew with --import-from {name}")
        return folder

    @classmethod
    def named(cls, name: str | os.PathLike[str]) -> "StudyFolder":
        """Return a study by its folder or URI, or by its name under studies/."""
        if is_uri(name):
            return cls.fetch(str(name))
        path = Path(name)
        return cls(path if path.is_dir() else Path(HOME) / path)

    @classmethod
    def fetch(cls, uri: str, *beside: str) -> "StudyFolder":
        """Return the working copy of a study by URI, updated from the bucket for reading.

        Args:
            uri: of the study.
            beside: those of ``models`` and ``optuna.journal`` to fetch as well, which may be large. Results by device,
                which lie beside models, are small.

        Raises:
            ConfigError: where there is no such study, or the bucket cannot be used.
        """
        copy = WorkingCopy.of(uri)
        folder = cls(copy.path)
        left = {"snapshots", "models", "optuna.journal"} - set(beside)
        if folder.lock.holder() is None:  # else it is driven here
            copy.refresh(lambda name: PurePosixPath(name).parts[0] not in left or _is_of_devices(name))
        return folder

    @classmethod
    def remote_studies(cls, uri: str) -> "list[StudyFolder]":
        """Return the studies in a folder by URI, of which only configs and lists of trials are fetched."""
        try:
            names = RemoteFolder.open(uri).folders()
        except RemoteError as error:
            raise ConfigError(str(error)) from error
        studies = []
        for name in names:
            copy = WorkingCopy.of(child_uri(uri, name))
            with contextlib.suppress(ConfigError):  # the folder holds no study
                if cls(copy.path).lock.holder() is None:
                    copy.refresh(lambda name: "/" not in name and name != "optuna.journal", recursive=False)
                studies.append(cls(copy.path))
        return studies

    @property
    def name_or_uri(self) -> str:
        """The name by which a user opens the study; its path or URI where it lies elsewhere than in studies/."""
        if (copy := WorkingCopy.at(self.path)) is not None:
            return copy.uri
        return self.name if self.path.absolute() == Path(HOME, self.name).absolute() else str(self.path)

    # ---- who holds it ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def claim(self) -> Iterator[None]:
        """Hold the folder, as a study's driver does all its life, and the lease of its place in a bucket, which is
        copied here first; ConfigError where another process holds it."""
        with self.lock.hold(self.name):
            copy = WorkingCopy.at(self.path)
            with contextlib.nullcontext() if copy is None else copy.hold():
                yield

    def driver(self) -> Holder | None:
        """Return the process that holds the folder; None where none does."""
        holder = self.lock.holder()
        if holder is None and (copy := WorkingCopy.at(self.path)) is not None:
            return copy.driver()
        return holder

    def busy_message(self) -> str | None:
        """Return a sentence that names the process that holds the folder; None where none does."""
        holder = self.driver()
        return None if holder is None else refusal(self.name, holder)

    # ---- content -----------------------------------------------------------------------------------------------------

    def write_config(self, config: "Config") -> None:
        """Write the study's config with every arm's own values, so that its trials stay the same in later versions."""
        whole = config.whole_study()
        whole["study"]["name"] = whole["study"]["name"] or self.name
        replace_text(self.config, yaml.safe_dump(whole, sort_keys=False))

    def read_config(self) -> str:
        """Return the text of study.yaml; one of an earlier format is completed by its own rule. Read in another folder
        than the one in which the study was begun, its relative paths are absolute."""
        text, state = text_of(self.config), self.state()
        if state.get("format") == EARLIER_FORMAT:
            text = yaml.safe_dump(whole_study(content_of(self.config, text), rule=EARLIER), sort_keys=False)
        begun = Path(state.get("cwd", ""))
        if begun.is_absolute() and begun != Path.cwd():
            text = yaml.safe_dump(anchored(content_of(self.config, text), begun), sort_keys=False)
        return text

    def write_events(self, events: Sequence[Any]) -> None:
        """Write the events of the world, each with a round and a label."""
        replace_text(self.events, json.dumps([event._asdict() for event in events], indent=2) + "\n")

    def write_trials(self, trials: Iterable[Trial]) -> None:
        """Write all trials, a line each; a reader sees the old list or the new one."""
        replace_text(self.trials, "".join(map(write_line, trials)))

    def write_trial(self, trial: Trial) -> None:
        """Append one trial's line, so that the last of thousands costs no more than the first."""
        append_text(self.trials, write_line(trial))

    def remove_unfinished_files(self) -> None:
        """Remove files that were not written to their ends, which makes room on a full disk."""
        for pattern in ("*.tmp", "*/*.tmp", "records/*/.*.tmp"):
            for path in self.path.glob(pattern):
                self.inside(*path.relative_to(self.path).parts[:-1])
                path.unlink(missing_ok=True)

    def read_trials(self, damage: list[str] | None = None) -> list[Trial]:
        """Return the trials as they were last written; a study that was killed before its first one has none.

        Args:
            damage: gets a sentence for every line that is damaged, and left out.

        Raises:
            ConfigError: for a list of another format, or that cannot be read.
        """
        state = self.state()
        if state and "damage" not in state and state.get("format") not in (FORMAT, EARLIER_FORMAT):
            raise ConfigError(
                f"study {self.name} has format {state.get('format', 1)}, and this flstudy reads {EARLIER_FORMAT} and "
                f"{FORMAT}: use the flstudy that wrote it, or start the study anew"
            )
        trials = read_lines(self.trials, damage)
        for trial in trials if state.get("format") == EARLIER_FORMAT else ():
            if "algorithm" in trial.overrides:  # its class, where arms have names now
                trial.overrides["algorithm"] = trial.algorithm
        return trials

    # ---- status ------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the content of state.json; ``killed`` where it says that the study runs and nobody holds its folder,
        ``damaged`` where it cannot be read, with the reason as ``damage``; empty before the study started."""
        try:
            state: dict[str, Any] = parse_json(read_bounded(self.state_file))
            _check_state(state)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError) as error:
            return {"state": "damaged", "damage": f"{self.path / 'state.json'} is damaged ({reason_of(error)})"}
        if state.get("state") == "running" and self.driver() is None:
            state["state"] = "killed"
        return state

    def write_state(self, state: Literal["running", "finished", "interrupted", "failed"], **more: Any) -> None:
        """Write the study's status, and further values to remember."""
        now = time.time()
        content = {"started": now, **self.state(), "spent_s": self.spent_s(), **more}
        content |= {
            **asdict(Holder()),
            "format": FORMAT,
            "since": now,
            "state": state,
            "ended": None if state == "running" else now,
        }
        content.pop("damage", None)  # of a state.json that is written over
        replace_text(self.state_file, json.dumps(content, indent=1, default=str))

    def spent_s(self) -> float:
        """Return the seconds that the study has been at work; for one that was killed, as far as its last trial's
        line."""
        state = self.state()
        earlier_s: float = state.get("spent_s") or 0.0
        if state.get("state") not in ("running", "killed"):
            return earlier_s
        me = Holder()
        mine = all(state.get(name) == getattr(me, name) for name in ("pid", "boot", "start"))
        until = time.time() if mine else self.trials.stat().st_mtime if self.trials.exists() else 0.0
        return earlier_s + max(0.0, until - (state.get("since") or until))


_STATES = ("running", "finished", "interrupted", "failed")
_TEXTS, _TIMES = ("study_id", "store", "modules", "cwd"), ("started", "since", "ended", "spent_s")


def _check_state(state: Any) -> None:
    """Raise TypeError for content that a state.json cannot have."""
    if not isinstance(state, dict):
        raise TypeError(f"it holds a {type(state).__name__}")
    if state.get("format", 1) not in (FORMAT, EARLIER_FORMAT):
        return  # another flstudy's, which `read_trials` refuses
    if state.get("state") not in _STATES:
        raise TypeError(f"its state is {state.get('state')!r}")
    for name in _TEXTS:
        if name in state and (not isinstance(state[name], str) or "\0" in state[name]):
            raise TypeError(f"its {name} is {state[name]!r}")
    for name in _TIMES:
        value = state.get(name)
        if value is not None and not (type(value) in (int, float) and abs(value) < 1e11):  # year 5138
            raise TypeError(f"its {name} is {value!r}")
    if not isinstance(state.get("trials"), int | None):
        raise TypeError(f"its trials is {state['trials']!r}")
    tags = state.get("environment", {})
    if not isinstance(tags, dict) or not all(isinstance(value, str) for value in tags.values()):
        raise TypeError("its environment is no object of texts")


def replace_text(path: Path, content: str) -> None:
    """Write a text so that a reader sees the old one or the new one."""
    with whole_file(path) as hidden, open_private(hidden, "w") as file:
        file.write(content)


def append_text(path: Path, content: str) -> None:
    """Append all of a text to a file, or nothing, so that the next one does not follow half of it on a full disk.

    Unbuffered: a killed process loses nothing that it has written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
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


def open_private(path: Path, mode: Literal["a", "w"]) -> IO[str]:
    """Open a text file that only this user can read: tracebacks may quote more than anybody foresees."""
    return open(path, mode, encoding="utf-8", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o600))


def from_here(path: Path) -> str:
    """Return the path relative to the working directory where it lies below it, else absolute."""
    path, here = path.absolute(), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def free_path(wanted: Path) -> Path:
    """Return the path of a new folder: ``wanted``, or with -2, -3, … after it where that exists."""
    path, number = wanted, 2
    while path.exists():
        path, number = wanted.with_name(f"{wanted.name}-{number}"), number + 1
    return path


def wanted_name(config: "Config") -> str:
    """Return the study's name: its own, or that of the config file."""
    name = config.study.name or Path(config.path).stem
    if name in ("", ".", "..") or set(name) & set("/\\\0"):
        raise ConfigError(f"study.name must be usable as a folder name, got {name!r}: leave out slashes")
    return name


def _is_of_devices(name: str) -> bool:
    """Return whether a file of a study, by its path in the folder, holds a trial's results by device."""
    path = PurePosixPath(name)
    return path.parts[0] == "models" and path.suffix == ".parquet"
