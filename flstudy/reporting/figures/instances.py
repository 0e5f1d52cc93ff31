"""What a controller of instances does by round (Master-FL, Ganguly & Aggarwal 2024, Fig. 1, 2 and 3): its schedule,
what it says can be reached beside what it suffers, and losses with the drifts and the restarts marked."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from flstudy.reporting.figures.style import COLOURS, DASHES, GREY, new_figure, plain
from flstudy.reporting.load import Event, StudyResults, Trial

if TYPE_CHECKING:
    from flstudy.controllers import Instance

Floats = NDArray[np.float64]
BLOCK, DETECTION = 1, 2  # why rounds begin a block, as in ``detector/restarted``
MARKS = {BLOCK: ("after a whole block", GREY, 0.8), DETECTION: ("after a detection", COLOURS[1], 1.6)}


class Span(NamedTuple):
    """An instance of a run."""

    order: int
    first: int  # round, from 1
    last: int  # that it has reached


class Told(NamedTuple):
    """What one replica's controller logged, each [T]."""

    rounds: NDArray[np.int64]
    loss: Floats  # F
    best: Floats  # U
    order: Floats  # of the instance that ran
    block: Floats  # order of the block
    restarted: Floats


def told(results: StudyResults, trial: Trial, replica: int = 0) -> Told | None:
    """None for a trial without such a controller, or without records."""
    names = (
        *(f"controller/{name}" for name in ("loss", "best", "instance_order", "block_order")),
        "detector/restarted",
    )
    try:
        curves = [results.curve(trial, name) for name in names]
    except (ValueError, OSError):
        return None
    return Told(curves[0][0], *(values[replica] for _, values in curves))


def spans(seed: int, rate: Mapping[str, Any], run: Told) -> list[Span]:
    """The instances that were scheduled and that began before their block ended. Schedules are functions of the seed
    and the block's number, so that they need not be recorded.

    Args:
        seed: of the replica.
        rate: c1 and c2 of its ρ.
        run: its records.
    """
    from flstudy.controllers import BlockSchedule, Rate  # torch, which a report of another study need not wait for

    rho = Rate(**{key: float(rate[key]) for key in ("c1", "c2") if key in rate})
    begins = [0, *np.flatnonzero(run.restarted > 0).tolist()]
    ends = [*begins[1:], len(run.rounds)]
    found = []
    for number, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        first = int(run.rounds[begin])
        found += [
            Span(instance.order, first + instance.first, min(first + instance.last, int(run.rounds[end - 1])))
            for instance in BlockSchedule(seed, number, int(run.block[begin]), rho).instances()
            if instance.first < end - begin
        ]
    return found


def schedule_figure(instances: Sequence["Instance"], title: str = "") -> Figure:
    """Fig. 1: the instances of one block, a line each, thick in the rounds in which it runs."""
    from flstudy.controllers import running_instance

    rounds = max(instance.last for instance in instances) + 1
    active = [running_instance(instances, offset).order for offset in range(rounds)]
    figure = new_figure(2.6)
    axes = figure.add_subplot()
    draw_spans(axes, [Span(one.order, one.first + 1, one.last + 1) for one in instances], range(1, rounds + 1), active)
    axes.set_xlabel("Round of the block")
    axes.set_title(title, fontsize=11, loc="left")
    return figure


def draw_spans(axes: Axes, found: Sequence[Span], rounds: Sequence[int], active: Sequence[float]) -> None:
    """Thin lines by order, thick where they run; an instance of one round is as wide as a round."""
    runs = dict(zip(rounds, active, strict=True))
    for span in found:
        colour = COLOURS[span.order % len(COLOURS)]
        axes.hlines(span.order, span.first - 0.5, span.last + 0.5, color=colour, linewidth=1.0, alpha=0.7)
        own = [number for number in range(span.first, span.last + 1) if runs.get(number) == span.order]
        if own:
            axes.hlines([span.order] * len(own), np.array(own) - 0.5, np.array(own) + 0.5, color=colour, linewidth=4.0)
        axes.plot([span.first - 0.5] * 2, [span.order - 0.22, span.order + 0.22], color=colour, linewidth=0.8)
    orders = sorted({span.order for span in found})
    axes.set_yticks(orders, [str(order) for order in orders])
    axes.set_ylabel("Order")
    plain(axes)


