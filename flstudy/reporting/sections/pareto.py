"""The Pareto front of a study with several objectives: trials that none beats in everything."""

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
    """Trials of the search that did all rounds within the constraints."""

    objectives: tuple[Objective, ...]
    trials: tuple[Trial, ...]
    on_front: tuple[bool, ...]

    @property
    def best(self) -> tuple[Trial, ...]:
        """The trials of the front, the best one in the first objective first."""
        found = [trial for trial, on in zip(self.trials, self.on_front, strict=True) if on]
        sign = -1 if self.objectives[0].higher else 1
        return tuple(sorted(found, key=lambda trial: sign * trial.values[0]))


class ParetoSection(ReportSection):
    """What is gained in one objective for what is paid in another."""

    order = 80

    def of_study(self, found: Findings) -> Content:
        front = pareto_front(found.results)
        if front is None:
            return Content(values={"pareto": None})
        return Content(
            name="Pareto front",
            title="What is gained, and what is paid for it?",
            lead="The study had several objectives. A trial is on the front where no other is at least as good in all "
            "of them and better in one.",
            tables=[front_cells(front)],
            pictures=pictures((front_figure(front, found.looks), SEEN)),
            values={
                "pareto": {
                    "objectives": [objective.metric for objective in front.objectives],
                    "front": [{"trial": trial.number, "values": trial.values} for trial in front.best],
                }
            },
        )


def pareto_front(results: StudyResults) -> Front | None:
    """None where the study has one objective, or no trial to show."""
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
    """[T, M] -> [T]: no other row is at least as high everywhere and higher somewhere. Equal rows do not beat
    each other."""
    return np.array([not ((values >= own).all(1) & (values > own).any(1)).any() for own in values])


def front_cells(front: Front) -> Cells:
    """The trials of the front."""
    trials = front.best
    columns = {"Trial": [str(trial.number) for trial in trials], "Algorithm": [trial.algorithm for trial in trials]}
    for place, one in enumerate(front.objectives):
        heading = f"{metric_label(one.metric)}\n({'more' if one.higher else 'less'} is better)"
        columns[heading] = [format_value(trial.values[place], one.metric) for trial in trials]
    columns["Hyper-parameters"] = [chosen_values(trial.overrides) for trial in trials]
    return Cells.from_columns("Trials on the Pareto front", columns, (0, 1, len(columns) - 1))


def front_figure(front: Front, looks: Mapping[str, Look]) -> Figure:
    """A panel for each pair of objectives: all trials, those of the front large and, of two objectives, connected. Many
    algorithms have panels of their own, with the others' trials in grey behind."""
    pairs = list(itertools.combinations(range(len(front.objectives)), 2))
    names = [name for name in looks if any(trial.algorithm == name for trial in front.trials)]
    own = {name: looks[name] for name in names}
    if len(names) <= CROWD:
        figure = new_figure(4.4, width=9.0 if len(pairs) < 3 else 12.0)
        panels = list(figure.subplots(1, len(pairs), squeeze=False)[0])
        for axes, (one, other) in zip(panels, pairs, strict=True):
            _front_panel(axes, front, one, other, own)
        legend_above(figure, panels, names)
        return figure
    columns, alone = (COLUMNS, True) if len(pairs) == 1 else (len(pairs), False)
    figure, panels = new_panels(
        len(names) * len(pairs), columns, 1.9 if alone else 2.2, 0.5, sharex=alone, sharey=alone
    )
    for axes, (name, (one, other)) in zip(panels, itertools.product(names, pairs), strict=True):
        _front_panel(axes, front, one, other, {each: look if each == name else BEHIND for each, look in own.items()}, 8)
        axes.set_title(name, fontsize=10, loc="left", color=own[name].colour, fontweight="bold")
        if alone:
            figure.supxlabel(axes.get_xlabel(), fontsize=11)
            figure.supylabel(axes.get_ylabel(), fontsize=11)
            axes.set(xlabel="", ylabel="")
    return figure


def _front_panel(axes: Axes, front: Front, one: int, other: int, looks: Mapping[str, Look], size: int = 11) -> None:
    units = [scale_of(objective.metric) for objective in front.objectives]
    values = np.array([trial.values for trial in front.trials]) * [scale for scale, _ in units]
    on = np.array(front.on_front)
    for algorithm, look in looks.items():
        own, behind = np.array([trial.algorithm == algorithm for trial in front.trials]), look is BEHIND
        shade: dict[str, Any] = {"color": look.colour, "marker": look.marker, "linewidths": 0}
        beaten, best = values[own & ~on], values[own & on]
        axes.scatter(beaten[:, other], beaten[:, one], s=16, alpha=0.4, zorder=1.5 if behind else 2.5, **shade)
        axes.scatter(best[:, other], best[:, one], s=58, label=algorithm, zorder=1.5 if behind else 3, **shade)
    if len(front.objectives) == 2:  # with more, a pair's panel shows the shadow of a surface
        line = values[on][np.argsort(values[on][:, other])]
        # Whoever asks for so much of the one gets so much of the other.
        where: Literal["pre", "post"] = "pre" if front.objectives[other].higher else "post"
        axes.step(line[:, other], line[:, one], where=where, color=GREY, linewidth=1.0, zorder=2)
    if (values[:, other] > 0).all() and values[:, other].max() > 30 * values[:, other].min():
        axes.set_xscale("log")
    better = ["more" if objective.higher else "less" for objective in front.objectives]
    labels = [f"{label}, {word} is better" for (_, label), word in zip(units, better, strict=True)]
    finish(axes, size - 1, size, xlabel=labels[other], ylabel=labels[one])
