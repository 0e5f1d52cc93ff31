"""Studies on real Ray nodes that see neither the study's folder, nor the config's, nor its data."""

import json
import pickle
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
import yaml

from flstudy.config import ConfigError
from flstudy.config.config import load
from flstudy.study import StudyFolder, Trial
from flstudy.study.records import read_records, rounds_of
from flstudy.tuning.files import LEFT, LeftError, TrialFiles
from flstudy.tuning.nodes import check_nodes, versions_here
from flstudy.tuning.own_files import FOLDER, collect_files
from flstudy.tuning.trial import run_trial
from tests.tuning.raylets import ALONE, Raylets, can_unshare, raylets
from tests.tuning.test_signals import values
from tests.waiting import LIMIT_S, wait_until

ROUNDS = 600  # so that the first trial is far from its end when the second one is under way
OWN = """
import time
from pathlib import Path
import numpy as np
import torch
from flstudy.algorithms import FedAvg
from flstudy.population import Dataset, Examples
from inner.helper import SECONDS

class Measured(Dataset):
    "Examples in a file that the driver alone has."
    shape, classes = (2,), 2
    def load(self, seed, clients):
        x = torch.from_numpy(np.load(Path(__file__).with_name("x.npy")))[: 30 * clients]
        return Examples(x, (x[:, 0] > x[:, 1]).long(), torch.arange(clients).repeat(30))

class Slow(FedAvg):
    "Rounds that take a while."
    def server_step(self, server, inbox, round):
        time.sleep(SECONDS)
        return super().server_step(server, inbox, round)
"""
CONFIG = {
    "task": {"class_path": "Mlp", "init_args": {"hidden": 4}},
    "population": {"dataset": "./mylab.py:Measured", "clients": 10, "participants": 4},
    "algorithm": {"class_path": "./mylab.py:Slow", "init_args": {"lr": 0.1}},
    "rounds": ROUNDS,
    "evaluate_every": 10,
    "compile": False,
    "study": {
        "trials": 3,
        "search": {"algorithm.lr": {"loguniform": [0.01, 0.3]}},
        "failures": {"retries": 0},
    },
}


def test_python_files_travel_and_nothing_else(tmp_path):
    (tmp_path / "config").mkdir()
    lab = tmp_path / "config"
    for name in (
        *("mylab.py", "inner/helper.py", "secret.env", "x.npy", ".hidden.py", ".venv/lib/a.py", "env/pyvenv.cfg"),
        *("env/b.py", "studies/s/state.json", "studies/s/c.py", "__pycache__/d.py"),
    ):
        (lab / name).parent.mkdir(parents=True, exist_ok=True)
        (lab / name).write_text("text")
    place = collect_files(lab, tmp_path / "copy")
    assert place.name == FOLDER
    assert sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()) == [
        "inner/helper.py",
        "mylab.py",
    ]


def test_why_a_trial_left_is_read_in_another_process():
    """Ray pickles it; where that failed the trial's line said TypeError."""
    assert str(pickle.loads(pickle.dumps(LeftError()))) == LEFT


@pytest.mark.slow
def test_a_node_that_answers_late_is_judged_all_the_same(ray_cluster, tmp_path, monkeypatch):
    """On a busy machine an answer took more than 45 seconds, and a node of another flstudy took trials."""
    started = tmp_path / "started"

    def late_facts():
        def facts_of_another_node(modules, folders):
            wait_until(started.exists)
            return {"versions": {"flstudy": "0.1.9"}, "failed": [], "clock": 0.0}

        return facts_of_another_node

    versions_here()
    monkeypatch.setattr("flstudy.tuning.nodes.facts_function", late_facts)
    monkeypatch.setattr("flstudy.tuning.nodes._SOON_S", 0.0)
    lines = []
    with pytest.raises(ConfigError, match=r"cannot take trials: it has flstudy 0\.1\.9"):
        check_nodes((), (), lambda line: (lines.append(line), started.touch()))
    assert len(lines) == 1
    assert re.fullmatch(r"waiting up to 240 s for the answer of [\d.]+", lines[0])


@pytest.fixture(scope="module")
def lab():
    """A folder with a config, the classes that it names and their data."""
    import numpy as np

    with tempfile.TemporaryDirectory(prefix="l") as path:
        folder = Path(path)
        (folder / "inner").mkdir()
        (folder / "inner" / "helper.py").write_text("SECONDS = 0.1\n")
        (folder / "mylab.py").write_text(OWN)
        np.save(folder / "x.npy", np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32))
        (folder / "mine.yaml").write_text(yaml.safe_dump(CONFIG))
        yield folder


@pytest.fixture(scope="module")
def nodes(lab):
    """A head and two nodes from which the lab is hidden."""
    if not can_unshare():
        pytest.skip("this user may not make namespaces")
    with (
        tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as path,
        raylets(Path(path), [lab]) as cluster,
    ):
        yield cluster


