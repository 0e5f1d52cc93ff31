"""What the search tried: the best value so far, every hyper-parameter against the result, and parallel coordinates."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from flstudy.reporting.ranking import Findings
from flstudy.reporting.section import Content, ReportSection, pictures
from flstudy.reporting.style import GREY, colour, dashes, finish, legend_beside, marker, new_panels, scale_of
from flstudy.study import Domain, Space, StudyResults, Trial
from flstudy.study.best import ranked

HISTORY = (
    "Best value so far by the number of trials that the algorithm had. A line that still rises at its end would have "
    "gained from more trials."
)
SLICES = (
    "Every trial that did all rounds, against one hyper-parameter at a time. Optima at the edge of a panel ask for a "
    "wider search."
)
PARALLELS = "Trials of {}: a line is a trial, read from left to right; the darker the better, the best one thick."
COLUMNS = 3
APART = 0.5  # of the room between two options of a choice, in which the algorithms stand side by side
MAP = colormaps["cividis_r"]  # dark is good; told apart with any colour vision, and in grey
TICKS = 5


class SearchSection(ReportSection):
    """Figures of the search."""

    order = 70

    def of_study(self, found: Findings) -> Content | None:
        if not searched_domains(found.results):
            return None
        drawn = pictures((history_figure(found), HISTORY), (slice_figure(found), SLICES))
        for algorithm in found.places:
            figure = parallel_figure(found.results, algorithm)
            drawn += pictures((figure, PARALLELS.format(algorithm)), paper=True)
        title = "What did the search try, and what came of it?"
        return Content(name="Search", title=title, pictures=drawn) if drawn else None


def searched_domains(results: StudyResults) -> dict[str, Domain]:
    """Domain by searched key, without the choice of the algorithm itself."""
    space = Space.parse(results.section.get("search") or {})
    return {key: domain for key, domain in space.domains.items() if key != "algorithm"}


def varied_keys(trials: Iterable[Trial], known: Mapping[str, Domain]) -> list[str]:
    """The searched keys that vary among some trials, in the order of the config."""
    given = [trial.overrides for trial in trials]
    return [key for key in known if len({str(values[key]) for values in given if key in values}) > 1]


def is_log(domain: Domain) -> bool:
    """Whether its values are drawn uniformly in the logarithm."""
    return domain.kind.startswith("log")


def place_in(domain: Domain, value: Any) -> float:
    """Where a value lies between the ends of a domain, in [0, 1]; NaN for one that is not in it."""
    if domain.kind == "choice":
        at = [index for index, option in enumerate(domain.options) if option == value]
        return at[0] / max(len(domain.options) - 1, 1) if at else math.nan
    low, high = domain.extremes()
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        return math.nan
    low, high, value = (math.log(v) if is_log(domain) else float(v) for v in (low, high, value))
    return (value - low) / (high - low) if high > low else 0.5


def history_figure(found: Findings) -> Figure | None:
    """Each trial that did all rounds as a point, and the best so far of its algorithm as a line; the axis counts the
    algorithm's own trials, so that equal searches are seen side by side."""
    results = found.results
    scale, label = scale_of(results.selection_metric)
    running_best = np.maximum.accumulate if results.objective.higher else np.minimum.accumulate
    figure, (axes,) = new_panels(1, 1, 4.2)
    for algorithm, place in found.places.items():
        own = [trial for trial in results.searched if trial.algorithm == algorithm]
        points = [(at, scale * results.value_of(trial)) for at, trial in enumerate(own, 1) if results.eligible(trial)]
        if not points:
            continue
        at, values = np.array(points).T
        best = running_best(values)
        look: dict[str, Any] = {"color": colour(place), "zorder": 3}
        steps = ([*at, len(own)], [*best, best[-1]])
        axes.step(*steps, where="post", linestyle=dashes(place), linewidth=1.9, label=algorithm, **look)
        axes.plot(at, values, linestyle="none", marker=marker(place), markersize=4, alpha=0.55, **look)
    if not axes.lines:
        return None
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend_beside(axes, title="Best so far")
    finish(axes, 11, 12, xlabel="Trials of the algorithm", ylabel=label)
    return figure


