"""Every run of a search: how sensitive methods are, seen at a glance (FedAda², Lee et al. 2024, Fig. 3, 6 and 7)."""

from collections import Counter

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from flstudy.reporting.figures.style import new_figure, order, plain
from flstudy.reporting.load import StudyResults
from flstudy.reporting.selection import selection_metric
from flstudy.reporting.tables import percent

BY_ROUND = ("valid/accuracy", "valid/loss")  # shown where what was searched on is not measured by round
LOSSES = ("test/loss", "valid/loss")
MOST = 300  # curves of one algorithm: the first ones, as the panel then says


def sweep(results: StudyResults, ranked: tuple[str, ...] = ()) -> Figure | None:
    """A panel for each algorithm with a curve for each of its trials, mean over seeds, light for the best and dark for
    the worst by the final loss, or by the last value where not all have one; trials that were stopped end where they
    were stopped."""
    panels: dict[str, list[tuple[np.ndarray, np.ndarray, float]]] = {}
    chosen, losses = None, _losses(results)
    for metric in dict.fromkeys((selection_metric(results), *BY_ROUND)):
        for algorithm in order(results, ranked):
            own = [trial for trial in results.searched if trial.algorithm == algorithm][:MOST]
            found = []
            for trial in own:
                try:
                    rounds, values = results.curve(trial, metric)
                except (ValueError, OSError):  # not measured, or a trial that failed before its first round
                    continue
                if rounds.size:
                    found.append((rounds, values.mean(0), losses.get(trial.trial, np.nan)))
            panels |= {algorithm: found} if found else {}
        if any(rounds.size > 1 for found in panels.values() for rounds, *_ in found):
            chosen = metric
            break
        panels = {}
    if chosen is None:
        return None
    scale = 100 if percent(chosen) else 1
    sign = -1 if chosen.endswith("loss") or (chosen == results.objective[0] and not results.objective[1]) else 1
    of = Counter(trial.algorithm for trial in results.searched)
    lines = -(-len(panels) // 3)
    figure = new_figure(2.5 * lines + 0.2)
    first = None
    for place, (algorithm, found) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(lines, 3, place, sharey=first)
        first = first or axes
        last = np.array([-loss if losses else sign * values[-1] for _, values, loss in found])
        places = np.argsort(np.argsort(np.where(np.isnan(last), -np.inf, last)))  # 0 is the worst
        for (rounds, values, _), rank in sorted(zip(found, places, strict=True), key=lambda pair: pair[1]):
            shade = colormaps["viridis"](0.1 + 0.8 * rank / max(len(found) - 1, 1))
            axes.plot(rounds, scale * values, color=shade, linewidth=1.0)
        axes.set_title(f"{algorithm}, {_count(len(found), of[algorithm])}", fontsize=10, loc="left")
        axes.set_xlabel("Round")
        plain(axes)
    figure.supylabel(f"{chosen}{' (%)' if scale == 100 else ''}", fontsize=11)
    return figure


def _losses(results: StudyResults) -> dict[str, float]:
    """The final loss of every trial of the search, NaN for one that has none, on test data where they have it;
    {} where it cannot rank them, since trials did all rounds without one."""
    whole = [trial for trial in results.searched if trial.status == "finished"]
    for metric in LOSSES:
        if whole and all(metric in trial.metrics for trial in whole):
            return {trial.trial: trial.metrics.get(metric, np.nan) for trial in results.searched}
    return {}


def _count(drawn: int, trials: int) -> str:
    """How many curves there are, and of how many where some are left out."""
    return f"{drawn} trials" if drawn < MOST or trials <= MOST else f"first {drawn} of {trials} trials"
