"""Crossed worlds: a study for each variant, such as a controller or none, in each of which the same search compares
several algorithms; a row for each algorithm under each variant.

Rows are compared on the seeds that both have, by Student's paired t test on test data, in two families whose p values
are adjusted by Holm's method, each by itself: the leader with all others, and each algorithm under a variant with the
same algorithm under the first one.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from flstudy.metrics.registry import is_fraction
from flstudy.reporting.sections.comparison import LEVEL, Pair, compare, comparison_cells, holm
from flstudy.reporting.sections.comparison import StudyComparison as Compared
from flstudy.reporting.style import GREY, PAGE_DPI, Look, draw_mean, finish, legend_beside, look_of, new_figure, to_png
from flstudy.reporting.tables import Cells, format_difference, plural
from flstudy.reproduction.measured import row_of
from flstudy.reproduction.plan import MEASURES, World
from flstudy.reproduction.values import (
    Speaker,
    confirmed_how,
    format_measured,
    measure_heading,
    preset_speakers,
    speakers,
    tuned_table,
)
from flstudy.study import StudyResults

SHADE = "#f2f2f2"
FAINT = "#c4c4c4"
HEIGHT = 4.8
"""Height of the figure, in inches."""


class CrossedRow(NamedTuple):
    """Row of a crossed world: an algorithm under a variant."""

    algorithm: str
    variant: str
    name: str  # its name in tables; under the first variant the algorithm's alone
    speaker: Speaker
    preset: Speaker | None

    def by_seed(self, metric: str) -> dict[int, float]:
        """Return the last values of a metric, by seed."""
        return self.speaker.results.last(self.speaker.trial, metric)


def crossed_rows(world: World, studies: Mapping[str, StudyResults]) -> list[CrossedRow]:
    """Return all rows with a trial that did all its rounds, by the value that chose it, the best first."""
    rows = []
    for variant in [name for name in world.variants if name in studies]:
        presets = preset_speakers(studies[variant])
        for algorithm, speaker in speakers(studies[variant]).items():
            name = row_of(world, variant, speaker.trial)
            rows.append(CrossedRow(algorithm, variant, name, speaker, presets.get(algorithm)))
    sign = 1 if all(results.objective.higher for results in studies.values()) else -1
    return sorted(rows, key=lambda row: -sign * row.speaker.value)


def crossed_parts(world: World, studies: Mapping[str, StudyResults], folder: Path) -> list[str]:
    """Return the Markdown of a crossed world, and its figure in ``folder``."""
    rows = crossed_rows(world, studies)
    if not rows:
        return ["No trial did all its rounds."]
    metric = MEASURES[world.measures[0]]
    columns = {"Method": [row.name for row in rows]}
    columns[f"{measure_heading(world.measures[0])}, preset"] = [format_measured(row.preset, metric) for row in rows]
    for measure in world.measures:
        columns[measure_heading(measure)] = [format_measured(row.speaker, MEASURES[measure]) for row in rows]
    selected = rows[0].speaker.results.selection_metric
    path = to_png(crossed_figure(world, rows), folder / f"{world.name}-curves.png", PAGE_DPI)
    against_all = compare_rows(rows, [(rows[0], other) for other in rows[1:]], metric)
    plain = {row.algorithm: row for row in rows if row.variant == world.compared}
    around = [row for row in rows if row.variant != world.compared and row.algorithm in plain]
    of_variants = compare_rows(rows, [(row, plain[row.algorithm]) for row in around], metric)
    tables = [comparison_cells(family) for family in (against_all, of_variants)]
    headings = (f"{rows[0].name}, the leader by {selected}, with everybody else", "What each variant does to a method")
    parts = [
        *won(rows, against_all, metric),
        f"![{world.title}: accuracy by round]({path.name})",
        Cells.from_columns(f"Every method, by {selected}, the best first", columns).markdown(),
        confirmed_how(studies),
        "*Preset*: the first trial of each, whose values no search drew.",
    ]
    for heading, cells in zip(headings, tables, strict=True):
        if cells is not None:
            parts += [f"## {heading}", cells.markdown()]
    seeds = min(len(row.by_seed(metric)) for row in rows)
    parts += [
        f"Differences are in points, seed by seed over {plural(seeds, 'seed')} or more, with 95 % intervals that hold "
        f"each for its own pair; p is adjusted by Holm's method within a table, and only one below {LEVEL:g} is called "
        "a difference.",
        tuned_table(["Method"], [((row.name,), row.speaker) for row in rows]),
    ]
    return parts


def compare_rows(rows: Sequence[CrossedRow], pairs: Sequence[tuple[CrossedRow, CrossedRow]], metric: str) -> Compared:
    """Compare these pairs of rows and no others, as one family of tests."""
    values = {row.name: row.by_seed(metric) for row in rows}
    higher = rows[0].speaker.results.objective.higher
    compared: list[Pair] = []
    for first, second in pairs:
        compared += compare({row.name: values[row.name] for row in (first, second)}, higher=higher)
    adjusted = holm(np.array([pair.p for pair in compared]))
    family = [
        pair._replace(adjusted=float(p), verdict="cannot tell" if np.isnan(p) else _verdict(float(p)))
        for pair, p in zip(compared, adjusted, strict=True)
    ]
    return Compared(metric=metric, fresh=True, values=values, pairs=tuple(family), notes=())


def _verdict(p: float) -> Literal["different", "not shown"]:
    return "different" if p < LEVEL else "not shown"


def won(rows: Sequence[CrossedRow], family: Compared, metric: str) -> list[str]:
    """Return the sentences on the leader: its lead over the next row, and over which rows it is shown to be better."""
    leader = rows[0].name
    better = [pair for pair in family.pairs if pair.verdict == "different" and pair.first == leader]
    ahead = [pair for pair in family.pairs if pair.first != leader]
    sentences = [f"**{leader} leads**: {measure_of(family, leader, metric)}."]
    for pair in family.pairs[:1]:
        sentences.append(
            f"The next by validation data is {rows[1].name}, {measure_of(family, rows[1].name, metric)}: the better "
            f"of the two by {format_difference(pair.difference, metric).lstrip('+')} points "
            f"[{format_difference(pair.low, metric)}, {format_difference(pair.high, metric)}]."
        )
    sentences.append(
        f"Of {len(family.pairs)} others it is shown to be better than {len(better)}"
        + (f", not than {', '.join(_others(family, leader))}." if len(better) < len(family.pairs) else ".")
    )
    if ahead:
        sentences.append(f"A better mean than its own on test data: {', '.join(pair.first for pair in ahead)}.")
    return [" ".join(sentences)]


def _others(family: Compared, leader: str) -> list[str]:
    return [
        pair.second if pair.first == leader else pair.first
        for pair in family.pairs
        if pair.verdict != "different" or pair.first != leader
    ]


def measure_of(family: Compared, name: str, metric: str) -> str:
    """Format a row's mean and standard deviation over seeds."""
    values = np.array(list(family.values[name].values()))
    scale, unit = (100, " %") if is_fraction(metric) else (1, "")
    spread = f" ± {scale * values.std(ddof=1):.1f}" if values.size > 1 else ""
    return f"{scale * values.mean():.1f}{spread}{unit}"


