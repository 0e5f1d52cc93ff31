"""Report of a study, or of several, which `flstudy tune` writes at its end and `flstudy report` again."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console, Group, RenderableType
from rich.text import Text

from flstudy.config import ConfigError
from flstudy.escaping import for_markdown, for_terminal
from flstudy.reporting.interactive import NAME, write_interactive
from flstudy.reporting.page import render
from flstudy.reporting.ranking import Findings
from flstudy.reporting.section import Content, every_section
from flstudy.reporting.style import to_png
from flstudy.reporting.tables import Cells, write_latex
from flstudy.study import StudyResults, load_study
from flstudy.study.folder import from_here
from flstudy.study.trial import without_nan
from flstudy.user_error import UserError
from flstudy.whole_file import write_whole

LONGEST = 80  # characters of a folder's name


@dataclass(frozen=True, kw_only=True)
class Report:
    """Report that has been written; `print` shows it in a terminal."""

    folder: Path
    tables: tuple[Cells, ...]
    notes: tuple[str, ...]
    figure_path: Path | None  # None where no trial of the study did all its rounds
    best_paths: Mapping[str, Path]  # algorithm -> its best trial as a config
    next_commands: tuple[tuple[str, str], ...]  # (purpose, command), the most useful first
    values: Mapping[str, Any]  # the findings as JSON values

    @property
    def page_path(self) -> Path:
        """Path of the whole report as one HTML file."""
        return self.folder / "report.html"

    @property
    def interactive_path(self) -> Path | None:
        """Path of the page with values under the pointer; None for several studies."""
        path = self.folder / NAME
        return path if path.is_file() else None

    @property
    def summary_path(self) -> Path:
        return self.folder / "summary.md"

    @property
    def latex_path(self) -> Path:
        return self.folder / "tables.tex"

    @property
    def citations_path(self) -> Path:
        return self.folder / "citations.bib"

    def print(self, console: Console | None = None) -> None:
        console = console or terminal()
        for part in self._parts():
            console.print(Group(part), crop=not isinstance(part, Text))  # commands and paths are copied whole

    def __rich__(self) -> RenderableType:
        return Group(*self._parts())

    def _parts(self) -> list[RenderableType]:
        parts: list[RenderableType] = [*self.tables]
        parts += [Text(for_terminal(note), style="dim") for note in self.notes]
        written = {
            "Report": self.page_path,
            "Interactive": self.interactive_path,
            "Curves": self.figure_path,
            "Tables": self.summary_path,
        }
        written |= {"LaTeX": self.latex_path, "BibTeX": self.citations_path}
        parts.append(Text())
        lines = [(label, from_here(path), "none") for label, path in written.items() if path is not None]
        lines += [(purpose, command, "bold") for purpose, command in self.next_commands]
        for label, copied, style in lines:
            shown = for_terminal(f"{label}: "), (for_terminal(copied), style)
            parts.append(Text.assemble(*shown, overflow="ignore", no_wrap=True))
        return parts


def terminal() -> Console:
    """Return the console of the terminal, or of at least 100 columns where the output goes to a file or a pipe."""
    console = Console()
    return console if console.is_terminal else Console(width=max(100, console.width))


def write_report(*studies: str | os.PathLike[str]) -> Report:
    """Write the report of one study into its folder report/, and its best trials as configs into best/; of several
    studies a common report beside the first one. A study that still runs is reported with the trials that it has.

    Raises:
        UserError: where there is no such study, or a file cannot be written; for several studies, where two have the
            same name or their objectives differ.
    """
    loaded = [Findings(results=load_study(folder)) for folder in studies]
    names = [findings.results.name for findings in loaded]
    if len(loaded) == 1:
        folder, best = loaded[0].results.folder.report, write_best(loaded[0].results)
        contents = [content for section in every_section() if (content := section.of_study(loaded[0])) is not None]
        return _write(folder, names[0], contents, best, prefix=f"{names[0]}-", findings=loaded[0])
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(f"studies in one report must have different names, got {twice[0]!r} twice: leave one out")
    common = f"report-{'-'.join(names)}"
    if len(common) > LONGEST:
        common = f"{common[: LONGEST - 9]}-{hashlib.sha256(common.encode()).hexdigest()[:8]}"
    folder = loaded[0].results.folder.path.absolute().parent / common
    contents = [content for section in every_section() for content in section.of_studies(loaded)]
    reports = [
        _values(content for section in every_section() if (content := section.of_study(study))) for study in loaded
    ]
    return _write(folder, ", ".join(names), contents, {}, reports=reports)


def _write(
    folder: Path,
    title: str,
    contents: Sequence[Content],
    best: Mapping[str, Path],
    prefix: str = "",
    findings: Findings | None = None,
    **values: Any,
) -> Report:
    """Write the files of a report from its sections' contents; ``findings`` of one study add an interactive page."""
    tables = [cells for content in contents for cells in content.brief]
    notes = [note for content in contents for note in content.remarks]
    commands = [command for content in contents for command in content.commands]
    exports = {name: picture for content in contents for name, picture in content.exports.items()}
    every = {cells.label: cells for content in contents for cells in [*content.tables, *content.brief]}
    for_paper = [dataclasses.replace(cells, label=prefix + label) for label, cells in every.items() if label]
    heading = next((content.heading for content in contents if content.heading), title)
    facts = next((content.facts for content in contents if content.facts), {})
    report = Report(
        folder=folder,
        tables=tuple(tables),
        notes=tuple(notes),
        figure_path=next((folder / name for name in exports), None),
        best_paths=best,
        next_commands=tuple(commands),
        values={**_values(contents), **values},
    )
    listed = "\n".join(f"- {for_markdown(note)}" for note in notes)
    blocks = [f"# Study {for_markdown(title)}", *(cells.markdown() for cells in tables), listed]
    blocks += [f"![{for_markdown(picture.caption)}]({name})" for name, picture in exports.items()]
    blocks += [f"{purpose}:\n\n```sh\n{for_terminal(command)}\n```" for purpose, command in commands]
    try:
        folder.mkdir(exist_ok=True)
        for stale in folder.glob("*.png"):  # those of an earlier report show other trials
            stale.unlink()
        for name, picture in exports.items():
            to_png(picture.figure, folder / name)
        write_whole(report.summary_path, "\n\n".join(blocks) + "\n")
        write_latex(report.latex_path, for_paper, notes)
        for content in contents:
            for name, text in content.files.items():
                write_whole(folder / name, text)
        shown, link = [content for content in contents if content.title], ""
        if findings is not None:
            link = write_interactive(folder, findings, heading, tables).name
        write_page(report.page_path, heading, facts, shown, link)
    except OSError as error:
        raise UserError(f"the report cannot be written to {error.filename or folder}: {error.strerror}") from error
    return report


