"""Pages of a reproduction: a Markdown page with figures for each world, its results beside the published ones."""

import datetime
import hashlib
import platform
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from flstudy.benchmark.command import cpu
from flstudy.config.errors import spelled
from flstudy.reporting.ranking import Findings
from flstudy.reporting.sections.cost import trial_cost
from flstudy.reporting.sections.restarts import NamedRun, loss_figure
from flstudy.reporting.sections.sensitivity import sensitivities, sensitivity_cells, sweep_figure
from flstudy.reporting.sections.traffic import traffic_cells, traffic_figure, traffic_of
from flstudy.reporting.style import PAGE_DPI, to_png
from flstudy.reporting.tables import NOTHING, Cells
from flstudy.reproduction.crossed import crossed_parts
from flstudy.reproduction.figures import ablation_figure, alarm_figure, grouped_curves, regret_figure, variant_curves
from flstudy.reproduction.measured import as_csv, measured_trials, measures_of
from flstudy.reproduction.plan import MEASURES, STAGES, Paper, PublishedValue, World
from flstudy.reproduction.sessions import session_parts
from flstudy.reproduction.sweeps import sweep_parts
from flstudy.reproduction.values import (
    Speaker,
    confirmed_how,
    format_measured,
    format_published,
    impossible_spreads,
    means_of,
    measure_heading,
    named_seeds,
    places_by,
    rank_correlation,
    speakers,
    tell_judges,
    tuned_table,
    variant_speakers,
)
from flstudy.study import StudyFolder, StudyResults, load_study
from flstudy.whole_file import write_whole

DIGESTS = "SHA256SUMS"
"""Name of the file with the digests of a results folder."""
Studies = Mapping[str, StudyResults]
"""Studies of a world that exist, by stage."""