def crossed_figure(world: World, rows: Sequence[CrossedRow]) -> Figure:
    """Return the figure of test accuracy by round in percent, mean over seeds: the leader, the best row of each variant
    and the rows of ``world.shown`` in colour, all others in grey; sessions as bands, drifts as lines."""
    shown = [rows[0].name]
    for variant in world.variants:
        shown += [row.name for row in rows if row.variant == variant][:1]
    shown = list(dict.fromkeys([*shown, *(row.name for row in rows if row.name in world.shown)]))
    figure = new_figure(HEIGHT)
    axes = figure.subplots()
    events = rows[0].speaker.results.events
    begins = [1, *(event.round for event in events if event.session), rows[0].speaker.results.rounds + 1]
    for begin, end in list(pairwise(begins))[1::2]:
        axes.axvspan(begin, end, color=SHADE, linewidth=0, zorder=0)
    hidden = [row for row in rows if row.name not in shown]
    for number, row in enumerate(hidden):
        rounds, values = row.speaker.curve()
        label = "_" if number else f"the other {len(hidden)}"
        axes.plot(rounds, 100 * values.mean(0), color=FAINT, linewidth=0.7, label=label, zorder=1)
    for row in sorted((row for row in rows if row.name in shown), key=lambda row: shown.index(row.name), reverse=True):
        place = shown.index(row.name)
        rounds, values = row.speaker.curve()
        look = look_of(place - 1) if place else Look("black", "-", "o")
        above, width = (3, 1.4) if place else (4, 2.2)
        draw_mean(axes, rounds, 100 * values, look, row.name, zorder=above, linewidth=width)
    drifts = [event for event in events if not event.session]
    for event in drifts:
        axes.axvline(event.round, color=GREY, linestyle=(0, (3, 3)), linewidth=1.1, zorder=2)
        axes.annotate(
            "labels drift", (event.round, 1.0), xycoords=("data", "axes fraction"), xytext=(0, 3),
            textcoords="offset points", ha="center", fontsize=9, color=GREY,
        )  # fmt: skip
    axes.set_xlim(1, rows[0].speaker.results.rounds)
    axes.set_ylim(0, 100)
    finish(axes, xlabel="Round (white and grey: one half of the devices, or the other)", ylabel="Test accuracy (%)")
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda n: shown.index(labels[n]) if labels[n] in shown else len(shown))
    legend_beside(axes, handles=[handles[n] for n in order], labels=[labels[n] for n in order], fontsize=9)
    return figure