def _values(contents: Iterable[Content]) -> dict[str, Any]:
    """Return all sections' values as JSON values: arrays as lists; NaN and infinity, which JSON lacks, as None."""
    values = {name: value for content in contents for name, value in content.values.items()}
    return dict(without_nan(json.loads(json.dumps(values, default=lambda value: value.tolist()))))


def write_page(
    path: Path, title: str, facts: Mapping[str, str], contents: Sequence[Content], interactive: str = ""
) -> Path:
    """Write the self-contained page for screen and paper and return its path; `facts` stand below its title, with a
    link to the interactive page if there is one. Every text is escaped, only figures are not."""
    text = render("report.html.j2", title=title, facts=facts, sections=contents, interactive=interactive)
    write_whole(path, text)
    return path


def write_best(results: StudyResults) -> dict[str, Path]:
    """Write each algorithm's best trial as <study>/best/<Algorithm>.yaml, a config that can be run, remove those of an
    earlier report, and return the paths by algorithm."""
    folder, paths = results.folder.best, {}
    try:
        folder.mkdir(exist_ok=True)
        for best in results.best:
            path = folder / f"{best.trial.algorithm}.yaml"
            heading = f"# The best {best.trial.algorithm} of study {results.name}: trial {best.trial.number}.\n"
            try:
                config = results.trial_config(best.trial)
                config.pop("store", None)  # whoever runs it chooses the store
            except ConfigError:  # study.yaml is damaged
                continue
            paths[best.trial.algorithm] = path
            write_whole(path, heading + yaml.safe_dump(config, sort_keys=False))
        for stale in set(folder.glob("*.yaml")) - set(paths.values()):
            stale.unlink()
    except OSError as error:
        raise UserError(f"the report cannot be written to {error.filename or folder}: {error.strerror}") from error
    return paths
