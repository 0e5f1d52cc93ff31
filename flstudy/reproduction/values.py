"""Best trials of a reproduction's studies, and their values beside the paper's."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import norm, spearmanr

from flstudy.config.errors import spelled
from flstudy.metrics.registry import METRICS, is_fraction, judged_by
from flstudy.reporting.ranking import Floats
from flstudy.reporting.sections.comparison import last_values
from flstudy.reporting.tables import NOTHING, Cells, chosen_values, percent_sign
from flstudy.reproduction.plan import MEASURES, PublishedValue
from flstudy.study import StudyResults, Trial

LEAST_RANKED = 4  # rows that a correlation's interval needs
ROUNDING = 2e-4  # tolerance for the rounding of published figures


class ShownUnit(NamedTuple):
    """Unit in which values are shown that are too large in their own, or too small for whole numbers."""

    heading: str
    scale: float
    digits: int


SHOWN_UNITS = {  # by the unit of a metric, or by its name
    "bits": ShownUnit(", Gbit", 1e-9, 2),
    "J": ShownUnit(", J", 1.0, 3),
    "epochs": ShownUnit("", 1.0, 2),
    "test/loss": ShownUnit("", 1.0, 4),
}


class Correlation(NamedTuple):
    """Spearman's rank correlation of two orders, with a 95 % interval."""

    rho: float
    low: float
    high: float
    rows: int

    def __str__(self) -> str:
        return f"{self.rho:+.2f} [{self.low:+.2f}, {self.high:+.2f}] over {self.rows} rows"


def rank_correlation(left: Mapping[str, float], right: Mapping[str, float]) -> Correlation | None:
    """Return Spearman's rank correlation over the n names of both; None for n < 4, or where all values are alike. The
    interval is Fisher's, with Bonett and Wright's variance (2000): tanh(artanh ρ ± 1.96 √((1 + ρ²/2) / (n - 3)))."""
    both = [name for name in left if name in right]
    if len(both) < LEAST_RANKED:
        return None
    ours, theirs = [left[name] for name in both], [right[name] for name in both]
    if len(set(ours)) == 1 or len(set(theirs)) == 1:  # no order
        return None
    rho = float(spearmanr(ours, theirs).statistic)
    inside = float(np.clip(rho, -1 + 1e-12, 1 - 1e-12))
    half = norm.ppf(0.975) * np.sqrt((1 + rho**2 / 2) / (len(both) - 3))
    low, high = np.tanh(np.arctanh(inside) + np.array([-half, half]))
    return Correlation(rho, float(low), float(high), len(both))


def impossible_spreads(published: Mapping[str, PublishedValue]) -> str:
    """Return the sentence on published standard deviations over devices that no accuracies can have, by row; '' where
    there are none: values in [0, 1] with mean P have a standard deviation of √(P (1 - P)) at most."""
    impossible = []
    for name, figure in published.items():
        most = float(np.sqrt(figure.value * (1 - figure.value))) if 0 <= figure.value <= 1 else np.inf
        if figure.over_devices is not None and figure.over_devices > most + ROUNDING:
            impossible.append(f"{name} {figure.over_devices:.3f} > {most:.3f}")
    if not impossible:
        return ""
    return (
        "Not all of the published deviations over devices can be of accuracies: with mean P in [0, 1] they are at most "
        f"√(P (1 - P)), but {', '.join(impossible)}."
    )


class Speaker(NamedTuple):
    """Best trial of an algorithm, and the study that has its records."""

    results: StudyResults
    trial: Trial
    value: float  # the value by which it was chosen

    def last(self, metric: str) -> Floats:
        """Return the last value [S] of a metric by seed; empty where it was not measured."""
        return np.array(list(last_values(self.results, self.trial, metric).values()), float)

    def curve(self, metric: str = "test/accuracy") -> tuple[np.ndarray, Floats]:
        """Return the rounds [T] and values [S, T] of a metric."""
        return self.results.curve(self.trial, metric)


def speakers(results: StudyResults) -> dict[str, Speaker]:
    """Return the best trial of each algorithm, or what confirms it on new seeds, in the order of the ranking."""
    return {best.trial.algorithm: Speaker(results, best.reported_trial, best.ranking_value) for best in results.best}


def preset_speakers(results: StudyResults) -> dict[str, Speaker]:
    """Return the first trial of each algorithm, which has its own values: none that the search drew."""
    first: dict[str, Speaker] = {}
    for trial in sorted(results.searched, key=lambda trial: trial.number):
        if trial.algorithm not in first and results.eligible(trial):
            first[trial.algorithm] = Speaker(results, trial, results.value_of(trial))
    return first


def variant_speakers(studies: Mapping[str, StudyResults]) -> dict[str, Speaker]:
    """Return the best trial of each variant, which has a study of its own; without those that have none."""
    best = {name: next(iter(speakers(results).values()), None) for name, results in studies.items()}
    return {name: speaker for name, speaker in best.items() if speaker is not None}


