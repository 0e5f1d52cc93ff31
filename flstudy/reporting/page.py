"""HTML pages that need nothing but themselves."""

from pathlib import Path
from typing import Any

PARTS = {"style": "page.css", "sorting": "sorting.js", "script": "interactive.js"}  # that pages hold


def render(template: str, **values: Any) -> str:
    """A page from its template, with the house's style and scripts in it."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    here = Path(__file__).parent
    page = Environment(
        loader=FileSystemLoader(here), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    own = {name: Markup((here / file).read_text(encoding="utf-8")) for name, file in PARTS.items()}
    return page.get_template(template).render(**own, **values)
