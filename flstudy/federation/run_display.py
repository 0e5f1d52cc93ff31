"""Display of a run in a notebook: what trains, its headline metrics and their curves."""

import base64
import importlib.util
import io
from collections.abc import Mapping, Sequence
from html import escape

from flstudy.federation.round_metrics import Record
from flstudy.federation.run_parts import RunParts
from flstudy.federation.shown_metrics import headlines
from flstudy.metrics.registry import deviation_over_replicas, is_fraction, mean_over_replicas, title
from flstudy.tasks.module_steps import Display

PANEL_INCHES, DPI = (3.4, 2.4), 80

Curve = dict[int, Sequence[float]]
"""A value per replica by round, from 1."""


class RunCurves:
    """Curves of a run's headline metrics, since it has started in this process.

    Args:
        display: names that the task logs for the progress bar, which are headlines too.
    """

    def __init__(self, display: Display) -> None:
        self._display, self._curves = display, dict[str, Curve]()

    def add(self, record: Record) -> None:
        """Take in a round's headline metrics, or replace them by those of the same round with its evaluation."""
        for name in sorted(headlines(record.metrics, self._display)):
            self._curves.setdefault(name, {})[record.round] = record.metrics[name]

    def clear(self) -> None:
        """Begin anew, for a run that starts again."""
        self._curves.clear()

    def by_name(self) -> Mapping[str, Curve]:
        """Return the curves by the metric's name."""
        return self._curves


def run_html(run: RunParts, curves: RunCurves) -> str:
    """Return the HTML of a run: method, task, devices and rounds, a table of the last headline metrics, and their
    curves, with drifts and sessions dashed, where Matplotlib is installed."""
    what = f"<b>{escape(type(run.algorithm).__name__)}</b> of {escape(type(run.task).__name__)}"
    if not run.begun or run.state.record is None:
        return f"<p>{what}, before its first round</p>"
    record, seeds = run.state.record, ", ".join(map(str, run.seeds))
    where = f"round {record.round}, seed{'s' * (len(run.seeds) > 1)} {seeds}"
    population, events = getattr(run, "population", None), list[int]()  # a loaded model has no population
    if population is not None:
        where += f", {population.participants} of {population.clients} devices in a round"
        events = [event.round for event in population.events(record.round)]
    curves.add(record)  # of a checkpoint nothing else is known
    head = "<tr><th style='text-align:left'>metric</th><th>last</th><th>± std over seeds</th></tr>"
    lines = "".join(_line(name, curve[max(curve)]) for name, curve in curves.by_name().items())
    return f"<p>{what}: {where}</p><table>{head}{lines}</table>{_picture(curves.by_name(), events)}"


def _line(name: str, values: Sequence[float]) -> str:
    scale, unit = (100, " %") if is_fraction(name) else (1, "")
    mean = mean_over_replicas(values)
    spread = f"{scale * deviation_over_replicas(values):.3g}{unit}" if len(values) > 1 else ""
    cells = f"<td>{scale * mean:.4g}{unit}</td><td>{spread}</td>"
    return f"<tr><td style='text-align:left'>{escape(name)}</td>{cells}</tr>"


def _picture(curves: Mapping[str, Curve], events: Sequence[int]) -> str:
    """Return an image element with a panel for each curve that has two rounds; empty without Matplotlib."""
    curves = {name: curve for name, curve in curves.items() if len(curve) > 1}
    if not curves or importlib.util.find_spec("matplotlib") is None:
        return ""
    from matplotlib.figure import Figure

    width, height = PANEL_INCHES
    figure = Figure(figsize=(width * len(curves), height), layout="constrained")
    for axes, (name, curve) in zip(figure.subplots(1, len(curves), squeeze=False).flat, curves.items(), strict=True):
        scale, unit = (100, " (%)") if is_fraction(name) else (1, "")
        rounds = sorted(curve)
        mean = [scale * mean_over_replicas(curve[round]) for round in rounds]
        axes.plot(rounds, mean, linewidth=1.2)
        if len(curve[rounds[0]]) > 1:
            spread = [scale * deviation_over_replicas(curve[round]) for round in rounds]
            low, high = zip(*((m - s, m + s) for m, s in zip(mean, spread, strict=True)), strict=True)
            axes.fill_between(rounds, low, high, alpha=0.2, linewidth=0)
        for round in events:
            axes.axvline(round, color="grey", linestyle="--", linewidth=0.8)
        axes.set(xlabel="Round", title=f"{title(name)}{unit}")
        axes.grid(alpha=0.3)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=DPI)
    alternative = escape(f"{', '.join(curves)} by round", quote=True)
    return f"<img alt='{alternative}' src='data:image/png;base64,{base64.b64encode(drawn.getvalue()).decode()}'>"