def write_pages(
    paper: Paper, studies: Mapping[tuple[str, str], StudyFolder], folder: Path, options: Sequence[str] = ()
) -> None:
    """Write a page for each world with a study (by the names of world and stage), its figures and its measured values
    into ``folder``. Pages of other worlds stay as they are, and a study without a finished trial is left out.
    ``options`` belong to the command that makes a page."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = {world: folder / f"{world.name}.md" for world in paper.worlds}
    loaded = {key: load_study(study) for key, study in studies.items()}
    for world, page in pages.items():
        by_stage = {stage: results for (name, stage), results in loaded.items() if name == world.name and results.best}
        if by_stage:
            write_whole(page, world_page(paper, world, by_stage, folder, options))
            measures = measures_of(world, next(iter(by_stage.values())))
            write_whole(page.with_suffix(".csv"), as_csv(measured_trials(world, by_stage), measures))


def write_readme(paper: Paper, folder: Path) -> Path:
    """Write README.md: links to the existing pages, contradictions within the published figures, and the remarks
    written by hand about the reproduction."""
    pages = {world: f"{world.name}.md" for world in paper.worlds}
    links = "\n".join(f"- [{world.title}]({name})" for world, name in pages.items() if (folder / name).is_file())
    readme = folder / "README.md"
    parts = [f"# {paper.title}, reproduced", links, *([paper.note] if paper.note else []), *own_figures(paper)]
    parts += [paper.differences] if paper.differences else []
    write_whole(readme, "\n\n".join(parts) + "\n")
    return readme


def write_digests(folder: Path) -> Path:
    """Write SHA256SUMS, the digests of all files of a results folder: ``sha256sum --check SHA256SUMS`` tells which of
    them is no more what was written."""
    sums = folder / DIGESTS
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != sums)
    digests = {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    write_whole(sums, "".join(f"{digest}  {name}\n" for name, digest in digests.items()))
    return sums


def own_figures(paper: Paper) -> list[str]:
    """Return the Markdown that lists impossible published figures, by world and measure."""
    tables: dict[tuple[str, str], dict[str, PublishedValue]] = {}
    for (world, row, measure), figure in paper.published.items():
        tables.setdefault((world, measure), {})[row] = figure
    impossible = {key: sentence for key, figures in tables.items() if (sentence := impossible_spreads(figures))}
    lines = [f"- {world}, {measure}: {sentence}" for (world, measure), sentence in impossible.items()]
    return ["## The paper's own figures", "\n".join(lines)] if lines else []


def world_page(paper: Paper, world: World, studies: Studies, folder: Path, options: Sequence[str] = ()) -> str:
    """Return the page of a world as Markdown; its figures are written to ``folder``."""
    stages = ["--stages", *studies] if world.kind == "comparison" and len(studies) == 1 else []
    command = shlex.join(["flstudy", "reproduce", paper.name, "--worlds", world.name, *stages, *options])
    parts = [f"# {world.title}", *made_by(world, studies, command), *([paper.note] if paper.note else [])]
    if world.kind == "sessions":
        parts += session_parts(paper, world, studies, folder)
    elif world.kind == "variants":
        parts += variant_parts(paper, world, studies, folder)
    elif world.kind == "crossed":
        parts += crossed_parts(world, studies, folder)
    elif world.kind == "ablation":
        parts += ablation_parts(world, studies, folder)
    elif world.kind == "sweep":
        parts += sweep_parts(world, studies["tuned"], folder)
    else:
        parts += [*comparison_parts(paper, world, studies), *comparison_figures(world, studies, folder)]
    return "\n\n".join(parts) + "\n"


def made_by(world: World, studies: Studies, command: str) -> list[str]:
    """Return the paragraphs on the origin of a page: command, commit, machine, date, cost, and how to read its
    numbers."""
    here = {results.name for results in studies.values()}  # one may have imported the trials of another
    trials = [
        (results, trial)
        for results in studies.values()
        for trial in results.trials
        if (trial.source or "").rpartition("/")[0] not in here - {results.name}  # its own name is of another folder
    ]
    hours = float(np.nansum([trial_cost(results, trial).hours for results, trial in trials]))
    rounds = sum(trial.rounds for _, trial in trials)
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    spent = f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.0f} minutes"
    commits = dict.fromkeys(filter(None, (commit_of(results) for results in studies.values())))
    at = f" at commit {', '.join(commits)}" if commits else ""
    provenance = (
        f"`{command}`{at} on {cpu()}, {platform.system()}, {day}: {len(trials)} trials, {rounds:,} rounds, {spent} of "
        "training, all trials added up."
    )
    accuracies = (
        "Accuracies are means over devices on test data, after the last round where no heading says otherwise: "
        "mean ± standard deviation over seeds, in brackets the standard deviation over devices."
    )
    if world.kind == "sessions":
        return [
            provenance,
            "Accuracies of sessions are of the devices that are there, on test data: mean ± standard deviation over "
            "seeds, of the trial that is best on validation data, of as many for every algorithm and every start. "
            "Costs include the rounds that a start plays beforehand.",
        ]
    if world.kind == "comparison":
        accuracies += (
            f" *Preset*: {world.preset}; *tuned*: the trial that is best on validation data, of as many for every "
            "algorithm, the preset among them. *Place*: by the first measure, among those that the paper has, if any."
        )
    lead = "Where every method has a study of its own, its row is the trial that is best on validation data, of as many"
    return [provenance, accuracies, *([f"{lead} for every method."] if world.kind == "variants" else [])]


def commit_of(results: StudyResults) -> str:
    """Return the abbreviated git commit of the code that ran a study; '' where it is unknown."""
    environment = results.folder.state().get("environment") or {}
    return str(environment.get("mlflow.source.git.commit", ""))[:7]


def comparison_parts(paper: Paper, world: World, studies: Studies) -> list[str]:
    """Return the tables of a comparison, one per measure, and the rank correlation with the paper's order."""
    preset, tuned = (speakers(studies[stage]) if stage in studies else {} for stage in STAGES)
    names = list(dict.fromkeys([*tuned, *preset]))
    parts = tell_judges(tuned or preset, MEASURES["accuracy"]) if "accuracy" in world.measures else []
    orders = [dict[str, int]()] * 3
    for place, measure in enumerate(world.measures):
        metric = MEASURES[measure]
        published = {name: paper.published.get((world.name, name, measure)) for name in names}
        theirs = {name: figure.value for name, figure in published.items() if figure is not None}
        measured = [means_of(speaking, names, metric) for speaking in (preset, tuned)]
        if not place:
            first = places_by(measured[1]) or places_by(measured[0])
            names.sort(key=lambda name: first.get(name, len(names)))
        if theirs:
            measured = [{name: mean for name, mean in ours.items() if name in theirs} for ours in measured]
        if not place:
            orders = [places_by(theirs), *map(places_by, measured)]
        columns = {"Algorithm": names}
        if theirs:
            columns["Paper"] = [format_published(published[name], metric) for name in names]
        columns["Preset"] = [format_measured(preset.get(name), metric) for name in names]
        columns["Tuned"] = [format_measured(tuned.get(name), metric) for name in names]
        if not place:
            texts = [" / ".join(str(order.get(name, NOTHING)) for order in orders) for name in names]
            columns["Place: paper / preset / tuned"] = texts
        parts.append(Cells.from_columns(measure_heading(measure), columns).markdown())
        if theirs or not place:
            parts.append(order_kept(theirs, *measured) + shared_last_place(measured))
        if wrong := impossible_spreads({name: figure for name, figure in published.items() if figure is not None}):
            parts.append(wrong)
    if preset:
        parts.append(f"Presets are of {named_seeds(studies['preset'].seeds)}.")
    if tuned:
        found_tuned = Findings(results=studies["tuned"])
        rows = found_tuned.once(sensitivities)
        if any(row.complete for row in rows):
            parts.append(sensitivity_cells(rows, found_tuned.ranking.selection_metric).markdown())
        traffic = traffic_of(found_tuned)
        if traffic is not None and (cells := traffic_cells(traffic)) is not None:
            parts += [cells.markdown(), traffic.unit]
        parts.append(confirmed_how({"tuned": studies["tuned"]}))
        parts.append(tuned_table(["Algorithm"], [((name,), tuned[name]) for name in names if name in tuned]))
    return parts


