"""Pareto front of a study with several objectives: trials that no other trial dominates."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from flstudy.config import Objective
from flstudy.reporting.multiples import BEHIND, COLUMNS, CROWD
from flstudy.reporting.ranking import Findings
from flstudy.reporting.section import Content, ReportSection, pictures
from flstudy.reporting.style import GREY, Look, finish, legend_above, new_figure, new_panels, scale_of
from flstudy.reporting.tables import Cells, chosen_values, format_value, metric_label
from flstudy.study import StudyResults, Trial

SEEN = "Large marks: the front. Small ones: trials that are beaten. Values are means over the search's seeds."


@dataclass(frozen=True, kw_only=True)
class Front:
    """Trials of the search that did all rounds within the constraints, and which of them are on the front."""

    objectives: tuple[Objective, ...]
    trials: tuple[Trial, ...]
    on_front: tuple[bool, ...]

    @property
    def best(self) -> tuple[Trial, ...]:
        """Trials of the front, the best one in the first objective first."""
        front = [trial for trial, on in zip(self.trials, self.on_front, strict=True) if on]
        sign = -1 if self.objectives[0].higher else 1
        return tuple(sorted(front, key=lambda trial: sign * trial.values[0]))


class ParetoSection(ReportSection):
    """Section with the trade-off between objectives."""

    order = 80

    def of_study(self, findings: Findings) -> Content:
        front = pareto_front(findings.results)
        if front is None:
            return Content(values={"pareto": None})
        return Content(
            name="Pareto front",
            title="What is gained, and what is paid for it?",
            lead="The study had several objectives. A trial is on the front where no other is at least as good in all "
            "of them and better in one.",
            tables=[front_cells(front)],
            pictures=pictures((front_figure(front, findings.looks), SEEN)),
            values={
                "pareto": {
                    "objectives": [objective.metric for objective in front.objectives],
                    "front": [{"trial": trial.number, "values": trial.values} for trial in front.best],
                }
            },
        )


def pareto_front(results: StudyResults) -> Front | None:
    """Return the pareto front of a study; None where it has one objective, or no trial to show."""
    objectives = results.objectives
    trials = tuple(
        trial
        for trial in results.searched
        if results.eligible(trial) and len(trial.values) == len(objectives) and np.isfinite(trial.values).all()
    )
    if len(objectives) < 2 or not trials:
        return None
    signs = np.array([1.0 if objective.higher else -1.0 for objective in objectives])
    on = undominated(signs * np.array([trial.values for trial in trials]))
    return Front(objectives=tuple(objectives), trials=trials, on_front=tuple(on.tolist()))


def undominated(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return the mask [T] of the undominated rows of values [T, M]: no other row is at least as high everywhere and
    higher somewhere. Equal rows do not dominate each other."""
    return np.array([not ((values >= row).all(1) & (values > row).any(1)).any() for row in values])


def front_cells(front: Front) -> Cells:
    """Return the table of the trials of the front."""
    trials = front.best
    columns = {"Trial": [str(trial.number) for trial in trials], "Algorithm": [trial.algorithm for trial in trials]}
    for place, objective in enumerate(front.objectives):
        heading = f"{metric_label(objective.metric)}\n({'more' if objective.higher else 'less'} is better)"
        columns[heading] = [format_value(trial.values[place], objective.metric) for trial in trials]
    columns["Hyper-parameters"] = [chosen_values(trial.overrides) for trial in trials]
    return Cells.from_columns("Trials on the Pareto front", columns, (0, 1, len(columns) - 1), names=2)


def front_figure(front: Front, looks: Mapping[str, Look]) -> Figure:
    """Return the figure with a panel for each pair of objectives: all trials, those of the front large and, for two
    objectives, connected. Many algorithms have panels of their own, with the others' trials in grey behind."""
    pairs = list(itertools.combinations(range(len(front.objectives)), 2))
    names = [name for name in looks if any(trial.algorithm == name for trial in front.trials)]
    shown = {name: looks[name] for name in names}
    if len(names) <= CROWD:
        figure = new_figure(4.4, width=9.0 if len(pairs) < 3 else 12.0)
        panels = list(figure.subplots(1, len(pairs), squeeze=False)[0])
        for axes, (first, second) in zip(panels, pairs, strict=True):
            _front_panel(axes, front, first, second, shown)
        legend_above(figure, panels, names)
        return figure
    columns, alone = (COLUMNS, True) if len(pairs) == 1 else (len(pairs), False)
    figure, panels = new_panels(
        len(names) * len(pairs), columns, 1.9 if alone else 2.2, 0.5, sharex=alone, sharey=alone
    )
    for axes, (name, (first, second)) in zip(panels, itertools.product(names, pairs), strict=True):
        shades = {method: look if method == name else BEHIND for method, look in shown.items()}
        _front_panel(axes, front, first, second, shades, 8)
        axes.set_title(name, fontsize=10, loc="left", color=shown[name].colour, fontweight="bold")
        if alone:
            figure.supxlabel(axes.get_xlabel(), fontsize=11)
            figure.supylabel(axes.get_ylabel(), fontsize=11)
            axes.set(xlabel="", ylabel="")
    return figure


def _front_panel(axes: Axes, front: Front, first: int, second: int, looks: Mapping[str, Look], size: int = 11) -> None:
    units = [scale_of(objective.metric) for objective in front.objectives]
    values = np.array([trial.values for trial in front.trials]) * [scale for scale, _ in units]
    on = np.array(front.on_front)
    for algorithm, look in looks.items():
        mask, behind = np.array([trial.algorithm == algorithm for trial in front.trials]), look is BEHIND
        shade: dict[str, Any] = {"color": look.colour, "marker": look.marker, "linewidths": 0}
        beaten, best = values[mask & ~on], values[mask & on]
        axes.scatter(beaten[:, second], beaten[:, first], s=16, alpha=0.4, zorder=1.5 if behind else 2.5, **shade)
        axes.scatter(best[:, second], best[:, first], s=58, label=algorithm, zorder=1.5 if behind else 3, **shade)
    if len(front.objectives) == 2:  # with more, a pair's panel shows the shadow of a surface
        line = values[on][np.argsort(values[on][:, second])]
        # The step shows the first objective's best value among trials that reach a value of the second.
        where: Literal["pre", "post"] = "pre" if front.objectives[second].higher else "post"
        axes.step(line[:, second], line[:, first], where=where, color=GREY, linewidth=1.0, zorder=2)
    if (values[:, second] > 0).all() and values[:, second].max() > 30 * values[:, second].min():
        axes.set_xscale("log")
    better = ["more" if objective.higher else "less" for objective in front.objectives]
    labels = [f"{label}, {word} is better" for (_, label), word in zip(units, better, strict=True)]
    finish(axes, size - 1, size, xlabel=labels[second], ylabel=labels[first])
