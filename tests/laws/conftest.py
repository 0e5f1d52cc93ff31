"""The compiled path without its compiler, which takes seconds for every program."""

import pytest
import torch

from flstudy.execution import loops, programs
from flstudy.execution.trees import leaves


def while_loop(goes_on, body, state, fixed):
    """What torch's operator means."""
    while goes_on(*state, *fixed):
        state = body(*state, *fixed)
    return state


def interpreted(mapped, arguments, alone):
    """The program that would be compiled, operation by operation."""
    count = len(leaves(arguments[0]))
    return lambda inputs: loops.loop(mapped, count, while_loop, inputs[0], inputs[1:])


@pytest.fixture
def forget_programs(monkeypatch):
    """A function after which this process has compiled nothing yet, as a new one: what it has compiled is the
    process's, and no test should depend on those before it."""

    def forget():
        monkeypatch.setattr(programs, "_compiled", {})

    return forget


@pytest.fixture
def without_compiler(monkeypatch, forget_programs):
    """The compiled path with the compiler left out, and nothing compiled yet."""
    forget_programs()
    monkeypatch.setattr(programs, "has_compiler", lambda: True)
    monkeypatch.setattr(loops, "loaded", interpreted)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
