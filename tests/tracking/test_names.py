"""MLflow has every metric whose name it takes or that one rule changes; one that it refuses costs no other."""

import logging
import string

import pytest
from mlflow.exceptions import MlflowException

from flstudy.federation import Record
from flstudy.metrics.registry import METRICS
from flstudy.study.records import RecordWriter
from flstudy.tracking.content import DELIVERED, REFUSED, round_values
from flstudy.tracking.delivery import MetricDelivery, PendingNote
from flstudy.tracking.names import NAME_LENGTH, mlflow_name, mlflow_text, renamings
from flstudy.tracking.runs import TrialRun
from flstudy.tracking.store import MetricValue, open_store
from flstudy.tracking.sync import sync_study
from tests.tracking.test_sync import SEEDS, keep, study_folder, trial

ODD = [
    "acc@1",
    "loss[ce]",
    "a//b",
    "/a",
    "a/",
    "a/./b",
    "a/../b",
    ".",
    "..",
    "..a",
    "...",
    "",
    "a\tb",
    "Δ",
    "精度",
    "\n",
    "\ud800",
    "a\0b",
    "x" * 251,
    f"{'x' * 300}/y",
    "a/" * 125,
    "é" * 400,
    "50 %",
    "a=b",
    "'",
    '"',
    "`",
]


@pytest.fixture
def store(tmp_path):
    return open_store(f"sqlite:///{tmp_path}/mlflow.db")


def taken(store, names):
    """Which of the names MLflow takes for metrics of a run, each asked for alone."""
    run_id, refused = store.client.create_run(store.experiment_id).info.run_id, []
    for name in names:
        try:
            store.client.log_metric(run_id, name, 1.0)
        except (MlflowException, UnicodeEncodeError):
            refused.append(name)
    shown = store.client.get_run(run_id).data.metrics
    assert {*shown} == {*names} - {*refused}
    return {*shown}


@pytest.mark.slow
def test_names_that_mlflow_takes_stay_and_others_become_names_that_it_takes(store):
    plain = [f"a{character}b" for character in string.printable]
    names = [*ODD, *plain, *METRICS, "x" * NAME_LENGTH, "a..b", "a.", ".a", " ", "a b", "a:b", "0", "-", "_"]
    accepted = taken(store, names)
    assert {name for name in names if mlflow_name(name) == name} == accepted - {"\n"}  # which its pattern overlooks
    changed = {mlflow_name(name) for name in names}
    assert taken(store, changed) == changed
    assert all(len(name) <= NAME_LENGTH for name in changed)


def test_two_long_names_with_one_beginning_stay_two():
    assert mlflow_name("x" * 300) != mlflow_name("x" * 301)


def test_of_two_metrics_with_one_name_in_mlflow_the_one_with_that_name_has_it():
    metrics = {"acc@1": [0.1], "acc_1": [0.2], "acc#1": [0.3], "loss[ce]": [0.4]}
    assert dict(round_values(metrics, [0])) == {"acc_1": 0.2, "loss_ce_": 0.4}
    assert renamings(metrics) == [
        "MLflow lacks 'acc@1', which it cannot tell from 'acc_1': log it under another name",
        "MLflow lacks 'acc#1', which it cannot tell from 'acc_1': log it under another name",
        "MLflow has 'loss[ce]' as loss_ce_",
    ]
    assert renamings(METRICS) == []


def test_texts_that_no_store_holds_are_replaced(store):
    text = "lone \ud83d, NUL \0, pair \U0001f600"
    run_id = store.get_or_create({"key": "k"}, "run", {"error": text})
    store.log_tags(run_id, {"again": text})
    assert store.log_params(run_id, {"of@run": text}) == 1
    data = store.client.get_run(run_id).data
    expected = "lone \ufffd, NUL \ufffd, pair \U0001f600"
    assert (data.tags["error"], data.tags["again"], data.params["of_run"]) == (expected,) * 3
    assert mlflow_text(expected) == expected


@pytest.fixture
def picky(store, monkeypatch):
    """A store that takes no metric and no parameter with ``loss`` in its name."""
    log_batch = store.client.log_batch

    def checked(run_id, metrics=(), params=(), **named):
        if any("loss" in item.key for item in (*metrics, *params)):
            raise MlflowException("no losses here\nand more", error_code=1000)  # INVALID_PARAMETER_VALUE
        return log_batch(run_id, metrics=metrics, params=params, **named)

    monkeypatch.setattr(store.client, "log_batch", checked)
    return store


