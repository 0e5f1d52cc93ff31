"""The sections of a report. Each is one file in sections/, which a registry finds there: what it analyses, its tables,
its figures, its values for ``--json`` and its part of the page."""

import functools
import importlib
import pkgutil
import re
from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from matplotlib.figure import Figure

from flstudy.reporting import sections as folder
from flstudy.reporting.ranking import Findings
from flstudy.reporting.style import to_svg
from flstudy.reporting.tables import Cells


@dataclass(frozen=True)
class Picture:
    """A figure with what is to be seen in it."""

    figure: Figure
    caption: str
    paper: bool = False  # its colours need white ground, also on a dark screen

    @property
    def svg(self) -> str:
        return to_svg(self.figure)


def pictures(*drawn: tuple[Figure | None, str], paper: bool = False) -> list[Picture]:
    """Of the figures that there are, each with its caption."""
    return [Picture(figure, caption, paper) for figure, caption in drawn if figure is not None]


def present(*tables: Cells | None) -> list[Cells]:
    """The tables that there are."""
    return [cells for cells in tables if cells is not None]


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Text to be copied or read as it stands; folded where it is long."""

    title: str
    text: str
    folded: bool = False


@dataclass(frozen=True, kw_only=True)
class Content:
    """What a section says in each form of a report."""

    name: str = ""  # in the page's navigation
    title: str = ""  # a sentence; without one it is not on the page
    lead: str = ""  # what a newcomer has to know to read it
    points: Sequence[str] = ()  # a list of findings
    tables: Sequence[Cells] = ()
    pictures: Sequence[Picture] = ()
    notes: Sequence[str] = ()
    listings: Sequence[Listing] = ()
    heading: str = ""  # of the whole page
    facts: Mapping[str, str] = field(default_factory=dict)  # below the page's heading
    brief: Sequence[Cells] = ()  # tables of the terminal and of summary.md
    remarks: Sequence[str] = ()  # sentences below those
    commands: Sequence[tuple[str, str]] = ()  # (what for, command) below those
    exports: Mapping[str, Picture] = field(default_factory=dict)  # PNG files beside summary.md, which shows them
    files: Mapping[str, str] = field(default_factory=dict)  # texts beside it
    values: Mapping[str, Any] = field(default_factory=dict)  # for --json

    @property
    def anchor(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower())


class ReportSection(ABC):
    """A part of every report."""

    order: ClassVar[int]
    """Sections stand in a report by ascending order."""

    def of_study(self, found: Findings) -> Content | None:
        """Its part in the report of one study; None where it has nothing to say."""
        return None

    def of_studies(self, found: Sequence[Findings]) -> Sequence[Content]:
        """Its parts in the common report of several studies."""
        return ()


def from_here(path: Path) -> str:
    """A path as one would type it in the working directory, where it lies below that."""
    path, here = path.absolute(), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


@functools.cache
def every_section() -> tuple[ReportSection, ...]:
    """One of each kind in sections/, in their order."""
    for module in pkgutil.iter_modules(folder.__path__, f"{folder.__name__}."):
        importlib.import_module(module.name)
    kinds = [kind for kind in ReportSection.__subclasses__() if kind.__module__.startswith(f"{folder.__name__}.")]
    return tuple(kind() for kind in sorted(kinds, key=lambda kind: kind.order))
