"""Writer of a study, which owns the folder's records, snapshots and models and the trials' runs in MLflow.

It is a Ray actor on the driver's node, of one thread. Workers (`flstudy.tuning.outbox`) leave messages; an answer means
that the message's content is on disk. Messages of an attempt that the writer does not know are refused: those of a
worker that was given up, or to a writer that was killed meanwhile. Ray starts a killed writer again, and the trials
that wrote to it start again from their snapshots.

A lock keeps a driver that goes on with the study away as long as a writer of the last one lives.
"""

import contextlib
import json
import os
import shutil
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from flstudy.config import ConfigError
from flstudy.study import StudyFolder, Trial
from flstudy.study.folder import replace_text
from flstudy.study.records import RecordWriter, read_records, records_damage, rounds_of
from flstudy.tracking.content import ending_tags, run_status, trial_identity
from flstudy.tracking.runs import TrialRun
from flstudy.tracking.store import Store
from flstudy.tuning.outbox import WriterLostError
from flstudy.tuning.shortage import shortage
from flstudy.tuning.stop_signal import Directive, Lookout
from flstudy.user_error import UserError
from flstudy.whole_file import whole_file

_LOCK_S = 30.0  # for the writer of a driver that was killed to be gone
Answer = tuple[Any, str | None, str | None]
"""The answer itself, the sentence of a shortage, and the trial's run in MLflow as far as it is known."""


class Writer:
    """Writer of one study.

    Args:
        folder: the study's.
        store: MLflow.
        access: variables of the environment by which the store is used.
        identity: of the trials' runs, for `flstudy.tracking.content.trial_identity`.
        decisive: metrics by which the study decides.
    """

    def __init__(
        self,
        folder: StudyFolder,
        store: Store,
        access: Mapping[str, str],
        identity: Mapping[str, Any],
        decisive: Sequence[str],
    ) -> None:
        os.environ.update(access)
        self._folder, self._store, self._identity, self._decisive = folder, store, dict(identity), list(decisive)
        self._desks: dict[int, TrialDesk] = {}
        self._leaving: set[str] = set()
        self._claims = contextlib.ExitStack()
        with contextlib.suppress(ConfigError):  # a disk that cannot lock; the driver's own claim counts
            wait_for_writer(folder)
            self._claims.enter_context(folder.writer_lock.hold(folder.name))

    def open(self, trial: Mapping[str, Any], attempt: str, node: str, stacks_file: str) -> Answer:
        """Listen to a new attempt of a trial, and no more to the last one.

        Args:
            trial: its record so far, as JSON.
            attempt: id that its messages carry.
            node: id of Ray's node where it runs.
            stacks_file: the file of that node with the stacks of a trial that hung.
        """
        record = Trial.from_json(trial)
        last = self._desks.get(record.number)
        key, name, tags = trial_identity(record, **self._identity)
        after, note = None if last is None else last.run, self._folder.metrics_batch_file(record.number)
        run = TrialRun(self._store, name=name, key=key, tags=tags, after=after, note=note, decisive=self._decisive)
        self._desks[record.number] = TrialDesk(self._folder, record.number, attempt, run, (node, stacks_file))
        return None, None, None

    def tell(self, number: int, attempt: str, what: str, *arguments: Any) -> Answer:
        """Answer one message.

        Raises:
            WriterLostError: for an attempt that is not the trial's present one.
        """
        desk = self._desks.get(number)
        if desk is None or desk.attempt != attempt:
            raise WriterLostError(f"the study's writer knows nothing of this attempt of trial {number}")
        try:
            answer = getattr(desk, what)(*arguments)
            if answer is Directive.GO_ON and desk.where[0] in self._leaving:
                answer = Directive.LEAVE
            return answer, None, desk.run.run_id
        except Exception as error:
            denied = shortage(error, self._folder.path)
            if denied is None:
                raise
            return None, denied, desk.run.run_id

    def leave(self, nodes: Sequence[str]) -> None:
        """Let the trials of Ray's nodes that drain go on elsewhere."""
        self._leaving = set(nodes)

    def read_stacks(self, number: int) -> str:
        """Return the stacks of the threads of a trial's lost worker; empty where it did not hang. Its files there are
        removed."""
        if number not in self._desks:
            return ""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        node, path = self._desks[number].where
        if node == ray.get_runtime_context().get_node_id():
            return text_left(path)
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        try:
            ask = ray.remote(text_left).options(num_cpus=0, scheduling_strategy=there, max_retries=0)
            return str(ray.get(ask.remote(path), timeout=10))
        except ray.exceptions.RayError:  # the node is gone
            return ""

    def storage(self, what: str, path: str, *arguments: Any) -> Any:
        """Answer `flstudy.tuning.storage` about states that schedulers pass on, which are removed with Ray's folder."""
        here = inside(self._folder.ray, path)
        if what == "make":
            here.mkdir(parents=True, exist_ok=True)
        elif what == "remove":
            shutil.rmtree(here) if here.is_dir() else here.unlink(missing_ok=True)
        elif what == "write":
            start, content = arguments
            with here.open("r+b" if start else "wb") as file:
                file.seek(start)
                file.write(content)
        elif what == "read":
            start, end = arguments
            with here.open("rb") as file:
                file.seek(start)
                return file.read(end - start)
        elif what == "list":
            return [entry(child, f"{path.rstrip('/')}/{child.name}") for child in sorted(here.iterdir())]
        else:
            return entry(here, path)
        return None

    def close(self) -> None:
        """Let every run end, or leave it to the delivery at the study's end; nothing is written afterwards."""
        desks, self._desks = self._desks, {}
        for desk in desks.values():
            desk.run.abandon()
        for desk in desks.values():
            desk.run.settle()
        self._claims.close()


