"""What came out, beside what was published: a Markdown page with its figures for each world."""

import datetime
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import spearmanr

from flstudy.benchmark.hardware import cpu
from flstudy.reporting.bits import bits, bits_cells
from flstudy.reporting.cost import spent_by
from flstudy.reporting.figures import bits_figure, sweep, to_png
from flstudy.reporting.figures.style import order
from flstudy.reporting.finding_tables import sensitivity_cells
from flstudy.reporting.load import StudyResults, load_study
from flstudy.reporting.ranking import rank
from flstudy.reporting.selection import selection_metric
from flstudy.reporting.sensitivity import sensitivities
from flstudy.reporting.tables import NOTHING, Cells, settings
from flstudy.reproduction.figures import alarm, curves
from flstudy.reproduction.plan import MEASURES, VARIED, Plan, World
from flstudy.reproduction.sessions import sessions
from flstudy.reproduction.speakers import Speaker, means, ranks, shown_measured, shown_published, speakers
from flstudy.reproduction.variants import variants


class Done(NamedTuple):
    """A world with the studies of it that are there, by stage."""

    world: World
    studies: Mapping[str, StudyResults]


def write(plan: Plan, studies: Mapping[tuple[str, str], Path], folder: Path, command: str) -> Path:
    """Writes a page for each world with a study, README.md with links to all pages that are there, and figures into
    ``folder``, and returns README.md's path. Pages of other worlds stay as they are.

    Args:
        plan: what was run.
        studies: folder of each study, by the names of world and stage.
        folder: where to write.
        command: that made it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    read = {key: load_study(path) for key, path in studies.items()}
    for world in plan.worlds:
        found = {stage: results for (name, stage), results in read.items() if name == world.name}
        if found:
            page_of(world, folder).write_text(describe(plan, Done(world, found), folder, command), encoding="utf-8")
    there = [world for world in plan.worlds if page_of(world, folder).is_file()]
    links = "\n".join(f"- [{world.title}]({page_of(world, folder).name})" for world in there)
    readme = folder / "README.md"
    parts = [f"# {plan.title}, reproduced", links, *([plan.differences] if plan.differences else [])]
    readme.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return readme


def page_of(world: World, folder: Path) -> Path:
    """The page of a world."""
    return folder / f"{world.name}.md"


def describe(plan: Plan, done: Done, folder: Path, command: str) -> str:
    """The page of a world, whose figures go to ``folder``."""
    parts = [f"# {done.world.title}", cost(done, command)]
    if done.world.kind in VARIED:
        tell = sessions if done.world.kind == "sessions" else variants
        parts += tell(plan, done.world, done.studies, folder)
    else:
        parts += ablation(done) if done.world.kind == "ablation" else comparison(plan, done)
        parts += pictures(done, folder)
    return "\n\n".join(parts) + "\n"


def cost(done: Done, command: str) -> str:
    """What made the page, on what, and how long it took."""
    here = {results.name for results in done.studies.values()}  # whose trials others of them may have taken over
    trials = [
        (results, trial)
        for results in done.studies.values()
        for trial in results.trials
        if (trial.source or "").rpartition("/")[0] not in here
    ]
    hours = float(np.nansum([spent_by(results, trial).hours for results, trial in trials]))
    rounds = sum(trial.rounds for _, trial in trials)
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    spent = f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.0f} minutes"
    parts = [
        f"`{command}` on {cpu()}, {platform.system()}, {day}: {len(trials)} trials, {rounds:,} rounds, {spent} of "
        "training, all trials added up."
    ]
    if done.world.kind != "sessions":
        parts.append(
            "Accuracies are means over devices on test data, after the last round where no heading says otherwise: "
            "mean ± standard deviation over seeds, in brackets the standard deviation over devices."
        )
    if done.world.kind == "comparison":
        parts[-1] += (
            f" *Preset*: {done.world.preset}; *tuned*: the trial that is best on validation data, of as many for every "
            "algorithm, the preset among them. *Place*: by the first measure, among those that the paper has, if any."
        )
    if done.world.kind == "variants":
        parts.append(
            "Where every method has a study of its own, its row is the trial that is best on validation data, of as "
            "many for every method."
        )
    if done.world.kind == "sessions":
        parts.append(
            "Accuracies of sessions are means over the devices that are there, on test data: mean ± standard deviation "
            "over seeds, of the trial that is best on validation data, of as many for every algorithm and every start. "
            "Costs include the rounds that a start plays beforehand."
        )
    return "\n\n".join(parts)


def comparison(plan: Plan, done: Done) -> list[str]:
    """Tables of a world, one per measure, and what became of the paper's order."""
    every = list(done.studies.values()) if "tuned" in done.studies else []
    tuned, preset = speakers(every), speakers([done.studies["preset"]] if "preset" in done.studies else [])
    names = list(dict.fromkeys([*tuned, *preset]))
    parts = []
    for place, measure in enumerate(done.world.measures):
        metric, heading, share = MEASURES[measure]
        paper = {name: plan.published.get((done.world.name, name, measure)) for name in names}
        found = [means(speaker, names, metric) for speaker in (preset, tuned)]
        if not place:
            published = {name: figure.value for name, figure in paper.items() if figure is not None}
            orders = [ranks(published), ranks(found[0]), ranks(found[1])]
            names.sort(key=lambda name: (orders[2] or orders[1]).get(name, len(names)))
            if published:
                found = [{name: mean for name, mean in ours.items() if name in published} for ours in found]
                orders[1:] = [ranks(ours) for ours in found]
        told = {name: shown_published(figure, share) for name, figure in paper.items()}
        beside = any(figure is not None for figure in paper.values())
        rows = tuple(
            (
                name,
                *([told[name]] if beside else []),
                shown_measured(preset.get(name), metric, share),
                shown_measured(tuned.get(name), metric, share),
                *([" / ".join(str(order.get(name, NOTHING)) for order in orders)] if not place else []),
            )
            for name in names
        )
        places = ("Place: paper / preset / tuned",) if not place else ()
        header = ("Algorithm", *(("Paper",) if beside else ()), "Preset", "Tuned", *places)
        parts.append(Cells(title=heading, header=header, rows=rows, words=frozenset({0})).markdown())
    parts.append(order_kept(*orders))
    if tuned:
        spreads = sensitivities(done.studies["tuned"])
        if any(one.complete for one in spreads):
            parts.append(sensitivity_cells(spreads, selection_metric(done.studies["tuned"])).markdown())
        traffic = bits(done.studies["tuned"], rank(done.studies["tuned"]))
        if traffic is not None and (cells := bits_cells(traffic)) is not None:
            parts += [cells.markdown(), traffic.unit]
        rows = tuple((name, settings(tuned[name].trial.overrides)) for name in names if name in tuned)
        chosen = Cells(title="Tuned values", header=("Algorithm", "Chosen"), rows=rows, words=frozenset({0, 1}))
        parts.append(f"<details><summary>Tuned values</summary>\n\n{chosen.markdown()}\n\n</details>")
    return parts


