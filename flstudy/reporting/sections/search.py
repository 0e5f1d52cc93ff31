"""Figures of the search: best value so far, every hyper-parameter against the result, and parallel coordinates."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from flstudy.escaping import for_figure
from flstudy.reporting.multiples import BEHIND, CROWD, method_figure
from flstudy.reporting.ranking import Findings, Floats
from flstudy.reporting.section import Content, ReportSection, pictures
from flstudy.reporting.style import GREY, Look, finish, legend_above, legend_beside, new_panels, scale_of
from flstudy.study import Domain, Space, StudyResults, Trial
from flstudy.study.best import rank_trials

HISTORY = (
    "Best value so far by the number of trials that the algorithm had. A line that still rises at its end would have "
    "gained from more trials."
)
SLICES = (
    "Every trial that did all rounds, against one hyper-parameter at a time. Optima at the edge of a panel ask for a "
    "wider search."
)
ASIDE = " The points of an option stand side by side by algorithm, in the legend's order: only the option counts."
PARALLELS = "Trials of {}: a line is a trial, read from left to right; the darker the better, the best one thick."
COLUMNS = 3
NARROW = 5  # columns of many panels
APART = 0.5  # share of the room between two options of a choice in which the algorithms stand side by side
MAP = colormaps["cividis_r"]  # dark is good; distinct in any colour vision, and in grey
TICKS = 5


class SearchSection(ReportSection):
    """Section with the figures of the search."""

    order = 70

    def of_study(self, findings: Findings) -> Content | None:
        if not searched_domains(findings.results):
            return None
        seen = SLICES + ASIDE * stands_aside(findings)
        drawn = pictures((history_figure(findings), HISTORY), (slice_figure(findings), seen))
        for algorithm in findings.looks:
            figure = parallel_figure(findings.results, algorithm)
            drawn += pictures((figure, PARALLELS.format(algorithm)), paper=True)
        title = "What did the search try, and what came of it?"
        return Content(name="Search", title=title, pictures=drawn) if drawn else None


def searched_domains(results: StudyResults) -> dict[str, Domain]:
    """Return the domains by searched key, without the choice of the algorithm itself."""
    return {key: domain for key, domain in Space.of_study(results.section).widest().items() if key != "algorithm"}


def varied_keys(trials: Iterable[Trial], domains: Mapping[str, Domain]) -> list[str]:
    """Return the searched keys that vary among some trials, in the order of the config."""
    overrides = [trial.overrides for trial in trials]
    return [key for key in domains if len({str(values[key]) for values in overrides if key in values}) > 1]


def is_log(domain: Domain) -> bool:
    """Return whether a domain's values are drawn uniformly in the logarithm."""
    return domain.kind.startswith("log")


def place_in(domain: Domain, value: Any) -> float:
    """Return the position of a value between the ends of a domain, in [0, 1]; NaN for a value outside it."""
    if domain.kind == "choice":
        at = [index for index, option in enumerate(domain.options) if option == value]
        return at[0] / max(len(domain.options) - 1, 1) if at else math.nan
    low, high = domain.extremes()
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        return math.nan
    low, high, value = (math.log(v) if is_log(domain) else float(v) for v in (low, high, value))
    return (value - low) / (high - low) if high > low else 0.5


def history_figure(findings: Findings) -> Figure | None:
    """Return the figure with each trial that did all rounds as a point, and the best so far of its algorithm as a line;
    the axis counts the algorithm's own trials, so that searches of equal size can be compared."""
    histories = {
        name: history for name in findings.looks if (history := history_of(findings.results, name)) is not None
    }
    if not histories:
        return None
    scale, label = scale_of(findings.results.selection_metric)

    def draw(axes: Axes, name: str, look: Look) -> None:
        at, values, best, tried = histories[name]
        steps = ([*at, tried], scale * np.array([*best, best[-1]]))
        if look is BEHIND:
            axes.step(*steps, where="post", color=look.colour, linewidth=0.7, zorder=1.5)
            return
        shade: dict[str, Any] = {"color": look.colour, "zorder": 3}
        axes.step(*steps, where="post", linestyle=look.dashes, linewidth=1.9, label=name, **shade)
        axes.plot(at, scale * values, linestyle="none", marker=look.marker, markersize=4, alpha=0.55, **shade)

    looks = {name: findings.looks[name] for name in histories}
    figure = method_figure(looks, draw, height=4.2, xlabel="Trials of the algorithm", ylabel=label)
    figure.axes[0].xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(looks) <= CROWD:
        legend_beside(figure.axes[0], title="Best so far")
    return figure