def order_kept(paper: Mapping[str, float], preset: Mapping[str, float], tuned: Mapping[str, float]) -> str:
    """Return the sentence on how well the orders by these values agree."""
    sentences = []
    for title, first, second in (
        ("the paper's order and that of the presets", paper, preset),
        ("the paper's order and the tuned one", paper, tuned),
        ("the presets' order and the tuned one", preset, tuned),
    ):
        if correlation := rank_correlation(first, second):
            sentences.append(f"{title}: {correlation}")
    sentence = f"Spearman's rank correlation, with a 95 % interval, of {'; of '.join(sentences)}."
    return sentence if sentences else "Too few algorithms to order."


def shared_last_place(measured: Sequence[Mapping[str, float]]) -> str:
    """Return the sentence on the rows that are last together, if any: those with a seed that never gets there."""
    never = any(np.isinf(mean) for means in measured for mean in means.values())
    return " Rows with a seed that never gets there share the last place." if never else ""


def comparison_figures(world: World, studies: Studies, folder: Path) -> list[str]:
    """Return the figures of a comparison as Markdown images."""
    parts = []
    for stage, results in sorted(studies.items()):
        drawn = {"curves": grouped_curves(results, f"{world.title}: {stage}")}
        if stage == "preset" and results.events:
            drawn["alarm"] = alarm_figure(results)
        if stage == "tuned":
            findings = Findings(results=results)
            traffic = traffic_of(findings)
            drawn["sweep"] = sweep_figure(findings)
            drawn["bits"] = None if traffic is None else traffic_figure(traffic, findings.looks)
        parts += images(drawn, f"{world.title}, {stage}", folder / f"{world.name}-{stage}")
    return parts


