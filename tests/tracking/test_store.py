"""The store: what is made, what is refused, and how fast."""

import contextlib
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from flstudy.config import ConfigError
from flstudy.tracking.store import absolute_uri, open_store, sqlite_file


@pytest.mark.slow
def test_a_store_is_made_once_with_its_own_artifact_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = open_store()
    assert store.uri == absolute_uri(None) == f"sqlite:///{tmp_path}/mlflow_tracking/mlflow.db"
    experiment = store.client.get_experiment(store.experiment_id)
    assert experiment.name == "flstudy"
    assert experiment.artifact_location == (tmp_path / "mlflow_tracking" / "artifacts").as_uri()
    assert open_store().experiment_id == store.experiment_id
    connection = sqlite3.connect(tmp_path / "mlflow_tracking" / "mlflow.db")
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()
    assert not (tmp_path / "mlruns").exists()


def test_relative_paths_become_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert absolute_uri("sqlite:///a/b.db") == f"sqlite:///{tmp_path}/a/b.db"
    assert absolute_uri("sqlite:////a/b.db") == "sqlite:////a/b.db"
    assert absolute_uri("http://localhost:5000") == "http://localhost:5000"
    assert sqlite_file("sqlite:////a/b%20c.db") == Path("/a/b c.db")


def refused(uri):
    with pytest.raises(ConfigError) as refusal:
        open_store(uri)
    message = str(refusal.value)
    assert "\n" not in message
    return message


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    message = refused(f"sqlite:///{tmp_path}/file/mlflow.db")
    assert message.startswith("store must be a writable SQLite file, got")
    assert "such as sqlite:///mlflow_tracking/mlflow.db" in message


def test_a_file_that_is_no_database_is_refused(tmp_path):
    (tmp_path / "mlflow.db").write_text("not a database at all, but long enough to be looked at as one" * 20)
    assert "file is not a database" in refused(f"sqlite:///{tmp_path}/mlflow.db")


@pytest.mark.slow
def test_another_mlflow_s_store_is_refused_and_not_migrated(tmp_path):
    uri, path = f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "mlflow.db"
    makes = f"from flstudy.tracking.store import open_store; open_store({uri!r})"
    subprocess.run([sys.executable, "-c", makes], check=True)  # this process knows nothing of it
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        (installed,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        connection.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")  # of MLflow 1.0
    message = refused(uri)
    assert message.startswith("store must be of the installed MLflow's schema, got ")
    assert "back this one up" in message
    assert message.endswith(f": mlflow db upgrade {uri}")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == ("451aebb31d03",)
    assert installed != "451aebb31d03"


@pytest.mark.slow
def test_a_database_locked_by_another_is_refused(tmp_path):
    path = tmp_path / "mlflow.db"
    holder = sqlite3.connect(path)
    holder.execute("PRAGMA journal_mode=WAL")
    holder.execute("BEGIN IMMEDIATE")
    assert "locked" in refused(f"sqlite:///{path}")
    holder.close()


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("http://127.0.0.1:9", "store must be a server that answers, got 'http://127.0.0.1:9'"),
        ("http://no-such-host.invalid:5000", "start it, or leave store out to use mlflow_tracking/mlflow.db"),
        ("postgresql://flstudy:secret@127.0.0.1:9/mlflow", "got 'postgresql://flstudy@127.0.0.1:9/mlflow'"),
        ("./mlruns", "got './mlruns': write sqlite:///./mlruns"),
        ("file:///tmp/mlruns", "MLflow no longer takes plain folders"),
        ("sqlite:///:memory:", "name a file that all trials can open"),
        ("sqlite://", "name a file that all trials can open"),
    ],
)
def test_stores_that_cannot_be_used_are_refused(uri, message, monkeypatch):
    monkeypatch.setenv("PGPASSWORD", "")
    assert message in refused(uri)


@pytest.mark.slow
def test_a_server_that_is_no_mlflow_is_refused():
    import http.server
    import threading

    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        assert "store must be a writable MLflow store" in refused(f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.slow
def test_a_deleted_experiment_is_refused_with_the_way_back(tmp_path):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    store = open_store(uri)
    store.client.delete_experiment(store.experiment_id)
    assert f"experiments restore --experiment-id {store.experiment_id}" in refused(uri)


@pytest.mark.slow
def test_a_database_without_its_driver_is_refused_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "MySQLdb", None)  # as if it were not installed
    message = r"which needs 'MySQLdb': run pip install 'flstudy\[serve\]'"
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(ConfigError, match=message):
        open_store(f"mysql://flstudy@127.0.0.1:{listener.getsockname()[1]}/mlflow")