def order_kept(paper: Mapping[str, int], preset: Mapping[str, int], tuned: Mapping[str, int]) -> str:
    """One sentence: how the orders agree."""
    sentences = []
    for title, one, other in (
        ("the paper's order and that of the presets", paper, preset),
        ("the paper's order and the tuned one", paper, tuned),
        ("the presets' order and the tuned one", preset, tuned),
    ):
        both = [name for name in one if name in other]
        if len(both) >= 3:
            rho = spearmanr([one[name] for name in both], [other[name] for name in both]).statistic
            sentences.append(f"{title}: {rho:+.2f} over {len(both)} algorithms")
    return f"Spearman's rank correlation of {'; of '.join(sentences)}." if sentences else "Too few algorithms to order."


def ablation(done: Done) -> list[str]:
    """A table with a row per trial."""
    results = next(iter(done.studies.values()))
    keys = list(dict.fromkeys(key for trial in results.searched for key in trial.overrides))
    trials = [trial for trial in results.searched if trial.status == "finished"]
    trials.sort(key=lambda trial: [in_order(trial.overrides.get(key)) for key in keys])
    rows = tuple(
        (
            *(str(trial.overrides.get(key)) for key in keys),
            *(
                shown_measured(Speaker(results, trial, np.nan), MEASURES[measure][0], MEASURES[measure][2])
                for measure in done.world.measures
            ),
        )
        for trial in trials
    )
    header = (*(key.rpartition(".")[2] for key in keys), *(MEASURES[measure][1] for measure in done.world.measures))
    return [Cells(title="Every trial", header=header, rows=rows, words=frozenset()).markdown()]


def in_order(value: Any) -> tuple[bool, float, str]:
    """Numbers by size, before names."""
    number = isinstance(value, int | float)
    return not number, float(value) if number else 0.0, str(value)


def pictures(done: Done, folder: Path) -> list[str]:
    """Figures of a world as Markdown images."""
    if done.world.kind == "ablation":
        return []
    parts = []
    for stage, results in sorted(done.studies.items()):
        drawn = {
            "curves": curves(results, f"{done.world.title}: {stage}"),
            "alarm": alarm(results) if stage == "preset" and results.events else None,
            "sweep": sweep(results) if stage == "tuned" else None,
            "bits": bits_figure(bits(results, rank(results)), order(results)) if stage == "tuned" else None,
        }
        for kind, figure in drawn.items():
            if figure is not None:
                path = to_png(figure, folder / f"{done.world.name}-{stage}-{kind}.png")
                parts.append(f"![{done.world.title}, {stage}: {kind}]({path.name})")
    return parts
