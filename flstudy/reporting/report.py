"""The report of a study: what `flstudy tune` ends with and `flstudy report` repeats."""

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.text import Text

from flstudy.reporting.best import write_best
from flstudy.reporting.figures import plot_curves
from flstudy.reporting.load import StudyResults, load_study
from flstudy.reporting.ranking import Ranking, rank
from flstudy.reporting.tables import Cells, drift_cells, footnotes, hyperparameter_cells, result_cells


@dataclass(frozen=True, kw_only=True)
class Report:
    """A written report; `print` shows it in a terminal."""

    table_markdown: str  # the text of summary.md
    tables: tuple[Cells, ...]
    notes: tuple[str, ...]
    summary_path: Path
    figure_path: Path | None  # None where no trial of the study did all its rounds
    best_paths: Mapping[str, Path]  # algorithm -> its best trial as a config
    next_commands: tuple[tuple[str, str], ...]  # (what for, command), the most useful first

    def print(self, console: Console | None = None) -> None:
        (console or terminal()).print(self.__rich__())

    def __rich__(self) -> RenderableType:
        parts: list[RenderableType] = [cells.rich() for cells in self.tables]
        parts += [Text(note, style="dim") for note in self.notes]
        parts.append(Text())
        parts += [Text(f"{label}: {_from_here(path)}") for label, path in self._written()]
        for purpose, command in self.next_commands:
            parts.append(Text.assemble(f"{purpose}: ", (command, "bold"), overflow="ignore", no_wrap=True))
        return Group(*parts)

    def _written(self) -> list[tuple[str, Path]]:
        figure = [("Curves", self.figure_path)] if self.figure_path else []
        return [*figure, ("Tables", self.summary_path)]


def terminal() -> Console:
    """The terminal, or 100 columns where the output goes to a file or a pipe."""
    console = Console()
    return console if console.is_terminal else Console(width=max(100, console.width))


def report(study_folder: str | os.PathLike[str]) -> Report:
    """Writes <study>/report/{summary.md,curves.png} and <study>/best/<Algorithm>.yaml from the files of the study.

    Works while the study runs, too, on what is there. Raises ValueError where there is no such study.
    """
    results = load_study(study_folder)
    ranking = rank(results)
    folder = results.folder / "report"
    try:
        folder.mkdir(exist_ok=True)
        figure = _figure(results, ranking, folder / "curves.png")
        best = write_best(results, ranking)
        tables = [result_cells(ranking, results.name), hyperparameter_cells(ranking)] if ranking.rows else []
        by_drift = drift_cells(ranking)
        if by_drift is not None:
            tables.insert(1, by_drift)
        notes = footnotes(ranking, len(results.seeds))
        if not ranking.rows:
            notes.insert(0, f"No trial of study {results.name} has done all its {results.rounds} rounds: no table yet.")
        commands = _next(ranking, best)
        summary = folder / "summary.md"
        text = _markdown(results.name, tables, notes, figure, commands)
        summary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"the report cannot be written to {error.filename or folder}: {error.strerror}") from error
    return Report(
        table_markdown=text,
        tables=tuple(tables),
        notes=tuple(notes),
        summary_path=summary,
        figure_path=figure,
        best_paths=best,
        next_commands=tuple(commands),
    )


def _figure(results: StudyResults, ranking: Ranking, path: Path) -> Path | None:
    if not any(row.rounds.size for row in ranking.rows):
        path.unlink(missing_ok=True)  # one of an earlier report would tell of other trials
        return None
    events = [event for event in results.events if event.round <= results.rounds]
    return plot_curves(ranking, events, path, title=f"Study {results.name}: best trial of each algorithm")


def _next(ranking: Ranking, best: Mapping[str, Path]) -> list[tuple[str, str]]:
    commands = [("Browse every run", "flstudy ui")]
    if ranking.rows:
        trial = ranking.rows[0].trial
        command = f"flstudy run {shlex.quote(_from_here(best[trial.algorithm]))}"
        commands.append((f"Run the best trial again ({trial.algorithm}, trial {trial.trial})", command))
    return commands


def _from_here(path: Path) -> str:
    """A path as one would type it in the working directory, where it lies below that."""
    path, here = path.absolute(), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _markdown(
    name: str, tables: list[Cells], notes: list[str], figure: Path | None, commands: list[tuple[str, str]]
) -> str:
    blocks = [f"# Study {name}", *(cells.markdown() for cells in tables)]
    blocks.append("\n".join(f"- {note}" for note in notes))
    if figure is not None:
        blocks.append(f"![Accuracy by round, best trial of each algorithm]({figure.name})")
    blocks += [f"{purpose}:\n\n```sh\n{command}\n```" for purpose, command in commands]
    return "\n\n".join(blocks) + "\n"
