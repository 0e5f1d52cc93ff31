"""Tables in terminals of any width: nothing is lost, and a row always says what it is about."""

import io

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

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
