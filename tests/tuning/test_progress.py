"""What a study says while it runs."""

import io

from rich.console import Console

from flstudy.tuning.folder import TrialSummary
from flstudy.tuning.progress import Progress
from tests.tuning.stand_in import StandIn, study


def progress(terminal, **named):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
    config = StandIn(study=study(trials=4, **named), rounds=10)
    return Progress(console, name="quick", config=config)  # type: ignore[arg-type]


def summary(number, algorithm, status="running", rounds=0, objective=None, error=None):
    return TrialSummary(
        trial=number, algorithm=algorithm, overrides={}, status=status, rounds=rounds, objective=objective, error=error
    )


def test_plain_lines_where_there_is_no_terminal():
    view = progress(False)
    with view:
        view.update(summary(0, "Flash", rounds=5, objective=0.5))
        view.update(summary(0, "Flash", "finished", 10, 0.8))
        view.update(summary(1, "FedAvg", "failed", 2, 0.0, "Traceback\nRuntimeError: too much"))
    lines = view.console.file.getvalue().splitlines()
    assert len(lines) == 2
    assert "trial 0 finished: Flash valid/accuracy 0.8 after 10 rounds" in lines[0]
    assert "quick: 1/4 trials, 25% of rounds, about 0:00 left" in lines[0]
    assert "trial 1 failed: FedAvg after 2 rounds (RuntimeError: too much)" in lines[1]
    assert "\x1b" not in view.console.file.getvalue()


def test_the_live_view_shows_best_running_and_troubled_trials():
    view = progress(True)
    leader = summary(0, "Flash", rounds=5, objective=0.7)
    view.update(leader)
    view.update(summary(1, "Flash", "finished", 10, 0.6))
    view.update(summary(2, "FedAvg", rounds=3, objective=0.4))
    assert view.best["Flash"].trial == 0
    leader.status, leader.objective = "diverged", 0.0
    view.update(leader)
    assert view.best["Flash"].trial == 1  # who diverges leads no more
    with view.console.capture() as shown:
        view.console.print(view._render())
    for text in (
        "quick: 2/4 trials",
        "best valid/accuracy",
        "2 FedAvg",
        "3/10",
        "troubled: 1, the last: 0 Flash diverged",
    ):
        assert text in shown.get()


def test_a_stopped_trials_other_rounds_count_as_done():
    view = progress(False)
    view.update(summary(0, "Flash", "pruned", 2, 0.3))
    view.update(summary(1, "Flash", rounds=5, objective=0.3))
    assert view.fraction == (10 + 5) / 40