def wait_for_writer(folder: StudyFolder) -> None:
    """Wait until a writer of a driver that was killed is gone: Ray ends it a few seconds after the driver.

    Raises:
        ConfigError: where it stays.
    """
    until = time.monotonic() + _LOCK_S
    while (holder := folder.writer_lock.holder()) is not None:
        if time.monotonic() > until:
            raise ConfigError(f"study {folder.name} is still written to by {holder}: end that process")
        time.sleep(0.2)


def inside(folder: Path, name: str) -> Path:
    """Return a path below a folder; UserError for one that leaves it."""
    path = Path(name.lstrip("/"))
    if ".." in path.parts:
        raise UserError(f"a path must stay within {folder}, got {name!r}")
    return folder / path


def entry(path: Path, name: str) -> dict[str, Any]:
    """Return the description of a file or folder in fsspec's form."""
    status = path.stat()
    kind = "directory" if path.is_dir() else "file"
    return {"name": name, "size": status.st_size, "type": kind, "mtime": status.st_mtime}


def text_left(path: str) -> str:
    """Return a file's text, if there is one; its folder is removed."""
    with contextlib.suppress(OSError):
        text = Path(path).read_text()
        shutil.rmtree(Path(path).parent, ignore_errors=True)
        return text
    shutil.rmtree(Path(path).parent, ignore_errors=True)
    return ""