def test_a_refused_metric_costs_no_other(picky):
    run_id = picky.client.create_run(picky.experiment_id).info.run_id
    delivery = MetricDelivery(picky, run_id, (), PendingNote(None), lambda call, *arguments: call(*arguments))
    names = ["a", "b", "train/loss", "c", "valid/loss", "d", "e"]
    values = [MetricValue(name, 1.0, 1000, step) for step in (1, 2) for name in names]
    assert delivery.send(values) == 10
    assert delivery.refused == dict.fromkeys(["train/loss", "valid/loss"], "no losses here")
    assert {*picky.client.get_run(run_id).data.metrics} == {"a", "b", "c", "d", "e"}
    assert delivery.send([value._replace(step=3) for value in values[:7]]) == 5
    assert delivery.shortfall() is None


def test_a_refused_parameter_costs_no_other(picky, caplog):
    run_id = picky.client.create_run(picky.experiment_id).info.run_id
    assert picky.log_params(run_id, {"lr": 0.1, "loss": "ce", "tau": 0.2}) == 2
    assert picky.client.get_run(run_id).data.params == {"lr": "0.1", "tau": "0.2"}
    assert "MLflow refuses the parameter 'loss': no losses here" in caplog.text


def test_a_study_s_end_says_which_metrics_mlflow_refuses(picky, tmp_path, caplog):
    folder = study_folder(tmp_path, trial(0), trial(1))
    for number in (0, 1):
        keep(folder, number, 60)
    sent = sync_study(folder, picky)
    assert sent.remarks == ["MLflow refused of 2 trials train/loss: no losses here"]
    assert sent.incomplete == set()
    for run_id in sent.run_ids.values():
        data = picky.client.get_run(run_id).data
        assert {*data.metrics} == {"valid/accuracy", "valid/accuracy_std", "seed0/valid/accuracy",
                                   "seed44/valid/accuracy"}  # fmt: skip
        assert (data.tags[DELIVERED], data.tags[REFUSED]) == ("60", "train/loss: no losses here")
    assert str(again := sync_study(folder, picky)) == "nothing was missing"
    assert again.remarks == sent.remarks


def test_odd_names_of_a_study_are_delivered_and_told(store, tmp_path):
    folder = study_folder(tmp_path, trial(0, rounds=3))
    with RecordWriter(folder.records(0), SEEDS) as writer:
        for r in (1, 2, 3):
            writer.append(Record(r, {"train/loss": [1.0, 1.0], "acc@1": [0.1, 0.2], "loss[ce]": [1.0, 2.0]}))
    sent = sync_study(folder, store)
    assert sent.remarks == ["MLflow has 'acc@1' as acc_1", "MLflow has 'loss[ce]' as loss_ce_"]
    metrics = store.client.get_run(sent.run_ids[0]).data.metrics
    assert metrics == {"train/loss": 1.0, "acc_1": pytest.approx(0.15), "loss_ce_": 1.5}
    assert str(sync_study(folder, store)) == "nothing was missing"


def test_delivered_is_what_the_run_shows(store, tmp_path, monkeypatch, caplog):
    """A store that answers and keeps nothing, while the trial runs and when the study ends."""
    log_batch = store.client.log_batch
    forgetful = {"metrics": []}
    monkeypatch.setattr(store.client, "log_batch", lambda *arguments, **named: log_batch(*arguments, **{**named, **{
        name: nothing for name, nothing in forgetful.items() if name in named}}))  # fmt: skip
    with caplog.at_level(logging.WARNING):
        run = TrialRun(store, name="0 FedAvg", key={"flstudy.study_id": "5" * 32, "flstudy.trial": "0"})
        run.start(params={}, tags={}, seeds=SEEDS)
        run.log(Record(1, {"train/loss": [1.0, 2.0]}))
        assert not run.finish()
    assert "MLflow took train/loss, and the run does not have it" in caplog.text
    folder = study_folder(tmp_path, trial(0))
    keep(folder, 0, 60)
    assert sync_study(folder, store).incomplete == {0}
    assert not folder.read_trials()[0].synced
    forgetful.clear()
    sent = sync_study(folder, store)
    assert (sent.incomplete, sent.counts["values"]) == (set(), 60 * 5 + 1)  # best/FedAvg
    assert folder.read_trials()[0].synced
