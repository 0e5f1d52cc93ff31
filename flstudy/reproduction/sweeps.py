"""Sweeps: arms over the same draws, or the same grid, and tests of their differences.

Draws are matched by the values of the hyper-parameters that two arms share: ``RandomSearch`` and ``GridSearch`` give
them the same ones. A pair's difference is the mean over its draws, with a 95 % interval of a bootstrap over draws
(BCa, seeded) and Wilcoxon's signed-rank test, adjusted by Holm's method. An arm's dependence on its tuning is measured
by its shortfall: how far a draw is below the arm's best trial, on average; the best trial is kept fixed, so that the
interval covers other draws.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flstudy.metrics.registry import METRICS, is_fraction
from flstudy.reporting.ranking import Findings, Floats
from flstudy.reporting.sections.comparison import format_p, holm
from flstudy.reporting.sections.sensitivity import sweep_figure
from flstudy.reporting.sections.traffic import traffic_cells, traffic_figure, traffic_of
from flstudy.reporting.style import PAGE_DPI, to_png
from flstudy.reporting.tables import NOTHING, Cells, percent_sign
from flstudy.reproduction.figures import variant_curves
from flstudy.reproduction.plan import MEASURES, World
from flstudy.reproduction.values import Speaker, format_measured, measure_heading, tuned_table
from flstudy.study import StudyResults, Trial

RESAMPLES = 9999
SEED = 0  # seed of the bootstrap
LEAST_DRAWS = 6  # with fewer draws Wilcoxon's p cannot be below .05
LEVEL = 0.05
Arm = tuple[str, ...]
"""Values of a world's ``arms``, as text."""


class Estimate(NamedTuple):
    """Mean with its 95 % interval and the p value of the test that it is 0."""

    draws: int
    mean: float
    low: float
    high: float
    p: float


class Matched(NamedTuple):
    """Comparison of two arms over the draws that both have."""

    first: Arm
    second: Arm
    better: Estimate  # by how much the first is better
    easier: Estimate  # by how much smaller the shortfall of the first is


def arms_of(
    results: StudyResults, keys: Sequence[str], metric: str
) -> dict[Arm, dict[tuple[Any, ...], tuple[Trial, float]]]:
    """Return the trials that did all their rounds, by arm and draw, with the last value of the metric, mean over
    seeds."""
    arms: dict[Arm, dict[tuple[Any, ...], tuple[Trial, float]]] = {}
    for trial in results.searched:
        value = trial.metrics.get(metric, np.nan)
        if results.eligible(trial) and np.isfinite(value):
            arm = tuple(str(trial.overrides.get(key)) for key in keys)
            draw = tuple(sorted((key, value) for key, value in trial.overrides.items() if key not in keys))
            arms.setdefault(arm, {})[draw] = trial, value
    return arms


def name_of(arm: Arm) -> str:
    """Return the heading of an arm's row."""
    return ", ".join(arm)


def shared_draws(left: Mapping[tuple[Any, ...], Any], right: Mapping[tuple[Any, ...], Any]) -> list[tuple[Any, Any]]:
    """Return the pairs of draws with the same values of all hyper-parameters that the two arms have in common; values
    that an arm has drawn several times are left out."""
    keys = [{key for draw in draws for key, _ in draw} for draws in (left, right)]
    common = keys[0] & keys[1]
    by_values: list[dict[tuple[Any, ...], list[Any]]] = [{}, {}]
    for groups, draws in zip(by_values, (left, right), strict=True):
        for draw in draws:
            groups.setdefault(tuple(pair for pair in draw if pair[0] in common), []).append(draw)
    both = [(by_values[0][shared], by_values[1][shared]) for shared in by_values[0] if shared in by_values[1]]
    return [(mine[0], theirs[0]) for mine, theirs in both if len(mine) == len(theirs) == 1]


def estimate(differences: Floats, offset: float = 0.0) -> Estimate:
    """Estimate of the mean of paired differences [N], shifted by a constant."""
    from scipy import stats

    values = differences + offset
    if values.size < LEAST_DRAWS:
        return Estimate(values.size, float(values.mean()) if values.size else np.nan, np.nan, np.nan, np.nan)
    if np.ptp(values) == 0:
        return Estimate(values.size, float(values[0]), float(values[0]), float(values[0]), float(values[0] == 0))
    interval = stats.bootstrap((values,), np.mean, n_resamples=RESAMPLES, method="BCa", rng=np.random.default_rng(SEED))
    low, high = interval.confidence_interval
    return Estimate(values.size, float(values.mean()), float(low), float(high), float(stats.wilcoxon(values).pvalue))


def matched_pairs(arms: Mapping[Arm, Mapping[tuple[Any, ...], tuple[Trial, float]]], *, higher: bool) -> list[Matched]:
    """Compare every pair of arms that differ in one key only, with p values adjusted for the number of pairs."""
    sign, matched = (1 if higher else -1), []
    best = {arm: max(sign * value for _, value in draws.values()) for arm, draws in arms.items()}
    for first, other in combinations(arms, 2):
        if sum(mine != theirs for mine, theirs in zip(first, other, strict=True)) != 1:
            continue
        pairs = shared_draws(arms[first], arms[other])
        gaps = sign * np.array([arms[first][mine][1] - arms[other][theirs][1] for mine, theirs in pairs])
        matched.append(Matched(first, other, estimate(gaps), estimate(gaps, best[other] - best[first])))
    adjusted = [holm(np.array([getattr(pair, kind).p for pair in matched])) for kind in ("better", "easier")]
    return [
        pair._replace(better=pair.better._replace(p=float(p)), easier=pair.easier._replace(p=float(q)))
        for pair, p, q in zip(matched, *adjusted, strict=True)
    ]


