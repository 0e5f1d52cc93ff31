"""A common report of several studies: the same algorithms in several worlds."""

import hashlib
import os
import shlex
from collections.abc import Sequence

from flstudy.reporting import figures
from flstudy.reporting.citations import bibtex, citations
from flstudy.reporting.comparison import LEVEL, Worlds, compare_worlds
from flstudy.reporting.finding_tables import citation_cells, comparison_cells, probability, standing_cells
from flstudy.reporting.findings import Findings, find
from flstudy.reporting.latex import write_tables
from flstudy.reporting.load import load_study
from flstudy.reporting.page import Listing, Picture, Section, write_page
from flstudy.reporting.plain import study_values, worlds_values
from flstudy.reporting.report import Report, from_here, markdown
from flstudy.reporting.sections import verdicts
from flstudy.reporting.tables import Cells, result_cells

LONGEST = 80  # characters of a folder's name


def report_worlds(folders: Sequence[str | os.PathLike[str]]) -> Report:
    """Writes report-<study>-<study>/ beside the first study: report.html, summary.md, results.png, tables.tex and
    citations.bib.

    Raises:
        ValueError: for a study that cannot be read, two of one name, or studies with different objectives.
    """
    studies = [load_study(folder) for folder in folders]
    names = [results.name for results in studies]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"studies in one report must have different names, got {twice[0]!r} twice: leave one out")
    found = [find(results) for results in studies]
    worlds = compare_worlds([(one.results, one.ranking) for one in found])
    cited = citations(studies, importances=False, ranks=True)
    folder = studies[0].folder.absolute().parent / _folder_name(names)
    tables = _tables(found, worlds)
    notes = notes_of(worlds)
    title = ", ".join(names)
    try:
        folder.mkdir(exist_ok=True)
        picture, figure = folder / "results.png", figures.worlds_figure(worlds)
        if figure is None:
            picture.unlink(missing_ok=True)
        else:
            figures.to_png(figure, picture)
        again = f"flstudy report {' '.join(shlex.quote(from_here(results.folder)) for results in studies)}"
        commands = [("Make this report again", again)]
        shown = [cells for _, cells in tables]
        text = markdown(title, shown, notes, None if figure is None else picture, commands)
        summary, latex, bibliography = folder / "summary.md", folder / "tables.tex", folder / "citations.bib"
        summary.write_text(text, encoding="utf-8")
        write_tables(latex, tables, notes)
        bibliography.write_text(bibtex(cited), encoding="utf-8")
        page = write_page(
            folder / "report.html",
            f"{len(names)} studies beside each other: {headline(worlds)}",
            {"Studies": title, "Compared on": worlds.metric},
            [
                *_sections(found, worlds, notes, [] if figure is None else [figures.to_svg(figure)]),
                Section(
                    name="How it was made",
                    title="How can this be made again?",
                    listings=[Listing(title=purpose, text=command) for purpose, command in commands],
                ),
                Section(
                    name="Citations",
                    title="Whom to cite for what these studies used.",
                    tables=[citation_cells(cited)],
                    listings=[Listing(title="BibTeX", text=bibtex(cited), folded=True)],
                ),
            ],
        )
    except OSError as error:
        raise ValueError(f"the report cannot be written to {error.filename or folder}: {error.strerror}") from error
    return Report(
        table_markdown=text,
        tables=tuple(shown),
        notes=tuple(notes),
        summary_path=summary,
        page_path=page,
        latex_path=latex,
        citations_path=bibliography,
        figure_path=None if figure is None else picture,
        best_paths={},
        next_commands=tuple(commands),
        values={**worlds_values(worlds), "reports": [study_values(one) for one in found]},
    )


def headline(worlds: Worlds) -> str:
    """What came out, in a sentence."""
    if not worlds.standings:
        return "no algorithm has a result in all of them"
    first = worlds.standings[0]
    return f"{first.algorithm} has the best mean rank, {first.mean_rank:.2f}"


def notes_of(worlds: Worlds) -> list[str]:
    """The test over studies, then what is missing."""
    said = []
    if worlds.friedman is not None:
        statistic, p = worlds.friedman
        verdict = "some algorithms differ" if p < LEVEL else "no difference between the algorithms is shown"
        sign = probability(p) if p < 0.001 else f"= {probability(p)}"
        said.append(f"Friedman's test over the studies: χ² = {statistic:.2f}, p {sign}: {verdict}.")
    said.append("Rank 1 is best; a win is a study in which nobody was better; equal algorithms share their ranks.")
    said += worlds.notes
    where: dict[str, list[str]] = {}  # note -> studies
    for name, comparison in zip(worlds.names, worlds.comparisons, strict=True):
        for note in comparison.notes:
            where.setdefault(note, []).append(name)
    return said + [f"{', '.join(names)}: {note}" for note, names in where.items()]


def _tables(found: Sequence[Findings], worlds: Worlds) -> list[tuple[str, Cells]]:
    made = [("ranks", standing_cells(worlds))] if worlds.standings else []
    return made + [
        (f"{one.results.name}-ranking", result_cells(one.ranking, one.results.name))
        for one in found
        if one.ranking.rows
    ]


def _sections(found: Sequence[Findings], worlds: Worlds, notes: list[str], svgs: list[str]) -> list[Section]:
    made = [
        Section(
            name="Summary",
            title=f"Over all studies, {headline(worlds)}.",
            tables=[standing_cells(worlds)] if worlds.standings else [],
            pictures=[
                Picture(svg=svg, caption="Mean and standard deviation over seeds, in each study.") for svg in svgs
            ],
            notes=notes,
        )
    ]
    for one, comparison in zip(found, worlds.comparisons, strict=True):
        pairs, own = comparison_cells(comparison), one.results.folder / "report" / "report.html"
        ranked = [result_cells(one.ranking, one.results.name)] if one.ranking.rows else []
        made.append(
            Section(
                name=one.results.name,
                title=f"What came out in study {one.results.name}?",
                points=verdicts(comparison),
                tables=[*ranked, *([pairs] if pairs else [])],
                notes=[f"Its own report: {from_here(own)}"] if own.is_file() else [],
            )
        )
    return made


def _folder_name(names: Sequence[str]) -> str:
    """Told apart from other reports by the studies' names, cut where these are long."""
    name = f"report-{'-'.join(names)}"
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