def slice_figure(found: Findings) -> Figure | None:
    """A panel per searched key with the trials that did all rounds; the axis of a log domain is logarithmic."""
    results = found.results
    trials = [trial for trial in results.searched if results.eligible(trial)]
    known = searched_domains(results)
    keys = varied_keys(trials, known)
    if not keys:
        return None
    scale, label = scale_of(results.selection_metric)
    figure, panels = new_panels(len(keys), min(COLUMNS, len(keys)), 2.7, 0.5, sharey=True)
    drawn: dict[str, Artist] = {}
    for axes, key in zip(panels, keys, strict=True):
        domain = known[key]
        having = [name for name in found.places if any(t.algorithm == name and key in t.overrides for t in trials)]
        for index, algorithm in enumerate(having):
            own = [trial for trial in trials if trial.algorithm == algorithm and key in trial.overrides]
            shift, place = APART * ((index + 0.5) / len(having) - 0.5), found.places[algorithm]
            chosen = [trial.overrides[key] for trial in own]
            at = [value if isinstance(value, int | float) else math.nan for value in chosen]
            if domain.kind == "choice":
                at = [place_in(domain, value) * max(len(domain.options) - 1, 1) + shift for value in chosen]
            values = [scale * results.value_of(trial) for trial in own]
            look: dict[str, Any] = {"color": colour(place), "marker": marker(place), "linewidths": 0, "zorder": 3}
            drawn[algorithm] = axes.scatter(at, values, s=22, alpha=0.75, **look)
        if domain.kind == "choice":
            axes.set_xticks(range(len(domain.options)), map(str, domain.options))
            axes.set_xlim(-0.5, len(domain.options) - 0.5)
        elif is_log(domain):
            low, high = domain.extremes()
            axes.set_xscale("log")
            axes.set_xlim(low / 1.15, high * 1.15)
        finish(axes, size=11, xlabel=key.removeprefix("algorithm."))
    figure.supylabel(label, fontsize=11)
    names = [name for name in found.places if name in drawn]
    handles = [drawn[name] for name in names]
    figure.legend(handles, names, loc="outside upper center", ncols=8, frameon=False, fontsize=10)
    return figure


def parallel_figure(results: StudyResults, algorithm: str) -> Figure | None:
    """The trials of one algorithm that did all rounds, each a line through its hyper-parameters to its result; the
    better the darker. None for fewer than two of them, or where nothing was searched."""
    own = [trial for trial in results.trials if trial.algorithm == algorithm]
    trials = ranked(own, results.objective, results.rounds)
    known = searched_domains(results)
    keys = [key for key in varied_keys(trials, known) if all(key in trial.overrides for trial in trials)]
    if len(trials) < 2 or not keys:
        return None
    values = np.array([results.value_of(trial) for trial in trials])
    low, high = float(values.min()), float(values.max())
    heights = (values - low) / ((high - low) or 1.0)
    goodness = heights if results.objective.higher else 1 - heights
    figure, (axes,) = new_panels(1, 1, 3.8)
    for index, trial in reversed(list(enumerate(trials))):  # the best on top
        places = [place_in(known[key], trial.overrides[key]) for key in keys]
        look: dict[str, Any] = {"linewidth": 1.1, "alpha": 0.75} if index else {"linewidth": 2.8}
        axes.plot([*places, heights[index]], color=MAP(0.1 + 0.9 * goodness[index]), zorder=3, **look)
    scale, label = scale_of(results.selection_metric)
    for column, key in enumerate(keys):
        _draw_axis(axes, column, _axis_ticks(known[key]))
    marks = np.linspace(0, 1, TICKS)
    _draw_axis(axes, len(keys), [(float(mark), f"{scale * (low + mark * (high - low)):.3g}") for mark in marks])
    names = [f"{key.removeprefix('algorithm.')}{' (log)' if is_log(known[key]) else ''}" for key in keys]
    axes.set_xticks(range(len(keys) + 1), [*names, label], fontsize=11)
    axes.set_yticks([])
    axes.set_xlim(-0.15, len(keys) + 0.35)
    axes.set_ylim(-0.06, 1.06)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return figure


def _draw_axis(axes: Axes, column: int, ticks: list[tuple[float, str]]) -> None:
    axes.axvline(column, color=GREY, linewidth=1.0, zorder=2)
    look: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 9, "zorder": 4}
    behind = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.7}
    for height, text in ticks:
        axes.annotate(text, (column, height), (4, 0), bbox=behind, **look)


def _axis_ticks(domain: Domain) -> list[tuple[float, str]]:
    """(height, text) of the marks of an axis."""
    if domain.kind == "choice":
        return [(place_in(domain, option), str(option)) for option in domain.options]
    low, high = domain.extremes()
    shares = np.linspace(0, 1, TICKS)
    numbers = low * (high / low) ** shares if is_log(domain) else low + (high - low) * shares
    return [(float(share), f"{number:.2g}") for share, number in zip(shares, numbers, strict=True)]
