"""Restarts of controllers that detect drifts (Master-FL, Ganguly & Aggarwal 2024, Fig. 2 and 3): the loss that their
instances call reachable beside the actual loss, and losses with drifts and restarts marked."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from flstudy.config.values import arguments_of
from flstudy.metrics.registry import METRICS
from flstudy.reporting.looks import looks_of
from flstudy.reporting.multiples import BEHIND, CROWD
from flstudy.reporting.ranking import Findings, Floats, recorded
from flstudy.reporting.section import Content, ReportSection, pictures
from flstudy.reporting.style import COLOURS, GREY, colour, draw_mean, finish, legend_beside, mark_events, new_figure
from flstudy.reporting.tables import NOTHING, Cells
from flstudy.study import StudyResults, Trial
from flstudy.study.results import WorldEvent

COUNTED = [
    f"detector/{name}" for name in ("detections", "false_alarms", "delay", "restarts_detection", "restarts_block")
]
LOGGED = [f"controller/{name}" for name in ("loss", "best", "instance_order", "block_order")] + ["detector/restarted"]
BLOCK, DETECTION = 1, 2  # causes of a restart, as in ``detector/restarted``
LOGARITHMIC = 1000  # ratio of the largest mean loss to the smallest above which their axis is logarithmic
MARKS = {BLOCK: ("after a whole block", GREY, 0.8), DETECTION: ("after a detection", COLOURS[1], 1.6)}


class Span(NamedTuple):
    """Span of rounds of an instance of a run."""

    order: int
    first: int  # round, from 1
    last: int  # last round that it has reached


class ControllerLog(NamedTuple):
    """Log of one replica's controller; each array is [T]."""

    rounds: NDArray[np.int64]
    loss: Floats  # F
    best: Floats  # U
    order: Floats  # of the instance that ran
    block: Floats  # order of the block
    restarted: Floats  # 0, or the cause of a restart


class NamedRun(NamedTuple):
    """Trial with the name of its line in a figure."""

    name: str
    results: StudyResults
    trial: Trial


class RestartSection(ReportSection):
    """Section on restarts, only where a best trial has a controller that detects drifts."""

    order = 50

    def of_study(self, findings: Findings) -> Content | None:
        rows = [NamedRun(row.algorithm, findings.results, row.reported_trial) for row in findings.ranking.rows]
        rows = [row for row in rows if "detector/detections" in row.trial.metrics]
        if not rows:
            return None
        columns = {"Algorithm": [row.name for row in rows]}
        for name in COUNTED:
            counts = [row.trial.metrics.get(name, math.nan) for row in rows]
            columns[METRICS[name].title] = [f"{count:.1f}" if math.isfinite(count) else NOTHING for count in counts]
        caption = "Loss by round with the drifts; below, of the first seed, with its restarts by cause."
        drawn = pictures((loss_figure(rows), caption))
        for row in rows:
            caption = "U restarts with every block; the lines below are the block's instances, thick where they run."
            drawn += pictures((reachable_figure(*row[1:], title=row.name), f"{row.name}: {caption}"))
        return Content(
            name="Restarts",
            title="When did the controller begin anew, and why?",
            lead="Means over seeds. A detection is a drift's if it is the first from that drift on and before the next "
            "one; all others are false alarms.",
            tables=[Cells.from_columns("Detections and restarts", columns)],
            pictures=drawn,
        )


def controller_log(results: StudyResults, trial: Trial, replica: int = 0) -> ControllerLog | None:
    """Read what a trial's controller logged; None without such a controller, or without records."""
    curves = recorded(results, trial, *LOGGED)
    return ControllerLog(curves[0][0], *(values[replica] for _, values in curves)) if curves else None


def spans(seed: int, rate: Mapping[str, Any], run: ControllerLog) -> list[Span]:
    """Return the spans of the scheduled instances of a replica that began before their block ended. Schedules are
    functions of the seed, the block's number and ρ (`rate` may have its c1 and c2), so that they need not be
    recorded."""
    from flstudy.controllers import BlockSchedule, Rate  # torch, which a report of another study need not wait for

    rho = Rate(**{key: float(rate[key]) for key in ("c1", "c2") if key in rate})
    begins = [0, *np.flatnonzero(run.restarted > 0).tolist()]
    ends = [*begins[1:], len(run.rounds)]
    instances = []
    for number, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        first = int(run.rounds[begin])
        instances += [
            Span(instance.order, first + instance.first, min(first + instance.last, int(run.rounds[end - 1])))
            for instance in BlockSchedule(seed, number, int(run.block[begin]), rho).instances()
            if instance.first < end - begin
        ]
    return instances


