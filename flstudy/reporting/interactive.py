"""Interactive page of a study, one HTML file that works without a network: curves and trials with their values under
the pointer, methods to hide, tables that sort. `interactive.js` draws the values that this file puts into the page."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from flstudy.escaping import for_script
from flstudy.reporting.multiples import thinned
from flstudy.reporting.page import render
from flstudy.reporting.ranking import Findings
from flstudy.reporting.sections.search import history_of, is_log, searched_domains
from flstudy.reporting.sections.traffic import SENT, traffic_of
from flstudy.reporting.style import scale_of
from flstudy.reporting.tables import Cells
from flstudy.study import Domain
from flstudy.study.records import curve, metric_names
from flstudy.whole_file import write_whole

NAME = "interactive.html"
POINTS = 240  # of a curve: a screen has no pixels for more
DIGITS = 5
SHOWN = ("test/accuracy", "valid/accuracy", "test/loss", "valid/loss", "train/loss")
"""Metrics by round, where they are recorded, beside those that the ranking and the search go by."""


def write_interactive(folder: Path, findings: Findings, title: str, tables: Sequence[Cells]) -> Path:
    """Write the page beside the report and return its path."""
    data = for_script(interactive_values(findings))
    path = folder / NAME
    write_whole(path, render("interactive.html.j2", title=title, tables=tables, study=Markup(data)))
    return path


def interactive_values(findings: Findings) -> dict[str, Any]:
    """Return the values that the page draws, as JSON values."""
    results, names = findings.results, list(findings.looks)
    scale, label = scale_of(results.selection_metric)
    domains = searched_domains(results)
    return {
        "objective": label,
        "higher": results.objective.higher,
        "methods": [
            {"name": name, "colour": look.colour, "dashes": _dash_array(look.dashes)}
            for name, look in findings.looks.items()
        ],
        "events": [{"round": event.round, "label": event.label} for event in findings.events],
        "charts": [
            chart for chart in (*_by_round(findings), _by_traffic(findings), _by_trial(findings)) if chart is not None
        ],
        "keys": [{"name": key.removeprefix("algorithm."), **_axis(domain)} for key, domain in domains.items()],
        "trials": [
            (
                trial.number,
                names.index(trial.algorithm),
                str(trial.status),
                trial.rounds,
                _rounded(scale * results.value_of(trial)),
                results.eligible(trial),
                [_plain(trial.overrides.get(key)) for key in domains],
            )
            for trial in results.searched
        ],
    }


def _by_round(findings: Findings) -> list[dict[str, Any]]:
    """Return the chart for each metric that a best trial has recorded."""
    results, names = findings.results, list(findings.looks)
    wanted = dict.fromkeys([findings.ranking.accuracy_metric, results.selection_metric, *SHOWN])
    lines: dict[str, list[dict[str, Any]]] = {metric: [] for metric in wanted}
    for row in findings.ranking.rows:
        try:
            table = results.records(row.reported_trial)
        except (ValueError, OSError):  # a trial without records
            continue
        for metric in [metric for metric in wanted if metric in metric_names(table)]:
            rounds, values = curve(table, metric)
            if rounds.size:
                lines[metric].append(_line(names.index(row.algorithm), rounds, scale_of(metric)[0] * values))
    return [
        {"name": scale_of(metric)[1], "xlabel": "Round", "events": True, "step": False, "lines": of_metric}
        for metric, of_metric in lines.items()
        if of_metric
    ]


def _by_traffic(findings: Findings) -> dict[str, Any] | None:
    """Return the chart of accuracy by what was sent; None where all methods send the same."""
    traffic = traffic_of(findings)
    if traffic is None:
        return None
    names = list(findings.looks)
    scale, label = scale_of(traffic.metric)
    lines = [
        _line(names.index(method.algorithm), method.sent.mean(0), scale * method.values) for method in traffic.curves
    ]
    return {"name": f"{label}, by traffic", "xlabel": SENT, "events": False, "step": False, "lines": lines}


def _by_trial(findings: Findings) -> dict[str, Any] | None:
    """Return the chart of the best value of each method after each of its trials; None where no trial did all
    rounds."""
    scale, label = scale_of(findings.results.selection_metric)
    lines = []
    for place, name in enumerate(findings.looks):
        history = history_of(findings.results, name)
        if history is not None:
            at, best = np.array([*history.at, history.trials]), np.array([*history.best, history.best[-1]])
            lines.append(_line(place, at, scale * best[None]))
    chart = {"name": f"{label}, best so far", "xlabel": "Trials of the method", "events": False, "step": True}
    return {**chart, "lines": lines} if lines else None


def _line(method: int, x: Any, values: Any) -> dict[str, Any]:
    """Return the mean over replicas of values [S, T], and their standard deviation where there are several."""
    mean = values.mean(0)
    places = thinned(mean, POINTS)
    line = {"method": method, "x": [_rounded(at) for at in x[places]], "y": [_rounded(value) for value in mean[places]]}
    if len(values) > 1:
        line["deviation"] = [_rounded(value) or 0 for value in values.std(0, ddof=1)[places]]
    return line


def _axis(domain: Domain) -> Mapping[str, Any]:
    """Return the options of a choice, or the ends and the scale of a range."""
    if domain.kind == "choice":
        return {"options": [_plain(option) for option in domain.options]}
    low, high = domain.extremes()
    return {"low": low, "high": high, "log": is_log(domain)}


def _plain(value: Any) -> Any:
    """Return the hyper-parameter as a JSON value: numbers, text and booleans as they are, all else as text."""
    if isinstance(value, float):
        return _rounded(value)
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _rounded(value: Any) -> float | int | None:
    """Return the number with as many digits as a screen has pixels for; None for NaN and infinity."""
    number = float(value)
    if not math.isfinite(number):
        return None
    short = float(f"{number:.{DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _dash_array(dashes: Any) -> str:
    """Return Matplotlib's dashes as SVG has them, for a line of two pixels."""
    return "none" if isinstance(dashes, str) else " ".join(f"{3 * length:g}" for length in dashes[1])
