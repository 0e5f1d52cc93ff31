"""The notebooks of examples/: `python docs/notebooks.py [NAME ...]` runs its scripts, or those named, as notebooks in
empty folders, and writes them with their outputs. What their studies recorded goes to docs/studies, for the gallery.
Needs jupytext, nbclient and ipykernel."""

import base64
import io
import json
import shutil
import sys
import tempfile
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

from flstudy.reporting.style import small_png

EXAMPLES = Path(__file__).parents[1] / "examples"
STUDIES = Path(__file__).parent / "studies"
RECORDED = ("study.yaml", "state.json", "events.json", "trials.jsonl", "records")
"""What a report is made of."""
OF_THE_MACHINE = ("store", "modules", "cwd", "pid", "host", "boot", "start")
LIMIT_S = 1800


def main() -> int:
    """Run the scripts, and write their notebooks and their studies' records."""
    for name in sys.argv[1:] or sorted(script.stem for script in EXAMPLES.glob("*.py")):
        with tempfile.TemporaryDirectory() as place:
            notebook = executed(EXAMPLES / f"{name}.py", Path(place))
            for folder in Path(place).glob("studies/*"):
                keep_records(folder, STUDIES / folder.name)
        path = EXAMPLES / f"{name}.ipynb"
        nbformat.write(notebook, path)
        print(f"{path}: {path.stat().st_size // 1024} KiB", flush=True)
    return 0


def executed(script: Path, place: Path) -> nbformat.NotebookNode:
    """Run a script in the percent format as a notebook in a folder; an error of one of its cells is raised."""
    notebook = jupytext.read(script)
    shutil.copy(script, place)  # a study's workers import it
    how = {"kernel_name": "python3", "timeout": LIMIT_S, "record_timing": False, "coalesce_streams": True}
    NotebookClient(notebook, resources={"metadata": {"path": str(place)}}, **how).execute()
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"  # else drawn at random
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for data in (output.data for output in cell.outputs if "image/png" in output.get("data", {})):
                small = small_png(io.BytesIO(base64.b64decode(data["image/png"])), place / "small.png")
                data["image/png"] = base64.b64encode(small.read_bytes()).decode()
    text = nbformat.writes(notebook).replace(f"{place}/", "").replace(str(place), ".")
    return nbformat.reads(text, nbformat.NO_CONVERT)


def keep_records(study: Path, to: Path) -> None:
    """Copy what a report of a study is made of, without what is of this machine."""
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    for name in RECORDED:
        if (study / name).is_dir():
            shutil.copytree(study / name, to / name)
        else:
            shutil.copyfile(study / name, to / name)
    state = json.loads((to / "state.json").read_text())
    kept = {name: value for name, value in state.items() if name not in OF_THE_MACHINE}
    kept["environment"] = {name: value for name, value in state["environment"].items() if name != "mlflow.user"}
    (to / "state.json").write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