class SearchHistory(NamedTuple):
    """History of one algorithm's trials that did all rounds, in their order."""

    at: NDArray[np.int64]  # [N] number of the algorithm's trials up to and including this one
    values: Floats  # [N]
    best: Floats  # [N] so far
    trials: int  # number of all trials of the algorithm


def history_of(results: StudyResults, algorithm: str) -> SearchHistory | None:
    """Return the history of an algorithm's search; None where no trial of it did all rounds."""
    trials = [trial for trial in results.searched if trial.algorithm == algorithm]
    points = [(at, results.value_of(trial)) for at, trial in enumerate(trials, 1) if results.eligible(trial)]
    if not points:
        return None
    values = np.array([value for _, value in points])
    running_best = np.maximum.accumulate if results.objective.higher else np.minimum.accumulate
    return SearchHistory(np.array([at for at, _ in points]), values, running_best(values), len(trials))


class Slice(NamedTuple):
    """Trials of one algorithm by one hyper-parameter."""

    key: str
    algorithm: str
    at: list[float]
    values: list[float]


def slice_figure(findings: Findings) -> Figure | None:
    """Return the figure of the trials that did all rounds by each searched key; the axis of a log domain is
    logarithmic. A panel per key for few algorithms together; for many a panel per algorithm and key."""
    results = findings.results
    trials = [trial for trial in results.searched if results.eligible(trial)]
    domains = searched_domains(results)
    keys = varied_keys(trials, domains)
    if not keys:
        return None
    scale, label = scale_of(results.selection_metric)
    names = [name for name in findings.looks if any(trial.algorithm == name for trial in trials)]
    crowded = len(names) > CROWD
    groups: list[list[Slice]] = []
    if crowded:
        for name in names:
            members = [trial for trial in trials if trial.algorithm == name]
            groups += [[_slice(results, domains[key], key, members)] for key in varied_keys(members, domains)]
    else:
        for key in keys:
            by_method = [[t for t in trials if t.algorithm == name and key in t.overrides] for name in names]
            having = [rows for rows in by_method if rows]
            shifts = [APART * ((index + 0.5) / len(having) - 0.5) for index in range(len(having))]
            groups.append(
                [_slice(results, domains[key], key, rows, shift) for rows, shift in zip(having, shifts, strict=True)]
            )
    if not groups:
        return None
    columns, height = (NARROW, 1.7) if crowded else (COLUMNS, 2.7)
    figure, panels = new_panels(len(groups), min(columns, len(groups)), height, 0.5, sharey=True)
    for axes, group in zip(panels, groups, strict=True):
        for series in group:
            look = findings.looks[series.algorithm]
            shade: dict[str, Any] = {"color": look.colour, "marker": look.marker, "linewidths": 0, "zorder": 3}
            heights = [scale * value for value in series.values]
            axes.scatter(series.at, heights, s=14 if crowded else 22, alpha=0.75, label=series.algorithm, **shade)
        key = group[0].key
        _slice_axis(axes, domains[key])
        if crowded:
            axes.minorticks_off()
            axes.set_title(group[0].algorithm, fontsize=9, loc="left", color=findings.looks[group[0].algorithm].colour)
        finish(axes, *((7, 8) if crowded else (10, 11)), xlabel=key.removeprefix("algorithm."))
    figure.supylabel(for_figure(label), fontsize=11)
    if not crowded:
        legend_above(figure, panels, names)
    return figure


def stands_aside(findings: Findings) -> bool:
    """Return whether `slice_figure` draws points of an option beside each other."""
    trials = [trial for trial in findings.results.searched if findings.results.eligible(trial)]
    domains, few = searched_domains(findings.results), len({trial.algorithm for trial in trials}) <= CROWD
    choices = [key for key in varied_keys(trials, domains) if domains[key].kind == "choice"]
    return few and any(len({t.algorithm for t in trials if key in t.overrides}) > 1 for key in choices)


def _slice(results: StudyResults, domain: Domain, key: str, trials: list[Trial], shift: float = 0.0) -> Slice:
    """Slice of these trials; ``shift`` moves the points of a choice, so that several algorithms stand side by side."""
    chosen = [(trial.overrides[key], results.value_of(trial)) for trial in trials if key in trial.overrides]
    at = [float(value) if isinstance(value, int | float) else math.nan for value, _ in chosen]
    if domain.kind == "choice":
        at = [place_in(domain, value) * max(len(domain.options) - 1, 1) + shift for value, _ in chosen]
    return Slice(key, trials[0].algorithm, at, [value for _, value in chosen])


