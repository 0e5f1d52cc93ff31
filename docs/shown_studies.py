"""The examples' pages, made from their notebooks, and the gallery, whose reports are made from committed records.
MkDocs calls `on_files` as a hook."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbconvert import MarkdownExporter

from flstudy.reporting import write_report

EXAMPLES = Path(__file__).parents[1] / "examples"
STUDIES = Path(__file__).parent / "studies"
SHOWN = ("report.html", "interactive.html", "overview.png")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages and what they show."""
    from mkdocs.structure.files import File

    for name, content in {**dict(examples()), **dict(gallery())}.items():
        files.append(File.generated(config, name, content=content))
    return files


def examples() -> Iterator[tuple[str, str | bytes]]:
    """Yield the page of each notebook, and its pictures, by name."""
    for path in sorted(EXAMPLES.glob("*.ipynb")):
        where = {"unique_key": path.stem, "output_files_dir": f"{path.stem}_files"}
        page, resources = MarkdownExporter().from_filename(str(path), resources=where)
        source = f"`examples/{path.stem}.py` as a notebook, with what it printed. Run it in the folder `examples`.\n\n"
        title, _, rest = page.lstrip().partition("\n")
        yield f"examples/{path.stem}.md", f"{title}\n\n{source}{rest}"
        for name, picture in resources["outputs"].items():
            yield f"examples/{name}", picture


def gallery() -> Iterator[tuple[str, str | bytes]]:
    """Yield the page that shows every study's overview, and the files to which it links, by name."""
    lines = [
        "# Gallery\n",
        "Reports of the [examples](examples/first_study.md)' studies, made from their records when these pages were.",
        "[Reading the report](report.md) says what their sections mean.\n",
    ]
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        for records in sorted(STUDIES.iterdir()):
            folder = Path(shutil.copytree(records, Path("studies", records.name)))
            write_report(folder)
            name, title = records.name, title_of(EXAMPLES / f"{records.name}.ipynb")
            lines += [
                f"## {title}\n",
                f"[Report](gallery/{name}/report.html) · [interactive page](gallery/{name}/interactive.html) ·",
                f"[how it was run](examples/{name}.md)\n",
                f"![The overview of {name}](gallery/{name}/overview.png)\n",
            ]
            for shown in SHOWN:
                yield f"gallery/{name}/{shown}", (folder / "report" / shown).read_bytes()
    yield "gallery.md", "\n".join(lines)


def title_of(notebook: Path) -> str:
    """Return a notebook's first heading."""
    first = nbformat.read(notebook, nbformat.NO_CONVERT).cells[0].source
    return str(first).splitlines()[0].removeprefix("# ")
