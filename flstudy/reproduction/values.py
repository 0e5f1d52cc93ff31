"""The best trials of a reproduction's studies, and their values beside the paper's."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import norm, spearmanr

from flstudy.metrics.registry import METRICS, is_fraction
from flstudy.reporting.ranking import Floats
from flstudy.reporting.sections.comparison import last_values
from flstudy.reporting.tables import NOTHING, Cells, chosen_values, percent_sign
from flstudy.reproduction.plan import MEASURES, PublishedValue
from flstudy.study import StudyResults, Trial

LEAST_RANKED = 4  # rows that a correlation's interval needs
ROUNDING = 2e-4  # of published figures


class ShownUnit(NamedTuple):
    """How values are shown that are too large in their own unit, or too small for whole numbers."""

    heading: str
    scale: float
    digits: int


SHOWN_UNITS = {"bits": ShownUnit(", Gbit", 1e-9, 2), "J": ShownUnit(", J", 1.0, 3)}


class Correlation(NamedTuple):
    """Spearman's, of two orders, with a 95 % interval."""

    rho: float
    low: float
    high: float
    rows: int

    def __str__(self) -> str:
        return f"{self.rho:+.2f} [{self.low:+.2f}, {self.high:+.2f}] over {self.rows} rows"


def rank_correlation(one: Mapping[str, float], other: Mapping[str, float]) -> Correlation | None:
    """Of the names that both have; None where they are fewer than four or all alike. The interval is Fisher's, with
    Bonett and Wright's variance (2000): tanh(artanh ρ ± 1.96 √((1 + ρ²/2) / (n - 3)))."""
    both = [name for name in one if name in other]
    if len(both) < LEAST_RANKED:
        return None
    ours, theirs = [one[name] for name in both], [other[name] for name in both]
    if np.ptp(ours) == 0 or np.ptp(theirs) == 0:  # no order
        return None
    rho = float(spearmanr(ours, theirs).statistic)
    inside = float(np.clip(rho, -1 + 1e-12, 1 - 1e-12))
    half = norm.ppf(0.975) * np.sqrt((1 + rho**2 / 2) / (len(both) - 3))
    low, high = np.tanh(np.arctanh(inside) + np.array([-half, half]))
    return Correlation(rho, float(low), float(high), len(both))


def impossible_spreads(published: Mapping[str, PublishedValue]) -> str:
    """A sentence on published deviations over devices that no accuracies could have, by row; '' where there are none:
    values in [0, 1] with mean P deviate from it by √(P (1 - P)) at most."""
    found = []
    for name, figure in published.items():
        most = float(np.sqrt(figure.value * (1 - figure.value))) if 0 <= figure.value <= 1 else np.inf
        if figure.over_devices is not None and figure.over_devices > most + ROUNDING:
            found.append(f"{name} {figure.over_devices:.3f} > {most:.3f}")
    if not found:
        return ""
    return (
        "Not all of the published deviations over devices can be of accuracies: with mean P in [0, 1] they are at most "
        f"√(P (1 - P)), but {', '.join(found)}."
    )


class Speaker(NamedTuple):
    """The best trial of an algorithm, and the study that has its records."""

    results: StudyResults
    trial: Trial
    value: float  # by which it was chosen

    def last(self, metric: str) -> Floats:
        """[S]: the last value of a metric by seed; empty where it was not measured."""
        return np.array(list(last_values(self.results, self.trial, metric).values()), float)

    def curve(self, metric: str = "test/accuracy") -> tuple[np.ndarray, Floats]:
        """(rounds [T], values [S, T])."""
        return self.results.curve(self.trial, metric)


def speakers(studies: Iterable[StudyResults]) -> dict[str, Speaker]:
    """The best trial of each algorithm, of one study or of several together; those of one study best first."""
    found: dict[str, Speaker] = {}
    for results in studies:
        sign = 1 if results.objective.higher else -1
        for best in results.best:
            one, before = Speaker(results, best.speaker, best.judged), found.get(best.trial.algorithm)
            if before is None or sign * one.value > sign * before.value:
                found[best.trial.algorithm] = one
    return found


def means_of(speaking: Mapping[str, Speaker], names: Sequence[str], metric: str) -> dict[str, float]:
    """Mean over seeds by algorithm, of those that have it."""
    found = {name: speaking[name].last(metric) for name in names if name in speaking}
    return {name: float(values.mean()) for name, values in found.items() if values.size and np.isfinite(values).all()}


def places_by(measured: Mapping[str, float]) -> dict[str, int]:
    """1 for the highest."""
    return {name: place for place, name in enumerate(sorted(measured, key=lambda n: -measured[n]), start=1)}


def tuned_table(headings: Sequence[str], rows: Sequence[tuple[tuple[str, ...], Speaker]]) -> str:
    """The hyper-parameters of each row's trial, folded; rows are named by what stands below the headings."""
    cells = []
    for named, speaker in rows:
        chosen = {key: value for key, value in speaker.trial.overrides.items() if key != "seeds"}  # of a confirmation
        cells.append((*named, chosen_values(chosen)))
    header = (*headings, "Chosen")
    tuned = Cells(title="Tuned values", header=header, rows=tuple(cells), words=frozenset(range(len(header))))
    return f"<details><summary>Tuned values</summary>\n\n{tuned.markdown()}\n\n</details>"


def measure_heading(measure: str) -> str:
    """Of a column."""
    metric = MEASURES[measure]
    unit = SHOWN_UNITS[METRICS[metric].unit].heading if METRICS[metric].unit in SHOWN_UNITS else percent_sign(metric)
    return METRICS[metric].title + unit


def scale_and_digits(metric: str) -> tuple[float, int]:
    """By what a value is multiplied to be shown, and with how many digits behind the point."""
    if is_fraction(metric):
        return 100, 2
    own = SHOWN_UNITS.get(METRICS[metric].unit)
    return (1, 0) if own is None else (own.scale, own.digits)


def format_published(figure: PublishedValue | None, metric: str) -> str:
    """A figure of the paper."""
    if figure is None:
        return NOTHING
    scale, digits = scale_and_digits(metric)
    seeds = "" if figure.over_seeds is None else f" ± {scale * figure.over_seeds:.2f}"
    devices = "" if figure.over_devices is None else f" ({scale * figure.over_devices:.1f})"
    return f"{scale * figure.value:.{digits}f}{seeds}{devices}"


def format_measured(speaker: Speaker | None, metric: str) -> str:
    """A figure of ours."""
    values = np.empty(0) if speaker is None else speaker.last(metric)
    known = values[np.isfinite(values)]
    if speaker is None or not values.size:
        return NOTHING
    if not known.size:
        return "never" if METRICS[metric].unit == "rounds" else NOTHING
    scale, digits = scale_and_digits(metric)
    text = f"{scale * known.mean():.{digits}f}"
    if known.size > 1:
        text += f" ± {scale * known.std(ddof=1):.{digits}f}"
    if known.size < values.size:
        text += f" [{known.size} of {values.size} seeds]"
    devices = speaker.last(f"{metric}_spread")
    return text + (f" ({scale * devices.mean():.1f})" if devices.size else "")
