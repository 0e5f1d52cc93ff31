"""The table and figures of a world whose rows are variants of one config, each tuned in a study of its own."""

from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

from flstudy.reporting.figures import losses_figure, to_png
from flstudy.reporting.figures.style import COLOURS, DASHES, GREY, new_figure, plain
from flstudy.reporting.load import StudyResults, Trial
from flstudy.reporting.tables import Cells, settings
from flstudy.reproduction.plan import MEASURES, Plan, World
from flstudy.reproduction.speakers import Speaker, ranks, shown_measured, shown_published, speakers, values


def variants(plan: Plan, world: World, studies: Mapping[str, StudyResults], folder: Path) -> list[str]:
    """Markdown of the world: a row per variant, the best first, beside what the paper has of that name, and figures in
    ``folder``."""
    rows = {name: best for name, results in studies.items() if (best := spokesman(results)) is not None}
    metric = MEASURES[world.measures[0]][0]
    means = {name: float(found.mean()) for name, one in rows.items() if (found := values(one, metric)).size}
    ours = ranks(means)
    names = sorted(rows, key=lambda name: ours.get(name, len(rows)))
    header, columns = ["Method"], [names]
    for measure in world.measures:
        metric, heading, share = MEASURES[measure]
        paper = [plan.published.get((world.name, name, measure)) for name in names]
        if any(figure is not None for figure in paper):
            header.append(f"{heading}, paper")
            columns.append([shown_published(figure, share) for figure in paper])
        header.append(heading)
        columns.append([shown_measured(rows[name], metric, share) for name in names])
    parts = [
        Cells(
            title="Every method, tuned",
            header=tuple(header),
            rows=tuple(zip(*columns, strict=True)),
            words=frozenset({0}),
        ).markdown()
    ]
    chosen = Cells(
        title="Tuned values",
        header=("Method", "Chosen"),
        rows=tuple((name, settings(rows[name].trial.overrides)) for name in names),
        words=frozenset({0, 1}),
    )
    parts.append(f"<details><summary>Tuned values</summary>\n\n{chosen.markdown()}\n\n</details>")
    lost = [name for name in studies if name not in rows]
    if lost:
        parts.append(f"No trial did all its rounds: {', '.join(lost)}.")
    drawn = {"curves": curves(world, rows, names), "losses": losses_figure(marked(rows, names))}
    for kind, figure in drawn.items():
        if figure is not None:
            path = to_png(figure, folder / f"{world.name}-{kind}.png")
            parts.append(f"![{world.title}: {kind}]({path.name})")
    return parts


def spokesman(results: StudyResults) -> Speaker | None:
    """The best whole trial of a study on validation data, whatever its algorithm."""
    found = list(speakers([results]).values())
    return (max if results.objective[1] else min)(found, key=lambda one: one.value, default=None)


def marked(rows: Mapping[str, Speaker], names: list[str]) -> list[tuple[str, StudyResults, Trial]]:
    """(name, study, trial) of each row."""
    return [(name, rows[name].results, rows[name].trial) for name in names]


def curves(world: World, rows: Mapping[str, Speaker], names: list[str]) -> Figure | None:
    """Test accuracy by round in percent, mean over seeds, a line for each variant."""
    if not rows:
        return None
    figure = new_figure(4.6)
    axes = figure.add_subplot()
    for number, name in enumerate(names):
        rounds, measured = rows[name].results.curve(rows[name].trial, "test/accuracy")
        axes.plot(
            rounds,
            100 * measured.mean(0),
            label=name,
            linewidth=1.2,
            color=COLOURS[number % len(COLOURS)],
            linestyle=DASHES[number % len(DASHES)],
        )
    for event in rows[names[0]].results.events:
        axes.axvline(event.round, color=GREY, linestyle=(0, (3, 3)), linewidth=1.0)
    axes.set_ylim(-2, 102)
    axes.set_xlabel("Round")
    axes.set_ylabel("Test accuracy (%)")
    axes.set_title(world.title, fontsize=11, loc="left")
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    plain(axes)
    return figure
