"""All studies of a folder, and one trial of a study, from their files."""

import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from flstudy.reporting.ranking import recorded
from flstudy.reporting.tables import NOTHING, Cells
from flstudy.study import StudyResults, Trial
from flstudy.study.trial import without_nan

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 60  # of a curve in characters
_UNREAD = ("damaged", "unreadable")


def studies_cells(entries: list[dict[str, Any]], folder: str | os.PathLike[str]) -> Cells:
    """The list as a table."""
    starts = [entry.get("started") for entry in entries]
    counts = [sorted((entry.get("counts") or {}).items()) for entry in entries]
    best = [entry.get("best") for entry in entries]
    columns = {
        "Study": [entry["study"] for entry in entries],
        "State": [
            entry["state"] + ", damaged" * (entry["state"] not in _UNREAD and bool(entry.get("damage")))
            for entry in entries
        ],
        "Started": [time.strftime("%Y-%m-%d %H:%M", time.localtime(start)) if start else NOTHING for start in starts],
        "Trials": [str(entry.get("trials", NOTHING)) for entry in entries],
        "of which": [", ".join(f"{count} {status}" for status, count in own) or NOTHING for own in counts],
        "Best": [f"{one['algorithm']} (trial {one['trial']})" if one else NOTHING for one in best],
        "Value": [f"{one['value']:.4g}" if one else NOTHING for one in best],
    }
    return Cells.from_columns(f"Studies in {folder}", columns, (0, 1, 2, 4, 5))


def trial_entry(results: StudyResults, trial: Trial) -> dict[str, Any]:
    """A trial with the curve of its objective: mean over seeds by round."""
    metric = results.objective.metric
    curve: dict[str, list[float]] = {"rounds": [], "mean": []}  # of a trial that ended before its first record
    for rounds, values in recorded(results, trial, metric):
        curve = {"rounds": rounds.tolist(), "mean": values.mean(0).tolist()}
    entry = {"study": results.name, **trial.to_json(), "curve": {"metric": metric, **curve}}
    return dict(without_nan(entry))


def trial_cells(entry: Mapping[str, Any]) -> list[Cells]:
    """A trial as tables: what it was, and its last metrics."""
    what = [("Status", f"{entry['status']} after {entry['rounds']} rounds"), ("Algorithm", entry["algorithm"])]
    what += [(key, str(value)) for key, value in entry["overrides"].items() if key != "algorithm"]
    if entry["run_id"]:
        what.append(("MLflow run", entry["run_id"]))
    line = sparkline([value for value in entry["curve"]["mean"] if value is not None])
    if line:
        what.append((entry["curve"]["metric"], line))
    metrics = {name: NOTHING if value is None else f"{value:.6g}" for name, value in sorted(entry["metrics"].items())}
    title = f"Study {entry['study']}, trial {entry['number']}"
    found = [Cells(title=title, header=("", ""), rows=tuple(what), words=frozenset({0, 1}))]
    columns = {"Metric": metrics, "Mean over seeds": metrics.values()}
    return [*found, Cells.from_columns("Last values", columns)] if metrics else found


def sparkline(values: list[float]) -> str:
    """A curve in one line, with its ends as numbers."""
    if len(values) < 2:
        return ""
    drawn = np.interp(np.linspace(0, len(values) - 1, min(WIDTH, len(values))), np.arange(len(values)), values)
    low, high = float(drawn.min()), float(drawn.max())
    levels = np.round((drawn - low) / ((high - low) or 1.0) * (len(BARS) - 1)).astype(int)
    return f"{values[0]:.3g} {''.join(BARS[level] for level in levels)} {values[-1]:.3g}"