def confirmed_how(studies: Mapping[str, StudyResults]) -> str:
    """Return the sentence on how many trials chose the rows, and on which seeds the best were trained again."""
    results = next(iter(studies.values()))
    counts = {
        sum(trial.algorithm == best.trial.algorithm for trial in study.searched)
        for study in studies.values()
        for best in study.best
    }
    tried = " or ".join(map(str, sorted(counts)))
    again = results.confirmations
    sentence = f"Trials of every method: {tried} on {named_seeds(results.seeds)}"
    sentence += "" if results.section.get("scheduler") else ", nobody stopped early"
    if not again:
        return f"{sentence}, which are the seeds that its row is of."
    most = max(sum(t.algorithm == best.trial.algorithm for t in again) for best in results.best)
    seeds = named_seeds(results.seeds_of(again[0])).replace("the seed", "the new seed", 1)
    if most == 1:
        return f"{sentence}; the best of each once more on {seeds}, which chose nothing: its row is of these."
    return f"{sentence}; the best {most} of each once more on {seeds}; its row is that of the best value there."


def named_seeds(seeds: Sequence[int]) -> str:
    """Return ``the seeds 0, 44, 56``."""
    return f"the seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def tell_judges(speaking: Mapping[str, Speaker], metric: str) -> list[str]:
    """Return the sentence on the models that a metric of each row is of, where that is known; an empty list where it is
    not."""
    rows: dict[str, list[str]] = {}
    for name, speaker in speaking.items():
        rows.setdefault(judged_by(speaker.trial.deployed, metric), []).append(name)
    judges_shown = [f"of {models} ({', '.join(names)})" for models, names in rows.items() if models]
    return [f"{METRICS[metric].title} is {', '.join(judges_shown)}."] if judges_shown else []


def means_of(speaking: Mapping[str, Speaker], names: Sequence[str], metric: str) -> dict[str, float]:
    """Return the mean of a metric over seeds, for each algorithm that has finite values of it.

    The rounds to what a seed never reaches, as a recovery, are infinite, and so is their mean: a row is not left out of
    an order for what it fails at.
    """
    last = {name: speaking[name].last(metric) for name in names if name in speaking}
    if METRICS[metric].unit == "rounds":
        last = {name: np.where(np.isnan(values), np.inf, values) for name, values in last.items()}
        return {name: float(values.mean()) for name, values in last.items() if values.size}
    return {name: float(values.mean()) for name, values in last.items() if values.size and np.isfinite(values).all()}


def places_by(measured: Mapping[str, float]) -> dict[str, int]:
    """Return the place of each name by its value, 1 for the highest; equal values share a place."""
    return {name: 1 + sum(other > value for other in measured.values()) for name, value in measured.items()}


def row_name(settings: Mapping[str, Any]) -> str:
    """Return the name of a trial's row by the keys that an ablation varies: ``clamp null, epochs 3``."""
    return ", ".join(f"{key.rpartition('.')[2]} {spelled(value)}" for key, value in settings.items())


def tuned_table(headings: Sequence[str], rows: Sequence[tuple[tuple[str, ...], Speaker]]) -> str:
    """Return the folded table of the hyper-parameters of each row's trial; the cells below ``headings`` name the
    row."""
    cells = []
    for named, speaker in rows:
        chosen = {key: value for key, value in speaker.trial.overrides.items() if key != "seeds"}  # of a confirmation
        cells.append((*named, chosen_values(chosen)))
    header = (*headings, "Chosen")
    tuned = Cells(title="Tuned values", header=header, rows=tuple(cells), words=frozenset(range(len(header))))
    return f"<details><summary>Tuned values</summary>\n\n{tuned.markdown()}\n\n</details>"


def measure_heading(measure: str) -> str:
    """Return the heading of a measure's column."""
    metric = MEASURES[measure]
    unit = shown_unit(metric)
    return METRICS[metric].title + (percent_sign(metric) if unit is None else unit.heading)


def shown_unit(metric: str) -> ShownUnit | None:
    """Return the unit in which a metric is shown that is neither a share nor a whole number; None for these."""
    return SHOWN_UNITS.get(metric, SHOWN_UNITS.get(METRICS[metric].unit))


def scale_and_digits(metric: str) -> tuple[float, int]:
    """Return the factor by which a value is multiplied to be shown, and its number of decimals."""
    if is_fraction(metric):
        return 100, 2
    unit = shown_unit(metric)
    return (1, 0) if unit is None else (unit.scale, unit.digits)


def format_published(figure: PublishedValue | None, metric: str) -> str:
    """Format a published value."""
    if figure is None:
        return NOTHING
    scale, digits = scale_and_digits(metric)
    seeds = "" if figure.over_seeds is None else f" ± {scale * figure.over_seeds:.2f}"
    devices = "" if figure.over_devices is None else f" ({scale * figure.over_devices:.1f})"
    return f"{scale * figure.value:.{digits}f}{seeds}{devices}"


def format_measured(speaker: Speaker | None, metric: str) -> str:
    """Format our value of a metric."""
    if speaker is None:
        return NOTHING
    return format_values(speaker.last(metric), speaker.last(f"{metric}_spread"), metric)


def format_values(values: Floats, spread: Floats, metric: str) -> str:
    """Format the values [S] of a metric and their standard deviations [S] over devices; both may be empty."""
    finite = values[np.isfinite(values)]
    if not values.size:
        return NOTHING
    if not finite.size:
        return "never" if METRICS[metric].unit == "rounds" else NOTHING
    scale, digits = scale_and_digits(metric)
    text = f"{scale * finite.mean():.{digits}f}"
    if finite.size > 1:
        text += f" ± {scale * finite.std(ddof=1):.{digits}f}"
    if finite.size < values.size:
        text += f" [{finite.size} of {values.size} seeds]"
    return text + (f" ({scale * spread.mean():.1f})" if spread.size else "")
