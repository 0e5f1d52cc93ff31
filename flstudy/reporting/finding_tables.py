"""Findings as tables."""

from collections.abc import Sequence

import numpy as np

from flstudy.reporting.citations import Citation
from flstudy.reporting.comparison import Comparison, Pair, Worlds
from flstudy.reporting.cost import Cost
from flstudy.reporting.load import Trial
from flstudy.reporting.pareto import Front
from flstudy.reporting.ranking import reason
from flstudy.reporting.sensitivity import METHOD, Sensitivity
from flstudy.reporting.tables import NOTHING, Cells, percent, settings, shown, signed

PAIRS_SHOWN = 10  # in a terminal


def comparison_cells(comparison: Comparison, most: int | None = None) -> Cells | None:
    """Pairs of algorithms; of more than `most` only those with the leader. None where there are no two to compare."""
    pairs = comparison.pairs
    if most is not None and len(pairs) > most:
        pairs = tuple(pair for pair in pairs if pair.first == pairs[0].first)
    if not pairs:
        return None
    metric = comparison.metric
    rows = tuple(
        (
            f"{pair.first} - {pair.second}",
            str(pair.seeds),
            signed(pair.difference, metric),
            NOTHING if np.isnan(pair.low) else f"{signed(pair.low, metric)} to {signed(pair.high, metric)}",
            probability(pair.adjusted),
            verdict(pair),
        )
        for pair in pairs
    )
    unit = " (points)" if percent(metric) else ""
    return Cells(
        title=f"Differences in {metric}{unit}, seed by seed",
        header=("Algorithms", "Seeds", "Mean\ndifference", "95 % interval", "p\n(Holm)", "Verdict"),
        rows=rows,
        words=frozenset({0, 5}),
    )


def verdict(pair: Pair) -> str:
    """What a test says in words."""
    if pair.verdict == "different":
        return f"different: {pair.first} is better"
    return "no difference shown" if pair.verdict == "not shown" else "cannot tell: too few seeds"


def probability(p: float) -> str:
    """A p value; very small ones as a bound."""
    return NOTHING if np.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.3f}"


def sensitivity_cells(found: tuple[Sensitivity, ...], metric: str) -> Cells:
    """Best, median and worst quarter of each algorithm's trials, with what mattered most."""
    unit = " %" if percent(metric) else ""
    rows = tuple(
        (
            one.algorithm,
            str(one.trials),
            str(one.complete),
            NOTHING if np.isnan(one.diverged) else f"{100 * one.diverged:.0f}",
            shown(one.best, metric),
            shown(one.median, metric),
            shown(one.worst, metric),
            _first(one),
        )
        for one in found
    )
    return Cells(
        title=f"How much each algorithm depends on its tuning: {metric} of its trials",
        header=(
            "Algorithm",
            "Trials",
            "All\nrounds",
            "Diverged\n%",
            f"Best{unit}",
            f"Median{unit}",
            f"Worst\nquarter{unit}",
            f"Matters most\n({METHOD})",
        ),
        rows=rows,
        words=frozenset({0, 7}),
    )


def _first(one: Sensitivity) -> str:
    for key, share in one.importances.items():
        return f"{key.removeprefix('algorithm.')} {100 * share:.0f} %"
    return NOTHING


def importance_cells(found: tuple[Sensitivity, ...]) -> Cells | None:
    """Share of every hyper-parameter; None where no algorithm has enough trials."""
    rows = tuple(
        (one.algorithm, key.removeprefix("algorithm."), f"{100 * share:.0f}")
        for one in found
        for key, share in one.importances.items()
    )
    if not rows:
        return None
    return Cells(
        title=f"Importance of the hyper-parameters for being among the best trials ({METHOD})",
        header=("Algorithm", "Hyper-parameter", "Share %"),
        rows=rows,
        words=frozenset({0, 1}),
    )


