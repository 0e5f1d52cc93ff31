"""All studies of a folder, and one trial of a study, from their files."""

import json
import math
import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flstudy.reporting.load import StudyResults, Trial, load_study
from flstudy.reporting.selection import choose, selection_metric
from flstudy.reporting.tables import NOTHING, Cells

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 60  # of a curve in characters


def studies(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """One entry per study in ``folder``, the latest last: name, state, trials by status, best algorithm and value.

    A study whose file cannot be read has state ``unreadable`` and the reason.
    """
    found = []
    for path in sorted(Path(folder).glob("*/study.yaml"), key=lambda path: path.stat().st_mtime):
        try:
            found.append(_entry(load_study(path.parent)))
        except ValueError as error:
            found.append({"study": path.parent.name, "state": "unreadable", "error": str(error)})
    return found


def _entry(results: StudyResults) -> dict[str, Any]:
    study = results.config.get("study") or {}
    wanted = study.get("trials")  # none where the budget alone decides
    known = standing(results.folder)
    best = next(iter(choose(results)), None)
    return {
        "study": results.name,
        "state": known.get("state", "unknown"),
        "started": known.get("started"),
        "trials": len(results.searched) if wanted is None else int(wanted),
        "counts": dict(results.counts()),
        "metric": selection_metric(results),
        "best": best and {"trial": best.trial.trial, "algorithm": best.trial.algorithm, "value": best.judged},
    }


def standing(folder: Path) -> dict[str, Any]:
    """What the study says of itself; ``killed`` where it says that it runs and its process is gone."""
    try:
        known: dict[str, Any] = json.loads((folder / "state.json").read_text())
    except (OSError, ValueError):
        return {}
    if known.get("state") == "running" and known.get("host") == platform.node() and not lives(int(known["pid"])):
        known["state"] = "killed"
    return known


def lives(pid: int) -> bool:
    """Whether there is such a process on this machine."""
    try:
        os.kill(pid, 0)  # signal 0 only asks
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's, so it is there
    return True


def studies_cells(entries: list[dict[str, Any]], folder: str | os.PathLike[str]) -> Cells:
    """The list as a table."""
    rows = []
    for entry in entries:
        counts, best = entry.get("counts") or {}, entry.get("best")
        started = entry.get("started")
        rows.append(
            (
                entry["study"],
                entry["state"],
                time.strftime("%Y-%m-%d %H:%M", time.localtime(started)) if started else NOTHING,
                str(entry.get("trials", NOTHING)),
                ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or NOTHING,
                f"{best['algorithm']} (trial {best['trial']})" if best else NOTHING,
                f"{best['value']:.4g}" if best else NOTHING,
            )
        )
    header = ("Study", "State", "Started", "Trials", "of which", "Best", "Value")
    return Cells(title=f"Studies in {folder}", header=header, rows=tuple(rows), words=frozenset({0, 1, 2, 4, 5}))


def find_trial(results: StudyResults, name: str) -> Trial:
    """A trial by its number, or ``best``.

    Raises:
        ValueError: where the study has none of that name.
    """
    if name == "best":
        for best in choose(results):
            return best.trial
    for trial in results.trials:
        if trial.trial == name:
            return trial
    known = [trial.trial for trial in results.trials]
    span = f"{known[0]} to {known[-1]}, or best" if known else "none yet"
    raise ValueError(f"study {results.name} has no trial {name!r}: it has {span}")


def trial_entry(results: StudyResults, trial: Trial) -> dict[str, Any]:
    """A trial with the curve of its objective: mean over seeds by round."""
    rounds, values = _curve(results, trial)
    return {
        "study": results.name,
        "trial": trial.trial,
        "algorithm": trial.algorithm,
        "status": trial.status,
        "rounds": trial.rounds,
        "objective": _finite(trial.objective),
        "overrides": dict(trial.overrides),
        "metrics": {name: _finite(value) for name, value in trial.metrics.items()},
        "run_id": trial.run_id,
        "error": trial.error,
        "curve": {"metric": results.objective[0], "rounds": rounds, "mean": [_finite(value) for value in values]},
    }


def _curve(results: StudyResults, trial: Trial) -> tuple[list[int], list[float]]:
    try:
        rounds, values = results.curve(trial, results.objective[0])
    except (ValueError, OSError):
        return [], []  # the trial ended before its first record
    return rounds.tolist(), values.mean(0).tolist()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def trial_cells(entry: Mapping[str, Any]) -> list[Cells]:
    """A trial as tables: what it was, and its last metrics."""
    what = [("Status", f"{entry['status']} after {entry['rounds']} rounds"), ("Algorithm", entry["algorithm"])]
    what += [(key, str(value)) for key, value in entry["overrides"].items() if key != "algorithm"]
    if entry["run_id"]:
        what.append(("MLflow run", entry["run_id"]))
    line = sparkline([value for value in entry["curve"]["mean"] if value is not None])
    if line:
        what.append((entry["curve"]["metric"], line))
    metrics = [(name, NOTHING if value is None else f"{value:.6g}") for name, value in sorted(entry["metrics"].items())]
    title = f"Study {entry['study']}, trial {entry['trial']}"
    found = [Cells(title=title, header=("", ""), rows=tuple(what), words=frozenset({0, 1}))]
    if metrics:
        found.append(
            Cells(title="Last values", header=("Metric", "Mean over seeds"), rows=tuple(metrics), words=frozenset({0}))
        )
    return found


def sparkline(values: list[float]) -> str:
    """A curve in one line, with its ends as numbers."""
    if len(values) < 2:
        return ""
    shown = np.interp(np.linspace(0, len(values) - 1, min(WIDTH, len(values))), np.arange(len(values)), values)
    low, high = float(shown.min()), float(shown.max())
    levels = np.round((shown - low) / ((high - low) or 1.0) * (len(BARS) - 1)).astype(int)
    return f"{values[0]:.3g} {''.join(BARS[level] for level in levels)} {values[-1]:.3g}"
