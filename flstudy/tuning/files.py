"""Files of a trial, for its rounds, states and model, and its study's directives.

`TrialFiles` keeps them on this machine; `flstudy.tuning.outbox.Outbox` sends them to the study's writer.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from flstudy.study.records import RecordedRound, RecordWriter, RoundBuffer, read_records, rounds_of
from flstudy.study.repair import begin_anew
from flstudy.tuning.stop_signal import Directive, Lookout
from flstudy.whole_file import whole_file

Write = Callable[[Path], None]
"""Function that writes something to a file."""
LEFT = "its worker had to leave, with a snapshot"
"""The sentence about a trial that goes on elsewhere, since its worker or its node ends."""


class LeftError(Exception):
    """Raised for a trial that is to go on elsewhere from its snapshot; the text is `LEFT`, also after pickling."""

    def __init__(self, sentence: str = LEFT) -> None:
        super().__init__(sentence)


class TrialFiles:
    """The files of one trial.

    Args:
        records: every round goes there as Parquet; None keeps none.
        snapshot: the file with the trial's latest state, from which it goes on if there is one; None keeps none.
        model: where a trial that finishes leaves its model, and beside it the results on each device; None keeps none.
        stop_signal: file that tells when to write a snapshot, and when to stop with one; None goes on.
    """

    def __init__(
        self,
        records: Path | None = None,
        snapshot: Path | None = None,
        model: Path | None = None,
        stop_signal: Path | None = None,
    ) -> None:
        self._records, self._snapshot, self._model = records, snapshot, model
        self._lookout = Lookout(stop_signal)

    @property
    def folder(self) -> Path | None:
        """The study's folder, where it is on this machine."""
        return None if self._snapshot is None else self._snapshot.parents[1]

    @property
    def keeps_states(self) -> bool:
        """True if the trial can go on from a snapshot."""
        return self._records is not None and self._snapshot is not None

    def begin(self, seeds: Sequence[int]) -> tuple[RoundBuffer | None, Path | None, str | None]:
        """Return the buffer for rounds, the state to go on from, and the damage for which the trial starts anew."""
        if self._records is None:
            return None, None, None
        damage = begin_anew(self._records, self._snapshot) if self._snapshot is not None else None
        state = self._snapshot if self._snapshot is not None and self._snapshot.is_file() else None
        return RecordWriter(self._records, seeds), state, damage

    def earlier_rounds(self) -> Iterable[RecordedRound]:
        """Return all rounds that are kept."""
        assert self._records is not None
        return rounds_of(read_records(self._records))

    def save(self, write: Write) -> None:
        """Keep the trial's state, after the rounds that led to it; a reader sees the old one or the new one."""
        assert self._snapshot is not None
        replace_file(self._snapshot, write)

    def keep(self, suffix: str, write: Write) -> None:
        """Keep the trained model (``.pt``), or its results on each device (``.parquet``), if models are kept."""
        if self._model is not None:
            self._model.parent.mkdir(exist_ok=True)
            replace_file(self._model.with_suffix(suffix), write)

    def look(self, *, closely: bool = False) -> Directive:
        """Return the directive of the study now; ``closely``: look even right after the last time."""
        return self._lookout.look(closely=closely)


def replace_file(path: Path, write: Write) -> None:
    """Write a file so that a reader sees the old one or the new one."""
    with whole_file(path) as hidden:
        write(hidden)
