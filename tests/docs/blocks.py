"""The code blocks of a page of the docs, put into the files that they name."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(?:python|yaml)\n# (\S+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def files_of(page: str) -> dict[str, str]:
    """Contents by file name; blocks of one file follow each other."""
    texts_by_name: dict[str, list[str]] = {}
    for name, text in BLOCK.findall((DOCS / page).read_text()):
        texts_by_name.setdefault(name, []).append(text)
    return {name: "\n\n".join(texts) for name, texts in texts_by_name.items()}
