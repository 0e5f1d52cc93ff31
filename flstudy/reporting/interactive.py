"""The interactive page of a study, one HTML file that works without a network: curves and trials with their values
under the pointer, methods to hide, tables that sort. `interactive.js` draws what is put into it here."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from flstudy.reporting.multiples import thinned
from flstudy.reporting.page import render
from flstudy.reporting.ranking import Findings
from flstudy.reporting.sections.search import history_of, is_log, searched_domains
from flstudy.reporting.sections.traffic import SENT, traffic_of
from flstudy.reporting.style import scale_of
from flstudy.reporting.tables import Cells
from flstudy.study import Domain
from flstudy.study.records import curve, metric_names

NAME = "interactive.html"
POINTS = 240  # of a curve: a screen has no pixels for more
DIGITS = 5
SHOWN = ("test/accuracy", "valid/accuracy", "test/loss", "valid/loss", "train/loss")
"""Metrics by round, where they are recorded, beside those that the ranking and the search go by."""
ESCAPED = str.maketrans({letter: f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"})


def write_interactive(folder: Path, found: Findings, title: str, tables: Sequence[Cells]) -> Path:
    """Renders the page beside the report."""
    data = json.dumps(interactive_values(found), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    path = folder / NAME
    text = render("interactive.html.j2", title=title, tables=tables, study=Markup(data.translate(ESCAPED)))
    path.write_text(text, encoding="utf-8")
    return path


def interactive_values(found: Findings) -> dict[str, Any]:
    """What the page draws."""
    results, names = found.results, list(found.looks)
    scale, label = scale_of(results.selection_metric)
    domains = searched_domains(results)
    events = [event for event in results.events if event.round <= results.rounds]
    return {
        "objective": label,
        "higher": results.objective.higher,
        "methods": [
            {"name": name, "colour": look.colour, "dashes": _dash_array(look.dashes)}
            for name, look in found.looks.items()
        ],
        "events": [{"round": event.round, "label": event.label} for event in events],
        "charts": [chart for chart in (*_by_round(found), _by_traffic(found), _by_trial(found)) if chart is not None],
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


def _by_round(found: Findings) -> list[dict[str, Any]]:
    """A chart for each metric that a best trial has recorded."""
    results, names = found.results, list(found.looks)
    wanted = dict.fromkeys([found.ranking.accuracy_metric, results.selection_metric, *SHOWN])
    lines: dict[str, list[dict[str, Any]]] = {metric: [] for metric in wanted}
    for row in found.ranking.rows:
        try:
            table = results.records(row.speaker)
        except (ValueError, OSError):  # a trial without records
            continue
        for metric in [metric for metric in wanted if metric in metric_names(table)]:
            rounds, values = curve(table, metric)
            if rounds.size:
                lines[metric].append(_line(names.index(row.algorithm), rounds, scale_of(metric)[0] * values))
    return [
        {"name": scale_of(metric)[1], "xlabel": "Round", "events": True, "step": False, "lines": own}
        for metric, own in lines.items()
        if own
    ]


def _by_traffic(found: Findings) -> dict[str, Any] | None:
    traffic = traffic_of(found)
    if traffic is None:
        return None
    names = list(found.looks)
    scale, label = scale_of(traffic.metric)
    lines = [_line(names.index(one.algorithm), one.sent.mean(0), scale * one.values) for one in traffic.curves]
    return {"name": f"{label}, by traffic", "xlabel": SENT, "events": False, "step": False, "lines": lines}


def _by_trial(found: Findings) -> dict[str, Any] | None:
    scale, label = scale_of(found.results.selection_metric)
    lines = []
    for place, name in enumerate(found.looks):
        history = history_of(found.results, name)
        if history is not None:
            at, best = np.array([*history.at, history.trials]), np.array([*history.best, history.best[-1]])
            lines.append(_line(place, at, scale * best[None]))
    chart = {"name": f"{label}, best so far", "xlabel": "Trials of the method", "events": False, "step": True}
    return {**chart, "lines": lines} if lines else None


def _line(method: int, x: Any, values: Any) -> dict[str, Any]:
    """The mean over replicas of values [S, T], and its standard deviation where there are several."""
    mean = values.mean(0)
    kept = thinned(mean, POINTS)
    line = {"method": method, "x": [_rounded(at) for at in x[kept]], "y": [_rounded(value) for value in mean[kept]]}
    if len(values) > 1:
        line["deviation"] = [_rounded(value) or 0 for value in values.std(0, ddof=1)[kept]]
    return line


def _axis(domain: Domain) -> Mapping[str, Any]:
    if domain.kind == "choice":
        return {"options": [_plain(option) for option in domain.options]}
    low, high = domain.extremes()
    return {"low": low, "high": high, "log": is_log(domain)}


def _plain(value: Any) -> Any:
    """A hyper-parameter as JSON has it: numbers, words and truth as they are, all else as text."""
    if isinstance(value, float):
        return _rounded(value)
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _rounded(value: Any) -> float | int | None:
    """Some digits of a number, which has no more pixels; None for NaN and infinity."""
    number = float(value)
    if not math.isfinite(number):
        return None
    short = float(f"{number:.{DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _dash_array(dashes: Any) -> str:
    """Dashes of matplotlib's as SVG has them, for a line of two pixels."""
    return "none" if isinstance(dashes, str) else " ".join(f"{3 * length:g}" for length in dashes[1])
