"""The compiled path without its compiler, which takes seconds for every program."""

import pytest
import torch

from flstudy.execution import programs


def loop(goes_on, body, state):
    """What ``while_loop`` means; torch's own compiles itself when it is called outside a compiled function."""
    while goes_on(*state):
        state = body(*state)
    return state


@pytest.fixture
def without_compiler(monkeypatch):
    """The compiled path with the compiler left out, and nothing compiled yet."""
    monkeypatch.setattr(programs, "_compiled", {})
    monkeypatch.setattr(programs, "_task_functions", {})
    monkeypatch.setattr(programs, "has_compiler", lambda: True)
    monkeypatch.setattr(programs, "while_loop", loop)
    monkeypatch.setattr(programs, "WINDOW", 3)  # shorter than the fits
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
