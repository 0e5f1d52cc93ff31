"""The report of a study: what `flstudy tune` ends with and `flstudy report` repeats."""

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from flstudy.reporting import figures
from flstudy.reporting.best import write_best
from flstudy.reporting.bits import bits_cells
from flstudy.reporting.citations import bibtex
from flstudy.reporting.finding_tables import PAIRS_SHOWN, comparison_cells, cost_cells, sensitivity_cells
from flstudy.reporting.findings import Findings, find
from flstudy.reporting.latex import write_tables
from flstudy.reporting.load import load_study
from flstudy.reporting.page import write_page
from flstudy.reporting.plain import study_values
from flstudy.reporting.ranking import Ranking
from flstudy.reporting.sections import headline, study_facts, study_sections
from flstudy.reporting.tables import Cells, drift_cells, footnotes, hyperparameter_cells, result_cells, session_cells


@dataclass(frozen=True, kw_only=True)
class Report:
    """A written report; `print` shows it in a terminal."""

    table_markdown: str  # the text of summary.md
    tables: tuple[Cells, ...]
    notes: tuple[str, ...]
    summary_path: Path
    page_path: Path  # the whole report as one HTML file
    latex_path: Path
    citations_path: Path
    figure_path: Path | None  # None where no trial of the study did all its rounds
    best_paths: Mapping[str, Path]  # algorithm -> its best trial as a config
    next_commands: tuple[tuple[str, str], ...]  # (what for, command), the most useful first
    values: Mapping[str, Any] = field(default_factory=dict)  # the findings as JSON can hold them

    def print(self, console: Console | None = None) -> None:
        (console or terminal()).print(self.__rich__())

    def __rich__(self) -> RenderableType:
        parts: list[RenderableType] = [cells.rich() for cells in self.tables]
        parts += [Text(note, style="dim") for note in self.notes]
        parts.append(Text())
        parts += [Text(f"{label}: {from_here(path)}") for label, path in self._written()]
        for purpose, command in self.next_commands:
            parts.append(Text.assemble(f"{purpose}: ", (command, "bold"), overflow="ignore", no_wrap=True))
        return Group(*parts)

    def _written(self) -> list[tuple[str, Path]]:
        figure = [("Curves", self.figure_path)] if self.figure_path else []
        return [
            ("Report", self.page_path),
            *figure,
            ("Tables", self.summary_path),
            ("LaTeX", self.latex_path),
            ("BibTeX", self.citations_path),
        ]


def terminal() -> Console:
    """The terminal, or 100 columns where the output goes to a file or a pipe."""
    console = Console()
    return console if console.is_terminal else Console(width=max(100, console.width))


def report(study_folder: str | os.PathLike[str], *more: str | os.PathLike[str]) -> Report:
    """Writes <study>/report/{report.html,summary.md,curves.png,tables.tex,citations.bib} and
    <study>/best/<Algorithm>.yaml from the files of the study; of several studies, a common report beside them.

    Works while the study runs, too, on what is there. Raises ValueError where there is no such study, or where several
    have not searched for the same thing.
    """
    if more:
        from flstudy.reporting.worlds import report_worlds

        return report_worlds([study_folder, *more])
    results = load_study(study_folder)
    found = find(results)
    ranking = found.ranking
    folder = results.folder / "report"
    try:
        folder.mkdir(exist_ok=True)
        figure = _curves(found, folder / "curves.png")
        best = write_best(results, ranking)
        tables = dict(_tables(found))
        notes = footnotes(ranking, len(results.seeds))
        if not ranking.rows:
            notes.insert(0, f"No trial of study {results.name} has done all its {results.rounds} rounds: no table yet.")
        notes += [*found.comparison.notes, *found.budget_notes]
        commands = _next(ranking, best)
        text = markdown(results.name, list(tables.values()), notes, figure, commands)
        summary, latex, bibliography = folder / "summary.md", folder / "tables.tex", folder / "citations.bib"
        summary.write_text(text, encoding="utf-8")
        for_paper = {**tables, "cost": cost_cells(found.costs)} if found.costs else tables
        for_paper |= {"bits": cells} if found.bits is not None and (cells := bits_cells(found.bits)) else {}
        write_tables(latex, [(f"{results.name}-{name}", cells) for name, cells in for_paper.items()], notes)
        bibliography.write_text(bibtex(found.citations), encoding="utf-8")
        resume = f"flstudy tune --resume {shlex.quote(results.name)}"
        again = [*commands, ("Go on with the study, or extend it", resume)]
        page = write_page(
            folder / "report.html",
            f"Study {results.name}: {headline(found)}",
            study_facts(found),
            study_sections(found, again),
        )
    except OSError as error:
        raise ValueError(f"the report cannot be written to {error.filename or folder}: {error.strerror}") from error
    return Report(
        table_markdown=text,
        tables=tuple(tables.values()),
        notes=tuple(notes),
        summary_path=summary,
        page_path=page,
        latex_path=latex,
        citations_path=bibliography,
        figure_path=figure,
        best_paths=best,
        next_commands=tuple(commands),
        values=study_values(found),
    )


def _tables(found: Findings) -> list[tuple[str, Cells]]:
    """What a terminal shows, by name; nothing before a trial has done all rounds."""
    ranking = found.ranking
    if not ranking.rows:
        return []
    made = [
        ("ranking", result_cells(ranking, found.results.name)),
        ("drifts", drift_cells(ranking)),
        ("sessions", session_cells(ranking)),
        ("hyper-parameters", hyperparameter_cells(ranking)),
        ("comparison", comparison_cells(found.comparison, PAIRS_SHOWN)),
        ("sensitivity", sensitivity_cells(found.sensitivities, ranking.selection_metric)),
    ]
    return [(name, cells) for name, cells in made if cells is not None]


def _curves(found: Findings, path: Path) -> Path | None:
    results = found.results
    events = [event for event in results.events if event.round <= results.rounds]
    figure = figures.curves(found.ranking, events, title=f"Study {results.name}: best trial of each algorithm")
    if figure is None:
        path.unlink(missing_ok=True)  # one of an earlier report would tell of other trials
        return None
    return figures.to_png(figure, path)


def _next(ranking: Ranking, best: Mapping[str, Path]) -> list[tuple[str, str]]:
    commands = [("Browse every run", "flstudy ui")]
    if ranking.rows:
        trial = ranking.rows[0].trial
        command = f"flstudy run {shlex.quote(from_here(best[trial.algorithm]))}"
        commands.append((f"Run the best trial again ({trial.algorithm}, trial {trial.trial})", command))
    return commands


def from_here(path: Path) -> str:
    """A path as one would type it in the working directory, where it lies below that."""
    path, here = path.absolute(), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def markdown(
    name: str, tables: list[Cells], notes: list[str], figure: Path | None, commands: list[tuple[str, str]]
) -> str:
    """The text of a summary.md."""
    blocks = [f"# Study {name}", *(cells.markdown() for cells in tables)]
    blocks.append("\n".join(f"- {note}" for note in notes))
    if figure is not None:
        blocks.append(f"![Accuracy by round, best trial of each algorithm]({figure.name})")
    blocks += [f"{purpose}:\n\n```sh\n{command}\n```" for purpose, command in commands]
    return "\n\n".join(blocks) + "\n"