def images(drawn: Mapping[str, Figure | None], title: str, stem: Path) -> list[str]:
    """Write figures as STEM-KIND.png and return them as Markdown images."""
    parts = []
    for kind, figure in drawn.items():
        if figure is not None:
            path = to_png(figure, stem.with_name(f"{stem.name}-{kind}.png"), PAGE_DPI)
            parts.append(f"![{title}: {kind}]({path.name})")
    return parts


def ablation_parts(world: World, studies: Studies, folder: Path) -> list[str]:
    """Return the Markdown of an ablation: its table, with a row for each trial that did all rounds, and its figure."""
    results = next(iter(studies.values()))
    keys = list(dict.fromkeys(key for trial in results.searched for key in trial.overrides))
    trials = [trial for trial in results.searched if results.eligible(trial)]
    trials.sort(key=lambda trial: [_by_size(trial.overrides.get(key)) for key in keys])
    columns = {key.rpartition(".")[2]: [spelled(trial.overrides.get(key)) for trial in trials] for key in keys}
    speaking = [Speaker(results, trial, np.nan) for trial in trials]
    for measure in world.measures:
        columns[measure_heading(measure)] = [format_measured(speaker, MEASURES[measure]) for speaker in speaking]
    table = Cells.from_columns("Every trial", columns, ()).markdown()
    return [table, *images({"ablation": ablation_figure(speaking, world.measures)}, world.title, folder / world.name)]


def _by_size(value: Any) -> tuple[bool, bool, float, str]:
    """Sort key that puts null first, then numbers by size, then names."""
    number = isinstance(value, int | float)
    return value is not None, not number, float(value) if number else 0.0, str(value)


def variant_parts(paper: Paper, world: World, studies: Studies, folder: Path) -> list[str]:
    """Return the Markdown of a world whose rows are variants of one config, each tuned in a study of its own: a row per
    variant, the best first, beside the paper's row of that name, and figures in ``folder``; losses are of the rows that
    the paper has, if any."""
    rows = variant_speakers(studies)
    first = MEASURES[world.measures[0]]
    means = {name: float(values.mean()) for name, speaker in rows.items() if (values := speaker.last(first)).size}
    places = places_by(means)
    rows = dict(sorted(rows.items(), key=lambda item: places.get(item[0], len(rows))))
    columns: dict[str, list[str]] = {"Method": list(rows)}
    orders: list[str] = []
    for measure in world.measures:
        metric, heading = MEASURES[measure], measure_heading(measure)
        published = [paper.published.get((world.name, name, measure)) for name in rows]
        if any(figure is not None for figure in published):
            columns[f"{heading}, paper"] = [format_published(figure, metric) for figure in published]
            theirs = {name: figure.value for name, figure in zip(rows, published, strict=True) if figure is not None}
            if correlation := rank_correlation(theirs, means_of(rows, list(rows), metric)):
                orders.append(f"{heading.removesuffix(' %')}, the paper's order and ours: {correlation}")
        columns[heading] = [format_measured(speaker, metric) for speaker in rows.values()]
    lost = [name for name in studies if name not in rows]
    searched = any(len(results.searched) > 1 for results in studies.values())
    if "regret" in world.measures:
        drawn = {"regret": regret_figure(rows)}
    else:
        papers_rows = {name for of_world, name, _ in paper.published if of_world == world.name} or {*rows}
        runs = [NamedRun(name, speaker.results, speaker.trial) for name, speaker in rows.items() if name in papers_rows]
        drawn = {"curves": variant_curves(world.title, rows), "losses": loss_figure(runs)}
    return [
        *(tell_judges(rows, MEASURES["accuracy"]) if "accuracy" in world.measures else []),
        Cells.from_columns("Every method, tuned" if searched else "Every method, nobody tuned", columns).markdown(),
        *(f"Spearman's rank correlation, with a 95 % interval: {order}." for order in orders),
        *([tuned_table(["Method"], [((name,), speaker) for name, speaker in rows.items()])] if searched else []),
        *([f"No trial did all its rounds: {', '.join(lost)}."] if lost else []),
        *images(drawn, world.title, folder / world.name),
    ]
