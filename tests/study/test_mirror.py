"""What a bucket has of a study can be resumed at every moment, and one driver at a time has it."""

import contextlib
import itertools
import json
import multiprocessing
import os
import threading
import time

import pytest

from flstudy.config import ConfigError
from flstudy.remote import RemoteError, RemoteFolder, is_uri
from flstudy.study import Status, StudyFolder, Trial
from flstudy.study.lease import CLAIMS, LEASE, Lease
from flstudy.study.lock import SILENT_S, Holder
from flstudy.study.mirror import BucketMirror
from flstudy.study.records import RecordedRound, RecordWriter, read_records
from flstudy.study.results import list_studies
from flstudy.study.working_copy import WorkingCopy, is_content
from flstudy.tuning.files import replace_file
from tests.buckets import DENIED, FULL, Door, s3_server
from tests.waiting import LIMIT_S, wait_until


@pytest.fixture
def uri(tmp_path, monkeypatch):
    """A folder of studies by URI, and a home of its own for whoever asks."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "bucket").mkdir()
    return f"file://{tmp_path}/bucket/studies"


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Makes this process another user's, whose cache is empty."""

    def move(name):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))

    return move


def begun(uri, name="small"):
    """A study's folder, as `StudyFolder.create` leaves it."""
    copy = WorkingCopy.of(f"{uri}/{name}")
    for part in ("records", "snapshots", "models"):
        (copy.path / part).mkdir(parents=True, exist_ok=True)
    copy.note(token=None)
    folder = StudyFolder(copy.path)
    folder.config.write_text("rounds: 4\nseeds: [0]\nstudy: {trials: 3}\n")
    return folder


def work(folder, number, rounds=(1, 2)):
    """A trial that is at work: records, then the snapshot that follows them."""
    folder.write_trial(Trial(number=number, algorithm="FedAvg"))
    writer = RecordWriter(folder.records(number), [0])
    for round in rounds:
        writer.append(RecordedRound(round, {"train/loss": [1 / round]}))
        writer.flush()
    replace_file(folder.snapshot(number), lambda path: path.write_text(f"{max(rounds)}"))
    return writer


def end(folder, number, writer):
    """The trial is over: its model and records are whole before the list says so, its snapshot goes after that."""
    writer.close()
    replace_file(folder.model(number), lambda path: path.write_text("model"))
    folder.write_trial(Trial(number=number, algorithm="FedAvg", status=Status.FINISHED, rounds=4))
    folder.drop_snapshot(number)


def content(path):
    """The files of a study by name, without what drivers tell each other."""
    names = [file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()]
    excluded = ("lock", "writer", LEASE, CLAIMS, "going")
    return {name: (path / name).read_bytes() for name in names if not set(name.split("/")) & set(excluded)}


def test_what_is_in_the_bucket_is_what_is_here(uri, tmp_path):
    folder, there = begun(uri), tmp_path / "bucket" / "studies" / "small"
    with folder.claim():
        mirror = BucketMirror(folder)
        writer = work(folder, 0)
        folder.write_state("running", study_id="1")
        mirror.send()
        assert content(there) == content(folder.path)
        assert "snapshots/0.ckpt" in content(there)
        sent = mirror.sent_files
        mirror.send()
        assert mirror.sent_files == sent  # nothing has changed
        end(folder, 0, writer)
        mirror.send()
        assert content(there) == content(folder.path)
        assert "snapshots/0.ckpt" not in content(there)
        assert mirror.sent_files == sent + 3  # merged records, the model, the list
    assert mirror.sent_bytes > 0


def train_for_ever(uri, home, begins):
    """A driver at a home of its own: goes on with the study, one short trial after the other."""
    os.environ["XDG_CACHE_HOME"] = home
    folder = begun(uri) if begins else StudyFolder.fetch(f"{uri}/small")
    with contextlib.ExitStack() as claims:
        if begins:
            claims.enter_context(folder.claim())
            folder.write_state("running", study_id="1")
        else:
            folder = StudyFolder.resume(folder.path, claims)
        with BucketMirror(folder, every_s=0.0):
            for number in itertools.count(len(folder.read_trials())):
                writer = work(folder, number, (1,))
                for round in (2, 3, 4):
                    writer.append(RecordedRound(round, {"train/loss": [1 / round]}))
                    writer.flush()
                    replace_file(folder.snapshot(number), lambda path, round=round: path.write_text(f"{round}"))
                end(folder, number, writer)


