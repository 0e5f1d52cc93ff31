"""What a terminal shows of exceptions: a sentence, the user's own line, or where our mistake is; all on demand."""

import math
import signal
import sys
from functools import partial
from pathlib import Path

import pytest

from flstudy import hyper
from flstudy.algorithms import FedAvg
from flstudy.cli import _study, main
from flstudy.config import help as config_help
from flstudy.config import load
from flstudy.config import starter as config_starter
from flstudy.config.errors import ConfigError, on_a_line
from flstudy.reporting.run_progress import summary_table
from flstudy.user_error import UserError

QUICK = Path(__file__).parents[1] / "tune_configs" / "quick.yaml"
OWN = """
import sys
import lightning as L
import torch


class Net(L.LightningModule):
    def __init__(self, classes: int):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, classes))

    def forward(self, x):
        return self.net(x)

    def example_losses(self, batch):
        STATEMENT
        return torch.nn.functional.cross_entropy(self(batch[0]), batch[1], reduction="none")
"""


@pytest.fixture
def run_with(request, tmp_path, monkeypatch):
    """``flstudy run`` with a module of the user's, in which a statement stands at line 16."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    name = f"own_{abs(hash(request.node.nodeid))}"

    def run(statement: str, *more: str) -> int:
        (tmp_path / f"{name}.py").write_text(OWN.replace("STATEMENT", statement))
        small = ["--rounds=2", "--population.drift=null", "--seeds=[0]", "--compile=false", "--run.track=false"]
        return main(["run", str(QUICK), f"--task={name}.Net", *small, *more])

    yield run
    sys.modules.pop(name, None)


def test_a_user_s_module_that_raises_is_shown_by_its_last_line(run_with, capsys):
    assert run_with("{}['weights']") == 1
    shown = capsys.readouterr().err
    assert (
        "Net.example_losses fails on training examples x [6, 1, 8, 8] float32, y [6] int64: KeyError: 'weights'"
        in shown
    )
    assert ".py:16, in example_losses\n    {}['weights']\n" in shown
    assert "Traceback" not in shown
    assert run_with("{}['weights']", "--traceback") == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_an_exit_and_a_ctrl_c_in_a_module_are_told_as_what_they_are(run_with, capsys):
    assert run_with("sys.exit(7)") == 1
    shown = capsys.readouterr().err
    assert "sys.exit(7) was called" in shown
    assert ".py:16, in example_losses\n    sys.exit(7)\n" in shown


def test_ctrl_c_ends_a_run_with_130_and_is_heard_again(run_with):
    before = signal.getsignal(signal.SIGINT)
    assert run_with("raise KeyboardInterrupt") == 130
    assert signal.getsignal(signal.SIGINT) is before


def test_a_mistake_of_ours_is_told_as_ours(monkeypatch, capsys):
    monkeypatch.setattr(config_help, "configs", None)
    assert main(["list", "configs"]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("flstudy: unexpected TypeError in help.py:")
    assert "run again with --traceback" in shown
    assert "Traceback" not in shown
    assert main(["list", "configs", "--traceback"]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_a_full_disk_is_no_mistake_of_ours(monkeypatch, capsys):
    monkeypatch.setattr(config_starter, "starter", lambda choice: "")
    monkeypatch.setattr(Path, "write_text", lambda *arguments, **named: (Path("/nowhere") / "file").open("w"))
    assert main(["init", "first.yaml"]) == 1
    assert "FileNotFoundError" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("action", "status", "message"),
    [
        (partial(FedAvg, lr=-1), 2, "flstudy: error: FedAvg: lr must lie in"),
        (partial(hyper.within, 1.0, "(a, b)"), 1, "flstudy: unexpected ValueError in hyper.py:"),  # of float()
        (partial(int, "one"), 1, "flstudy: unexpected ValueError in help.py:"),
    ],
)
def test_only_what_is_raised_on_purpose_is_the_user_s_to_mend(action, status, message, monkeypatch, capsys):
    monkeypatch.setattr(config_help, "configs", action)
    assert main(["list", "configs"]) == status
    assert capsys.readouterr().err.startswith(message)


def test_whoever_catches_a_value_error_catches_a_user_error():
    assert issubclass(UserError, ValueError)
    assert issubclass(ConfigError, UserError)


def test_a_sentence_is_short_and_obeys_no_terminal():
    message = str(ConfigError(f"name must lie in [0, 1], got \x1b[31m\n{'x' * 600}: lower it"))
    assert len(message) == 200
    assert message.startswith("name must lie in [0, 1], got [31m xxx")
    assert message.endswith("xxx: lower it")
    assert on_a_line("a\nb", 9) == "a b"


def test_the_table_of_a_diverged_run(capsys):
    table = summary_table(load(QUICK), {"train/loss": [1.0, math.nan, 2.0], "valid/accuracy": [0.5, math.inf, 0.5]}, 3)
    assert [list(column.cells) for column in table.columns][1:] == [["nan", "inf"], ["nan", "nan"]]


def test_the_engine_alone_says_what_a_study_needs(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "yaml", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "flstudy.config.values", raising=False)
    assert main(["tune", "quick"]) == 2
    assert capsys.readouterr().err == (
        "flstudy: error: this needs 'yaml', which the engine does without: pip install 'flstudy[study]'\n"
    )


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (None, "flstudy tune quick"),
        ("finished", "flstudy report moving"),
        ("interrupted", "flstudy tune --resume moving"),
    ],
)
def test_without_a_command_it_shows_what_to_do_next(state, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if state is not None:
        folder = tmp_path / "studies" / "moving"
        folder.mkdir(parents=True)
        (folder / "state.json").write_text(f'{{"state": "{state}"}}')
    assert main([]) == 0
    assert message in capsys.readouterr().out.splitlines()[-1]


def test_a_folder_of_a_study_s_name_does_not_hide_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    study = tmp_path / "studies" / "digits"
    study.mkdir(parents=True)
    assert _study("digits") == Path("studies/digits")
    (tmp_path / "digits" / "study.yaml").write_text("rounds: 1")  # a study itself: a path goes before a name
    assert _study("digits") == Path("digits")
