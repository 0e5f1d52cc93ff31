"""A common report of several studies, from Python and from the command line."""

import json

import numpy as np
import pytest

from flstudy import cli
from flstudy.reporting import write_report
from tests.reporting.test_page import Reader

OFFSETS = np.array([[-0.02], [-0.01], [0.0], [0.01], [0.02]])


@pytest.fixture
def worlds(tmp_path, write_study, trial):
    """Three studies of three algorithms, each of five seeds."""
    folders = []
    for name, levels in {
        "calm": {"A": 0.9, "B": 0.8, "C": 0.7},
        "sudden": {"A": 0.6, "B": 0.5, "C": 0.4},
        "slow_ly": {"A": 0.5, "B": 0.6, "C": 0.3},
    }.items():
        trials = [trial(str(i), algorithm, level) for i, (algorithm, level) in enumerate(levels.items())]
        noise = np.random.default_rng(len(name)).normal(0, 0.001, (3, 5, 1))
        curves = {str(i): np.repeat(level + OFFSETS + noise[i], 10, 1) for i, level in enumerate(levels.values())}
        folders.append(write_study(tmp_path / "studies" / name, trials, curves=curves, seeds=range(5)))
    return folders


@pytest.mark.slow
def test_a_common_report(worlds):
    written = write_report(*worlds)
    assert written.page_path == worlds[0].parent / "report-calm-sudden-slow_ly" / "report.html"
    assert written.tables[0].rows[0][:3] == ("A", "1.33", "2 of 3")
    assert written.notes[0].startswith("Friedman's test over the studies: χ² = 4.67, p = 0.097: no difference")
    reader = Reader(written.page_path.read_text())
    assert [attributes["id"] for attributes in reader.all("section")] == [
        "summary", "calm", "sudden", "slow-ly", "how-it-was-made", "citations",
    ]  # fmt: skip
    assert len(reader.all("svg")) == 1
    assert written.notes[-1].startswith("calm, sudden, slow_ly: Compared on the seeds of the search")
    assert "on the seeds that chose their trials: confirm it on new ones" in "".join(reader.words)
    assert written.figure_path.is_file()
    assert "demsar2006" in written.citations_path.read_text()
    assert r"slow\_ly" in written.latex_path.read_text()
    assert "# Study calm, sudden, slow_ly" in written.summary_path.read_text()


@pytest.mark.slow
def test_the_command(worlds, monkeypatch, capsys):
    monkeypatch.chdir(worlds[0].parent.parent)
    assert cli.main(["report", "calm", "sudden", "slow_ly"]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 100
    assert "2 of 3" in printed
    assert "Report: studies/report-calm-sudden-slow_ly/report.html" in printed
    assert cli.main(["studies"]) == 0  # a common report is no study
    assert "report-calm" not in capsys.readouterr().out
    assert cli.main(["report", "calm", "sudden", "slow_ly", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert [standing["algorithm"] for standing in summary["standings"]] == ["A", "B", "C"]
    assert summary["friedman"]["p"] == pytest.approx(0.0969, abs=1e-4)
    assert [report["study"] for report in summary["reports"]] == ["calm", "sudden", "slow_ly"]


@pytest.mark.slow
def test_one_study_as_json(searched, capsys):
    assert cli.main(["report", str(searched), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert [row["algorithm"] for row in summary["ranking"]] == ["Flash", "FedYogi", "FedAvg"]
    assert summary["ranking"][0]["gap"] > 0
    assert summary["comparison"]["pairs"][0]["verdict"] == "different"
    assert summary["pareto"]["objectives"] == ["valid/accuracy", "traffic/bits"]
    assert summary["page"].endswith("report/report.html")


@pytest.mark.slow
def test_the_terminal_stays_within_100_columns(searched, capsys):
    assert cli.main(["report", str(searched)]) == 0
    printed = capsys.readouterr().out
    lines = [line.rstrip() for line in printed.splitlines() if str(searched) not in line]  # long temporary paths
    assert max(map(len, lines)) <= 100
    for piece in ("different: Flash is better", "How much each algorithm depends on its tuning", "Report: ", "Gap"):
        assert piece in printed


def test_mistakes_are_told(worlds, write_study, trial, tmp_path, capsys):
    assert cli.main(["report"]) == 2
    assert "the following arguments are required: STUDY" in capsys.readouterr().err
    assert cli.main(["report", str(worlds[0]), str(worlds[0])]) == 2
    assert "must have different names, got 'calm' twice" in capsys.readouterr().err
    other = write_study(
        tmp_path / "studies" / "loss", [trial("0")], study={"objective": {"metric": "valid/loss", "mode": "min"}}
    )
    assert cli.main(["report", str(worlds[0]), str(other)]) == 2
    assert "must have the same objective, got valid/accuracy (max) in calm" in capsys.readouterr().err


def test_two_studies_without_results_are_reported_as_such(tmp_path, write_study, trial):
    folders = [write_study(tmp_path / name, [trial("0", status="pruned", rounds=2)]) for name in ("a", "b")]
    written = write_report(*folders)
    assert written.tables == ()
    assert "no algorithm has a result in all of them" in written.page_path.read_text()