def reachable_figure(results: StudyResults, trial: Trial, title: str = "") -> Figure | None:
    """Fig. 2: the loss F_t and U_t, the largest loss that instances of the block have said can be reached, above the
    instances; of the first seed. None for a trial without instances."""
    run = told(results, trial)
    if run is None:
        return None
    controller = (results.config.get("controller") or {}).get("init_args") or {}
    own = {key.rpartition(".")[2]: value for key, value in trial.overrides.items() if key.startswith("controller.")}
    figure = new_figure(5.0)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    above.plot(run.rounds, run.loss, color=COLOURS[0], linewidth=1.0, label="F, loss of the round")
    above.plot(run.rounds, run.best, color=COLOURS[4], linewidth=1.6, label="U, said to be reachable")
    mark(above, results.events, run)
    above.set_ylabel("Loss, in [0, 1]")
    above.set_title(title, fontsize=11, loc="left")
    above.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    plain(above)
    seed = results.seeds_of(trial)[0]
    draw_spans(below, spans(seed, {**controller, **own}, run), run.rounds.tolist(), run.order.tolist())
    below.set_xlabel(f"Round (seed {seed})")
    return figure


def mark(axes: Axes, events: Sequence[Event], run: Told | None = None) -> None:
    """Drifts as dashed lines, and restarts as ticks at the bottom, by cause."""
    for number, event in enumerate(event for event in events if not event.session):
        label = "" if number else "drift"
        axes.axvline(event.round, color=GREY, linestyle=(0, (3, 3)), linewidth=1.0, label=label or None)
    if run is None:
        return
    for cause, (label, colour, width) in MARKS.items():
        at = run.rounds[run.restarted == cause]
        if at.size:
            transform = axes.get_xaxis_transform()
            top = 0.05 if cause == BLOCK else 0.1
            axes.vlines(at, 0.0, top, color=colour, linewidth=width, transform=transform, label=f"restart {label}")


def losses_figure(rows: Sequence[tuple[str, StudyResults, Trial]], metric: str = "test/loss") -> Figure | None:
    """Fig. 3: the loss of every trial by round, mean over seeds; below it, for each whose controller restarts, the loss
    of the first seed with its restarts. None where no trial has the metric.

    Args:
        rows: name, study and trial of each line.
        metric: that is drawn above.
    """
    curves = {}
    for name, results, trial in rows:
        try:
            curves[name] = results.curve(trial, metric)
        except (ValueError, OSError):
            continue
    if not curves:
        return None
    runs = [(name, results, run) for name, results, trial in rows if (run := told(results, trial)) is not None]
    figure = new_figure(3.6 + 1.9 * len(runs))
    panels = figure.subplots(1 + len(runs), 1, sharex=True, squeeze=False, height_ratios=(2, *[1] * len(runs)))[:, 0]
    for number, (name, (rounds, values)) in enumerate(curves.items()):
        colour, dashes = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
        panels[0].plot(rounds, values.mean(0), color=colour, linestyle=dashes, linewidth=1.2, label=name)
    mark(panels[0], rows[0][1].events)
    panels[0].set_ylabel("Test loss" if metric == "test/loss" else metric)
    for axes, (name, results, run) in zip(panels[1:], runs, strict=True):
        axes.plot(run.rounds, run.loss, color=COLOURS[0], linewidth=0.9, label="F, loss of the round")
        mark(axes, results.events, run)
        axes.set_title(f"{name}, first seed", fontsize=10, loc="left")
        axes.set_ylabel("Loss, in [0, 1]")
    for axes in panels[:2]:
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    for axes in panels:
        plain(axes)
    panels[-1].set_xlabel("Round")
    return figure
