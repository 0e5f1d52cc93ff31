"""Tables and curves of device sessions (Chang et al. 2025, sec. VI): ways to start a session beside each other, and the
cost of their first rounds over the bandwidth of the cell."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from flstudy.metrics.sessions import (
    accumulated_gain,
    best_accuracy,
    final_accuracy,
    initial_accuracy,
    time_to_accuracy,
)
from flstudy.metrics.wireless import Wireless
from flstudy.reporting.ranking import Floats, recorded
from flstudy.reporting.sections.cost import trial_cost
from flstudy.reporting.style import (
    PAGE_DPI,
    draw_mean,
    finish,
    legend_above,
    look_of,
    mark_events,
    new_panels,
    to_png,
)
from flstudy.reporting.tables import NOTHING, Cells
from flstudy.reproduction.figures import finish_accuracy
from flstudy.reproduction.plan import EFFORTS, SPENT, Paper, World
from flstudy.reproduction.values import Correlation, Speaker, rank_correlation, speakers, tuned_table
from flstudy.study import StudyResults

SPANS = {"first_1": "first round", "first_10": "first 10 rounds", "last": "last round"}  # of a session
PUBLISHED_SPAN = "first_10"  # Tables II, III and X to XIV
COSTS = ("wireless/latency_s", "wireless/energy_j")
DEVICES, STEPS, BATCH = 100, 5, 128  # of the paper, App. C
SVHN = 667_178  # parameters of its network for SVHN, Table I
PHI = 91.04  # FLOPs per parameter
DRAWS = 20  # simulated rounds over which the cost of one round is averaged
Starts = Mapping[str, Mapping[str, Speaker]]
"""Best trials by start and algorithm."""


class Stretch(NamedTuple):
    """Session of a run: its number and its rounds."""

    number: int
    begin: int  # its first round
    until: int | None  # the first round of the next session; None for the last


def session_parts(paper: Paper, world: World, studies: Mapping[str, StudyResults], folder: Path) -> list[str]:
    """Return the Markdown of a world whose variants start their sessions differently; its figures are written to
    ``folder``."""
    best = {variant: speakers(results) for variant, results in studies.items()}
    names = list(dict.fromkeys(name for start, trials in best.items() if start not in trials for name in trials))
    for start, trials in best.items():
        if start in trials:  # an algorithm, as Continuous, beside every one: with the rates of its row, where given
            best[start] = {name: trials.get(f"{start}-{name}", trials[start]) for name in names}
    chosen = shown_sessions(world, next(iter(studies.values())))
    parts = [_start_table(paper, world, best, names, where, span) for where in chosen for span in SPANS]
    compared = world.compared in best and bool(chosen)
    if compared:
        parts.append(_effort_table(paper, world, best, names, chosen[-1]))
    tuned = [((name, variant), trials[name]) for name in names for variant, trials in best.items() if name in trials]
    parts.append(tuned_table(("Algorithm", "Start"), tuned))
    parts += _spent_table(paper, world, best, names)
    path = to_png(start_curves(world, best, names), folder / f"{world.name}-curves.png", PAGE_DPI)
    parts.append(f"![{world.title}: accuracy by round]({path.name})")
    if world.bandwidths and compared and names:
        parts.append(_bandwidth_part(world, best, names[0], chosen[-1], folder))
    return parts


def sessions_by_number(results: StudyResults) -> dict[int, Stretch]:
    """Return the sessions of a run by number, all but the first."""
    begins = [event.round for event in results.events if event.session]
    spans = zip(begins, [*begins[1:], None], strict=True)
    return {number: Stretch(number, *span) for number, span in enumerate(spans, start=2)}


def shown_sessions(world: World, results: StudyResults) -> list[Stretch]:
    """Return the sessions that a world shows; the last one where it names none that a run has."""
    spans = sessions_by_number(results)
    return [spans[number] for number in world.sessions if number in spans] or list(spans.values())[-1:]


def accuracy_in(span: str, session: Stretch, rounds: NDArray[np.int64], accuracy: Floats) -> Floats:
    """Return the accuracy [S] in a session's span, of a curve [S, n] over its evaluated rounds [n]."""
    if span == "last":
        return final_accuracy(rounds, accuracy, session.begin, session.until)
    return initial_accuracy(rounds, accuracy, session.begin, session.until, first=int(span.removeprefix("first_")))


