"""The HTML page of a report: one file that needs nothing but itself, on a screen or on paper."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from flstudy.reporting.section import Content

TEMPLATE = "report.html.j2"


def write_page(path: Path, title: str, facts: Mapping[str, str], contents: Sequence[Content]) -> Path:
    """Renders the page; `facts` stand below its title. Every text is escaped, only figures are not."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    folder = FileSystemLoader(Path(__file__).parent)
    environment = Environment(
        loader=folder, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    text = environment.get_template(TEMPLATE).render(title=title, facts=facts, sections=contents)
    path.write_text(text, encoding="utf-8")
    return path
