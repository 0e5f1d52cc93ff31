"""Self-contained HTML pages."""

from pathlib import Path
from typing import Any

from flstudy.escaping import for_terminal

PARTS = {"style": "page.css", "sorting": "sorting.js", "script": "interactive.js"}  # files that pages embed


def render(template: str, **values: Any) -> str:
    """Render a template as a page with the style and scripts embedded."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    here = Path(__file__).parent
    page = Environment(
        loader=FileSystemLoader(here),
        autoescape=True,
        finalize=lambda value: for_terminal(value) if type(value) is str else value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    parts = {name: Markup((here / file).read_text(encoding="utf-8")) for name, file in PARTS.items()}
    return page.get_template(template).render(**parts, **values)
