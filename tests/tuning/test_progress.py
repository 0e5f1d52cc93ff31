"""What a study says while it runs."""

import io
import math

import pytest
from rich.console import Console
from rich.text import Text

from flstudy.config import Confirm
from flstudy.study import Status, Trial
from flstudy.tuning.progress import StudyProgress
from tests.tuning.stand_in import StandIn, study


def progress(terminal, width=100, **named):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=width)
    config = StandIn(study=study(trials=4, **named), rounds=10)
    return StudyProgress(console, name="quick", config=config)  # type: ignore[arg-type]


def trial(number, algorithm, status="running", rounds=0, objective=math.nan, error=None):
    return Trial(
        number=number, algorithm=algorithm, status=Status(status), rounds=rounds, objective=objective, error=error
    )


def test_plain_lines_where_there_is_no_terminal():
    view = progress(False)
    with view:
        view.update(trial(0, "Flash", rounds=5, objective=0.5))
        view.update(trial(0, "Flash", "finished", 10, 0.8))
        view.update(trial(1, "FedAvg", "failed", 2, 0.0, "Traceback\nRuntimeError: too much"))
    lines = view.console.file.getvalue().splitlines()
    assert len(lines) == 2
    assert "trial 0 finished: Flash valid/accuracy 0.8 after 10 rounds" in lines[0]
    assert "quick: 1/4 trials, 25% of rounds, about 0:00 left" in lines[0]
    assert "trial 1 failed: FedAvg after 2 rounds (RuntimeError: too much)" in lines[1]
    assert "\x1b" not in view.console.file.getvalue()


def test_the_live_view_says_that_workers_start_until_a_trial_has_begun():
    view = progress(True)
    for number, status in enumerate((None, "running", "finished")):
        if status:
            view.update(trial(0, "Flash", status, 10, 0.5))
        with view.console.capture() as shown:
            view.console.print(view._render())
        assert ("starting workers" in shown.get()) == (number == 0)


def test_the_live_view_shows_best_running_and_troubled_trials():
    view = progress(True)
    early = trial(0, "Flash", rounds=5, objective=0.7)
    view.update(early)
    view.update(trial(1, "Flash", "finished", 10, 0.6))
    view.update(trial(2, "FedAvg", rounds=3, objective=0.4))
    view.update(trial(3, "Flash", "pruned", 5, 0.9))
    assert {name: best.number for name, best in view.best.items()} == {"Flash": 1}  # an early value leads nothing
    early.status, early.objective = Status.DIVERGED, 0.0
    view.update(early)
    with view.console.capture() as shown:
        view.console.print(view._render())
    for text in (
        "quick: 3/4 trials",
        "best valid/accuracy",
        "2 FedAvg",
        "3/10",
        "troubled: 1, the last: 0 Flash diverged",
    ):
        assert text in shown.get()


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_live_view_breaks_no_word(width):
    view = progress(True, width)
    names = ["DirectJointAdaptivity", "Flash-clamped"]
    for number, status in enumerate(["finished", "running", "pruned"]):
        for name in names:
            view.update(trial(2 * number + (name == names[1]), name, status, 5, 0.5))
    with view.console.capture() as shown:
        view.console.print(view._render())
    lines = Text.from_ansi(shown.get()).plain.splitlines()
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    assert {*names, "valid/accuracy", "of", "trial", "running", "finished", "pruned", "round", "left"} <= {*words}
    assert not {"diverged", "failed"} & {*words}  # no trial did, so no column says so


def test_a_stopped_trials_other_rounds_count_as_done():
    view = progress(False)
    view.update(trial(0, "Flash", "pruned", 2, 0.3))
    view.update(trial(1, "Flash", rounds=5, objective=0.3))
    assert view.fraction == (10 + 5) / 40


def test_a_confirmation_counts_by_its_seeds():
    """Three seeds of the search and six new ones: training the best trial again is twice a trial's work."""
    view = progress(False, confirm=Confirm(top=1, seeds=6))
    for number in range(4):
        view.update(trial(number, "Flash", "finished", 10, 0.3))
    assert view.fraction == pytest.approx(4 / 6)


def test_the_time_that_is_left_knows_no_start_and_no_compilation(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("flstudy.tuning.progress.time.monotonic", lambda: now[0])
    view = progress(False)
    with view:
        view.update(trial(0, "Flash"))
        now[0] += 500.0  # of a first round
        view.update(trial(0, "Flash", rounds=1))
        assert view.left_s is None
        now[0] += 4.0
        view.update(trial(0, "Flash", rounds=3))
    assert view.trial_s == 20.0  # ten rounds of two seconds
    assert view.left_s == pytest.approx(2.0 * 37)
    assert view.console.file.getvalue() == "quick: 0/4 trials, 8% of rounds, about 1:14 left (0:20 a trial)\n"
