"""Display of rich renderables in a notebook: as HTML in one output that is updated while a study runs."""

import io
import sys
import time
from typing import Any

from rich.console import Console, RenderableType

WIDTH = 100  # columns
EVERY_S = 0.5  # seconds between two updates
PRE = "<pre style=\"line-height: 1.2; font-family: Menlo, 'DejaVu Sans Mono', Consolas, monospace\">{code}</pre>"


def in_notebook() -> bool:
    """Return whether this code runs in the kernel of a notebook."""
    shell = sys.modules.get("IPython")
    interactive = None if shell is None else shell.get_ipython()
    return getattr(interactive, "kernel", None) is not None


def html_of(*drawn: RenderableType) -> str:
    """Render with rich as HTML; every text is escaped."""
    look = {"width": WIDTH, "force_terminal": True, "force_jupyter": False, "highlight": False}
    console = Console(file=io.StringIO(), record=True, **look)  # type: ignore[arg-type]
    for renderable in drawn:
        console.print(renderable)
    return console.export_html(inline_styles=True, code_format=PRE)


class NotebookDisplay:
    """Output below a notebook's cell that can be updated."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._drawn_at = 0.0

    def show(self, drawn: RenderableType, *, now: bool = False) -> None:
        """Replace the output, unless the last update is less than `EVERY_S` old; ``now`` replaces it in any case."""
        if not now and time.monotonic() - self._drawn_at < EVERY_S:
            return
        from IPython.display import HTML, display

        self._drawn_at, page = time.monotonic(), HTML(html_of(drawn))
        if self._handle is None:
            self._handle = display(page, display_id=True)
        else:
            self._handle.update(page)