def check_resumable(place):
    """A trial that the list calls finished has all its records and its model; a snapshot has the records before it."""
    trials = StudyFolder(place).read_trials()
    for trial in trials:
        records = place / "records" / f"{trial.number}.parquet"
        if trial.is_over:
            assert read_records(records)["round"].to_pylist() == [1, 2, 3, 4]
            assert (place / "models" / f"{trial.number}.pt").is_file()
    for snapshot in place.glob("snapshots/*.ckpt"):
        rounds = int(snapshot.read_text())
        recorded = read_records(place / "records" / f"{snapshot.stem}.parquet")["round"].to_pylist()
        assert recorded[:rounds] == list(range(1, rounds + 1))
    return len(trials)


@pytest.mark.slow
def test_whatever_kills_the_driver_another_home_goes_on(uri, tmp_path):
    """Killed again and again, at moments that nobody chose, and resumed at a home that has nothing."""
    place = tmp_path / "bucket" / "studies" / "small"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["flstudy.study.mirror", "flstudy.tuning.files"])
    before = 0

    def has_more():
        return place.is_dir() and len(StudyFolder(place).read_trials()) > before

    for life in range(4):
        driver = context.Process(target=train_for_ever, args=(uri, str(tmp_path / f"home{life}"), life == 0))
        driver.start()
        wait_until(has_more, lambda process=driver: process.exitcode)
        time.sleep(0.037 * life)
        driver.kill()
        driver.join()
        now = check_resumable(place)
        assert now > before
        before = now


@pytest.mark.parametrize("kind", ["records", "models", "snapshots"])
def test_a_list_waits_for_files_that_cannot_be_pinned(uri, tmp_path, monkeypatch, kind):
    """Trials that write all the time let no attempt succeed: the bucket then keeps what refers to their files, too."""
    folder, there = begun(uri), tmp_path / "bucket" / "studies" / "small"
    with folder.claim():
        mirror = BucketMirror(folder)
        writers = {number: work(folder, number) for number in (0, 1)}
        folder.write_state("running", study_id="1")
        mirror.send()
        before = content(there)
        for round in (3, 4):
            writers[0].append(RecordedRound(round, {"train/loss": [1 / round]}))
        end(folder, 0, writers[0])
        pin = mirror._pin

        def replaced(name, path, links):
            if name.startswith(kind):
                raise FileNotFoundError
            return pin(name, path, links)

        with monkeypatch.context() as patch:
            patch.setattr(mirror, "_pin", replaced)
            mirror.send()
        assert content(there)["trials.jsonl"] == before["trials.jsonl"]
        assert "snapshots/0.ckpt" in content(there)
        mirror.send()
        assert content(there) == content(folder.path)
        check_resumable(there)


# ---- whose it is -----------------------------------------------------------------------------------------------------


def held_by_another(uri, **changed):
    """A lease as a driver on another machine has written it this moment."""
    holder = {**vars(Holder()), "host": "far-away", "boot": "another", **changed}
    RemoteFolder.open(f"{uri}/small").write(
        LEASE, json.dumps({"token": "theirs", "released": False, "holder": holder}).encode()
    )


def test_parts_that_are_merged_while_they_are_looked_at_are_looked_at_again(uri, tmp_path, monkeypatch):
    """Else the bucket had a snapshot of round 4 and the records of rounds 2 to 4."""
    folder = begun(uri)
    with folder.claim():
        writer = work(folder, 0)

        def merged(name):
            if name == "records/0.parquet/000000-from-1.parquet":
                writer.close()
            return is_content(name)

        monkeypatch.setattr("flstudy.study.mirror.is_content", merged)
        BucketMirror(folder).send()
    place = tmp_path / "bucket" / "studies" / "small"
    assert [path.name for path in place.glob("records/*/*")] == ["000002-from-1.parquet"]
    assert check_resumable(place) == 1


