"""A study's folder is data: whatever reads it runs nothing of it, and what trains it asks first."""

import copy
import functools
import http.server
import importlib.util
import json
import operator
import os
import py_compile
import struct
import subprocess
import sys
import threading
from importlib.machinery import all_suffixes
from pathlib import Path

import pytest
import yaml

from flstudy import Study
from flstudy.cli import main
from flstudy.config import ConfigError
from flstudy.reporting.report import write_best
from flstudy.study import load_study
from flstudy.study.consent import remember_begun
from flstudy.study.resuming import load_study_config
from flstudy.tracking.export import NEEDED
from tests.foreign_study import foreign_study
from tests.study import mutations

READERS = """
import os, sys
from pathlib import Path
from flstudy.cli import main
folder, out = sys.argv[1:]
commands = [
    ["report", folder],
    ["report", folder, "--json"],
    ["studies", os.path.dirname(folder)],
    ["show", folder, "best"],
    ["compare", folder, f"{folder}/0"],
    ["export", folder, "--to", f"{out}/model.pt"],
    ["sync", folder, "--store", f"sqlite:///{out}/mlflow.db"],
]
for command in commands:
    assert main(command) == 0, command
from flstudy import Study
from flstudy.study import load_study
from flstudy.tuning.dashboard import storage_of
study = Study.open(folder)
assert len(study.trials) == len(study.to_optuna().trials) == 2
assert study.curves().shape == (3, 4)
assert study._repr_html_()
storage_of(load_study(folder))
"""