def draw_spans(axes: Axes, spans: Sequence[Span], rounds: Sequence[int], active: Sequence[float]) -> None:
    """Draw instances as thin lines by order, thick where they run; an instance of one round is as wide as a round."""
    runs = dict(zip(rounds, active, strict=True))
    for span in spans:
        hue = colour(span.order)
        axes.hlines(span.order, span.first - 0.5, span.last + 0.5, color=hue, linewidth=1.0, alpha=0.7)
        ran = [number for number in range(span.first, span.last + 1) if runs.get(number) == span.order]
        if ran:
            axes.hlines([span.order] * len(ran), np.array(ran) - 0.5, np.array(ran) + 0.5, color=hue, linewidth=4.0)
        axes.plot([span.first - 0.5] * 2, [span.order - 0.22, span.order + 0.22], color=hue, linewidth=0.8)
    orders = sorted({span.order for span in spans})
    axes.set_yticks(orders, map(str, orders))
    finish(axes, ylabel="Order")


def reachable_figure(results: StudyResults, trial: Trial, title: str = "") -> Figure | None:
    """Return the figure 2: the loss F_t and U_t, the largest loss that instances of the block have called reachable,
    above the instances; of the first seed. None for a trial without instances."""
    run = controller_log(results, trial)
    if run is None:
        return None
    written = results.config.get("controller")
    controller = arguments_of(written) if isinstance(written, Mapping) else {}
    chosen = {key.rpartition(".")[2]: value for key, value in trial.overrides.items() if key.startswith("controller.")}
    figure = new_figure(5.0)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    above.plot(run.rounds, run.loss, color=COLOURS[0], linewidth=1.0, label="F, loss of the round")
    above.plot(run.rounds, run.best, color=COLOURS[4], linewidth=1.6, label="U, said to be reachable")
    _mark_restarts(above, results.events, run)
    above.set_title(title, fontsize=11, loc="left")
    legend_beside(above, fontsize=8)
    finish(above, ylabel="Loss, in [0, 1]")
    seed = results.seeds_of(trial)[0]
    draw_spans(below, spans(seed, {**controller, **chosen}, run), run.rounds.tolist(), run.order.tolist())
    below.set_xlabel(f"Round (seed {seed})")
    return figure


def _mark_restarts(axes: Axes, events: Sequence[WorldEvent], run: ControllerLog) -> None:
    """Draw drifts as dashed lines, and restarts as ticks at the bottom, by cause."""
    mark_events(axes, [event for event in events if not event.session], label="drift")
    for cause, (label, hue, width) in MARKS.items():
        at = run.rounds[run.restarted == cause]
        if at.size:
            top = 0.05 if cause == BLOCK else 0.1
            transform = axes.get_xaxis_transform()
            axes.vlines(at, 0.0, top, color=hue, linewidth=width, transform=transform, label=f"restart {label}")


def loss_figure(rows: Sequence[NamedRun], metric: str = "test/loss") -> Figure | None:
    """Return the figure 3: the loss of every trial by round, mean over seeds; below it, for each trial whose controller
    restarts, the loss of the first seed with its restarts. None where no trial has the metric."""
    curves = {name: curve[0] for name, results, trial in rows if (curve := recorded(results, trial, metric))}
    if not curves:
        return None
    logs = [(row, log) for row in rows if (log := controller_log(row.results, row.trial)) is not None]
    looks, crowded = looks_of(curves), len(curves) > CROWD
    above = len(curves) if crowded else 1  # a panel for each of many
    heights = [1.3] * above if crowded else [3.6]
    figure = new_figure(sum(heights) + 1.9 * len(logs))
    ratios = (*heights, *[1.9] * len(logs))
    panels = figure.subplots(len(ratios), 1, sharex=True, squeeze=False, height_ratios=ratios)[:, 0]
    drifts = [event for event in rows[0].results.events if not event.session]
    ylabel = "Test loss" if metric == "test/loss" else metric
    means = np.concatenate([np.nanmean(values, axis=0) for _, values in curves.values()])
    logarithmic = np.nanmin(means) > 0 and np.nanmax(means) > LOGARITHMIC * np.nanmin(means)
    for place, axes in enumerate(panels[:above]):
        for at, (name, (rounds, values)) in enumerate(curves.items()):
            apart = not crowded or at == place
            look: dict[str, Any] = {} if apart else {"linewidth": 0.7, "zorder": 1.5}
            draw_mean(axes, rounds, values, looks[name] if apart else BEHIND, name if apart else "_", **look)
        mark_events(axes, drifts, label="drift")
        axes.set_yscale("log" if logarithmic else "linear")
        finish(axes, ylabel=ylabel)
        legend_beside(axes, fontsize=8)
    for number, (axes, (row, log)) in enumerate(zip(panels[above:], logs, strict=True)):
        axes.plot(log.rounds, log.loss, color=COLOURS[0], linewidth=0.9, label="F, loss of the round")
        _mark_restarts(axes, row.results.events, log)
        axes.set_title(f"{row.name}, first seed", fontsize=10, loc="left")
        finish(axes, ylabel="Loss, in [0, 1]")
        if number == 0:
            legend_beside(axes, fontsize=8)
    panels[-1].set_xlabel("Round")
    return figure
