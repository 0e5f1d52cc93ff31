"""Worker's side of the study's writer (`flstudy.tuning.writer`): rounds, states and models leave by messages.

A worker needs no folder, no store and no credential. At most `UNACKNOWLEDGED` messages are under way, so that a fast
trial waits for the disk instead of filling memory. An acknowledged message is on disk. A trial whose writer is gone
ends; it starts again from its snapshot, and later messages of the earlier attempt do not count.
"""

import shutil
import tempfile
import time
import uuid
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from flstudy.study import Trial
from flstudy.study.damage import checkpoint_damage
from flstudy.study.records import RecordedRound, RoundBuffer, RoundRecord, rounds_of
from flstudy.tuning.files import TrialFiles, Write
from flstudy.tuning.shortage import DeniedError
from flstudy.tuning.stop_signal import LOOK_S, Directive

UNACKNOWLEDGED = 8  # messages
PART = 1 << 22  # bytes of a file in one message
_FLUSH_S = 5.0  # between two messages with rounds, where rounds are slow


class WriterLostError(Exception):
    """Raised where the study's writer is gone, or knows nothing of this attempt."""


class Outbox(TrialFiles):
    """Files of one attempt of a trial that go to the study's writer.

    Args:
        writer: Ray's handle of the study's writer.
        trial: its record so far.
        keeps_model: whether its model is kept.
        leaving: whether this process is to end.

    Attributes:
        run_id: of the trial's run in MLflow, once it is known.
        place: a folder of this machine for its files, as long as it runs.
    """

    def __init__(
        self, writer: Any, trial: Trial, *, keeps_model: bool = True, leaving: Callable[[], bool] = lambda: False
    ) -> None:
        import ray

        super().__init__()
        self._writer, self._number, self._keeps_model = writer, trial.number, keeps_model
        self._attempt = uuid.uuid4().hex
        self._waiting: deque[Any] = deque()
        self._sent: set[str] = set()  # files beside the snapshot that the writer has
        self._leaving = leaving
        self._question: Any = None  # the latest question for a directive, not answered yet
        self._looked = 0.0
        self.run_id: str | None = None
        self.place = Path(tempfile.mkdtemp(prefix="flstudy-"))
        try:
            node = ray.get_runtime_context().get_node_id()
            self._settle(writer.open.remote(trial.to_json(), self._attempt, node, str(self.stacks_file)))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the trial's files from this machine."""
        shutil.rmtree(self.place, ignore_errors=True)

    @property
    def stacks_file(self) -> Path:
        """File for the stacks of the process's threads, should the trial hang."""
        return self.place / "hung"

    # ---- messages ----------------------------------------------------------------------------------------------------

    def send(self, what: str, *arguments: Any) -> None:
        """Send a message to the writer; waits where too many are under way."""
        self._waiting.append(self._tell(what, *arguments))
        while len(self._waiting) > UNACKNOWLEDGED:
            self._settle(self._waiting.popleft())

    def ask(self, what: str, *arguments: Any) -> Any:
        """Ask the writer, and return its answer, which follows every message sent before."""
        answer = self._tell(what, *arguments)
        while self._waiting:
            self._settle(self._waiting.popleft())
        return self._settle(answer)

    def _tell(self, what: str, *arguments: Any) -> Any:
        return self._writer.tell.remote(self._number, self._attempt, what, *arguments)

    def _settle(self, message: Any) -> Any:
        """Wait for the answer to a message.

        Raises:
            WriterLostError: where nobody answers, or the writer does not know the attempt.
            DeniedError: where the machine denied the writer something.
        """
        import ray

        try:
            answer, denied, run_id = ray.get(message)
        except ray.exceptions.RayActorError as error:
            raise WriterLostError("the study's writer is gone") from error
        self.run_id = run_id or self.run_id
        if denied is not None:
            raise DeniedError(denied)
        return answer

    # ---- a trial's files ---------------------------------------------------------------------------------------------

    @property
    def keeps_states(self) -> bool:
        return True

    def begin(self, seeds: Sequence[int]) -> tuple[RoundBuffer, Path | None, str | None]:
        damage, there = self.ask("begin", list(seeds))
        state = self._fetch_snapshot() if there else None
        if state is not None and (damage := checkpoint_damage(state)) is not None:
            self.ask("begin", list(seeds), True)
            state.unlink()
            state = None
        return SentRounds(self, seeds), state, damage

    def _fetch_snapshot(self) -> Path:
        """Return the trial's snapshot, copied to this machine with the rows that lie beside it."""
        state = self._fetch(f"{self._number}.ckpt")
        if checkpoint_damage(state) is None:
            from flstudy.federation.checkpoint_rows import FOLDER, segments_of

            for segment in segments_of(state):
                for name in self.ask("list_files", f"{FOLDER}/{segment}"):
                    self._sent.add(f"{FOLDER}/{segment}/{name}")
                    self._fetch(f"{FOLDER}/{segment}/{name}")
        return state

    def _fetch(self, name: str) -> Path:
        path = self.place / "snapshots" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            while part := self.ask("read", f"snapshots/{name}", file.tell(), PART):
                file.write(part)
        return path

    def earlier_rounds(self) -> Iterable[RecordedRound]:
        return rounds_of(pa.ipc.open_stream(self.ask("rounds")).read_all())

    def save(self, write: Write) -> None:
        folder = self.place / "snapshots"
        folder.mkdir(exist_ok=True)
        state = folder / f"{self._number}.ckpt"
        write(state)
        beside = {str(path.relative_to(folder)) for path in folder.glob("*/*/*") if path.is_file()}
        for name in sorted(beside - self._sent):
            self._send_file(folder / name, f"snapshots/{name}")
        self._send_file(state, f"snapshots/{state.name}")
        self.ask("forget", [f"snapshots/{name}" for name in sorted(self._sent - beside)])  # acknowledges all of it
        self._sent = beside

    def keep(self, suffix: str, write: Write) -> None:
        if self._keeps_model:
            path = self.place / f"model{suffix}"
            write(path)
            self._send_file(path, f"models/{self._number}{suffix}")
            self.ask("forget", [])

    def _send_file(self, path: Path, name: str) -> None:
        """Send a file in parts; the writer has all of it in the end, or nothing."""
        checksum, left = 0, path.stat().st_size
        with path.open("rb") as file:
            while True:
                part = file.read(PART)
                checksum, left = zlib.crc32(part, checksum), left - len(part)
                self.send("put", name, part, checksum if left <= 0 else None)
                if left <= 0:
                    return

    def look(self, *, closely: bool = False) -> Directive:
        """Return the directive of the study; by default an answer that has come since the last look, for which no round
        waits."""
        import ray

        if closely:
            return Directive(self._settle(self._tell("look")))
        directive = Directive.LEAVE if self._leaving() else Directive.GO_ON
        if self._question is not None and ray.wait([self._question], timeout=0)[0]:
            answer, self._question = Directive(self._settle(self._question)), None
            directive = answer if directive is Directive.GO_ON else directive
        if self._question is None and time.monotonic() - self._looked >= LOOK_S:
            self._looked, self._question = time.monotonic(), self._tell("look")
        return directive

    # ---- its run -----------------------------------------------------------------------------------------------------

    def start(
        self,
        *,
        params: Mapping[str, Any],
        tags: Mapping[str, str],
        seeds: Sequence[int],
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """Open the trial's run in MLflow, which gets its rounds as they are recorded."""
        self.send("start", dict(params), dict(tags), list(seeds), config)

    def finish(self, trial: Trial, *, killed: bool = False) -> None:
        """Report how the trial ended; MLflow gets the rest of its rounds while the next trial runs."""
        self.ask("finish", trial.to_json(), killed)


class SentRounds(RoundBuffer):
    """Buffer of rounds that go to the study's writer."""

    def __init__(self, outbox: Outbox, seeds: Sequence[int]) -> None:
        super().__init__(seeds)
        self._outbox, self._sent_at = outbox, time.monotonic()
        self._times: dict[int, float] = {}  # seconds since 1970, by round that is not sent yet

    def append(self, record: RoundRecord) -> None:
        self._times[record.round] = time.time()
        super().append(record)
        if time.monotonic() - self._sent_at > _FLUSH_S:
            self.flush()

    def write(self, table: pa.Table, replaces: int | None) -> None:
        """Send some rounds as an Arrow stream."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        times = [self._times.pop(round, time.time()) for round in self._pending]
        self._outbox.send("write", sink.getvalue(), replaces, times)
        self._sent_at = time.monotonic()

    def close(self) -> None:
        """Flush, and have the parts merged."""
        if not self._closed:
            super().close()
            self._outbox.ask("merge")
