"""The examples: short scripts that run, and their notebooks, which show what they print."""

import os
import re
import subprocess
import sys
from pathlib import Path

import jupytext
import nbformat
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
NAMES = [script.stem for script in SCRIPTS]

# What each prints, as a pattern, with the numbers that it shows in groups.
PRINTED = {
    "first_study": r"(?:Flash|FedAvg|FedYogi) \{.*'algorithm.lr': .*\}\n\S*studies/first_study/report/report.html",
    "own_method": r"FedRestart .*\n(?:.*\n)*\S*studies/own_method/report/report.html",
    "own_module": r"validation accuracy (0\.\d+), mean over three seeds",
    "python_studies": r"best: trial \d+ with (0\.\d+), after 40 rounds (0\.\d+)",
    "sessions": r"FedAvg .*\n(?:.*\n)*.*12/12 trials",
}


def notebook(name):
    """The notebook of an example."""
    return nbformat.read(EXAMPLES / f"{name}.ipynb", nbformat.NO_CONVERT)


def outputs(name):
    """Every output of an example's notebook."""
    return [output for cell in notebook(name).cells if cell.cell_type == "code" for output in cell.outputs]


def test_there_are_five():
    assert sorted(PRINTED) == NAMES
    assert len(NAMES) == 5


@pytest.mark.parametrize("name", NAMES)
def test_a_script_has_at_most_forty_lines(name):
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 40


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_its_script_executed(name):
    """After a change of a script: `python docs/notebooks.py NAME`."""
    cells = notebook(name).cells
    wanted = jupytext.read(EXAMPLES / f"{name}.py").cells
    assert [(cell.cell_type, cell.source) for cell in cells] == [(cell.cell_type, cell.source) for cell in wanted]
    assert all(cell.execution_count for cell in cells if cell.cell_type == "code")
    assert outputs(name)
    assert not [output for output in outputs(name) if output.output_type == "error"]


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_shows_nothing_of_the_machine(name):
    text = (EXAMPLES / f"{name}.ipynb").read_text()
    assert not re.findall(r"/tmp/\S*|/home/\S*|/root/\S*", text)
    assert str(EXAMPLES.parent) not in text


@pytest.mark.parametrize("name", sorted({*NAMES} - {"own_module"}))
def test_a_study_shows_its_ranking_in_a_notebook(name):
    pages = ["".join(output.data.get("text/html", "")) for output in outputs(name) if "data" in output]
    assert any("finished" in page for page in pages)


def test_a_coordinator_shows_its_curves_in_a_notebook():
    pages = ["".join(output.data.get("text/html", "")) for output in outputs("own_module") if "data" in output]
    assert any("FedYogi" in page and "valid/accuracy" in page and "<img" in page for page in pages)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_script_runs(name, tmp_path):
    (tmp_path / f"{name}.py").write_text((EXAMPLES / f"{name}.py").read_text())
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "100", "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, f"{name}.py"], cwd=tmp_path, capture_output=True, text=True, timeout=900, env=environment
    )
    assert done.returncode == 0, done.stderr
    printed = re.search(PRINTED[name], done.stdout)
    assert printed, done.stdout
    assert all(0.5 < float(number) <= 1 for number in printed.groups())
