"""Each round of a metric is in MLflow once, whoever was killed while MLflow had not answered yet."""

import json
import math
import threading

import pytest

from flstudy.federation import Record
from flstudy.tracking.delivery import MetricDelivery, PendingNote
from flstudy.tracking.runs import TrialRun
from flstudy.tracking.store import MetricValue, Store, open_store
from flstudy.tracking.sync import sync_study
from tests.servers import Guard, server
from tests.tracking.test_sync import STUDY_ID, TRIAL, keep, study_folder, trial
from tests.waiting import LIMIT_S, wait_until

VALUES = [
    MetricValue("train/loss", 0.1 + 0.2, 1000, 1),
    MetricValue("train/loss", math.nan, 2000, 2),
    MetricValue("valid/loss", math.inf, 2000, 2),
    MetricValue("valid/loss", -math.inf, 3000, 3),
]
ROUNDS = 30


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory):
    with server(tmp_path_factory.mktemp("server")) as running_server:
        yield running_server


@pytest.fixture(params=["sqlite", "http"])
def store(request, tmp_path):
    if request.param == "http":
        return open_store(request.getfixturevalue("mlflow").address)
    return open_store(f"sqlite:///{tmp_path}/mlflow.db")


def called(call, *arguments):
    return call(*arguments)


def new_run(store):
    return store.client.create_run(store.experiment_id).info.run_id


def history(store, run_id, name):
    return [(metric.step, metric.timestamp) for metric in store.client.get_metric_history(run_id, name)]


@pytest.mark.slow
def test_a_batch_without_an_answer_is_sent_again_unchanged(store, tmp_path):
    """MLflow may have it, may get it later, or never."""
    run_id, note = new_run(store), tmp_path / "tracking" / "0.json"

    def answer_lost(call, *arguments):
        call(*arguments)
        raise OSError("the answer was lost")

    first = MetricDelivery(store, run_id, (), PendingNote(note), answer_lost)
    with pytest.raises(OSError, match="lost"):
        first.send(VALUES)
    again = [value._replace(timestamp=value.timestamp + 7, value=9.0) for value in VALUES]
    more = [*again, MetricValue("train/loss", 0.5, 4000, 3)]
    second = MetricDelivery(store, run_id, (), PendingNote(note), called)
    assert second.missing(more) == more[-1:]
    assert second.send(more[-1:]) == 1
    store.log_metrics(run_id, VALUES)  # late
    assert history(store, run_id, "train/loss") == [(1, 1000), (2, 2000), (3, 4000)]
    assert history(store, run_id, "valid/loss") == [(2, 2000), (3, 3000)]
    assert json.loads(note.read_text())["values"] == [["train/loss", 0.5, 4000, 3]]
    assert PendingNote(note).read(new_run(store)) == []


def test_what_was_given_up_sends_nothing_more(tmp_path):
    path = tmp_path / "tracking" / "0.json"
    first, second = PendingNote(path), PendingNote(path)
    first.write("a", VALUES[:1])
    first.close()
    with pytest.raises(TimeoutError):
        first.write("a", VALUES)
    assert second.read("a") == VALUES[:1]
    second.write("a", VALUES[2:])
    first.remove()
    assert second.read("a") == VALUES[2:]
    second.remove()
    assert not path.parent.exists()


def test_a_damaged_note_counts_for_nothing(tmp_path):
    path = tmp_path / "0.json"
    for text in ("", "[]", '{"run_id": "a"}', '{"run_id": "a", "values": [[1]]}'):
        path.write_text(text)
        assert PendingNote(path).read("a") == []


class Late(Guard):
    """A door that keeps the first request with metrics, and lets it in when it is asked to."""

    def __init__(self, behind: str) -> None:
        super().__init__(behind, ("", ""))
        self.key, self.kept, self.open, self.over = None, threading.Event(), threading.Event(), threading.Event()

    def ask(self, method, path, body, kind):
        if not path.endswith("runs/log-batch") or b'"metrics"' not in body or self.kept.is_set():
            return super().ask(method, path, body, kind)
        self.kept.set()
        self.open.wait(LIMIT_S)
        answer = super().ask(method, path, body, kind)
        self.over.set()
        return answer


@pytest.mark.slow
@pytest.mark.parametrize("next_delivery", ["sync", "start"])
def test_a_request_that_arrives_after_the_next_delivery_adds_nothing(mlflow, tmp_path, next_delivery):
    """The SIGTERM of a study ends what waits for an answer; the request itself is still under way."""
    number = {"sync": 1, "start": 2}[next_delivery]
    folder = study_folder(tmp_path, trial(number, rounds=ROUNDS))
    near = open_store(mlflow.address)
    with Late(mlflow.address) as door:
        named = {"name": f"{number} FedAvg", "key": {STUDY_ID: "5" * 32, TRIAL: str(number)}, "every_s": 0.1}
        run = TrialRun(
            Store(door.address, near.experiment_id),
            **named,
            note=folder.metrics_batch_file(number),
            patience_s=0.2,
            away_s=0.2,
        )
        run.start(params={}, tags={}, seeds=[0, 44], config={"rounds": ROUNDS})
        for r in range(1, 21):
            run.log(record(r, 0.1))
        assert door.kept.wait(LIMIT_S)
        assert not run.finish("KILLED")
        if next_delivery == "sync":
            keep(folder, number, ROUNDS)
            sync_study(folder, near)
        else:
            second = TrialRun(near, **named, note=folder.metrics_batch_file(number))
            second.start(params={}, tags={}, seeds=[0, 44], config={"rounds": ROUNDS})
            for r in range(16, ROUNDS + 1):  # from a snapshot, at another pace
                second.log(record(r, 0.2))
            assert second.finish()
        door.open.set()
        assert door.over.wait(LIMIT_S)
    wait_until(lambda: near.find(named["key"]).data.metrics != {})
    run_id = near.find(named["key"]).info.run_id
    names = set(near.client.get_run(run_id).data.metrics)
    assert {"train/loss", "valid/accuracy"} < names
    for name in names - ({"time/round_s"} if next_delivery == "sync" else set()):  # which `keep` does not keep
        assert sorted(step for step, _ in history(near, run_id, name)) == list(range(1, ROUNDS + 1)), name
    assert not list(folder.path.glob("tracking/*"))


def record(r: int, seconds: float) -> Record:
    """A round; its time differs where it is trained again."""
    return Record(r, {"train/loss": [1 / r, 2 / r], "valid/accuracy": [0.5, 0.7], "time/round_s": [seconds, seconds]})
