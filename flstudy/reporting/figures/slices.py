"""Slices: the objective against one hyper-parameter at a time."""

import math

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flstudy.reporting.domains import Domain, domains, keys_of
from flstudy.reporting.figures.style import MARKERS, colour, new_figure, order, plain
from flstudy.reporting.load import StudyResults
from flstudy.reporting.selection import comparable, selection_metric, value_of
from flstudy.reporting.tables import percent

COLUMNS = 3
APART = 0.5  # of the room between two options of a choice, in which the algorithms stand side by side


def slices(results: StudyResults, ranked: tuple[str, ...] = ()) -> Figure | None:
    """A panel per searched key with the trials that did all rounds; the axis of a log domain is logarithmic."""
    trials = tuple(trial for trial in results.searched if comparable(results, trial))
    known = domains(results)
    keys = keys_of(trials, known)
    if not keys:
        return None
    metric = selection_metric(results)
    scale = 100 if percent(metric) else 1
    places = order(results, ranked)
    columns = min(COLUMNS, len(keys))
    rows = math.ceil(len(keys) / columns)
    figure = new_figure(2.7 * rows + 0.5)
    panels = iter(figure.subplots(rows, columns, squeeze=False, sharey=True).flat)
    told: dict[str, Artist] = {}
    for key in keys:
        axes = next(panels)
        having = [name for name in places if any(t.algorithm == name and key in t.overrides for t in trials)]
        for index, algorithm in enumerate(having):
            own = [trial for trial in trials if trial.algorithm == algorithm and key in trial.overrides]
            shift, place = APART * ((index + 0.5) / len(having) - 0.5), places[algorithm]
            told[algorithm] = axes.scatter(
                [_at(known[key], trial.overrides[key], shift) for trial in own],
                [scale * value_of(results, trial) for trial in own],
                color=colour(place),
                marker=MARKERS[place % len(MARKERS)],
                s=22,
                alpha=0.75,
                linewidths=0,
                zorder=3,
            )
        _scale(axes, known[key])
    for axes in panels:
        axes.set_visible(False)
    figure.supylabel(f"{metric}{' (%)' if scale == 100 else ''}", fontsize=11)
    names = [name for name in places if name in told]
    handles = [told[name] for name in names]
    figure.legend(handles, names, loc="outside upper center", ncols=8, frameon=False, fontsize=10)
    return figure


def _at(domain: Domain, value: object, shift: float) -> float:
    if domain.kind == "choice":
        return domain.place(value) * max(len(domain.options) - 1, 1) + shift
    return float(value) if isinstance(value, int | float) else math.nan


def _scale(axes: Axes, domain: Domain) -> None:
    if domain.kind == "choice":
        axes.set_xticks(range(len(domain.options)), [str(option) for option in domain.options])
        axes.set_xlim(-0.5, len(domain.options) - 0.5)
    elif domain.log:
        axes.set_xscale("log")
        axes.set_xlim(domain.low / 1.15, domain.high * 1.15)
    axes.set_xlabel(domain.label, fontsize=11)
    axes.tick_params(labelsize=10)
    plain(axes)
