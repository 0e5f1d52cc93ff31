"""Credentials reach the server that they are for, and nothing else: no file, no terminal, no server of a stranger."""

import stat

import pytest
import yaml

from flstudy import cli
from flstudy.config import ConfigError
from flstudy.study import Trial
from flstudy.tracking.trust import agreed_store, remember_store
from flstudy.tuning.trial import run_trial
from tests.servers import Guard, server
from tests.tracking.test_sync import CONFIG, study_folder, trial
from tests.tuning.stand_in import StandIn

PASSWORD = "planted-pa55word"


@pytest.fixture(autouse=True)
def own_environment(tmp_path, monkeypatch):
    """An account of this test's user, who has chosen no store yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", PASSWORD)
    monkeypatch.chdir(tmp_path)


def holding(folder, text: str) -> list[str]:
    """Files under a folder in whose bytes or name a text occurs."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [str(path) for path in files if text in path.name or text.encode() in path.read_bytes()]


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_a_planted_password_opens_the_store_and_is_nowhere(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "")
    study = {"name": "small", "trials": 2, "search": {"algorithm.lr": {"choice": [0.1, 0.2]}}}
    config = {**CONFIG, "rounds": 31, "compile": False, "study": study}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(config))
    with server(tmp_path) as mlflow, Guard(mlflow.address, ("me", PASSWORD)) as guard:
        assert cli.main(["tune", "small.yaml", "--store", f"http://me:{PASSWORD}@{guard.host}"]) == 0
        output = "".join(capfd.readouterr())
        assert cli.main(["sync", "small"]) == 0  # the store is this user's own by now
        assert "nothing was missing" in capfd.readouterr().out
        assert len(guard.heard) > 10
        assert all("Authorization" in headers for headers in guard.heard)
    assert PASSWORD not in output
    assert "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD next time" in output
    assert holding(tmp_path, guard.host)
    assert holding(tmp_path, PASSWORD) == []
    assert not (tmp_path / "studies" / "small" / "ray").exists()
    for name in ("state.json", "study.yaml", "trials.jsonl"):
        assert stat.S_IMODE((tmp_path / "studies" / "small" / name).stat().st_mode) == 0o600


@pytest.mark.slow
@pytest.mark.parametrize("command", [["sync", "small"], ["tune", "--resume", "small"]])
def test_a_folder_of_a_stranger_learns_nothing_of_this_user(tmp_path, command, capsys):
    with Guard("http://127.0.0.1:9", None) as guard:
        study_folder(tmp_path, trial(0), store=guard.address, pid=1, host="elsewhere")
        assert cli.main(command) == 2
        assert guard.heard == []
        message = capsys.readouterr().err
        assert f"small names a store that you have not used, '{guard.address}': give --store {guard.address}" in message
        assert cli.main(["sync", "small", "--store", guard.address]) == 2  # asked for, so it is tried
        assert guard.heard[0]["Authorization"].startswith("Basic ")


def test_stores_are_a_users_own_when_they_have_been_chosen(tmp_path, monkeypatch):
    mine, theirs = "http://mine.example:5000", "http://theirs.example:5000"
    assert agreed_store("small", None, None) == f"sqlite:///{tmp_path}/mlflow_tracking/mlflow.db"
    assert agreed_store("small", f"sqlite:///{tmp_path}/mlflow_tracking/mlflow.db", None)
    assert agreed_store("small", theirs, mine) == mine
    with pytest.raises(ConfigError, match="have not used"):
        agreed_store("small", f"sqlite:///{tmp_path}/elsewhere.db", None)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:{PASSWORD}@mine.example:5000/")
    assert agreed_store("small", mine, None) == mine
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    with pytest.raises(ConfigError, match="have not used"):
        agreed_store("small", mine, None)
    for _ in range(2):
        remember_store(f"http://me:{PASSWORD}@mine.example:5000")
    assert agreed_store("small", f"http://you:{PASSWORD}@mine.example:5000", None) == mine
    assert agreed_store("small", "HTTP://MINE.example:5000/", None)  # the same server
    for other in ("http://mine.example:5000@theirs.example", "http://mine.example:5001", "https://mine.example:5000",
                  "http://mine.example:5000\\@theirs.example", "http://mine.example:5000/other"):  # fmt: skip
        with pytest.raises(ConfigError):
            agreed_store("small", other, None)
    listed = tmp_path / "state" / "flstudy" / "stores"
    assert listed.read_text() == f"{mine}\n"
    assert stat.S_IMODE(listed.stat().st_mode) == 0o600
    with pytest.raises(ConfigError, match="have not used"):
        agreed_store("small", theirs, None)


class Quoting(StandIn):
    """Raises what a library might."""

    def run(self, on_round, **named):
        raise OSError(f"http://me:{PASSWORD}/1@host is away, whose password is {PASSWORD}")


def test_a_trial_that_quotes_a_password_is_told_without_it():
    failed = run_trial(Quoting(), Trial(number=0, algorithm="FedAvg", overrides={}), report=lambda *_: True)
    assert failed.reason == "OSError: http://host is away, whose password is ***"
    assert PASSWORD not in str(failed)


@pytest.mark.slow
def test_the_report_of_a_folder_that_still_holds_a_password_holds_none(tmp_path):
    """As earlier versions left it."""
    folder = study_folder(tmp_path, trial(0))
    text = folder.config.read_text().replace("store: null", f"store: http://me:{PASSWORD}@host")
    folder.config.write_text(text)
    assert cli.main(["report", "small"]) == 0
    assert holding(folder.path, PASSWORD) == [str(folder.config)]
