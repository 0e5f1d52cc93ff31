"""Counterparts of the papers' tables and figures: PAPER/counterparts.csv, and the page that ``flstudy reproduce
--counterparts`` makes of all of them.

    item     the paper's table or figure: ``Table 7``, ``Fig. 3``
    part     the part of it that the line covers, where it does not cover all of it: ``Synthetic``
    shows    its content, in a few words
    on       the data of its counterpart: one of ``BASES``
    command  the command that makes the counterpart
    page     the page with its results, relative to the paper's folder; empty where it has not been run
    because  the reason why it is missing or has not been run, or a remark
"""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from flstudy.config import ConfigError, nearest
from flstudy.escaping import for_column
from flstudy.reporting.tables import NOTHING, Cells
from flstudy.reproduction.plan import RESULTS, Paper, read_paper
from flstudy.whole_file import write_whole

FILE = "counterparts.csv"
BASES = {  # value in the file -> words on the page, the nearest data first
    "paper": "on the paper's data",
    "settings": "on its settings with other data",
    "other": "on other data",
    "none": "not here",
}
OVERVIEW = "README.md"
"""Name of the page, beside the papers' folders."""


class Counterpart(NamedTuple):
    """Counterpart of a table or figure of a paper, or of a part of one: a line of the file."""

    item: str
    part: str
    shows: str
    on: str
    command: str
    page: str
    because: str

    @property
    def name(self) -> str:
        return f"{self.item}, {self.part}" if self.part else self.item


def read_counterparts(folder: Path) -> list[Counterpart]:
    """Read the counterparts of a paper's folder, in the order of the file.

    Raises:
        ConfigError: for a line that is incomplete or wrong.
    """
    path = folder / FILE
    if not path.is_file():
        return []
    counterparts: list[Counterpart] = []
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != Counterpart._fields:
            raise ConfigError(f"{path}: the first line must be {','.join(Counterpart._fields)}")
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            if None in row or None in row.values():
                raise ConfigError(f"{where} must have {len(Counterpart._fields)} values: quote those with commas")
            counterpart = Counterpart(**{key: value.strip() for key, value in row.items()})
            if fault := _fault(counterpart, folder):
                raise ConfigError(f"{where}: {fault}")
            if counterpart.name in [other.name for other in counterparts]:
                raise ConfigError(f"{where}: {counterpart.name} has a line already: name its part")
            counterparts.append(counterpart)
    return counterparts


def _fault(line: Counterpart, folder: Path) -> str:
    """Describe the mistake in a line; '' where there is none."""
    if line.on not in BASES:
        return f"on must be one of {', '.join(BASES)}, got {line.on!r}{nearest(line.on, list(BASES))}"
    if not line.item or not line.shows:
        return "item and shows must be given"
    if line.on == "none":
        return "" if line.because and not line.page else f"{line.name} is not here: say because of what, and no page"
    if not line.command.startswith("flstudy "):
        return f"{line.name}: command must be a command of flstudy, got {line.command!r}"
    if line.page and not (folder / line.page).is_file():
        return f"{line.name}: there is no page {line.page!r} in {folder}"
    return "" if line.page or line.because else f"{line.name} has no page: say in because why it was not run"


def in_short(papers: Mapping[str, tuple[str, Sequence[Counterpart]]]) -> str:
    """Return the sentence on how many of the papers' tables and figures are here, by the data of their pages."""
    items: dict[tuple[str, str], list[Counterpart]] = {}
    for name, (_, lines) in papers.items():
        for line in lines:
            items.setdefault((name, line.item), []).append(line)
    bases = {name: [line.on for line in lines if line.page] for name, lines in items.items()}
    nearest_data = [min(of_pages, key=list(BASES).index) for of_pages in bases.values() if of_pages]
    here, (paper, settings, other) = len(nearest_data), map(nearest_data.count, ("paper", "settings", "other"))
    missing = sum(not bases[name] and any(line.on != "none" for line in lines) for name, lines in items.items())
    return (
        f"Of {len(items)} tables and figures {here} have a page, in whole or in part: {paper} {BASES['paper']}, "
        f"{settings} {BASES['settings']}, {other} {BASES['other']}; {missing} have not been run, and "
        f"{len(items) - here - missing} hold no result."
    )


def overview(papers: Mapping[str, tuple[str, Sequence[Counterpart]]], own_papers: Sequence[Paper] = ()) -> str:
    """Return the page with a table for each paper (folder's name -> its title and lines), the number of its tables and
    figures that have a page, and the studies that reproduce no paper."""
    parts = [
        "# The papers' tables and figures, and what stands for them here",
        f"Made by `flstudy reproduce --counterparts` from each paper's `{FILE}`. *{BASES['settings'].capitalize()}*: "
        "the paper's devices, rounds, rates and so on, as far as the data allow; *on other data*: only what is "
        "varied is the paper's. Published numbers: `published.csv` beside the configs.",
        in_short(papers),
    ]
    for name, (title, lines) in papers.items():
        items, here = {line.item for line in lines}, {line.item for line in lines if line.page}
        rows = []
        for line in lines:
            link = f"[{Path(line.page).stem}]({name}/{line.page})" if line.page else NOTHING
            command = f"`{line.command}`" if line.command else NOTHING
            basis = BASES[line.on] if line.page or line.on == "none" else f"not run here; {BASES[line.on]}"
            rows.append((line.name, line.shows, basis, link, command, line.because or NOTHING))
        header = ("In the paper", "Shows", "Counterpart", "Page", "Command", "Because, or to know")
        count = f"{len(items)} tables and figures, {len(here)} of them with a page, in whole or in part"
        cells = Cells(title=count, header=header, rows=tuple(rows), words=frozenset(range(len(header))))
        parts += [f"## {title}", cells.markdown(for_column)]
    for plan in own_papers:
        parts += [f"## {plan.title}", "No paper's: nothing is published beside it.", "\n".join(_own_lines(plan))]
    return "\n\n".join(parts) + "\n"


def _own_lines(plan: Paper) -> list[str]:
    """Return the Markdown line for each world of a plan that reproduces no paper."""
    lines = []
    for world in plan.worlds:
        page = plan.folder / RESULTS / f"{world.name}.md"
        title = f"[{world.title}]({plan.name}/{RESULTS}/{page.name})" if page.is_file() else f"{world.title}, not run"
        lines.append(f"- {title}: `flstudy reproduce {plan.name} --worlds {world.name}`")
    return lines


def own_studies(configs: Path) -> list[Paper]:
    """Return the plans that reproduce no paper's tables and figures."""
    folders = sorted(path.parent for path in configs.glob("*/reproduction.yaml"))
    return [read_paper(folder.name, configs) for folder in folders if not (folder / FILE).is_file()]


def read_all(configs: Path) -> dict[str, tuple[str, list[Counterpart]]]:
    """Return the title and lines of each paper with a counterparts file, by its folder's name."""
    folders = sorted(path.parent for path in configs.glob(f"*/{FILE}"))
    return {folder.name: (read_paper(folder.name, configs).title, read_counterparts(folder)) for folder in folders}


def write_overview(configs: Path) -> Path:
    """Write the page beside the papers' folders and return its path."""
    papers = read_all(configs)
    if not papers:
        raise ConfigError(f"{configs}/ holds no {FILE}: run this where tune_configs is")
    path = configs / OVERVIEW
    write_whole(path, overview(papers, own_studies(configs)))
    return path
