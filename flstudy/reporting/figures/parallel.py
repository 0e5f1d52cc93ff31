"""Parallel coordinates: every trial of one algorithm as a line through its hyper-parameters to its result."""

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flstudy.reporting.domains import Domain, domains, keys_of
from flstudy.reporting.figures.style import GREY, new_figure
from flstudy.reporting.load import StudyResults
from flstudy.reporting.selection import comparable, selection_metric, value_of
from flstudy.reporting.tables import percent

MAP = colormaps["cividis_r"]  # dark is good; told apart with any colour vision, and in grey
TICKS = 5


def parallel(results: StudyResults, algorithm: str) -> Figure | None:
    """The trials of one algorithm that did all rounds; the better the darker. None for fewer than two of them, or
    where nothing was searched."""
    higher, metric = results.objective[1], selection_metric(results)
    trials = tuple(trial for trial in results.searched if trial.algorithm == algorithm and comparable(results, trial))
    known = domains(results)
    keys = [key for key in keys_of(trials, known) if all(key in trial.overrides for trial in trials)]
    if len(trials) < 2 or not keys:
        return None
    values = np.array([value_of(results, trial) for trial in trials])
    low, high = float(values.min()), float(values.max())
    heights = (values - low) / ((high - low) or 1.0)
    goodness = heights if higher else 1 - heights
    figure = new_figure(3.8)
    axes = figure.add_subplot()
    for index in np.argsort(goodness):  # the best on top
        places = [known[key].place(trials[index].overrides[key]) for key in keys]
        best = index == int(np.argmax(goodness))
        axes.plot(
            range(len(keys) + 1),
            [*places, heights[index]],
            color=MAP(0.1 + 0.9 * goodness[index]),
            linewidth=2.8 if best else 1.1,
            alpha=1.0 if best else 0.75,
            zorder=3,
        )
    scale = 100 if percent(metric) else 1
    for column, key in enumerate(keys):
        _axis(axes, column, _ticks(known[key]))
    marks = np.linspace(0, 1, TICKS)
    _axis(axes, len(keys), [(float(mark), f"{scale * (low + mark * (high - low)):.3g}") for mark in marks])
    labels = [f"{known[key].label}{' (log)' if known[key].log else ''}" for key in keys]
    axes.set_xticks(range(len(keys) + 1), [*labels, f"{metric}{' (%)' if scale == 100 else ''}"], fontsize=11)
    axes.set_yticks([])
    axes.set_xlim(-0.15, len(keys) + 0.35)
    axes.set_ylim(-0.06, 1.06)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return figure


def _axis(axes: Axes, column: int, ticks: list[tuple[float, str]]) -> None:
    axes.axvline(column, color=GREY, linewidth=1.0, zorder=2)
    for height, text in ticks:
        axes.annotate(
            text,
            (column, height),
            (4, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            zorder=4,
            bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.7},
        )


def _ticks(domain: Domain) -> list[tuple[float, str]]:
    """(height, text) of the marks of an axis."""
    if domain.kind == "choice":
        return [(domain.place(option), str(option)) for option in domain.options]
    shares = np.linspace(0, 1, TICKS)
    if domain.log:
        numbers = domain.low * (domain.high / domain.low) ** shares
    else:
        numbers = domain.low + (domain.high - domain.low) * shares
    return [(float(share), f"{number:.2g}") for share, number in zip(shares, numbers, strict=True)]
