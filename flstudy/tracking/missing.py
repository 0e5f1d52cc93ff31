"""What a run in MLflow lacks of a trial's records."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from flstudy.study.records import curve, metric_names, read_records, seeds_of
from flstudy.tracking.figures import figures
from flstudy.tracking.rows import Figure
from flstudy.tracking.store import Store

if TYPE_CHECKING:
    import pyarrow as pa
    from mlflow.entities import Run


def missing(
    store: Store, run: "Run", path: Path, started: float | None = None, ended: float | None = None
) -> tuple[int, list[Figure]]:
    """The figures of the records at ``path`` whose steps the run does not have, rounds ascending.

    Records have no clock: rounds are laid evenly between ``started`` and ``ended`` (seconds since 1970), or all at the
    time at which the records were written.

    Returns:
        The last round on record, 0 where there are no records, and the figures.
    """
    table = read_records(path) if path.is_dir() else None
    if table is None or not table.num_rows:
        return 0, []
    last = int(np.max(table["round"].to_numpy()))
    end = ended or path.stat().st_mtime
    start = started or end
    found = [
        Figure(name, value, int(1000 * (start + (end - start) * round / last)), round)
        for metric in metric_names(table)
        for round, name, value in _lacking(store, run, table, metric)
    ]
    return last, sorted(found, key=lambda figure: figure.step)


def _lacking(store: Store, run: "Run", table: "pa.Table", metric: str) -> list[tuple[int, str, float]]:
    rounds, values = curve(table, metric)
    if not rounds.size:
        return []
    seeds = seeds_of(table)
    known = {name: _steps(store, run, name) for name, _ in figures({metric: values[:, 0].tolist()}, seeds)}
    return [
        (round, name, value)
        for round, column in zip(rounds.tolist(), values.T.tolist(), strict=True)
        if any(round not in steps for steps in known.values())
        for name, value in figures({metric: column}, seeds)
        if round not in known[name]
    ]


def _steps(store: Store, run: "Run", name: str) -> set[int]:
    if name not in run.data.metrics:
        return set()
    return {metric.step for metric in store.client.get_metric_history(run.info.run_id, name)}
