"""Optuna's dashboard: a study's history as Optuna has it; the pages where the extra is installed."""

import json
import sys
import threading
import urllib.request
from wsgiref.simple_server import make_server

import optuna
import pytest
import yaml

from flstudy.cli import main
from flstudy.study import Status, StudyFolder, Trial, load_study
from flstudy.study.records import RecordWriter
from flstudy.tuning.dashboard import JournalReader, _Quiet, storage_of
from tests.waiting import LIMIT_S


@pytest.fixture
def results(tmp_path):
    """A study of three trials of two methods, one of them failed."""
    folder = StudyFolder(tmp_path / "studies" / "moving")
    folder.path.mkdir(parents=True)
    search = {"algorithm": {"choice": ["Flash", "FedAvg"]}, "algorithm.lr": {"loguniform": [0.01, 1.0]}}
    folder.config.write_text(yaml.safe_dump({"rounds": 4, "seeds": [0, 44], "study": {"search": search}}))
    folder.write_state("finished", study_id="5" * 32)
    for number, (algorithm, status) in enumerate((("Flash", "finished"), ("FedAvg", "finished"), ("Flash", "failed"))):
        overrides = {"algorithm": algorithm, "algorithm.lr": 0.1 * (number + 1)}
        folder.write_trial(
            Trial(
                number=number, algorithm=algorithm, overrides=overrides, status=Status(status), rounds=4, objective=0.8
            )
        )
        with RecordWriter(folder.records(number), [0, 44]) as writer:
            for round in range(1, 5):
                writer.append(Round(round, {"valid/accuracy": [0.2 * round, 0.2 * round]}))
    return load_study(folder)


class Round:
    def __init__(self, round, metrics):
        self.round, self.metrics = round, metrics


def test_a_history_is_made_of_trials_and_records(results):
    storage = storage_of(results)
    names = ("moving", "moving Flash", "moving FedAvg")
    whole, flash, fedavg = (optuna.load_study(study_name=name, storage=storage) for name in names)
    assert [len(study.trials) for study in (whole, flash, fedavg)] == [3, 2, 1]
    first = flash.trials[0]
    assert first.params == {"algorithm": "Flash", "algorithm.lr": 0.1}
    assert first.intermediate_values == pytest.approx({1: 0.2, 2: 0.4, 3: 0.6, 4: 0.8})
    assert [trial.state.name for trial in whole.trials] == ["COMPLETE", "COMPLETE", "FAIL"]
    assert whole.metric_names == ["valid/accuracy"]


def test_the_journal_of_a_study_that_runs_is_read_and_never_written(results, tmp_path):
    folder = results.folder
    entries = [{"op_code": 0, "worker_id": "a", "study_name": "moving", "directions": [2]}]
    folder.journal.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries) + '{"op_code": 1, "wor')
    reader = JournalReader(folder.journal)
    assert list(reader.read_logs(0)) == entries
    assert list(reader.read_logs(1)) == []
    with pytest.raises(PermissionError, match="is written by its study only"):
        reader.append_logs(entries)
    with folder.claim():
        assert [summary.study_name for summary in storage_of(results).get_all_studies()] == ["moving"]


def test_without_the_extra_it_says_what_to_install(results, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "optuna_dashboard", None)
    assert main(["dashboard", str(results.folder.path)]) == 2
    assert "pip install 'flstudy[dashboard]'" in capsys.readouterr().err


def test_the_pages_answer(results):
    dashboard = pytest.importorskip("optuna_dashboard", reason="needs the extra: pip install '.[dashboard]'")
    with make_server("127.0.0.1", 0, dashboard.wsgi(storage_of(results)), handler_class=_Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        with urllib.request.urlopen(f"{address}/api/studies", timeout=LIMIT_S) as answer:
            names = [summary["study_name"] for summary in json.loads(answer.read())["study_summaries"]]
        with urllib.request.urlopen(f"{address}/dashboard/", timeout=LIMIT_S) as answer:
            assert b"<html" in answer.read()
        server.shutdown()
    assert names == ["moving", "moving Flash", "moving FedAvg"]