def test_another_driver_is_refused_in_a_sentence(uri, elsewhere):
    folder = begun(uri)
    with folder.claim():
        folder.write_state("running", study_id="1")
        BucketMirror(folder).send()
        elsewhere("second")
        copy = StudyFolder.fetch(f"{uri}/small")
        assert copy.state()["state"] == "running"
        with (
            pytest.raises(ConfigError, match=rf"study small is running in process {os.getpid()} on .*: wait"),
            copy.claim(),
        ):
            pass
        assert str(os.getpid()) in str(copy.busy_message())
    with copy.claim():  # released
        assert copy.lock.holder() is not None


def test_a_lease_that_is_not_renewed_is_nobody_s(uri, tmp_path):
    folder = begun(uri)
    with folder.claim():
        BucketMirror(folder).send()
    held_by_another(uri)
    with pytest.raises(ConfigError, match=r"far-away.*try again in 60 s"), folder.claim():
        pass
    lease = tmp_path / "bucket" / "studies" / "small" / LEASE
    past = time.time() - SILENT_S - 1
    os.utime(lease, (past, past))
    with folder.claim():
        assert "theirs" not in lease.read_text()


def test_a_dead_process_of_this_machine_holds_nothing(uri):
    folder = begun(uri)
    with folder.claim():
        BucketMirror(folder).send()
    held_by_another(uri, host=Holder().host, boot=Holder().boot, pid=os.getpid(), start="0")
    with folder.claim():
        pass


