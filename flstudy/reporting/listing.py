"""Listings of all studies of a folder, and of one trial of a study, from their files."""

import contextlib
import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from flstudy.config import ConfigError
from flstudy.config.values import flat_items
from flstudy.reporting.ranking import recorded
from flstudy.reporting.tables import NOTHING, Cells
from flstudy.study import StudyResults, Trial
from flstudy.study.trial import without_nan

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 60  # width of a curve in characters
_UNREAD = ("damaged", "unreadable")


def studies_cells(entries: list[dict[str, Any]], folder: str | os.PathLike[str]) -> Cells:
    """Return the table of the studies in a folder."""
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
        "of which": [", ".join(f"{count} {status}" for status, count in tally) or NOTHING for tally in counts],
        "Best": [f"{leader['algorithm']} (trial {leader['trial']})" if leader else NOTHING for leader in best],
        "Value": [f"{leader['value']:.4g}" if leader else NOTHING for leader in best],
    }
    return Cells.from_columns(f"Studies in {folder}", columns, (0, 1, 2, 4, 5))


def trial_entry(results: StudyResults, trial: Trial) -> dict[str, Any]:
    """Return the trial as JSON, with its config and the curve of its objective: mean over seeds by round."""
    metric = results.objective.metric
    curve: dict[str, list[float]] = {"rounds": [], "mean": []}  # for a trial that ended before its first record
    for rounds, values in recorded(results, trial, metric):
        curve = {"rounds": rounds.tolist(), "mean": values.mean(0).tolist()}
    entry = {"study": results.name, **trial.to_json(), "curve": {"metric": metric, **curve}}
    with contextlib.suppress(ConfigError):  # study.yaml is damaged
        entry["config"] = results.trial_config(trial)
    return dict(without_nan(entry))


def trial_cells(entry: Mapping[str, Any]) -> list[Cells]:
    """Return the tables of a trial: its status and searched values, its algorithm's fixed values, and its last
    metrics."""
    what = [("Status", f"{entry['status']} after {entry['rounds']} rounds"), ("Algorithm", entry["algorithm"])]
    what += [(key, str(value)) for key, value in entry["overrides"].items() if key != "algorithm"]
    if entry["repeats"]:
        what.append(("Proposed", f"{1 + len(entry['repeats'])} times, trained once"))
    if entry["run_id"]:
        what.append(("MLflow run", entry["run_id"]))
    line = sparkline([value for value in entry["curve"]["mean"] if value is not None])
    if line:
        what.append((entry["curve"]["metric"], line))
    held = [pair for pair in flat_items(entry.get("config") or {}) if pair[0].split(".")[0] == "algorithm"]
    held = [(key, str(value)) for key, value in held if key == "algorithm" or key not in entry["overrides"]]
    metrics = {name: NOTHING if value is None else f"{value:.6g}" for name, value in sorted(entry["metrics"].items())}
    title = f"Study {entry['study']}, trial {entry['number']}"
    tables = [Cells(title=title, header=("", ""), rows=tuple(what), words=frozenset({0, 1}))]
    if held:
        tables.append(Cells(title="Held fixed", header=("", ""), rows=tuple(held), words=frozenset({0, 1})))
    columns = {"Metric": metrics, "Mean over seeds": metrics.values()}
    return [*tables, Cells.from_columns("Last values", columns)] if metrics else tables


def sparkline(values: list[float]) -> str:
    """Return the curve in one line of text, with its ends as numbers."""
    if len(values) < 2:
        return ""
    drawn = np.interp(np.linspace(0, len(values) - 1, min(WIDTH, len(values))), np.arange(len(values)), values)
    low, high = float(drawn.min()), float(drawn.max())
    levels = np.round((drawn - low) / ((high - low) or 1.0) * (len(BARS) - 1)).astype(int)
    return f"{values[0]:.3g} {''.join(BARS[level] for level in levels)} {values[-1]:.3g}"
