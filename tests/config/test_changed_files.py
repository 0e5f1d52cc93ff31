"""A class in a file beside the config is what the file says now, whenever a config is loaded: in a session that edits
it, and in a worker that imported it for another study."""

import gc
import pickle
import subprocess
import sys
from itertools import count
from types import ModuleType

import pytest

from flstudy.config import ConfigError, load
from flstudy.config.changed_files import imported_files

MINE = """
from dataclasses import dataclass

from factors import factor
from flstudy.algorithms import FedAvg
from flstudy.hyper import hyper


@dataclass(frozen=True, kw_only=True)
class {name}(FedAvg):
    \"\"\"Steps of another length.\"\"\"

    mu: float = hyper(0.5, "{domain}")
    \"\"\"μ.\"\"\"

    def length(self):
        return {length} * factor()
"""
YAML = """
task: Logistic
population: {{dataset: Digits, clients: 4, participants: 2}}
algorithm: {{class_path: ./{file}.py:{name}, init_args: {{mu: {mu}}}}}
rounds: 2
"""


class Session:
    """A folder with a config, a class of its own, and a file that this imports."""

    def __init__(self, folder):
        self.folder = folder
        self.write()

    def write(self, *, name="Mine", domain="[0, 1]", length=2, factor=1):
        """Write both files; nothing but a digit of the text may change, within the same second."""
        (self.folder / "mine_edited.py").write_text(MINE.format(name=name, domain=domain, length=length))
        (self.folder / "factors.py").write_text(f"def factor():\n    return {factor}\n")

    def load(self, mu=0.5, name="Mine"):
        path = self.folder / "study.yaml"
        path.write_text(YAML.format(file="mine_edited", name=name, mu=mu))
        return load(path)

    def algorithm(self, **changes):
        return self.load(**changes).parts.algorithm


@pytest.fixture
def session(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)  # both restored afterwards
    for name in ("mine_edited", "factors"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield Session(tmp_path)
    for name in ("mine_edited", "factors"):
        sys.modules.pop(name, None)


def test_an_edited_class_is_loaded_anew(session):
    assert session.algorithm().length() == 2
    session.write(length=3)
    assert session.algorithm().length() == 3
    session.write(length=3, factor=5)  # in a file that the class's file imports
    assert session.algorithm().length() == 15


def test_its_keys_are_those_of_the_edited_class(session):
    session.load()
    with pytest.raises(ConfigError, match=r"mu must lie in \[0, 1\], got 5"):
        session.load(mu=5)
    session.write(domain="[0, 9]")
    assert session.algorithm(mu=5).mu == 5
    session.write(name="Another")
    assert type(session.algorithm(name="Another")).__name__ == "Another"
    session.write(name="Other")
    with pytest.raises(ConfigError, match="mine_edited has no Mine"):
        session.load()
    assert type(session.algorithm(name="Other")).__name__ == "Other"


def test_a_class_whose_file_is_the_same_stays(session):
    first = type(session.algorithm())
    session.write()
    assert type(session.algorithm()) is first


def test_trials_of_a_study_keep_what_was_loaded_when_it_began(session):
    """Configs of later trials are made of the study's, whatever the file says meanwhile."""
    config = session.load()
    session.write(length=7)
    assert config.with_overrides({"algorithm.mu": 0.25}).parts.algorithm.length() == 2
    assert pickle.loads(pickle.dumps(config)).parts.algorithm.length() == 2


def test_a_worker_that_imported_the_old_file_imports_the_new_one(session, tmp_path):
    """It is given the config of a study that another process loaded."""
    assert session.algorithm().length() == 2
    session.write(length=7)
    code = (
        "import pickle, sys; from flstudy.config import load; sys.stdout.buffer.write(pickle.dumps(load('study.yaml')))"
    )
    sent = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=tmp_path, check=True).stdout
    assert pickle.loads(sent).parts.algorithm.length() == 7


def test_others_may_import_while_a_config_is_made(session):
    """Ray and MLflow import in threads of their own; here the collector of garbage does, whenever Python runs it."""
    config = session.load()
    plain, before, thresholds = config.plain(), len(sys.modules), gc.get_threshold()
    names = (f"imported_meanwhile_{number}" for number in count())

    def import_another(phase, info):
        sys.modules[next(names)] = ModuleType("imported_meanwhile")

    gc.callbacks.append(import_another)
    gc.set_threshold(1)
    try:
        digests = imported_files(plain, config.modules)
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(import_another)
        imported = [name for name in sys.modules if name.startswith("imported_meanwhile_")]
        for name in imported:
            del sys.modules[name]
    assert imported
    assert len(sys.modules) == before
    assert set(digests) == {"factors", "mine_edited"}
