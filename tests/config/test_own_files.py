"""Classes in files beside the config, by the files' names."""

import pickle
import sys

import pytest
import yaml

from flstudy.config import ConfigError, load
from flstudy.config.composition import quick_check
from flstudy.config.registry import IMPORT_ONLY
from flstudy.study import StudyFolder

from .test_doors import QUICK

LAB = """
from dataclasses import dataclass
from flstudy.algorithms import FedAvg
from flstudy.hyper import hyper


@dataclass(frozen=True, kw_only=True)
class Mine(FedAvg):
    '''FedAvg by another name.'''

    beta: float = hyper(0.5, "[0, 1)")
    '''β, of nothing.'''
"""


@pytest.fixture
def lab(request, tmp_path, monkeypatch):
    """A config's folder with a file and a folder of classes; their names are no other test's."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"lab_{abs(hash(request.node.nodeid))}"
    (tmp_path / f"{name}.py").write_text(LAB)
    (tmp_path / f"{name}_more").mkdir()
    (tmp_path / f"{name}_more" / "deep.py").write_text(LAB)
    yield tmp_path, name
    for module in [module for module in sys.modules if module.startswith(name)]:
        del sys.modules[module]


def written(folder, **changes):
    """quick.yaml with top keys changed."""
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(QUICK.read_text()), **changes}))
    return path


@pytest.mark.parametrize(
    "path", ["./{0}.py:Mine", "{0}.py:Mine", "./{0}_more/deep.py:Mine", "{0}_more/deep.py:Mine", "{0}.Mine"]
)
def test_a_class_is_found_by_its_file(path, lab, monkeypatch):
    folder, name = lab
    path = path.format(name)
    algorithm = {"class_path": path, "init_args": {"beta": 0.25}}
    config = load(written(folder, algorithm=algorithm, study={"search": {"algorithm.beta": {"uniform": [0, 0.9]}}}))
    assert config.tags()["algorithm"] == "Mine"
    assert config.parts.algorithm.beta == 0.25
    assert load(written(folder, algorithm="FedAvg"), options=["--algorithm", path]).tags()["algorithm"] == "Mine"
    choice = {"algorithm": {"choice": ["FedAvg", path]}, "algorithm.lr": {"loguniform": [0.01, 1]}}
    load(written(folder, algorithm="FedAvg", study={"search": choice}))
    monkeypatch.chdir("/")  # a worker's folder is another one
    sent = pickle.loads(pickle.dumps(config)).with_overrides({"algorithm.beta": 0.75})
    assert sent.build()[0].algorithm.beta == 0.75


def test_a_study_s_own_config_names_modules_since_it_lies_elsewhere(lab, tmp_path_factory):
    folder, name = lab
    config = load(written(folder, algorithm=f"./{name}.py:Mine"), command="tune")
    study = StudyFolder(tmp_path_factory.mktemp("study"))
    study.config.write_text(yaml.safe_dump(config.plain()))
    assert config.plain()["algorithm"]["class_path"] == f"{name}.Mine"
    assert load(study.config, command="tune").tags()["algorithm"] == "Mine"


def test_only_what_the_environment_allows(lab, monkeypatch):
    folder, name = lab
    monkeypatch.setenv(IMPORT_ONLY, "flstudy")
    with pytest.raises(ConfigError, match=IMPORT_ONLY):
        load(written(folder, algorithm=f"./{name}.py:Mine"))
    assert name not in sys.modules
    monkeypatch.setenv(IMPORT_ONLY, f"flstudy,{name}")
    load(written(folder, algorithm=f"./{name}.py:Mine"))


@pytest.mark.parametrize("read", [load, lambda path: quick_check(path, [])], ids=["load", "quick"])
def test_files_that_cannot_be_meant(read, lab):
    folder, _ = lab
    (folder / "statistics.py").write_text(LAB)
    (folder / "lightning.py").write_text(LAB)
    for path, message in [
        ("./nowhere.py:Mine", r"there is no file nowhere\.py for './nowhere\.py:Mine': put it beside the config"),
        ("./statistics.py:Mine", "another module is statistics: rename it"),
        ("./lightning.py:Mine", "another module is lightning: rename it"),
    ]:
        with pytest.raises(ConfigError, match=message) as refusal:
            read(written(folder, algorithm=path))
        assert len(str(refusal.value)) <= 200


def test_a_class_outside_the_folder_is_told_what_a_path_is(lab):
    folder, _ = lab
    for path in ("../elsewhere.py:Mine", "/opt/my-lab.py:Mine"):
        with pytest.raises(ConfigError, match=r"\./file\.py:Class") as refusal:
            load(written(folder, algorithm=path))
        assert len(str(refusal.value)) <= 200
