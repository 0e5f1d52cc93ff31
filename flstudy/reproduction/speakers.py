"""The trials that speak for algorithms, and their figures as text."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from flstudy.reporting.load import StudyResults, Trial
from flstudy.reporting.selection import choose
from flstudy.reporting.tables import NOTHING
from flstudy.reproduction.plan import Published


class Speaker(NamedTuple):
    """The trial that speaks for an algorithm, and the study that has its records."""

    results: StudyResults
    trial: Trial
    value: float  # on validation data


def speakers(studies: Iterable[StudyResults]) -> dict[str, Speaker]:
    """The best whole trial of each algorithm on validation data, of one study or of several together."""
    found: dict[str, Speaker] = {}
    for results in studies:
        for chosen in choose(results):
            one, before = Speaker(results, chosen.trial, chosen.value), found.get(chosen.trial.algorithm)
            sign = 1 if results.objective[1] else -1
            if before is None or sign * one.value > sign * before.value:
                found[chosen.trial.algorithm] = one
    return found


def values(speaker: Speaker, metric: str) -> np.ndarray:
    """[S]: the last value of a metric by seed; empty where it was not measured."""
    try:
        return np.asarray(list(speaker.results.last(speaker.trial, metric).values()), dtype=float)
    except (ValueError, OSError):
        return np.empty(0)


def means(speaking: Mapping[str, Speaker], names: Sequence[str], metric: str) -> dict[str, float]:
    """Mean over seeds by algorithm, of those that have it."""
    found = {name: values(speaking[name], metric) for name in names if name in speaking}
    return {name: float(v.mean()) for name, v in found.items() if v.size and np.isfinite(v).all()}


def ranks(measured: Mapping[str, float]) -> dict[str, int]:
    """1 for the highest."""
    return {name: place for place, name in enumerate(sorted(measured, key=lambda n: -measured[n]), start=1)}


def shown_published(figure: Published | None, share: bool) -> str:
    """A figure of the paper."""
    if figure is None:
        return NOTHING
    scale = 100 if share else 1
    seeds = "" if figure.over_seeds is None else f" ± {scale * figure.over_seeds:.2f}"
    devices = "" if figure.over_devices is None else f" ({scale * figure.over_devices:.1f})"
    return f"{scale * figure.value:.{2 if share else 0}f}{seeds}{devices}"


def shown_measured(speaker: Speaker | None, metric: str, share: bool) -> str:
    """A figure of ours."""
    found = np.empty(0) if speaker is None else values(speaker, metric)
    known = found[np.isfinite(found)]
    if speaker is None or not found.size:
        return NOTHING
    if not known.size:
        return "never" if metric.endswith(("recovery", "delay")) else NOTHING
    scale, digits = (100, 2) if share else (1, 0)
    text = f"{scale * known.mean():.{digits}f}"
    if known.size > 1:
        text += f" ± {scale * known.std(ddof=1):.{digits}f}"
    if known.size < found.size:
        text += f" [{known.size} of {found.size} seeds]"
    devices = values(speaker, f"{metric}_spread")
    return text + (f" ({scale * devices.mean():.1f})" if devices.size else "")