def _start_table(paper: Paper, world: World, best: Starts, names: list[str], where: Stretch, span: str) -> str:
    """Return the table of the accuracy in a session's span, beside the paper's where it has one, and the rank
    correlation of the two orders of algorithms and starts."""
    rows, beside = [], False
    ours, theirs = dict[str, float](), dict[str, float]()
    for name in names:
        cells = []
        for variant, trials in best.items():
            here = NOTHING
            if name in trials:
                values = 100 * accuracy_in(span, where, *trials[name].curve())
                here = f"{values.mean():.2f}" + (f" ± {values.std(ddof=1):.2f}" if values.size > 1 else "")
            key = (world.name, name, f"{variant} {where.number}")
            published = paper.published.get(key) if span == PUBLISHED_SPAN else None
            beside |= published is not None
            if published is not None and name in trials:
                ours[f"{name} {variant}"], theirs[f"{name} {variant}"] = float(values.mean()), published.value
            cells.append(here if published is None else f"{here} / {100 * published.value:.2f}")
        rows.append((name, *cells))
    title = f"Session {where.number}, accuracy % of its {SPANS[span]}" + (": here / the paper's" if beside else "")
    table = Cells(title=title, header=("Algorithm", *best), rows=tuple(rows), words=frozenset({0})).markdown()
    order = rank_correlation(theirs, ours)
    return table if order is None else f"{table}\n\n{order_of_starts(order)}"


def order_of_starts(order: Correlation) -> str:
    """Return the sentence on the rank correlation of a table's cells with the paper's."""
    return f"Spearman's rank correlation, with a 95 % interval, of the paper's order of these cells and ours: {order}."


def _effort_table(paper: Paper, world: World, best: Starts, names: list[str], where: Stretch) -> str:
    """Return the table VII: T_ρ, eq. (31), with its latency and energy in the radio cell, and G_total, eq. (32)."""
    rows, beside = [], False
    for name in [name for name in names if name in best[world.compared]]:
        rounds, proposed = best[world.compared][name].curve()
        for variant, taken in _rounds_to_target(world, best, name, where).items():
            speaker = best[variant][name]
            gain = 100 * accumulated_gain(rounds, proposed, speaker.curve()[1], where.begin, where.until)
            costs = [_mean_or_infinite(_cost_of_first(speaker, metric, where.begin, taken)) for metric in COSTS]
            gained = NOTHING if variant == world.compared else f"{gain.mean():+.1f}"
            cells = [_mean_or_infinite(taken), *costs, gained]
            for place, effort in enumerate(EFFORTS):
                published = paper.published.get((world.name, name, f"{variant} {where.number} {effort}"))
                if published is not None:
                    beside, cells[place] = True, f"{cells[place]} / {published.value:g}"
            rows.append((name, variant, *cells))
    target = f"{world.target:.0%} of the best accuracy of {world.compared}"
    title = f"Session {where.number}, rounds to {target}, and what they cost" + (
        ": here / the paper's" if beside else ""
    )
    header = ("Algorithm", "Start", "Rounds", "Latency s", "Energy J", f"Gain of {world.compared}, % × rounds")
    return Cells(title=title, header=header, rows=tuple(rows), words=frozenset({0, 1})).markdown()


def _spent_table(paper: Paper, world: World, best: Starts, names: list[str]) -> list[str]:
    """Return the table of the trials' time on this machine beside the paper's CPU time and memory; empty where it has
    none."""
    spent = {name: [paper.published.get((world.name, name, measure)) for measure in SPENT] for name in names}
    if not any(value is not None for values in spent.values() for value in values):
        return []
    rows = []
    for name, published in spent.items():
        theirs = [NOTHING if value is None else f"{value.value:g}" for value in published]
        for variant in [variant for variant, trials in best.items() if name in trials]:
            results, trial, _ = best[variant][name]
            seconds = 3600 * trial_cost(results, trial).hours
            server = sum(float(values[0].sum()) for _, values in recorded(results, trial, "time/server_s"))
            rows.append((name, variant, f"{seconds:.0f}", f"{server:.1f}", str(len(results.seeds_of(trial))), *theirs))
    header = (
        "Algorithm",
        "Start",
        "Trial s",
        "Its server's steps s",
        "Seeds",
        "Paper: CPU s of all starts",
        "Paper: GB",
    )
    return [Cells(title="Time", header=header, rows=tuple(rows), words=frozenset({0, 1})).markdown()]


def _rounds_to_target(world: World, best: Starts, name: str, where: Stretch) -> dict[str, Floats]:
    """Return T_ρ [S] of each of an algorithm's starts."""
    span = (where.begin, where.until)
    target = world.target * best_accuracy(*best[world.compared][name].curve(), *span)
    starts = {variant: trials[name] for variant, trials in best.items() if name in trials}
    return {variant: time_to_accuracy(*speaker.curve(), target, *span) for variant, speaker in starts.items()}


