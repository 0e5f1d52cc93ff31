"""The HTML page of a report: one file that needs nothing but itself, on a screen or on paper."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flstudy.reporting.tables import Cells

TEMPLATE = "report.html.j2"


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure with what is to be seen in it."""

    svg: str
    caption: str
    paper: bool = False  # its colours need white ground, also on a dark screen


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Text to be copied or read as it stands; folded where it is long."""

    title: str
    text: str
    folded: bool = False


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page. Its title is a sentence; `name` is what the navigation calls it."""

    name: str
    title: str
    lead: str = ""  # what a newcomer has to know to read it
    points: Sequence[str] = ()  # a list of findings
    tables: Sequence[Cells] = ()
    pictures: Sequence[Picture] = ()
    notes: Sequence[str] = ()
    listings: Sequence[Listing] = ()

    @property
    def anchor(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower())


def write_page(path: Path, title: str, facts: Mapping[str, str], sections: Sequence[Section]) -> Path:
    """Renders the page; `facts` are told below its title. Every text is escaped, only figures are not."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    folder = FileSystemLoader(Path(__file__).parent)
    environment = Environment(
        loader=folder, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    text = environment.get_template(TEMPLATE).render(title=title, facts=facts, sections=sections)
    path.write_text(text, encoding="utf-8")
    return path
