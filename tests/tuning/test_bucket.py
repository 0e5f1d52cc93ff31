"""A study by URI: what its bucket has goes on at another home, whatever killed its driver."""

import contextlib
import json
import subprocess
import sys

import pytest
import yaml

from flstudy import Study, cli
from flstudy.config.config import load
from flstudy.remote import RemoteFolder
from flstudy.study import StudyFolder, Trial
from flstudy.study.records import read_records
from flstudy.tuning.trial import run_trial
from tests.buckets import DENIED, Door, environment_at, s3_server
from tests.small_study import slow_rounds
from tests.tuning.test_resume_study import SMALL as LOCAL
from tests.waiting import wait_until

ROUNDS = 200
URI = "s3://bucket/studies/small"
STUDY = {**LOCAL["study"], "concurrent": 2, "folder": "s3://bucket/studies"}
SMALL = {**LOCAL, "rounds": ROUNDS, "study": STUDY}


@pytest.fixture(scope="module")
def server():
    with s3_server() as port:
        yield port


@pytest.fixture
def door(server):
    with Door(server) as bucket_door:
        yield bucket_door


def move(monkeypatch, home, door):
    """Make this process a user's at another home."""
    home.mkdir(exist_ok=True)
    for name, value in environment_at(home, door).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(home)


@contextlib.contextmanager
def command(*arguments, home, door):
    """``flstudy`` at a home, for a while."""
    home.mkdir(exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "flstudy.cli", *arguments],
        cwd=home,
        env={**environment_at(home, door), "PYTHONPATH": ":".join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def snapshots_in_the_bucket():
    """How many trials would go on from a snapshot."""
    return sum(name.endswith(".ckpt") for name in RemoteFolder.open(URI).files())


@pytest.mark.slow
def test_a_killed_study_goes_on_from_its_bucket(tmp_path, door, monkeypatch, capsys):
    move(monkeypatch, tmp_path / "reader", door)
    config_folder = tmp_path / "bucket_study"  # what is agreed to is all code in the config's folder
    config_folder.mkdir()
    algorithm, slow = slow_rounds(config_folder)
    content = {**SMALL, "algorithm": algorithm, "store": f"sqlite:///{tmp_path}/mlflow.db"}
    (config_folder / "small.yaml").write_text(yaml.safe_dump(content))
    with command("tune", str(config_folder / "small.yaml"), home=tmp_path / "first", door=door) as driver:
        wait_until(snapshots_in_the_bucket, driver.poll)
        assert cli.main(["tune", "--resume", URI]) == 2  # the method's module is another user's
        assert "study small would run code that you have not agreed to" in capsys.readouterr().err
        assert cli.main(["tune", "--resume", URI, "--trust"]) == 2
        assert f"study small is running in process {driver.pid}" in capsys.readouterr().err
        assert cli.main(["studies", "s3://bucket/studies", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)[0]["state"] == "running"
        driver.kill()
        driver.wait()
    slow.unlink()
    before = {trial.number: trial.overrides for trial in StudyFolder.named(URI).read_trials()}
    assert StudyFolder.named(URI).state()["state"] == "killed"

    store = f"sqlite:///{tmp_path}/second.db"
    again = ("tune", "--resume", URI, "--store", store, "--json", "--trust")
    with command(*again, home=tmp_path / "second", door=door) as driver:
        output = driver.communicate()[0]
        assert driver.returncode == 0, output
    summary = json.loads(output[output.index('{\n  "study"') :])
    assert (summary["uri"], summary["mirrored"], summary["delivered"]) == (URI, True, True)
    assert not list((tmp_path / "second").glob("studies"))

    study = Study.open(URI)
    assert [str(trial.status) for trial in study.results.trials] == ["finished"] * 3
    assert all(study.results.trials[number].overrides == values for number, values in before.items())
    config = load(study.folder / "study.yaml", command="tune")
    for trial in study.results.trials:
        table = read_records(study.results.folder.records(trial.number))
        rounds = table["round"].to_pylist()
        assert sorted(set(rounds)) == list(range(1, ROUNDS + 1))
        fresh = Trial(number=0, algorithm=trial.algorithm, overrides=trial.overrides)
        assert run_trial(config, fresh, report=lambda trial, save: True).objective == trial.objective  # bit for bit
    for line in (["report", URI], ["show", URI, "best"], ["compare", f"{URI}/0", f"{URI}/1"]):
        assert cli.main(line) == 0
    assert not list(study.folder.glob("models/*.pt"))
    assert cli.main(["export", URI, "--to", "model.pt"]) == 0
    assert study.load_model().training is False
    best = study.best.trial
    assert study.devices()["valid/accuracy"].mean() == pytest.approx(best.metrics["valid/accuracy"], abs=1e-6)
    assert not list(study.folder.glob("snapshots/*"))
    capsys.readouterr()
    assert cli.main(["sync", URI, "--store", store]) == 0
    assert "nothing was missing" in capsys.readouterr().out


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_refused_before_any_trial(tmp_path, door, monkeypatch, capsys):
    move(monkeypatch, tmp_path, door)
    (tmp_path / "small.yaml").write_text(yaml.safe_dump({**SMALL, "store": f"sqlite:///{tmp_path}/mlflow.db"}))
    for folder, sentence in (
        ("s3://nothing/x", "there is no such bucket"),
        ("foo://x/y", "must be a URI that pyarrow knows"),
    ):
        assert cli.main(["tune", "small.yaml", "--study.folder", folder]) == 2
        assert sentence in capsys.readouterr().err
    door.refuses = DENIED
    assert cli.main(["tune", "small.yaml"]) == 2
    assert capsys.readouterr().err.endswith("study.folder: s3://bucket/studies cannot be used: access is denied\n")
    door.refuses = None
    assert cli.main(["report", "s3://bucket/studies/none"]) == 2
    assert "there is no study 'none' in s3://bucket/studies" in capsys.readouterr().err
