"""The classes of docs/own.md work outside the package as a user would use them: in a file beside the YAML."""

import ast
import os
import re
import subprocess
import sys

import pytest

from flstudy.config.config import load
from flstudy.study.records import curve, read_records

from .blocks import DOCS, files_of

FILES = files_of("own.md")
LINES = 15


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A folder with the page's files, of which nothing stays imported."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    yield tmp_path
    sys.modules.pop("mylab", None)


def python(folder, *arguments):
    """A Python process in that folder."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, env=environment, check=False
    )


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("my")])
def test_each_is_fifteen_lines(name):
    classes = [node for node in ast.parse(FILES[name]).body if isinstance(node, ast.ClassDef)]
    assert len(classes) >= 2
    for node in classes:
        doc = ast.get_docstring(node, clean=False) or ""
        first = node.decorator_list[0].lineno if node.decorator_list else node.lineno
        block = FILES[name].splitlines()[first - 1 : node.end_lineno]
        lines = [line for line in block if line.strip() and line.strip() not in (f'"""{doc}"""',)]
        assert len(lines) <= LINES, node.name


@pytest.mark.slow
def test_a_run_as_a_user_runs_it(lab):
    done = python(lab, "-m", "flstudy", "run", "own.yaml", "--run.track", "false")
    assert done.returncode == 0, done.stderr
    table = read_records(lab / "runs" / "own" / "records.parquet")
    for name in ("valid/accuracy_gap", "test/accuracy_gap", "shrink/rounds", "valid/accuracy"):
        assert curve(table, name)[0].tolist() == [1, 2, 3, 4, 5, 6], name


def test_a_pooled_data_set_and_a_study_of_them(lab):
    population = load(lab / "pooled.yaml").build()[1].settle([0])
    assert [len(device["train"]) > 0 for device in population.members[0]] == [True] * 6
    study = {
        "study.search": {"algorithm.eps": {"loguniform": [1e-4, 1e-2]}},
        "study.objective.metric": "valid/accuracy_gap",
    }
    assert load(lab / "own.yaml", study, command="tune").parts.coordinator.run.measure.measures == ("accuracy_gap",)


@pytest.mark.slow
def test_their_laws_hold_and_an_error_is_found(lab):
    done = python(lab, "-c", "import laws, wrong")
    assert done.returncode == 1
    (message,) = re.findall(r"^```\n(AssertionError: .*?)\n```$", (DOCS / "own.md").read_text(), re.MULTILINE)
    assert done.stderr.splitlines()[-1] == message, done.stderr
