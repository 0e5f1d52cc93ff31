"""The tables and figures of the papers and what stands for each of them here: PAPER/counterparts.csv, and the page
that ``flstudy reproduce --counterparts`` makes of all of them.

    item     the paper's table or figure: ``Table 7``, ``Fig. 3``
    part     the part of it that this line is about, where a line is not about all of it: ``Synthetic``
    shows    what it shows, in a few words
    on       what its counterpart is measured on: one of ``BASES``
    command  what makes it
    page     where its results are, from the paper's folder; empty where it has not been run
    because  why it is not here or has not been run, or what else must be known
"""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from flstudy.config import ConfigError, nearest
from flstudy.reporting.tables import NOTHING, Cells
from flstudy.reproduction.plan import RESULTS, Paper, read_paper

FILE = "counterparts.csv"
BASES = {  # written in the file -> said on the page
    "paper": "on the paper's data",
    "settings": "on its settings with other data",
    "other": "on other data",
    "none": "not here",
}
OVERVIEW = "README.md"
"""The page, beside the papers' folders."""


class Counterpart(NamedTuple):
    """A line: a table or figure of a paper, or a part of one."""

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
    """The lines of a paper's folder, in their order.

    Raises:
        ConfigError: for a line that says too little, or something wrong.
    """
    path = folder / FILE
    if not path.is_file():
        return []
    found: list[Counterpart] = []
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != Counterpart._fields:
            raise ConfigError(f"{path}: the first line must be {','.join(Counterpart._fields)}")
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            if None in row or None in row.values():
                raise ConfigError(f"{where} must have {len(Counterpart._fields)} values: quote those with commas")
            one = Counterpart(**{key: value.strip() for key, value in row.items()})
            if fault := _fault(one, folder):
                raise ConfigError(f"{where}: {fault}")
            if one.name in [other.name for other in found]:
                raise ConfigError(f"{where}: {one.name} has a line already: name its part")
            found.append(one)
    return found


def _fault(one: Counterpart, folder: Path) -> str:
    """What is wrong with a line; '' where nothing is."""
    if one.on not in BASES:
        return f"on must be one of {', '.join(BASES)}, got {one.on!r}{nearest(one.on, list(BASES))}"
    if not one.item or not one.shows:
        return "item and shows must be given"
    if one.on == "none":
        return "" if one.because and not one.page else f"{one.name} is not here: say because of what, and no page"
    if not one.command.startswith("flstudy "):
        return f"{one.name}: command must be a command of flstudy, got {one.command!r}"
    if one.page and not (folder / one.page).is_file():
        return f"{one.name}: there is no page {one.page!r} in {folder}"
    return "" if one.page or one.because else f"{one.name} has no page: say in because why it was not run"


def overview(papers: Mapping[str, tuple[str, Sequence[Counterpart]]], own: Sequence[Paper] = ()) -> str:
    """The page: for each paper (folder's name -> its title and lines) a table, and how many of its tables and figures
    are here; and the studies that are no paper's."""
    parts = [
        "# The papers' tables and figures, and what stands for them here",
        f"Made by `flstudy reproduce --counterparts` from each paper's `{FILE}`. *{BASES['settings'].capitalize()}*: "
        "the paper's devices, rounds, rates and so on, as far as the data allow; *on other data*: only what is "
        "varied is the paper's. Published numbers: `published.csv` beside the configs.",
    ]
    for name, (title, lines) in papers.items():
        items, here = {one.item for one in lines}, {one.item for one in lines if one.page}
        rows = []
        for one in lines:
            link = f"[{Path(one.page).stem}]({name}/{one.page})" if one.page else NOTHING
            command = f"`{one.command}`" if one.command else NOTHING
            basis = BASES[one.on] if one.page or one.on == "none" else f"not run here; {BASES[one.on]}"
            rows.append((one.name, one.shows, basis, link, command, one.because or NOTHING))
        header = ("In the paper", "Shows", "Counterpart", "Page", "Command", "Because, or to know")
        count = f"{len(items)} tables and figures, {len(here)} of them with a page, in whole or in part"
        cells = Cells(title=count, header=header, rows=tuple(rows), words=frozenset(range(len(header))))
        parts += [f"## {title}", cells.markdown()]
    for plan in own:
        parts += [f"## {plan.title}", "No paper's: nothing is published beside it.", "\n".join(_own_lines(plan))]
    return "\n\n".join(parts) + "\n"


def _own_lines(plan: Paper) -> list[str]:
    """A line for each world of a study that is no paper's."""
    lines = []
    for world in plan.worlds:
        page = plan.folder / RESULTS / f"{world.name}.md"
        title = f"[{world.title}]({plan.name}/{RESULTS}/{page.name})" if page.is_file() else f"{world.title}, not run"
        lines.append(f"- {title}: `flstudy reproduce {plan.name} --worlds {world.name}`")
    return lines


def own_studies(configs: Path) -> list[Paper]:
    """Plans that reproduce no paper's tables and figures."""
    folders = sorted(path.parent for path in configs.glob("*/reproduction.yaml"))
    return [read_paper(folder.name, configs) for folder in folders if not (folder / FILE).is_file()]


def read_all(configs: Path) -> dict[str, tuple[str, list[Counterpart]]]:
    """Title and lines of each paper with lines, by its folder's name."""
    folders = sorted(path.parent for path in configs.glob(f"*/{FILE}"))
    return {folder.name: (read_paper(folder.name, configs).title, read_counterparts(folder)) for folder in folders}


def write_overview(configs: Path) -> Path:
    """Writes the page beside the papers' folders and returns its path."""
    papers = read_all(configs)
    if not papers:
        raise ConfigError(f"{configs}/ holds no {FILE}: run this where tune_configs is")
    path = configs / OVERVIEW
    path.write_text(overview(papers, own_studies(configs)), encoding="utf-8")
    return path