def _slice_axis(axes: Axes, domain: Domain) -> None:
    if domain.kind == "choice":
        axes.set_xticks(range(len(domain.options)), [for_figure(str(option)) for option in domain.options])
        axes.set_xlim(-0.5, len(domain.options) - 0.5)
    elif is_log(domain):
        low, high = domain.extremes()
        axes.set_xscale("log")
        axes.set_xlim(low / 1.15, high * 1.15)


class Parallels(NamedTuple):
    """Parallel coordinates of one algorithm's trials that did all rounds, the best first, on axes of unit height."""

    trials: list[Trial]
    keys: list[str]  # K hyper-parameters that vary; the axis after them is the result
    names: list[str]  # of the K + 1 axes
    heights: Floats  # [N, K + 1]; NaN where a value is not in its domain
    ticks: list[list[tuple[float, str]]]  # (height, text) of the marks of each axis


def parallels_of(results: StudyResults, algorithm: str) -> Parallels | None:
    """Return the parallel coordinates of an algorithm; None for fewer than two trials that did all rounds, or no
    searched key."""
    candidates = [trial for trial in results.trials if trial.algorithm == algorithm]
    trials = rank_trials(candidates, results.objective, results.rounds)
    domains = searched_domains(results)
    keys = [key for key in varied_keys(trials, domains) if all(key in trial.overrides for trial in trials)]
    if len(trials) < 2 or not keys:
        return None
    values = np.array([results.value_of(trial) for trial in trials])
    low, high = float(values.min()), float(values.max())
    result = (values - low) / ((high - low) or 1.0)
    places = [[place_in(domains[key], trial.overrides[key]) for key in keys] for trial in trials]
    scale, label = scale_of(results.selection_metric)
    marks = [(float(mark), f"{scale * (low + mark * (high - low)):.3g}") for mark in np.linspace(0, 1, TICKS)]
    return Parallels(
        trials,
        keys,
        [*(f"{key.removeprefix('algorithm.')}{' (log)' if is_log(domains[key]) else ''}" for key in keys), label],
        np.column_stack([np.array(places), result]),
        [*(_axis_ticks(domains[key]) for key in keys), marks],
    )


def parallel_figure(results: StudyResults, algorithm: str) -> Figure | None:
    """Return the figure of one algorithm's trials that did all rounds, each a line through its hyper-parameters to its
    result; the better the darker. None for fewer than two of them, or where nothing was searched."""
    parallels = parallels_of(results, algorithm)
    if parallels is None:
        return None
    result = parallels.heights[:, -1]
    goodness = result if results.objective.higher else 1 - result
    figure, (axes,) = new_panels(1, 1, 3.8)
    for index, heights in reversed(list(enumerate(parallels.heights))):  # the best on top
        look: dict[str, Any] = {"linewidth": 1.1, "alpha": 0.75} if index else {"linewidth": 2.8}
        axes.plot(heights, color=MAP(0.1 + 0.9 * goodness[index]), zorder=3, **look)
    for column, ticks in enumerate(parallels.ticks):
        _draw_axis(axes, column, ticks)
    last = len(parallels.keys)
    axes.set_xticks(range(last + 1), map(for_figure, parallels.names), fontsize=11)
    axes.set_yticks([])
    axes.set_xlim(-0.15, last + 0.35)
    axes.set_ylim(-0.06, 1.06)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return figure


def _draw_axis(axes: Axes, column: int, ticks: list[tuple[float, str]]) -> None:
    axes.axvline(column, color=GREY, linewidth=1.0, zorder=2)
    look: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 9, "zorder": 4}
    behind = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.7}
    for height, text in ticks:
        axes.annotate(for_figure(text), (column, height), (4, 0), bbox=behind, **look)


def _axis_ticks(domain: Domain) -> list[tuple[float, str]]:
    """Return the marks of an axis as (height, text)."""
    if domain.kind == "choice":
        return [(place_in(domain, option), str(option)) for option in domain.options]
    low, high = domain.extremes()
    shares = np.linspace(0, 1, TICKS)
    numbers = low * (high / low) ** shares if is_log(domain) else low + (high - low) * shares
    return [(float(share), f"{number:.2g}") for share, number in zip(shares, numbers, strict=True)]
