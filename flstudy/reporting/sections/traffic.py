"""Accuracy by traffic (FedAda², Lee et al. 2024, Fig. 2): the best trial of each algorithm by the bits that it has
sent, in units of the traffic of a round of FedAvg, the model to every device of the round and back."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from flstudy.metrics.registry import is_fraction
from flstudy.reporting.multiples import Line, line_figure
from flstudy.reporting.ranking import Findings, Floats, recorded
from flstudy.reporting.section import Content, ReportSection, pictures, present
from flstudy.reporting.style import Look, scale_of
from flstudy.reporting.tables import Cells, mean_and_spread

WAYS = ("traffic/down_bytes", "traffic/up_bytes")
LOSSES = ("test/loss", "valid/loss")
APART = 0.01  # a smaller relative difference of traffic does not count: a cohort more or less
SENT = "Bits sent, down and up, in rounds of FedAvg"
STEP = 0.05  # between the levels of accuracy in the table
MEASURED = "One round of FedAvg: what its best trial sent per round, down and up."
ASSUMED = "One round of FedAvg, which is not in the study: twice the smallest upload of a round, that of a model."


@dataclass(frozen=True)
class TrafficCurve:
    """Curve of the best trial of one algorithm by its traffic."""

    algorithm: str
    sent: Floats  # [S, T] down and up since the first round, in rounds of FedAvg
    values: Floats  # [S, T]

    @property
    def total(self) -> float:
        """Traffic of the whole run, mean over seeds."""
        return float(self.sent[:, -1].mean())

    def until(self, level: float) -> Floats:
        """Return the traffic [S] until the values first reached a level; NaN where they never did."""
        reached = self.values >= level - 1e-9
        first = self.sent[np.arange(len(self.sent)), reached.argmax(1)]
        return np.where(reached.any(1), first, np.nan)


@dataclass(frozen=True)
class Traffic:
    """Traffic curves of one study."""

    metric: str
    curves: tuple[TrafficCurve, ...]  # in the order of the ranking
    unit: str  # what one round of FedAvg was taken for


class TrafficSection(ReportSection):
    """Section with accuracy against traffic, where the algorithms do not send the same amount."""

    order = 95

    def of_study(self, findings: Findings) -> Content:
        traffic = traffic_of(findings)
        if traffic is None:
            return Content(values={"bits": None})
        cells = traffic_cells(traffic)
        caption = (
            "Best trial of each algorithm by what all its devices have sent and received so far: mean over seeds with "
            f"a band of one standard deviation. {traffic.unit}"
        )
        return Content(
            name="Traffic",
            title="What was reached for what was sent?",
            tables=present(cells),
            pictures=pictures((traffic_figure(traffic, findings.looks), caption)),
            notes=[traffic.unit] if cells else [],
            values={"bits": {curve.algorithm: {"rounds_of_fedavg": curve.total} for curve in traffic.curves}},
        )


def traffic_of(findings: Findings) -> Traffic | None:
    """Return the traffic of a study; None where it is not recorded, or where all algorithms send the same amount per
    round."""
    results, rows = findings.results, findings.ranking.rows
    metric = findings.ranking.accuracy_metric
    if not any(row.rounds.size for row in rows):
        metric = next((name for name in LOSSES if any(name in row.reported_trial.metrics for row in rows)), metric)
    measured: dict[str, tuple[Floats, Floats, Floats]] = {}
    for row in rows:
        found_curves = recorded(results, row.reported_trial, metric, *WAYS)
        if not found_curves:
            continue
        (rounds, values), (when, down), (_, up) = found_curves
        if up.sum() > 0 and rounds.size:  # a method that sends nothing has no place on an axis of bits
            places = np.searchsorted(when, rounds, side="right") - 1
            measured[row.algorithm] = (np.cumsum(down + up, axis=1)[:, places], up, values)
    rates = {name: float(sent[:, -1].mean()) / up.shape[1] for name, (sent, up, _) in measured.items()}
    if len(measured) < 2 or max(rates.values()) <= (1 + APART) * min(rates.values()):
        return None
    unit = rates.get("FedAvg") or 2 * min(float(up.mean()) for _, up, _ in measured.values())
    curves = tuple(TrafficCurve(name, sent / unit, values) for name, (sent, _, values) in measured.items())
    return Traffic(metric, curves, MEASURED if "FedAvg" in rates else ASSUMED)


def accuracy_levels(traffic: Traffic) -> list[float]:
    """Return up to three levels of accuracy in steps of 5 points: one that all algorithms reach in the mean over seeds,
    one that only the best reaches, and one between."""
    peaks = [float(np.nanmax(curve.values.mean(0))) for curve in traffic.curves if np.isfinite(curve.values).any()]
    low, high = (math.floor(peak / STEP + 1e-9) for peak in (min(peaks), max(peaks)))
    return [STEP * step for step in sorted({low, (low + high) // 2, high}) if step > 0]


def traffic_cells(traffic: Traffic) -> Cells | None:
    """Return the table of each algorithm's traffic until it first reached an accuracy, and in all; None for losses."""
    if not is_fraction(traffic.metric):
        return None
    levels = accuracy_levels(traffic)

    def until(curve: TrafficCurve, level: float) -> str:
        sent = curve.until(level)
        return "never" if np.isnan(sent).all() else mean_and_spread(sent)

    columns = {"Algorithm": [curve.algorithm for curve in traffic.curves]}
    columns |= {f"{100 * level:.0f} %": [until(curve, level) for curve in traffic.curves] for level in levels}
    columns["Whole run"] = [f"{curve.total:.4g}" for curve in traffic.curves]
    kind = "test" if traffic.metric.startswith("test/") else "validation"
    title = f"Traffic until an accuracy ({kind}) is first reached, in rounds of FedAvg"
    return Cells.from_columns(title, columns, label="bits")


def traffic_figure(traffic: Traffic, looks: Mapping[str, Look]) -> Figure:
    """Return the figure with a line for the best trial of each algorithm, mean over seeds with a band of one standard
    deviation, by the bits sent down and up so far, in rounds of FedAvg; each line ends with its last round."""
    scale, label = scale_of(traffic.metric)
    lines = {curve.algorithm: Line(curve.sent.mean(0), scale * curve.values) for curve in traffic.curves}
    figure = line_figure(lines, looks, xlabel=SENT, ylabel=label)
    for axes in figure.axes:
        axes.set_xlim(left=0.0)
    return figure