def front_cells(front: Front) -> Cells:
    """The trials of the Pareto front."""
    names = [f"{metric}{' %' if percent(metric) else ''}\n({'more' if higher else 'less'} is better)"
             for metric, higher in front.objectives]  # fmt: skip
    rows = tuple(
        (
            trial.trial,
            trial.algorithm,
            *(shown(value, metric) for value, (metric, _) in zip(trial.values, front.objectives, strict=True)),
            settings(trial.overrides),
        )
        for trial in front.best
    )
    return Cells(
        title="Trials on the Pareto front",
        header=("Trial", "Algorithm", *names, "Hyper-parameters"),
        rows=rows,
        words=frozenset({0, 1, len(names) + 2}),
    )


def cost_cells(costs: tuple[Cost, ...]) -> Cells:
    """What each algorithm was given; energy only where it was measured."""
    energy = any(np.isfinite(cost.joules) for cost in costs)
    rows = tuple(
        (
            cost.algorithm,
            str(cost.trials),
            str(cost.confirmations),
            str(cost.rounds),
            hours(cost.hours),
            amount(cost.bits, "bit"),
            amount(cost.run_bits, "bit"),
            *((amount(cost.joules, "J"),) if energy else ()),
        )
        for cost in costs
    )
    header = (
        "Algorithm",
        "Trials",
        "Confirmed",
        "Rounds",
        "Hours",
        "Sent by\nall its runs",
        "Sent by one\nseed of its best",
    )
    return Cells(
        title="What was spent on each algorithm",
        header=(*header, "Energy") if energy else header,
        rows=rows,
        words=frozenset({0}),
    )


def failure_cells(failures: tuple[Trial, ...]) -> Cells | None:
    """Trials that failed or needed several starts."""
    if not failures:
        return None
    rows = tuple(
        (
            trial.trial,
            trial.algorithm,
            trial.status,
            str(trial.attempts),
            reason(trial) if trial.status == "failed" else "its worker was lost; it went on from its snapshot",
        )
        for trial in failures
    )
    return Cells(
        title="Trials that failed or had to start again",
        header=("Trial", "Algorithm", "Status", "Starts", "Reason"),
        rows=rows,
        words=frozenset({0, 1, 2, 4}),
    )


def standing_cells(worlds: Worlds) -> Cells:
    """Algorithms by their mean rank over studies, with their mean in each."""
    unit = " %" if percent(worlds.metric) else ""
    leaders = [max((c.mean(s.algorithm) * (1 if worlds.higher else -1), s.algorithm) for s in worlds.standings)[1]
               for c in worlds.comparisons] if worlds.standings else []  # fmt: skip
    rows = tuple(
        (
            standing.algorithm,
            f"{standing.mean_rank:.2f}",
            f"{standing.wins} of {standing.worlds}",
            *(shown(comparison.mean(standing.algorithm), worlds.metric) for comparison in worlds.comparisons),
        )
        for standing in worlds.standings
    )
    best = {
        (place, 3 + world)
        for place, standing in enumerate(worlds.standings)
        for world, leader in enumerate(leaders)
        if leader == standing.algorithm
    }
    return Cells(
        title=f"Mean rank over {len(worlds.names)} studies, and mean {worlds.metric}{unit} in each",
        header=("Algorithm", "Mean\nrank", "Wins", *worlds.names),
        rows=rows,
        words=frozenset({0}),
        best=frozenset(best),
    )


def hours(value: float) -> str:
    """Hours with two digits that say something."""
    return NOTHING if np.isnan(value) else f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def amount(value: float, unit: str) -> str:
    """A number with its unit and a prefix of a thousand."""
    if not np.isfinite(value):
        return NOTHING
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def budget_cells(costs: tuple[Cost, ...]) -> Cells:
    """Whether the algorithms were treated alike: trials, rounds and hours of each."""
    rows = tuple((cost.algorithm, str(cost.trials), str(cost.rounds), hours(cost.hours)) for cost in costs)
    return Cells(
        title="What each algorithm was given",
        header=("Algorithm", "Trials", "Rounds", "Hours"),
        rows=rows,
        words=frozenset({0}),
    )


def citation_cells(found: Sequence[Citation]) -> Cells:
    """Works by what they are cited for."""
    rows = tuple((", ".join(one.used), one.key) for one in found)
    return Cells(title="Works", header=("For", "Key"), rows=rows, words=frozenset({0, 1}))
