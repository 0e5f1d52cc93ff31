"""The rounds of one trial in Parquet: every metric, every replica, readable without a server.

A Parquet file has its index at the end, so one that a killed process left open cannot be read at all. Records are
therefore a *directory* of small finished files, which pandas, Polars, DuckDB and pyarrow open by the directory's name:

    records/7.parquet/000000-from-1.parquet     rounds 1..25
                      000001.parquet            rounds 26..50
                      000002-from-41.parquet    a resumed run: replaces what parts 0 and 1 say of rounds >= 41

A part is written under a hidden name, synced and renamed, so it is there whole or not at all; nothing is ever
rewritten, so a long run costs no more per round than a short one (rewriting one file and renaming it would cost
quadratically many bytes). `close` merges the parts into one that replaces them all, by the same rule: a kill between
the merge and the removal of the old parts loses and doubles nothing. Only `read_records` knows that rule; other tools
read exactly the right rows once the writer is closed.

Pages carry checksums, so that a flipped bit is found when they are read.
"""

import contextlib
import json
import logging
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from flstudy.study.damage import DamageError, reason_of
from flstudy.user_error import UserError
from flstudy.whole_file import whole_file

log = logging.getLogger(__name__)

VERSION = 1
MOST_METRICS = 1_000
"""Most metrics of a round that a study's reader takes."""
MOST_ROWS = 20_000_000
"""Most rows of a trial that are read where its rounds and seeds are not known."""
_VERSION, _SEEDS = b"flstudy.records.version", b"flstudy.records.seeds"
_ROW_BYTES, _NAMES_BYTES = 64, 2**24  # a row's at most, and those of all names of metrics
_PART = re.compile(r"(\d{6,})(?:-from-(\d+))?\.parquet")


class RoundRecord(Protocol):
    """The coordinator's record of one round."""

    @property
    def round(self) -> int: ...  # rounds done, from 1
    @property
    def metrics(self) -> Mapping[str, Sequence[float]]: ...  # one value per replica


class RecordedRound(NamedTuple):
    """One round as it is recorded."""

    round: int
    metrics: dict[str, list[float]]


def record_schema(seeds: Sequence[int]) -> pa.Schema:
    """Return the Arrow schema of records: one row per (replica, round, metric), rounds ascending."""
    return pa.schema(
        [
            ("replica", pa.int16()),
            ("seed", pa.int64()),
            ("round", pa.int32()),
            ("metric", pa.dictionary(pa.int32(), pa.string())),
            ("value", pa.float64()),
        ],
        metadata={_VERSION: str(VERSION).encode(), _SEEDS: json.dumps([int(s) for s in seeds]).encode()},
    )


class RoundBuffer:
    """The rounds of one trial on their way to its records, as tables of many rounds; `seeds[i]` is the seed of replica
    i. `write` decides where the tables go.

    The first round appended replaces that round and all later ones of the earlier attempts, and so does going back to
    an earlier round with the same buffer. A round appended twice in a row is merged metric by metric, the last value
    winning.

    Rounds are written every `flush_every` rounds, on `flush` and on `close`. Flush before saving a checkpoint: a run
    resumed from it appends only later rounds, and those in a dead process's memory would be missing for good.
    """

    def __init__(self, seeds: Sequence[int], *, flush_every: int = 25) -> None:
        if not len(seeds):
            raise UserError("seeds must name at least one replica, got []")
        if flush_every < 1:
            raise UserError(f"flush_every must be >= 1 rounds, got {flush_every}")
        self.flush_every = flush_every
        self.schema = record_schema(seeds)
        self._seeds = np.asarray(seeds, dtype=np.int64)
        self._pending: dict[int, dict[str, NDArray[np.float64]]] = {}
        self._last_round: int | None = None  # of this buffer; None makes the next round start an attempt
        self._replaces: int | None = None  # the first pending round, where the pending table starts an attempt
        self._closed = False

    def append(self, record: RoundRecord) -> None:
        if self._closed:
            raise UserError("these records are closed: open new ones to continue them")
        if record.round < 1:
            raise UserError(f"round must be >= 1, got {record.round}")
        row = {name: np.asarray(values, dtype=np.float64) for name, values in record.metrics.items()}
        for name, values in row.items():
            if values.shape != self._seeds.shape:
                raise UserError(
                    f"metric {name!r} must have {self._seeds.size} values, one per seed, got {values.shape}"
                )
        if self._last_round is None or record.round < self._last_round:
            self.flush()
            self._replaces = record.round
        self._pending.setdefault(record.round, {}).update(row)
        self._last_round = record.round
        if len(self._pending) >= self.flush_every:
            self.flush()

    def flush(self) -> None:
        """Write the rounds appended so far."""
        if not self._pending:
            return
        self.write(self._table(), self._replaces)
        self._pending, self._replaces = {}, None

    def write(self, table: pa.Table, replaces: int | None) -> None:
        """Store a table of rounds.

        Args:
            table: the rounds, in the columns of `record_schema`.
            replaces: the first stored round that this table and later ones replace; None where they replace none.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Flush, and refuse further rounds. Closing twice does nothing."""
        self.flush()
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _table(self) -> pa.Table:
        names = sorted({name for row in self._pending.values() for name in row})
        code = {name: index for index, name in enumerate(names)}
        cells = [(r, code[name], values) for r, row in self._pending.items() for name, values in row.items()]
        replicas = self._seeds.size
        metric = pa.array(np.repeat([c for _, c, _ in cells], replicas).astype(np.int32))
        columns = [
            pa.array(np.tile(np.arange(replicas, dtype=np.int16), len(cells))),
            pa.array(np.tile(self._seeds, len(cells))),
            pa.array(np.repeat([r for r, _, _ in cells], replicas).astype(np.int32)),
            pa.DictionaryArray.from_arrays(metric, pa.array(names, pa.string())),
            pa.array(np.concatenate([v for _, _, v in cells] or [np.empty(0)])),
        ]
        return pa.Table.from_arrays(columns, schema=self.schema)


