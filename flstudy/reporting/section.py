"""Sections of a report. Each is a file in sections/, where a registry finds it: its analysis, its tables, its figures,
its values for ``--json`` and its part of the page."""

import functools
import importlib
import pkgutil
import re
from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from matplotlib.figure import Figure

from flstudy.reporting import sections as folder
from flstudy.reporting.ranking import Findings
from flstudy.reporting.style import to_svg
from flstudy.reporting.tables import Cells


@dataclass(frozen=True)
class Picture:
    """Figure with its caption."""

    figure: Figure
    caption: str
    paper: bool = False  # its colours need a white background, also on a dark screen

    @property
    def svg(self) -> str:
        return to_svg(self.figure)


def pictures(*drawn: tuple[Figure | None, str], paper: bool = False) -> list[Picture]:
    """Return the pictures of those of the figures that are not None, each with its caption."""
    return [Picture(figure, caption, paper) for figure, caption in drawn if figure is not None]


def present(*tables: Cells | None) -> list[Cells]:
    """Return the tables that are not None."""
    return [cells for cells in tables if cells is not None]


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Preformatted text to be copied; folded where it is long."""

    title: str
    text: str
    folded: bool = False


@dataclass(frozen=True, kw_only=True)
class Content:
    """Content of a section in each form of a report."""

    name: str = ""  # in the page's navigation
    title: str = ""  # a sentence; without one it is not on the page
    lead: str = ""  # introduction for a newcomer
    points: Sequence[str] = ()  # a list of findings
    tables: Sequence[Cells] = ()
    pictures: Sequence[Picture] = ()
    notes: Sequence[str] = ()
    listings: Sequence[Listing] = ()
    heading: str = ""  # of the whole page
    facts: Mapping[str, str] = field(default_factory=dict)  # below the page's heading
    brief: Sequence[Cells] = ()  # tables of the terminal and of summary.md
    remarks: Sequence[str] = ()  # sentences below these tables
    commands: Sequence[tuple[str, str]] = ()  # (purpose, command) below the remarks
    exports: Mapping[str, Picture] = field(default_factory=dict)  # PNG files beside summary.md, which shows them
    files: Mapping[str, str] = field(default_factory=dict)  # text files beside summary.md
    values: Mapping[str, Any] = field(default_factory=dict)  # for --json

    @property
    def anchor(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower())


class ReportSection(ABC):
    """Base class of a part of every report."""

    order: ClassVar[int]
    """Sections stand in a report by ascending order."""

    def of_study(self, findings: Findings) -> Content | None:
        """Return the content in the report of one study; None where there is nothing to report."""
        return None

    def of_studies(self, studies: Sequence[Findings]) -> Sequence[Content]:
        """Return the contents in the common report of several studies."""
        return ()


@functools.cache
def every_section() -> tuple[ReportSection, ...]:
    """Return the instances of all section classes in sections/, in their order."""
    for module in pkgutil.iter_modules(folder.__path__, f"{folder.__name__}."):
        importlib.import_module(module.name)
    kinds = [kind for kind in ReportSection.__subclasses__() if kind.__module__.startswith(f"{folder.__name__}.")]
    return tuple(kind() for kind in sorted(kinds, key=lambda kind: kind.order))