def sweep_parts(world: World, results: StudyResults, folder: Path) -> list[str]:
    """Return the Markdown of a sweep; its figures are written to ``folder``."""
    metric = MEASURES[world.measures[0]]
    higher = METRICS[metric].better == "max"
    arms = arms_of(results, world.arms, metric)
    sign = 1 if results.objective.higher else -1
    chosen = {  # by the selection metric, never by test data
        arm: max((trial for trial, _ in draws.values()), key=lambda trial: sign * results.value_of(trial))
        for arm, draws in arms.items()
    }
    speaking = {arm: Speaker(results, trial, results.value_of(trial)) for arm, trial in chosen.items()}
    order = sorted(arms, key=lambda arm: -sign * results.value_of(chosen[arm]))
    columns = {"Arm": [name_of(arm) for arm in order]}
    for measure in world.measures:
        columns[f"{measure_heading(measure)}, tuned"] = [
            format_measured(speaking[arm], MEASURES[measure]) for arm in order
        ]
    values = {arm: np.array([value for _, value in arms[arm].values()]) for arm in order}
    scale = 100 if is_fraction(metric) else 1
    unit = percent_sign(metric)
    columns["Draws"] = [str(values[arm].size) for arm in order]
    for heading, level in (
        (f"Best{unit}", 1.0 if higher else 0.0),
        (f"Median{unit}", 0.5),
        (f"Worst quarter{unit}", 0.25 if higher else 0.75),
    ):
        columns[heading] = [f"{scale * np.quantile(values[arm], level):.1f}" for arm in order]
    columns[f"Mean shortfall{unit}"] = [
        f"{scale * abs(_best(values[arm], higher) - values[arm].mean()):.1f}" for arm in order
    ]
    pairs = matched_pairs({arm: arms[arm] for arm in order}, higher=higher)
    parts = [
        Cells.from_columns(
            f"Every arm: its best trial by {results.selection_metric}, its draws by {metric}", columns
        ).markdown(),
        "*Tuned*: the trial that is best on validation data. *Shortfall*: how far a draw is below the arm's best on "
        "test data; the larger, the more an arm depends on its tuning.",
    ]
    if pairs:
        parts += [pair_cells(pairs, metric).markdown(), most_sensitive(order, pairs)]
    rows = [((name_of(arm),), speaking[arm]) for arm in order]
    parts.append(tuned_table(["Arm"], rows))
    findings = Findings(results=results)
    drawn = {
        "curves": variant_curves(world.title.partition(" (")[0], {name_of(arm): speaking[arm] for arm in order[:8]})
    }
    drawn["sweep"] = sweep_figure(findings)
    traffic = traffic_of(findings) if world.arms == ("algorithm",) else None
    if traffic is not None and (cells := traffic_cells(traffic)) is not None:
        parts += [cells.markdown(), traffic.unit]
        drawn["bits"] = traffic_figure(traffic, findings.looks)
    for kind, figure in drawn.items():
        if figure is not None:
            path = to_png(figure, folder / f"{world.name}-{kind}.png", PAGE_DPI)
            parts.append(f"![{world.title}: {kind}]({path.name})")
    return parts


def _best(values: Floats, higher: bool) -> float:
    return float(values.max() if higher else values.min())


def pair_cells(pairs: Sequence[Matched], metric: str) -> Cells:
    """Return the table with a row for each pair of arms."""
    scale = 100 if is_fraction(metric) else 1

    def interval(gap: Estimate) -> str:
        if np.isnan(gap.low):
            return f"{scale * gap.mean:+.1f}" if gap.draws else NOTHING
        return f"{scale * gap.mean:+.1f} [{scale * gap.low:+.1f}, {scale * gap.high:+.1f}]"

    columns = {
        "Arms": [f"{name_of(pair.first)} - {name_of(pair.second)}" for pair in pairs],
        "Shared draws": [str(pair.better.draws) for pair in pairs],
        "Better by": [interval(pair.better) for pair in pairs],
        "p (Holm)": [format_p(pair.better.p) for pair in pairs],
        "Shortfall smaller by": [interval(pair.easier) for pair in pairs],
        "p (Holm) ": [format_p(pair.easier.p) for pair in pairs],
    }
    title = (
        f"The same draws: differences in {metric}{', points' if scale == 100 else ''}, with 95 % intervals over draws"
    )
    return Cells.from_columns(title, columns)


def most_sensitive(order: Sequence[Arm], pairs: Sequence[Matched]) -> str:
    """Return the sentence on whether an arm depends on its tuning more than all others do."""
    shortfall: dict[Arm, dict[Arm, Estimate]] = {arm: {} for arm in order}
    for pair in pairs:
        shortfall[pair.second][pair.first] = pair.easier
        shortfall[pair.first][pair.second] = pair.easier._replace(
            mean=-pair.easier.mean, low=-pair.easier.high, high=-pair.easier.low
        )
    for arm, against in shortfall.items():
        if against and all(excess.low > 0 for excess in against.values()):
            whom = "than every other arm" if len(against) == len(order) - 1 else "than every arm that it is paired with"
            return f"{name_of(arm)} depends on its tuning more {whom}: all intervals of its excess lie above 0."
    return "No arm depends on its tuning more than all others: of each, some interval of its excess reaches 0."
