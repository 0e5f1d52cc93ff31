"""What accuracy costs in traffic (FedAda², Lee et al. 2024, Fig. 2): the best trial of each algorithm by the bits that
it has sent, in units of what one round of FedAvg sends, the model to every device of the round and back."""

import math
from dataclasses import dataclass

import numpy as np

from flstudy.reporting.load import StudyResults
from flstudy.reporting.ranking import Floats, Ranking
from flstudy.reporting.tables import Cells, spread

WAYS = ("traffic/down_bytes", "traffic/up_bytes")
LOSSES = ("test/loss", "valid/loss")
APART = 0.01  # traffic that differs by less is the same: a cohort more or less
STEP = 0.05  # of the levels of accuracy in the table


@dataclass(frozen=True, kw_only=True)
class Line:
    """The best trial of one algorithm."""

    algorithm: str
    sent: Floats  # [S, T] down and up since the first round, in rounds of FedAvg
    values: Floats  # [S, T]

    @property
    def total(self) -> float:
        """What the whole run has sent, mean over seeds."""
        return float(self.sent[:, -1].mean())

    def until(self, level: float) -> Floats:
        """[S] sent until the values first reached a level; NaN where they never did."""
        reached = self.values >= level - 1e-9
        first = self.sent[np.arange(len(self.sent)), reached.argmax(1)]
        return np.where(reached.any(1), first, np.nan)


@dataclass(frozen=True, kw_only=True)
class Bits:
    """Of one study."""

    metric: str
    lines: tuple[Line, ...]  # in the order of the ranking
    measured: bool  # whether FedAvg is in the study; else its round is twice the smallest upload of a model

    @property
    def unit(self) -> str:
        """What one round of FedAvg was taken for."""
        if self.measured:
            return "One round of FedAvg: what its best trial sent per round, down and up."
        return "One round of FedAvg, which is not in the study: twice the smallest upload of a round, that of a model."


def bits(results: StudyResults, ranking: Ranking) -> Bits | None:
    """None where nothing tells what was sent, or where all algorithms send the same, so that rounds say it."""
    metric = ranking.accuracy_metric
    if not any(row.rounds.size for row in ranking.rows):
        metric = next((name for name in LOSSES if any(name in row.speaker.metrics for row in ranking.rows)), metric)
    found: dict[str, tuple[Floats, Floats, Floats]] = {}
    for row in ranking.rows:
        try:
            rounds, values = results.curve(row.speaker, metric)
            when, down = results.curve(row.speaker, WAYS[0])
            _, up = results.curve(row.speaker, WAYS[1])
        except (ValueError, OSError):  # not recorded
            continue
        if up.sum() > 0 and rounds.size:  # who sends nothing has no place on an axis of bits
            places = np.searchsorted(when, rounds, side="right") - 1
            found[row.trial.algorithm] = (np.cumsum(down + up, axis=1)[:, places], up, values)
    rates = [float(sent[:, -1].mean()) / up.shape[1] for sent, up, _ in found.values()]
    if len(found) < 2 or max(rates) <= (1 + APART) * min(rates):
        return None
    measured = "FedAvg" in found
    unit = rates[list(found).index("FedAvg")] if measured else 2 * min(float(up.mean()) for _, up, _ in found.values())
    lines = tuple(Line(algorithm=name, sent=sent / unit, values=values) for name, (sent, _, values) in found.items())
    return Bits(metric=metric, lines=lines, measured=measured)


def levels(found: Bits) -> list[float]:
    """Up to three accuracies in steps of 5 points: one that all algorithms reach in the mean over seeds, one that only
    the best does, and one between."""
    peaks = [float(np.nanmax(line.values.mean(0))) for line in found.lines if np.isfinite(line.values).any()]
    low, high = (math.floor(peak / STEP + 1e-9) for peak in (min(peaks), max(peaks)))
    return [STEP * step for step in sorted({low, (low + high) // 2, high}) if step > 0]


def bits_cells(found: Bits) -> Cells | None:
    """What each algorithm had sent when it first reached an accuracy, and at its end; None for losses."""
    if found.metric.endswith("loss"):
        return None
    heights = levels(found)
    rows = tuple(
        (line.algorithm, *(_sent(line.until(height)) for height in heights), f"{line.total:.4g}")
        for line in found.lines
    )
    kind = "test" if found.metric.startswith("test/") else "validation"
    return Cells(
        title=f"Traffic until an accuracy ({kind}) is first reached, in rounds of FedAvg",
        header=("Algorithm", *(f"{100 * height:.0f} %" for height in heights), "Whole run"),
        rows=rows,
        words=frozenset({0}),
    )


def _sent(values: Floats) -> str:
    return "never" if np.isnan(values).all() else spread(values)
