"""`flstudy studies` and `flstudy show`, from files alone."""

import json
import os
import platform

import pytest

from flstudy import cli
from flstudy.reporting.listing import sparkline, trial_entry
from flstudy.study import StudyFolder, load_study
from flstudy.study.results import list_studies


def state(folder, **fields):
    (folder / "state.json").write_text(
        json.dumps({"format": 2, "host": platform.node(), "pid": os.getpid(), "started": 1.0} | fields)
    )


def test_studies_are_listed_with_state_and_best(drifting, write_study, trial, capsys):
    home = drifting.parent
    state(drifting, state="finished")
    running = write_study(home / "second", [trial("0", objective=0.4)])
    state(running, state="running")
    killed = write_study(home / "third", [])
    state(killed, state="running")
    (write_study(home / "fourth", []) / "study.yaml").write_text("{\n")

    with StudyFolder(running).claim():
        listed = {entry["study"]: entry for entry in list_studies(home)}
    assert listed["quick"]["state"] == "finished"
    assert listed["quick"]["best"] == {"trial": 2, "algorithm": "Flash", "value": 0.89}  # not the pruned one's 0.95
    assert listed["quick"]["counts"] == {"finished": 3, "pruned": 1, "diverged": 1, "failed": 1}
    assert listed["second"]["state"] == "running"
    assert listed["third"]["state"] == "killed"
    assert listed["fourth"]["state"] == "damaged"

    assert cli.main(["studies", str(home)]) == 0
    printed = capsys.readouterr().out
    assert "Flash (trial 2)" in printed
    assert max(map(len, printed.splitlines())) <= 100
    assert cli.main(["studies", str(home), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == list_studies(home)


def test_no_study_is_said_so(tmp_path, capsys):
    assert cli.main(["studies", str(tmp_path)]) == 0
    assert "holds no study yet: start one with 'flstudy tune CONFIG'" in capsys.readouterr().out


def test_a_trial_is_shown_with_what_it_chose_and_measured(drifting, capsys):
    results = load_study(drifting)
    assert results.find("best").number == 2
    assert cli.main(["show", str(drifting), "best"]) == 0
    printed = capsys.readouterr().out
    assert "finished after 10 rounds" in printed
    assert "algorithm.tau" in printed
    assert cli.main(["show", str(drifting), "5"]) == 0
    assert "RuntimeError: out of memory" in capsys.readouterr().out
    assert cli.main(["show", str(drifting), "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(trial_entry(results, results.trials[2])))


def test_what_no_search_chose_is_shown_too(write_study, trial, tmp_path, capsys):
    arms = {"Mild": {"class_path": "FedAvgM", "init_args": {"beta": 0.5, "lr": 0.3}}}
    config = {"algorithm": "FedAvg", "study": {"objective": {"metric": "valid/accuracy", "mode": "max"}, "arms": arms}}
    overrides = {"algorithm": "Mild", "algorithm.lr": 0.1}
    write_study(tmp_path / "s", [trial("0", "Mild", overrides=overrides)], **config)
    assert cli.main(["show", str(tmp_path / "s"), "0"]) == 0
    shown = dict(line.split()[:2] for line in capsys.readouterr().out.splitlines() if len(line.split()) == 2)
    assert (shown["algorithm.lr"], shown["algorithm"], shown["algorithm.beta"]) == ("0.1", "FedAvgM", "0.5")


def test_the_curve_is_the_mean_over_seeds(write_study, trial, tmp_path):
    curves = {"0": {"valid/accuracy": [[0.0, 0.4, 0.8], [0.2, 0.6, 1.0]]}}
    results = load_study(write_study(tmp_path / "s" / "one", [trial("0", rounds=3)], curves=curves, rounds=3))
    curve = trial_entry(results, results.trials[0])["curve"]
    assert curve["rounds"] == [1, 2, 3]
    assert curve["mean"] == pytest.approx([0.1, 0.5, 0.9])
    assert sparkline(curve["mean"]) == "0.1 ▁▅█ 0.9"
    assert sparkline([0.5]) == ""


def test_an_unknown_trial_is_named(drifting, capsys):
    assert cli.main(["show", str(drifting), "77"]) == 2
    assert "study quick has no trial '77': it has 0 to 5, or best" in capsys.readouterr().err
    assert cli.main(["show", str(drifting)]) == 2