def _cost_of_first(speaker: Speaker, metric: str, begin: int, taken: Floats) -> Floats:
    """Return the cost [S] of the first ``taken`` rounds [S] of a session; ∞ where ``taken`` is, empty where none is
    recorded."""
    for rounds, values in recorded(speaker.results, speaker.trial, metric):
        inside = (rounds >= begin) & (rounds < begin + taken[:, None])
        return np.where(np.isfinite(taken), (values * inside).sum(1), taken)
    return np.empty(0)


def _mean_or_infinite(values: Floats) -> str:
    """Format the mean over seeds; ∞ where one seed's value is."""
    if not values.size:
        return NOTHING
    infinite = int((~np.isfinite(values)).sum())
    if not infinite:
        return f"{values.mean():.3g}"
    return "∞" if infinite == values.size else f"∞ ({infinite} of {values.size} seeds)"


def start_curves(world: World, best: Starts, names: list[str]) -> Figure:
    """Return the figure 3: accuracy by round in percent, mean over seeds, a panel for each algorithm and a line for
    each start."""
    figure, panels = new_panels(len(names), 2, 2.6, 0.3)
    for axes, name in zip(panels, names, strict=True):
        for place, (variant, trials) in enumerate(best.items()):
            if name in trials:
                rounds, values = trials[name].curve()
                width = 2.0 if variant == world.compared else 1.3
                draw_mean(axes, rounds, 100 * values, look_of(place), variant, linewidth=width)
        mark_events(axes, next((trials[name].results.events for trials in best.values() if name in trials), ()))
        finish_accuracy(axes, name)
    legend_above(figure, panels, best, below=True)
    figure.suptitle(world.title.partition(" (")[0], fontsize=12, x=0.01, ha="left")
    return figure


def _bandwidth_part(world: World, best: Starts, name: str, where: Stretch, folder: Path) -> str:
    """Return the figure 4 as Markdown: the rounds of an algorithm's starts, at the cost of a round of the paper's SVHN
    network."""
    needed = {}
    for variant, taken in _rounds_to_target(world, best, name, where).items():
        controller = best[variant][name].results.config.get("controller") or {}
        needed[variant] = float(taken.mean()) + (controller.get("init_args") or {}).get("gradient_rounds", 0)
    target = f"{world.target:.0%} of the best accuracy of {world.compared}"
    title = f"{name}, session {where.number}: to {target}, at SVHN's costs"
    figure = bandwidth_figure(title, needed, world.bandwidths)
    path = to_png(figure, folder / f"{world.name}-bandwidth.png", PAGE_DPI)
    return f"![{title}]({path.name})"


def svhn_round_cost(bandwidth: float) -> tuple[float, float]:
    """Return the seconds and joules of one round of the paper's SVHN network in a cell of this bandwidth in Hz."""
    cell = Wireless(bandwidth=bandwidth, complexity=PHI)
    bits = 32.0 * SVHN
    rounds = [
        cell.costs([0], n, [list(range(DEVICES))], down=bits, up=bits, steps=STEPS, batch_size=BATCH, parameters=SVHN)
        for n in range(1, DRAWS + 1)
    ]
    return float(np.mean([cost.latency for cost in rounds])), float(np.mean([cost.energy for cost in rounds]))


def bandwidth_figure(title: str, rounds: Mapping[str, float], bandwidths: Sequence[float]) -> Figure:
    """Return the figure of latency and energy until a target is reached over the bandwidth in MHz, by start, from the
    rounds that each start needs, including its extra ones; starts that never reach it are left out."""
    by_bandwidth = np.array([svhn_round_cost(1e6 * bandwidth) for bandwidth in bandwidths])  # [bandwidths, 2]
    figure, panels = new_panels(2, 2, 3.4)
    named = {start: f"{start}, {needed:.3g} rounds" for start, needed in rounds.items()}
    headings = {"Latency (s)": by_bandwidth[:, 0], "Energy (kJ)": 1e-3 * by_bandwidth[:, 1]}
    for axes, (heading, costs) in zip(panels, headings.items(), strict=True):
        for place, (start, needed) in enumerate(rounds.items()):
            if np.isfinite(needed):
                look, size = look_of(place), 5 + 3 * place  # rings around each other where starts cost the same
                ring: dict[str, Any] = {"marker": look.marker, "fillstyle": "none", "markersize": size}
                ring |= {"color": look.colour, "linestyle": look.dashes, "label": named[start]}
                axes.plot(bandwidths, needed * costs, **ring)
        axes.set_title(heading, fontsize=11, loc="left")
        axes.set_ylim(bottom=0)
        finish(axes, xlabel="Bandwidth (MHz)")
    legend_above(figure, panels, named.values(), below=True)
    figure.suptitle(title, fontsize=12, x=0.01, ha="left")
    return figure