class RecordWriter(RoundBuffer):
    """Writer of the rounds of one trial as files under `path`; an existing path is continued."""

    def __init__(self, path: str | os.PathLike[str], seeds: Sequence[int], *, flush_every: int = 25) -> None:
        super().__init__(seeds, flush_every=flush_every)
        self.path = Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for leftover in self.path.glob(".*.tmp"):
                leftover.unlink()
        except OSError as error:
            raise UserError(f"records path {self.path} must be a writable directory: {error.strerror}") from error
        existing = _parts(self.path)
        self._next_part = existing[-1][0] + 1 if existing else 0
        if existing:
            recorded = _seeds_of(existing[-1][2])
            if recorded != self._seeds.tolist():
                raise UserError(f"records at {self.path} hold seeds {recorded}, got {self._seeds.tolist()}")

    def write(self, table: pa.Table, replaces: int | None) -> None:
        """Write the table of some rounds to disk as one part."""
        name = f"{self._next_part:06d}" + ("" if replaces is None else f"-from-{replaces}") + ".parquet"
        with whole_file(self.path / name, durable=True) as hidden:
            pq.write_table(table, hidden, compression="zstd", write_page_checksum=True)
        self._next_part += 1

    def close(self) -> None:
        """Flush, and merge the parts into one."""
        if self._closed:
            return
        super().close()
        merged = _parts(self.path)
        if len(merged) > 1:
            try:
                table = read_records(self.path)
            except DamageError as error:
                log.warning("the parts of %s stay as they are: %s", self.path, error)
                return
            self.write(table, 1)
            for _, _, part in merged:
                part.unlink()


def read_records(path: str | os.PathLike[str], most_rows: int = MOST_ROWS) -> pa.Table:
    """Return all rounds on disk, also those of a writer that is still at work or was killed; rounds ascending.

    Args:
        path: of the trial.
        most_rows: that the trial may have.

    Raises UserError where there are no records or where a newer flstudy wrote them, DamageError for damaged ones.
    """
    path = Path(path)
    if not path.is_dir():
        raise UserError(f"no records at {path}: a trial writes them as a directory of Parquet files")
    try:
        return _read_parts(path, most_rows)
    except FileNotFoundError:  # the writer merged its parts between our listing and our reading
        return _read_parts(path, most_rows)


def records_damage(path: str | os.PathLike[str]) -> str | None:
    """Return the description of the damage of a trial's records, naming the part; None where there is none, or no
    records."""
    try:
        if Path(path).is_dir():
            read_records(path)
    except DamageError as error:
        return str(error)
    except FileNotFoundError:
        pass  # a writer is at work
    return None


def rounds_of(table: pa.Table) -> Iterator[RecordedRound]:
    """Yield the rounds of records in the table's order, with a value per replica as they were appended."""
    if not table.num_rows:
        return
    replicas = len(json.loads((table.schema.metadata or {})[_SEEDS]))
    codes, names = _metric_codes(table)
    cells = table["value"].to_numpy().reshape(-1, replicas).tolist()  # the replicas of a metric lie together
    rounds = table["round"].to_numpy()[::replicas].tolist()
    latest = RecordedRound(rounds[0], {})
    for round, code, values in zip(rounds, codes[::replicas].tolist(), cells, strict=True):
        if round != latest.round:
            yield latest
            latest = RecordedRound(round, {})
        latest.metrics[names[code]] = values
    yield latest