def test_of_many_that_come_at_once_one_has_the_lease(uri):
    remote, together = RemoteFolder.open(f"{uri}/small"), threading.Barrier(6)
    got, refused, over = [], [], threading.Event()

    def come():
        lease = Lease(remote)
        together.wait()
        try:
            with lease.hold("small"):
                got.append(lease.token)
                over.wait(LIMIT_S)
        except ConfigError as error:
            refused.append(str(error))
        if len(refused) == 5:
            over.set()

    crowd = [threading.Thread(target=come) for _ in range(6)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    assert len(got) == 1
    assert len(refused) == 5
    assert not remote.child(CLAIMS).files()


@pytest.mark.slow
def test_a_driver_whose_lease_is_gone_stops_and_sends_no_more(uri, tmp_path):
    folder, stopped = begun(uri), []
    with folder.claim():
        mirror = BucketMirror(folder, halt=stopped.append)
        folder.write_state("running", study_id="1")
        mirror.send()
        held_by_another(uri)
        work(folder, 0)
        assert not mirror.finish()
    assert "has another driver now" in stopped[0]
    assert str(folder.path) in stopped[0]
    assert not (tmp_path / "bucket" / "studies" / "small" / "trials.jsonl").exists()
    assert "theirs" in (tmp_path / "bucket" / "studies" / "small" / LEASE).read_text()


def test_a_lease_that_is_being_written_anew_is_read_again(uri, elsewhere, monkeypatch):
    """A store under load showed a driver its own lease in part, so that it stopped as if there were another one."""
    folder, read, broken = begun(uri), RemoteFolder.read, []

    def partly(self, name):
        content = read(self, name)
        if name == LEASE and content and broken:
            return content[: broken.pop()]
        return content

    monkeypatch.setattr(RemoteFolder, "read", partly)
    with folder.claim():
        folder.write_state("running", study_id="1")
        broken += [0, 20]
        BucketMirror(folder).send()
        assert not broken
        elsewhere("second")
        copy = StudyFolder.fetch(f"{uri}/small")
        broken += [0, 20]
        with pytest.raises(ConfigError, match="study small is running in process"), copy.claim():
            pass


@pytest.mark.slow
def test_a_lease_that_is_lost_is_nobody_else_s(uri, tmp_path):
    folder = begun(uri)
    lease = tmp_path / "bucket" / "studies" / "small" / LEASE
    with folder.claim():
        for damage in (lease.unlink, lambda: lease.write_text("{")):
            damage()
            BucketMirror(folder).send()
    assert json.loads(lease.read_text())["released"]


# ---- which is newer --------------------------------------------------------------------------------------------------


def test_what_the_bucket_has_not_got_goes_on_here(uri):
    """The last driver was this machine's: its copy may be ahead of the bucket, and is never behind."""
    folder = begun(uri)
    with folder.claim():
        folder.write_state("running", study_id="1")
        BucketMirror(folder).send()
        work(folder, 0)  # and killed
    with contextlib.ExitStack() as claims:
        assert len(StudyFolder.resume(StudyFolder.fetch(f"{uri}/small").path, claims).read_trials()) == 1
        BucketMirror(folder).send()
    assert content(folder.path) == content(WorkingCopy.of(f"{uri}/small").path)


def test_what_another_machine_has_done_comes_first(uri, elsewhere):
    folder = begun(uri)
    with folder.claim():
        folder.write_state("running", study_id="1")
        BucketMirror(folder).send()
        work(folder, 0)  # which the bucket never gets
    elsewhere("second")
    with contextlib.ExitStack() as claims:
        theirs = StudyFolder.resume(StudyFolder.fetch(f"{uri}/small").path, claims)
        end(theirs, 1, work(theirs, 1))
        BucketMirror(theirs).send()
    elsewhere("cache")
    with contextlib.ExitStack() as claims:
        mine = StudyFolder.resume(StudyFolder.fetch(f"{uri}/small").path, claims)
        assert mine.path == folder.path
        assert [trial.number for trial in mine.read_trials()] == [1]
        assert content(mine.path) == content(theirs.path)


# ---- readers ---------------------------------------------------------------------------------------------------------


def test_readers_copy_what_they_need(uri, elsewhere):
    folder = begun(uri)
    with folder.claim():
        folder.write_state("running", study_id="1")
        end(folder, 0, work(folder, 0))
        work(folder, 1)
        BucketMirror(folder).send()
        elsewhere("reader")
        (entry,) = list_studies(uri)
        assert entry["counts"] == {"finished": 1, "running": 1}
        assert entry["state"] == "running"
        head = StudyFolder(WorkingCopy.of(f"{uri}/small").path)
        assert not list(head.path.glob("*/*"))
        copy = StudyFolder.named(f"{uri}/small")
        assert copy.path == head.path
        assert read_records(copy.records(1))["round"].to_pylist() == [1, 2]
        assert not copy.snapshot(1).exists()
        assert not copy.model(0).exists()
        assert StudyFolder.fetch(f"{uri}/small", "models").model(0).is_file()
        elsewhere("cache")
        end(folder, 1, work(folder, 1, (3, 4)))
        BucketMirror(folder).send()
        elsewhere("reader")
        copy = StudyFolder.named(f"{uri}/small")
        assert read_records(copy.records(1))["round"].to_pylist() == [1, 2, 3, 4]
        assert len(list(copy.records(1).iterdir())) == 1
        assert copy.name_or_uri == f"{uri}/small"


def test_a_bucket_writes_nowhere_else():
    assert is_content("records/0.parquet/000000.parquet")
    for name in (
        "../../.bashrc",
        "/etc/passwd",
        "records/../../x",
        "lock",
        LEASE,
        f"{CLAIMS}/x",
        "ray/x",
        "a/.x",
        "x.tmp",
    ):
        assert not is_content(name), name


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("foo://x/y", "foo://x/y must be a URI that pyarrow knows"),
        ("s3://me:secret@bucket/x", "must hold no credentials"),
        ("s3://bucket/x?scheme=http&endpoint_override=127.0.0.1:1", "s3://bucket/x cannot be used: nobody answers"),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused_soon(address, message):
    with pytest.raises(RemoteError, match=message) as refusal:
        RemoteFolder.open(address)
    assert "secret" not in str(refusal.value)


def test_what_is_a_uri():
    assert is_uri("s3://bucket/x")
    assert not is_uri("studies")
    assert not is_uri("/a//b")
    with pytest.raises(ConfigError, match="must name a study in a folder"):
        WorkingCopy.of("s3://bucket")


# ---- a store of S3 ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server():
    with s3_server() as port:
        yield port


@pytest.fixture
def door(server, tmp_path, monkeypatch):
    """The door to a bucket, as this process's environment names it."""
    with Door(server) as bucket_door:
        for name, value in {**bucket_door.account, "XDG_CACHE_HOME": str(tmp_path / "cache")}.items():
            monkeypatch.setenv(name, value)
        yield bucket_door


@pytest.mark.slow
def test_a_bucket_has_the_study_and_only_what_changes_is_sent(door, elsewhere):
    folder = begun("s3://bucket/sent")
    with folder.claim():
        folder.write_state("running", study_id="1")
        mirror = BucketMirror(folder)
        writer = work(folder, 0)
        folder.snapshot(0).write_bytes(bytes(20_000_000))  # in parts
        mirror.send()
        door.written.clear()
        end(folder, 0, writer)
        mirror.send()
        names = [name.removeprefix("sent/small/") for _, name in door.written if not name.endswith("/")]
        assert names.index("models/0.pt") < names.index("trials.jsonl") < names.index("snapshots/0.ckpt")
        assert len(names) == len(set(names)) == 6  # merged records, model, list; a snapshot and two parts are gone
    elsewhere("second")
    with contextlib.ExitStack() as claims:
        assert content(StudyFolder.resume(StudyFolder.fetch("s3://bucket/sent/small").path, claims).path) == content(
            folder.path
        )
    elsewhere("third")
    assert [entry["study"] for entry in list_studies("s3://bucket/sent")] == ["small"]


@pytest.mark.slow
def test_a_bucket_that_goes_away_is_told_once_and_gets_the_rest(door):
    folder, messages = begun("s3://bucket/away"), []
    with folder.claim(), BucketMirror(folder, every_s=0.1, say=messages.append) as mirror:
        folder.write_state("running", study_id="1")
        work(folder, 0)
        wait_until(lambda: ("PUT", "away/small/snapshots/0.ckpt") in door.written)
        door.is_open = False
        work(folder, 1)
        wait_until(lambda: messages)
        wait_until(lambda: mirror.lacks)
        door.is_open = True
        wait_until(lambda: len(messages) == 2)
        assert mirror.finish()
    assert messages[0].startswith("s3://bucket/away/small cannot be used: nobody answers: the study goes on")
    assert messages[1] == "s3://bucket/away/small has all of the study again"
    assert "snapshots/1.ckpt" in RemoteFolder.open("s3://bucket/away/small").files()


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "reason"), [(DENIED, "access is denied"), (FULL, "the bucket is full")])
def test_a_bucket_that_takes_nothing_more_stops_the_study(door, answer, reason):
    folder, stopped = begun(f"s3://bucket/{answer[1]}"), []
    with folder.claim(), BucketMirror(folder, every_s=0.1, halt=stopped.append) as mirror:
        folder.write_state("running", study_id="1")
        work(folder, 0)
        wait_until(lambda: ("PUT", f"{answer[1]}/small/snapshots/0.ckpt") in door.written)
        door.refuses = answer
        work(folder, 1)
        wait_until(lambda: stopped)
        assert not mirror.finish()
    called = f"s3://bucket/{answer[1]}/small"
    assert stopped == [f"{called} cannot be used: {reason}: mend it, then flstudy tune --resume {called}"]
    with pytest.raises(ConfigError, match=reason), folder.claim():
        pass
    door.refuses = None
    with folder.claim():
        BucketMirror(folder).send()
    assert "snapshots/1.ckpt" in RemoteFolder.open(called).files()


@pytest.mark.slow
def test_no_bucket(door):
    with pytest.raises(RemoteError, match="s3://nothing/x cannot be used: there is no such bucket"):
        RemoteFolder.open("s3://nothing/x")
    door.refuses = DENIED
    with pytest.raises(RemoteError, match="access is denied"):
        RemoteFolder.open("s3://bucket/x").check_writable()