def driver(nodes: Raylets, lab: Path, *arguments: str, outside: bool = False, **environment: str) -> subprocess.Popen:
    """`flstudy` in the lab, beside the head or as on a machine that is none of the cluster's."""
    command = [*(ALONE if outside else ()), sys.executable, "-m", "flstudy.cli", *arguments, "--address", nodes.address]
    variables = {"XDG_STATE_HOME": str(lab / ".state"), **environment}
    return subprocess.Popen(
        command, cwd=lab, env=nodes.environment | variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.slow
def test_the_doctor_looks_at_every_node(nodes, lab):
    asked = driver(nodes, lab, "doctor", "--json")
    output = asked.communicate(timeout=LIMIT_S)[0]
    checks = {check["check"]: check for check in json.loads(output[output.index("[\n") :])}
    assert {"Python", "packages", "torch", "compiler", "folder", "store", "Ray"} < set(checks)
    for address in ("127.0.0.2", "127.0.0.3", "127.0.0.4"):
        assert "same versions, clock within 5 s" in checks[address]["said"], checks[address]
    assert asked.returncode == (0 if all(check["good"] for check in checks.values()) else 1)


def under_way(folder: StudyFolder) -> list[int]:
    """Trials that are not over and have more than twenty rounds on disk."""
    running = [trial.number for trial in folder.read_trials() if not trial.is_over]
    there = [number for number in running if folder.records(number).is_dir()]
    return [number for number in there if sum(1 for _ in rounds_of(read_records(folder.records(number)))) > 20]


@pytest.mark.slow
def test_a_node_that_drains_and_a_worker_that_is_told_to_end_lose_no_round(nodes, lab, monkeypatch):
    """The driver's machine is none of the cluster's. Classes and data travel; no failure is forgiven."""
    secrets = {"AWS_SECRET_ACCESS_KEY": "s3-s-word", "MLFLOW_TRACKING_PASSWORD": "mlflow-s-word"}
    driving = driver(nodes, lab, "tune", "mine.yaml", outside=True, AWS_ACCESS_KEY_ID="us", **secrets)
    folder = StudyFolder(lab / "studies" / "mine")
    try:
        wait_until(lambda: len(under_way(folder)) == 2, driving.poll)
        assert not nodes.places_of([*secrets.values()])[0]
        nodes.drain(4)
        output = driving.communicate(timeout=2 * LIMIT_S)[0]
    finally:
        driving.kill()
    assert driving.returncode == 0, output
    trials = folder.read_trials()
    assert [trial.status for trial in trials] == ["finished"] * 3, output
    assert sum(trial.attempts for trial in trials) == 4, output
    assert " starts again: its worker had to leave, with a snapshot" in " ".join(output.split())
    monkeypatch.chdir(lab)
    (lab / "inner" / "helper.py").write_text("SECONDS = 0.0\n")
    config = load(folder.config, command="tune")
    for trial in trials:
        rounds = [record.round for record in rounds_of(read_records(folder.records(trial.number)))]
        assert rounds == list(range(1, ROUNDS + 1))
    moved = max(trials, key=lambda trial: trial.attempts)
    again = Trial(number=0, algorithm=moved.algorithm, overrides=moved.overrides)
    run_trial(config, again, report=lambda *_: True, files=TrialFiles(lab / "alone"))
    assert values(lab / "alone") == values(folder.records(moved.number))


@pytest.mark.slow
def test_a_node_that_cannot_import_the_user_s_file_is_named(nodes, lab, tmp_path):
    """It imports a package that the driver's machine alone has."""
    (tmp_path / "onlyhere.py").touch()
    (lab / "other.py").write_text(textwrap.dedent(OWN) + "\nimport onlyhere\n")
    content = yaml.safe_dump(CONFIG).replace("mylab", "other")
    (lab / "other.yaml").write_text(content)
    path = f"{nodes.environment['PYTHONPATH']}:{tmp_path}"
    refused = driver(nodes, lab, "tune", "other.yaml", PYTHONPATH=path)
    output = refused.communicate(timeout=LIMIT_S)[0]
    assert refused.returncode == 2
    assert "cannot import other: ModuleNotFoundError: No module named 'onlyhere'" in output
    assert not (lab / "studies" / "other").exists()


@pytest.mark.slow
def test_a_node_with_another_flstudy_is_named(nodes, lab, tmp_path):
    """A node of other versions joins, and is refused before the first trial."""
    import shutil

    import flstudy

    shutil.copytree(Path(flstudy.__file__).parent, tmp_path / "flstudy")
    init = tmp_path / "flstudy" / "__init__.py"
    init.write_text(init.read_text().replace(f'"{flstudy.__version__}"', '"0.1.9"'))
    nodes.node(5, PYTHONPATH=str(tmp_path))
    nodes.wait()
    refused = driver(nodes, lab, "tune", "mine.yaml")
    output = refused.communicate(timeout=LIMIT_S)[0]
    assert refused.returncode == 2
    assert "node 127.0.0.5 of the cluster cannot take trials: it has flstudy 0.1.9" in " ".join(output.split())
