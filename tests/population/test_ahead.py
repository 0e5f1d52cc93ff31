"""The next round's cohort is planned while a round trains, and nothing but time changes."""

import copy
import threading

import pytest

from flstudy.population import ahead
from flstudy.population.ahead import Ahead, leaves_python


def squared(round: int) -> tuple[int, str]:
    """A world's answer, and the thread that made it."""
    if round == 13:
        raise ValueError("no round 13")
    return round * round, threading.current_thread().name


def test_the_round_ahead_is_made_meanwhile_and_any_other_when_it_is_asked_for(monkeypatch):
    monkeypatch.setattr(ahead, "has_second_core", lambda: True)
    plan, here = Ahead(), threading.current_thread().name
    assert plan.made(squared, 1) == (1, here)
    with plan.while_training(squared, 2):
        leaves_python()
        leaves_python()
    value, thread = copy.deepcopy(plan).made(squared, 2)  # a copy has nothing ready
    assert (value, thread) == (4, here)
    value, thread = plan.made(squared, 2)
    assert value == 4
    assert thread.startswith("planner")
    assert plan.made(squared, 2) == (4, here)  # once
    with plan.while_training(squared, 3):
        leaves_python()
    assert plan.made(squared, 7) == (49, here)  # of another fit
    with plan.while_training(squared, 4):
        pass  # all stayed in Python
    leaves_python()
    assert plan.made(squared, 4) == (16, here)
    with plan.while_training(squared, None):
        leaves_python()
    assert plan.made(squared, 8) == (64, here)


def test_a_failure_is_raised_in_its_round_and_a_failed_fit_plans_nothing(monkeypatch):
    monkeypatch.setattr(ahead, "has_second_core", lambda: True)
    plan = Ahead()
    with plan.while_training(squared, 13):
        leaves_python()
    with pytest.raises(ValueError, match="no round 13"):
        plan.made(squared, 13)

    def fails() -> None:
        with plan.while_training(squared, 5):
            leaves_python()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert plan.made(squared, 5) == (25, threading.current_thread().name)


def test_one_core_plans_when_it_is_asked(monkeypatch):
    monkeypatch.setattr(ahead, "has_second_core", lambda: False)
    plan = Ahead()
    with plan.while_training(squared, 2):
        leaves_python()
    assert plan.made(squared, 2) == (4, threading.current_thread().name)