@pytest.mark.slow
def test_whatever_reads_a_study_imports_nothing_that_it_names(tmp_path):
    canary = tmp_path / "canary"
    study = foreign_study(tmp_path / "studies" / "theirs", canary)
    (tmp_path / "out").mkdir()
    arguments = [str(study.path), str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-c", READERS, *arguments], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert not canary.exists(), canary.read_text()


@pytest.fixture
def canary(tmp_path):
    return tmp_path / "canary"


@pytest.fixture
def theirs(tmp_path, canary, monkeypatch):
    """A study of somebody else, met by a user who has chosen nothing yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", "")
    yield foreign_study(tmp_path / "theirs", canary)
    sys.modules.pop("evilnet", None)


def config_of_best(study):
    """Write a trial's config into the study's folder, as reports do."""
    path = study.best / "Method.yaml"
    path.parent.mkdir()
    values = yaml.safe_load(study.config.read_text())
    path.write_text(yaml.safe_dump({**values, "study": {}, "modules": str(study.path)}))
    return path


@pytest.mark.parametrize(
    "command",
    ["tune --resume {folder} --study.trials 4", "run {best}", "run {best} --help", "tune {folder}/study.yaml",
     "tune {folder}/study.yaml --print_config", "costs {folder}/study.yaml", "data describe {folder}/study.yaml",
     "export {folder} --to {folder}/../model.onnx"],
)  # fmt: skip
def test_code_of_somebody_else_s_study_runs_only_after_consent(theirs, canary, command, capsys, monkeypatch):
    best = config_of_best(theirs)
    monkeypatch.setitem(NEEDED, ".onnx", ())  # the code is asked for before that format's packages
    assert main([word.format(folder=theirs.path, best=best) for word in command.split()]) == 2
    error = capsys.readouterr().err
    assert error.startswith("flstudy: error: study theirs would run code that you have not agreed to, evilnet.")
    assert error.endswith("read it, then give --trust\n")
    assert not canary.exists()


def test_a_study_as_an_object_asks_for_consent_too(theirs, canary):
    study = Study.open(theirs.path)
    for use in (lambda: study.config, study.load_model, study.resume):
        with pytest.raises(ConfigError, match="not agreed to"):
            use()
    assert not canary.exists()
    with pytest.raises(ConfigError, match="evilnet has no"):
        _ = Study.open(theirs.path, trust=True).config


def test_consent_holds_until_the_code_changes(theirs, canary):
    with pytest.raises(ConfigError, match="evilnet has no"):  # its canary is all that the module holds
        load_study_config(theirs, trust=True)
    assert canary.read_text() == "evilnet"
    with pytest.raises(ConfigError, match="evilnet has no"):
        load_study_config(theirs)
    (theirs.path / "evilnet.py").write_text("changed = True")
    with pytest.raises(ConfigError, match="not agreed to"):
        load_study_config(theirs)


def test_consent_holds_where_python_keeps_its_bytecode_below_the_code(theirs, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(theirs.path / "cache"))
    for trust in (True, False):
        with pytest.raises(ConfigError, match="evilnet has no"):
            load_study_config(theirs, trust=trust)
        folder = Path(sys.pycache_prefix) / "root"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "evilnet.cpython-311.pyc").write_bytes(b"")


@pytest.mark.parametrize("place", ["helper.py", "part/helper.py", f"helper{all_suffixes()[-1]}", "helper.pyc"])
def test_consent_is_to_all_that_can_be_imported(theirs, place):
    with pytest.raises(ConfigError, match="evilnet has no"):
        load_study_config(theirs, trust=True)
    (theirs.path / "part").mkdir()
    (theirs.path / place).write_bytes(b"")
    with pytest.raises(ConfigError, match="not agreed to"):
        load_study_config(theirs)


def test_code_behind_a_link_is_not_agreed_to(theirs, tmp_path):
    (theirs.path / "part").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="part must be no link"):
        load_study_config(theirs, trust=True)


def test_bytecode_beside_the_code_that_was_read_is_not_run(theirs, canary):
    source, other = theirs.path / "evilnet.py", theirs.path / "other.py"
    other.write_text(f"from pathlib import Path\nPath({str(canary)!r}).write_text('compiled')\n")
    compiled = Path(py_compile.compile(str(other), cfile=importlib.util.cache_from_source(str(source)), doraise=True))
    other.unlink()
    source.write_text("read = True\n")
    content = bytearray(compiled.read_bytes())  # of the source's age and size, as Python compares
    status = source.stat()
    content[8:16] = struct.pack("<LL", int(status.st_mtime), status.st_size)
    compiled.write_bytes(content)
    with pytest.raises(ConfigError, match="evilnet has no"):
        load_study_config(theirs, trust=True)
    assert not canary.exists()


def test_one_s_own_study_asks_for_nothing(theirs):
    remember_begun(theirs)
    with pytest.raises(ConfigError, match="evilnet has no"):
        load_study_config(theirs)


def test_a_changed_copy_of_one_s_own_study_brings_no_code_of_its_own(theirs, canary, tmp_path, capsys):
    """Its state says what the sent one said; a config of it names the copy's folder."""
    theirs.state_file.write_text(json.dumps({**theirs.state(), "modules": str(tmp_path / "mine")}))
    remember_begun(theirs)
    best = config_of_best(theirs)
    assert main(["run", str(best)]) == 2
    assert "not agreed to" in capsys.readouterr().err
    assert not canary.exists()


def test_a_config_of_flstudy_s_classes_makes_no_file_beside_it_a_module(tmp_path, canary, theirs):
    (theirs.path / "plain.yaml").write_text("task: Logistic\npopulation: {dataset: Digits}\nalgorithm: FedAvg\n")
    assert main(["run", str(theirs.path / "plain.yaml"), "--print_config"]) == 0
    assert str(theirs.path) not in sys.path


PLANTED = [
    *("best", "report", "records", "tracking", "hyper_parameters", "models", "snapshots"),
    *("report/report.html", "report/.report.html.tmp", "report/summary.md", "report/curves.png", "best/Method.yaml"),
    *("best/.Method.yaml.tmp", "records/0.parquet", "models/1.pt", "trials.jsonl", ".trials.jsonl.tmp"),
    *("state.json", ".state.json.tmp", "study.yaml", "events.json", "lock", "writer", "optuna.journal"),
]


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("name", PLANTED)
def test_a_link_in_a_study_leads_nobody_out_of_it(theirs, tmp_path, name, capsys):
    outside, planted = tmp_path / "outside", theirs.path / name
    outside.mkdir()
    (outside / "precious.yaml").write_text("precious: 1")
    (outside / "0.json").write_text("[]")
    planted.parent.mkdir(exist_ok=True)
    if planted.is_dir():
        planted.rename(tmp_path / "its")
    target = outside if "." not in planted.name[1:] and name not in ("lock", "writer") else outside / "precious.yaml"
    planted.unlink(missing_ok=True)
    planted.symlink_to(target)
    before = contents(outside)
    store = f"sqlite:///{tmp_path}/mlflow.db"
    for command in ("report", "show 0", "studies", "export --to out.pt", f"sync --store {store}"):
        word, *more = command.split()
        where = [str(tmp_path)] if word == "studies" else [str(theirs.path)]
        status = main([word, *where, *(part.replace("out.pt", str(tmp_path / "out.pt")) for part in more)])
        assert status in (0, 1, 2)
        assert "Traceback" not in (error := capsys.readouterr().err)
        assert "unexpected" not in error, error
        assert contents(outside) == before, command


@pytest.mark.parametrize("algorithm", ["/abs/precious", "../precious", "..", "a/b", "", ".hidden", "a\\u0000b", "a\nb"])
def test_a_file_is_named_by_no_text_that_a_study_holds(theirs, tmp_path, algorithm):
    precious = tmp_path / "precious.yaml"
    precious.write_text("precious: 1")
    lines = [json.loads(line) for line in theirs.trials.read_text().splitlines()]
    named = str(precious.with_suffix("")) if algorithm == "/abs/precious" else algorithm
    theirs.trials.write_text("".join(json.dumps({**line, "algorithm": named}) + "\n" for line in lines))
    before = {path for path in tmp_path.rglob("*") if theirs.path not in path.parents}
    assert main(["report", str(theirs.path)]) in (0, 2)
    assert precious.read_text() == "precious: 1"
    assert {path for path in tmp_path.rglob("*") if theirs.path not in path.parents} == before


def test_no_file_outside_a_study_goes_to_mlflow(theirs, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    theirs.report.mkdir()
    os.symlink(secret, theirs.report / "figure.png")
    store = f"sqlite:///{tmp_path}/mlflow.db"
    assert main(["sync", str(theirs.path), "--store", store]) == 0
    assert b"secret" not in b"".join(path.read_bytes() for path in tmp_path.rglob("artifacts/**/*") if path.is_file())


class Listener(http.server.BaseHTTPRequestHandler):
    """A server that keeps the requests' headers."""

    def do_GET(self):
        self.server.heard.append(dict(self.headers))
        self.send_error(503)

    do_POST = do_PATCH = do_PUT = do_GET

    def log_message(self, *arguments):
        pass


@pytest.fixture
def listener():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Listener) as server:
        server.heard = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize(
    "command",
    ["report {folder}", "show {folder} best", "sync {folder}", "tune --resume {folder} --study.trials 4 --trust",
     "run {folder}/study.yaml --trust", "tune {folder}/study.yaml --trust"],
)  # fmt: skip
def test_a_server_that_a_folder_names_hears_nothing(theirs, listener, command, monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret")
    address = f"http://127.0.0.1:{listener.server_port}"
    values = yaml.safe_load(theirs.config.read_text()) | {"task": "Logistic", "algorithm": "FedAvg", "store": address}
    values["population"]["dataset"] = "Digits"
    values["study"]["sampler"] = "Tpe"
    theirs.config.write_text(yaml.safe_dump(values))
    theirs.state_file.write_text(json.dumps({**theirs.state(), "store": address}))
    status = main(command.format(folder=theirs.path).split())
    assert not listener.heard
    if status:
        assert "names a store that you have not used" in capsys.readouterr().err


def test_a_config_of_the_report_names_no_store(theirs):
    values = yaml.safe_load(theirs.config.read_text())
    theirs.config.write_text(yaml.safe_dump({**values, "store": "http://127.0.0.1:1"}))
    (written,) = write_best(load_study(theirs)).values()
    assert "store" not in yaml.safe_load(written.read_text())


@pytest.mark.slow
def test_a_config_whose_values_are_of_another_kind_is_read_or_told_in_a_sentence(theirs, capsys):
    whole = yaml.safe_load(theirs.config.read_text())
    for path in list(mutations.places(whole))[1:]:
        changed = copy.deepcopy(whole)
        holder = functools.reduce(operator.getitem, path[:-1], changed)
        holder[path[-1]] = "x" if isinstance(holder[path[-1]], list) else [1]
        theirs.config.write_text(yaml.safe_dump(changed))
        for command in ["show {} best"] + ["report {}"] * (len(path) < 3):
            status, answer = main(command.format(theirs.path).split()), capsys.readouterr()
            assert "unexpected" not in answer.out + answer.err, (path, answer.err)
            assert status == 0 or answer.err.startswith("flstudy: error: "), (path, answer.err)


@pytest.mark.slow
def test_a_mutated_file_is_read_or_told_in_a_sentence():
    """A few of the mutations of `tests.study.mutations`, in a process whose memory is not yet that of other tests."""
    command = [sys.executable, "-m", "tests.study.mutations", "0", "12"]
    ended = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
