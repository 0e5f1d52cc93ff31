"""Tables in terminals of any width: nothing is lost, and a row always says what it is about."""

import contextlib
import io
import os
import pty
import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from flstudy.reporting.tables import LINE, Cells

NAMES = st.text("ABCDEFGHabcdefgh-", min_size=1, max_size=LINE)
NUMBERS = st.from_regex(r"[0-9]{1,3}\.[0-9] ± [0-9]{1,2}\.[0-9]", fullmatch=True)


def printed(cells, width):
    console = Console(file=io.StringIO(), width=width)
    console.print(cells)
    return console.file.getvalue().splitlines()


@st.composite
def tables(draw):
    rows = draw(st.integers(1, 4))
    methods, studies = (draw(st.lists(NAMES, min_size=rows, max_size=rows, unique=True)) for _ in range(2))
    numbers = draw(st.lists(st.lists(NUMBERS, min_size=rows, max_size=rows), min_size=1, max_size=12))
    measures = {f"Measure\nnumber {place}": column for place, column in enumerate(numbers)}
    return Cells.from_columns("A title", {"Study": studies, "Algorithm": methods, **measures}, (0, 1), names=2)


@settings(max_examples=40)
@given(tables(), st.integers(75, 120))
def test_a_narrow_terminal_loses_nothing(cells, width):
    """Every value stands whole in a line that begins with its row's names, at any width in which one column fits."""
    lines = printed(cells, width)
    assert max(map(len, lines)) <= width
    for study, method, *values in cells.rows:
        of_row = [line for line in lines if line.split()[:2] == [study, method]]
        shown = " ".join(line.split(None, 2)[2] for line in of_row)
        assert " ".join(shown.split()) == " ".join(values)


def test_words_wrap_at_spaces_and_names_do_not():
    columns = {
        "Algorithm": ["DirectJointAdaptivity"],
        "Chosen": ["lr 0.0316, tau 0.001, server_lr 0.000316, beta1 0.9"],
    }
    lines = printed(Cells.from_columns("Values", columns, (0, 1)), 60)
    (first,) = [line for line in lines if "DirectJointAdaptivity" in line]
    assert first.split() == ["DirectJointAdaptivity", "lr", "0.0316,", "tau", "0.001,", "server_lr"]
    assert " ".join(" ".join(lines).split()).endswith("server_lr 0.000316, beta1 0.9")


def test_a_word_that_no_terminal_holds_is_folded():
    path = "/".join(["folder"] * 20)
    lines = printed(Cells.from_columns("Values", {"Key": ["path"], "Value": [path]}, (0, 1)), 60)
    assert max(map(len, lines)) <= 60
    assert path in "".join(line.removeprefix(" path").strip() for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("variables", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["colour", "NO_COLOR", "dumb"])
def test_a_report_in_a_terminal_of_60_columns(searched, variables):
    """Through a real terminal: no line of a table is longer, and colours come only where they are wanted."""
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "60", **variables}
    command = [sys.executable, "-m", "flstudy", "report", str(searched)]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=theirs, env=environment)
    os.close(theirs)
    parts = []
    with contextlib.suppress(OSError):  # Linux's way to say that the other end is closed
        while part := os.read(ours, 65536):
            parts.append(part)
    os.close(ours)
    assert process.wait() == 0
    shown = b"".join(parts).decode().replace("\r\n", "\n")
    assert ("\x1b[" in shown) == ("TERM" not in variables)  # bold stays where there are no colours
    assert not re.search(r"\x1b\[(?:[0-9;]*;)?[349][0-7]m", shown)
    lines = Text.from_ansi(shown).plain.splitlines()
    table = lines[: next(place for place, line in enumerate(lines) if line.startswith("Report: "))]
    rows = [line for line in table if "─" in line or line.split()[1:2] in (["FedAvg"], ["FedYogi"], ["Flash"])]
    assert len(rows) > 6
    assert max(map(len, rows)) <= (80 if "TERM" in variables else 60)  # rich takes a dumb one for 80 columns wide