class TrialDesk:
    """Desk that takes the messages of one attempt of a trial.

    Args:
        folder: the study's.
        number: the trial's.
        attempt: id that its messages carry.
        run: in MLflow.
        where: id of Ray's node, and the file there with the stacks of a trial that hung.
    """

    def __init__(self, folder: StudyFolder, number: int, attempt: str, run: TrialRun, where: tuple[str, str]) -> None:
        self.attempt, self.run, self.where = attempt, run, where
        self._folder, self._number = folder, number
        self._lookout = Lookout(folder.stop_signal_file)
        self._records: RecordWriter | None = None
        self._shown = False  # the rounds before this attempt
        self._file: tuple[contextlib.ExitStack, IO[bytes], int] | None = None  # arriving; its checksum so far

    # ---- records -----------------------------------------------------------------------------------------------------

    def begin(self, seeds: Sequence[int], anew: bool = False) -> tuple[str | None, bool]:
        """Open the trial's records; returns their damage, and whether there is a snapshot to go on from."""
        records, snapshot = self._folder.records(self._number), self._folder.snapshot(self._number)
        damage = records_damage(records)
        if anew or damage is not None:
            snapshot.unlink(missing_ok=True)
            shutil.rmtree(records, ignore_errors=True)
        self._records = RecordWriter(records, seeds)
        return damage, snapshot.is_file()

    def rounds(self) -> pa.Buffer:
        """Return all rounds on disk as an Arrow stream."""
        table = read_records(self._folder.records(self._number))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table.combine_chunks())
        return sink.getvalue()

    def write(self, content: Any, replaces: int | None, times: Sequence[float]) -> None:
        """Keep and show some rounds.

        Args:
            content: their table as an Arrow stream.
            replaces: as for `flstudy.study.records.RoundBuffer.write`.
            times: of the rounds, seconds since 1970.
        """
        assert self._records is not None
        table = pa.ipc.open_stream(content).read_all()
        self._records.write(table, replaces)
        if not self._shown and replaces is not None and replaces > 1:
            for earlier in rounds_of(read_records(self._records.path)):
                if earlier.round < replaces:
                    self.run.log(earlier, times[0])  # which leaves out those that MLflow has
        self._shown = True
        for record, at in zip(rounds_of(table), times, strict=True):
            self.run.log(record, at)

    def merge(self) -> None:
        """Close the records, whose last round is on disk."""
        assert self._records is not None
        self._records.close()

    # ---- snapshots and models ----------------------------------------------------------------------------------------

    def _place(self, name: str) -> Path:
        """Return the path of a file in the study's folder."""
        path = Path(name)
        if path.is_absolute() or ".." in path.parts or path.parts[0] not in ("snapshots", "models"):
            raise UserError(f"a trial writes to snapshots and models only, got {name!r}")
        return self._folder.inside(*path.parts)

    def put(self, name: str, part: bytes, checksum: int | None) -> None:
        """Take the next part of a file; with the last one comes the checksum of all, and the file appears.

        Raises:
            UserError: where the parts are not those that were sent.
        """
        path = self._place(name)
        if self._file is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            opened = contextlib.ExitStack()
            hidden = opened.enter_context(whole_file(path, shared=True, durable=True))  # attempts may overlap
            self._file = opened, opened.enter_context(hidden.open("wb")), 0
        opened, file, computed = self._file
        computed = zlib.crc32(part, computed)
        self._file = opened, file, computed
        try:
            file.write(part)
            if checksum is None:
                return
            if computed != checksum:
                raise UserError(f"{name} must have the checksum {checksum}, got {computed}: it was damaged on its way")
            opened.close()
            self._file = None
        except (OSError, ValueError):
            self._file = None
            with opened:  # hears of the error, and leaves nothing behind
                raise

    def forget(self, names: Sequence[str]) -> None:
        """Delete files that the trial's snapshot does not need any more."""
        for path in map(self._place, names):
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                path.parent.rmdir()

    def list_files(self, name: str) -> list[str]:
        """Return the files of a folder beside the snapshots."""
        return sorted(path.name for path in self._place(f"snapshots/{name}").iterdir())

    def read(self, name: str, start: int, most: int) -> bytes:
        """Return a part of a file."""
        with self._place(name).open("rb") as file:
            file.seek(start)
            return file.read(most)

    # ---- the study and MLflow ----------------------------------------------------------------------------------------

    def look(self) -> Directive:
        """Return the directive of the study."""
        return self._lookout.look(closely=True)

    def start(
        self,
        params: Mapping[str, Any],
        tags: Mapping[str, str],
        seeds: Sequence[int],
        config: Mapping[str, Any] | None,
    ) -> None:
        """Open the trial's run, and keep its hyper-parameters for whoever opens it later."""
        path = self._folder.hyper_parameters(self._number)
        path.parent.mkdir(exist_ok=True)
        replace_text(path, json.dumps(dict(params), default=str))
        self.run.start(params=params, tags=tags, seeds=seeds, config=config)

    def finish(self, trial: Mapping[str, Any], killed: bool) -> None:
        """Close the trial's run as soon as MLflow has all of it, for which nobody waits."""
        ended = Trial.from_json(trial)
        if killed:
            self.run.end("KILLED")
        else:
            self.run.end(run_status(ended.status), tags={"rounds": str(ended.rounds), **ending_tags(ended)})


@contextlib.contextmanager
def writer_of(
    folder: StudyFolder, store: Store, access: Mapping[str, str], identity: Mapping[str, Any], decisive: Sequence[str]
) -> Iterator[Any]:
    """Yield Ray's handle of a study's writer, on this node; it has written all messages when the block ends."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor_class: Any = ray.remote(Writer)
    writer = actor_class.options(num_cpus=0, scheduling_strategy=here, max_restarts=-1).remote(
        folder, store, dict(access), dict(identity), list(decisive)
    )
    try:
        yield writer
    finally:
        with contextlib.suppress(ray.exceptions.RayError):  # one that was killed this moment has nothing to say
            ray.get(writer.close.remote())
        ray.kill(writer)