def curve(table: pa.Table, metric: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the curve of `metric` as (rounds [T], values [S, T]): the rounds in which it was recorded, a row per
    replica."""
    codes, names = _metric_codes(table)
    if metric not in names:
        near = get_close_matches(metric, names, 1)
        guess = f": did you mean {near[0]!r}?" if near else f": it must be one of {', '.join(sorted(names)) or 'none'}"
        raise UserError(f"no metric {metric!r} in these records{guess}")
    chosen = codes == names.index(metric)
    replica, at, value = (table[name].to_numpy()[chosen] for name in ("replica", "round", "value"))
    rounds, position = np.unique(at, return_inverse=True)
    replicas = int(table["replica"].to_numpy().max()) + 1
    if replicas * rounds.size > table.num_rows:  # the replicas of a metric lie together
        raise DamageError(f"{replicas} replicas of {rounds.size:,} rounds do not fit into {table.num_rows:,} rows")
    values = np.full((replicas, rounds.size), np.nan)
    values[replica, position] = value
    return rounds.astype(np.int64), values


def standard_errors(table: pa.Table, metric: str) -> NDArray[np.float64] | None:
    """Return the standard errors [S, T] of ``metric``, where it was measured on a panel of devices; None where it was
    on all of them, or errors are known of other rounds only."""
    name = f"{metric}_se"
    if name not in _metric_codes(table)[1]:
        return None
    (rounds, errors), (measured, _) = curve(table, name), curve(table, metric)
    return errors if np.array_equal(rounds, measured) and np.nan_to_num(errors).any() else None


def metric_names(table: pa.Table) -> list[str]:
    """Return the names of the recorded metrics, sorted."""
    return sorted(_metric_codes(table)[1])


def seeds_of(table: pa.Table) -> list[int]:
    """Return the seed of each replica."""
    replicas, first = np.unique(table["replica"].to_numpy(), return_index=True)
    return [int(seed) for seed in table["seed"].to_numpy()[first[np.argsort(replicas)]]]


def _read_parts(path: Path, most_rows: int) -> pa.Table:
    tables: list[pa.Table] = []
    limit: int | None = None  # rounds from here on were replaced by newer parts
    for _, replaces, part in reversed(_parts(path)):
        if limit is not None and limit <= 1:
            break
        table = _read_part(part, most_rows)
        most_rows -= table.num_rows
        tables.append(table if limit is None else table.filter(pc.less(table["round"], limit)))
        if replaces is not None:
            limit = replaces if limit is None else min(limit, replaces)
    if not tables:
        return record_schema([]).empty_table()
    if len(tables) == 1:
        return tables[0]
    return _last_wins(pa.concat_tables(reversed(tables)).unify_dictionaries())


def _parts(path: Path) -> list[tuple[int, int | None, Path]]:
    """Return the parts as (number, first replaced round, file), in the order of writing."""
    matches = [(match, part) for part in path.iterdir() if (match := _PART.fullmatch(part.name))]
    matches = [(match, part) for match, part in matches if stat.S_ISREG(part.stat().st_mode)]  # a pipe never ends
    return sorted((int(m[1]), None if m[2] is None else int(m[2]), part) for m, part in matches)


def _seeds_of(part: Path) -> list[int]:
    with _name_damaged_part(part):
        return [int(seed) for seed in json.loads(_check_version(pq.read_schema(part), part)[_SEEDS])]


def _read_part(part: Path, most_rows: int) -> pa.Table:
    with _name_damaged_part(part), pq.ParquetFile(part, page_checksum_verification=True) as file:
        groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
        if (rows := sum(group.num_rows for group in groups)) > most_rows:
            raise DamageError(f"{part} claims {rows:,} rows, and its trial can have {max(0, most_rows):,} more at most")
        if (size := sum(group.total_byte_size for group in groups)) > _ROW_BYTES * most_rows + _NAMES_BYTES:
            raise DamageError(f"{part} claims {size:,} bytes for {rows:,} rows")
        table = file.read()
        seeds = json.loads(_check_version(table.schema, part)[_SEEDS])
        if not table.schema.equals(record_schema([]), check_metadata=False):
            raise TypeError(f"columns {', '.join(table.schema.names)}")
        table.validate(full=True)
        lowest, highest = pc.min_max(table["replica"]).as_py().values()
        if table.num_rows and not 0 <= lowest <= highest < len(seeds):
            raise TypeError(f"replicas {lowest} to {highest} of {len(seeds)}")
        return table


@contextlib.contextmanager
def _name_damaged_part(part: Path) -> Iterator[None]:
    """Raise Arrow's errors for a damaged file as one DamageError that names it."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError) as error:
        if isinstance(error, UserError):
            raise  # of another version
        raise DamageError(f"{part} is damaged ({reason_of(error)})") from error


def _check_version(schema: pa.Schema, part: Path) -> Mapping[bytes, bytes]:
    metadata = schema.metadata or {}
    version = metadata.get(_VERSION, b"none").decode()
    if version != str(VERSION):
        raise UserError(f"records in {part} have version {version}, this flstudy reads version {VERSION}: update it")
    return metadata


def _metric_codes(table: pa.Table) -> tuple[NDArray[np.int32], list[str]]:
    """Return the metric column as (index per row, names)."""
    column = table["metric"].unify_dictionaries().combine_chunks()
    chunk = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
    return chunk.indices.to_numpy(), chunk.dictionary.to_pylist()


def _last_wins(table: pa.Table) -> pa.Table:
    """Keep one row per (replica, round, metric), the last one written; rounds ascending."""
    codes, names = _metric_codes(table)
    rounds, replica = (table[name].to_numpy().astype(np.int64) for name in ("round", "replica"))
    key = (rounds * max(len(names), 1) + codes) * (int(replica.max(initial=0)) + 1) + replica
    # np.unique keeps the first of equals: of the reversed key that is the last row written.
    _, first = np.unique(key[::-1], return_index=True)
    return table.take(pa.array(key.size - 1 - first))
