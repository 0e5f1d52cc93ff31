"""Addresses with passwords in them: what is kept, what goes to the environment, what is refused, what is shown."""

import os
import subprocess
import sys

import pytest
import yaml

from flstudy import cli
from flstudy.config import ConfigError
from flstudy.config.config import load
from flstudy.config.credentials import censored, split_credentials, take_credentials

PASSWORD = "planted-pa55"
CONFIG = {"task": "Logistic", "population": {"dataset": "Digits", "clients": 6, "participants": 2}, "rounds": 2}
CONFIG |= {"algorithm": "FedAvg"}


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """A copy, put back in the end."""
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "PGPASSWORD"):
        monkeypatch.setenv(name, "")


@pytest.mark.parametrize(
    ("uri", "address", "taken"),
    [
        ("http://host:5000", "http://host:5000", {}),
        ("sqlite:////home/a@b/mlflow.db", "sqlite:////home/a@b/mlflow.db", {}),
        ("https://al%40x:p%2Fw@host/at?x=1", "https://host/at?x=1", {"USERNAME": "al@x", "PASSWORD": "p/w"}),
        ("http://al:p@ss@host:5000/", "http://host:5000/", {"USERNAME": "al", "PASSWORD": "p@ss"}),
        ("http://al@host", "http://host", {"USERNAME": "al"}),
        ("postgresql+psycopg://al:pw@h:5432/m?sslmode=require",
         "postgresql+psycopg://al@h:5432/m?sslmode=require", {"PGPASSWORD": "pw"}),
        ("postgresql://al@h/m?password=pw&a=b", "postgresql://al@h/m?a=b", {"PGPASSWORD": "pw"}),
    ],
)  # fmt: skip
def test_an_address_is_kept_without_its_credentials(uri, address, taken):
    assert split_credentials(uri) == (address, {n if n[0] == "P" and n[1] == "G" else f"MLFLOW_TRACKING_{n}": v
                                             for n, v in taken.items()})  # fmt: skip


@pytest.mark.parametrize(
    "uri",
    [
        f"mysql://al:{PASSWORD}@host/m",
        f"mssql+pyodbc:///?odbc_connect=PWD%3D{PASSWORD}",
        f"s3://key:{PASSWORD}@bucket/x",
        f"http://host/?token={PASSWORD}",
        f"http://al:{PASSWORD}/1@host",
        f"http://al:{PASSWORD}#1@host",
        f"http://al:{PASSWORD}[@host",
    ],
)
def test_what_has_no_place_in_the_environment_is_refused_without_being_told(uri):
    with pytest.raises(ConfigError) as refusal:
        split_credentials(uri)
    assert PASSWORD not in str(refusal.value)
    assert len(str(refusal.value)) <= 200


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"got http://al:{PASSWORD}/1@host:5000, sorry", "got http://host:5000, sorry"),
        (f"(mysql+pymysql://al:{PASSWORD}@host/m)", "(mysql+pymysql://al@host/m)"),
        (f"GET /x?a=1&api_key={PASSWORD}&b=2", "GET /x?a=1&api_key=***&b=2"),
        ("password authentication failed for 'in-the-env'", "password authentication failed for '***'"),
        ("see https://host/page, or ask a@b", "see https://host/page, or ask a@b"),
    ],
)
def test_a_text_is_shown_without_credentials(text, shown, monkeypatch):
    monkeypatch.setenv("PGPASSWORD", "in-the-env")
    assert censored(text) == shown


def test_a_password_goes_to_the_environment_and_a_line_says_so_once(capsys):
    for _ in range(2):
        assert take_credentials(f"http://al:{PASSWORD}@host") == "http://host"
    assert os.environ["MLFLOW_TRACKING_PASSWORD"] == PASSWORD
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD next time" in captured.err
    assert PASSWORD not in captured.err


def test_a_config_holds_none(tmp_path, capsys):
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump({**CONFIG, "store": f"http://al:{PASSWORD}@file"}))
    for config, host in (
        (load(path), "file"),
        (load(path, options=["--store", f"http://al:{PASSWORD}@option"]), "option"),
        (load(path, options=[f"--store=http://al:{PASSWORD}@option"]), "option"),
        (load(path, {"store": f"http://al:{PASSWORD}@override"}), "override"),
    ):
        assert config.store == f"http://{host}"
        assert PASSWORD not in str(vars(config))
        assert config.with_overrides({"rounds": 3}).store == f"http://{host}"
    assert cli.main(["tune", str(path), "--print_config"]) == 0
    assert PASSWORD not in "".join(capsys.readouterr())


def test_errors_hold_none(tmp_path, capsys):
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump({**CONFIG, "store": [f"http://al:{PASSWORD}@file"]}))
    assert cli.main(["run", str(path)]) == 2
    assert PASSWORD not in "".join(capsys.readouterr())


def test_the_list_of_processes_shows_none():
    program = (
        "import os, sys; from pathlib import Path; from flstudy.config.credentials import hide_from_process_list\n"
        "pid = os.environ.setdefault('FIRST', str(os.getpid())); hide_from_process_list(sys.argv[2:])\n"
        "print(pid == str(os.getpid()), Path('/proc/self/cmdline').read_text(), os.environ['MLFLOW_TRACKING_PASSWORD'])"
    )
    command = [sys.executable, "-c", program, "tune", "a.yaml", "--store", f"http://al:{PASSWORD}@host", "--rounds=2"]
    parts = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
    assert parts[0].startswith("True ")
    assert parts[3:7] == ["tune", "a.yaml", "--store", "http://host"]
    assert parts[7:] == ["--rounds=2", f" {PASSWORD}\n"]
