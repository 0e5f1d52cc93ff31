"""Class paths: what FLSTUDY_IMPORT_ONLY leaves open, and how modules are told that fail."""

import ast
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import flstudy
from flstudy.config import ConfigError, load
from flstudy.config.registry import IMPORT_ONLY
from flstudy.config.sections import Resources
from flstudy.tuning.cluster import worker_settings

QUICK = Path(__file__).parents[2] / "tune_configs" / "quick.yaml"
STRANGER = """
from pathlib import Path
from flstudy.algorithms import FedAvg
Path(__file__).with_name("was_here").touch()


class Thing(FedAvg):
    pass
"""


def written(folder: Path, changes: dict[str, Any], source: str, module: str) -> Path:
    """quick.yaml with keys changed, and a module beside it."""
    content = yaml.safe_load(QUICK.read_text())
    for key, value in changes.items():
        place = content
        *parents, name = [key] if key.startswith("search:") else key.split(".")
        for parent in parents:
            place = place[parent]
        place[name] = value
    if search := content.pop("search:algorithm", None):
        content["study"]["search"]["algorithm"] = search
    (folder / f"{module}.py").write_text(source)
    (folder / "study.yaml").write_text(yaml.safe_dump(content))
    return folder / "study.yaml"


@pytest.fixture
def module(request, monkeypatch):
    """A name that no other test's module has."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"stranger_{abs(hash(request.node.nodeid))}"
    yield name
    sys.modules.pop(name, None)


INNER = {"class_path": "optuna.samplers.RandomSampler", "init_args": {"seed": {"class_path": "MODULE.Thing"}}}
NAMING = [
    {"task": "MODULE.Thing"},
    {"algorithm": {"class_path": "MODULE.Thing", "init_args": {"lr": 0.1}}},
    {"population.partition": "MODULE.Thing"},
    {"population.drift": {"class_path": "SuddenDrift", "init_args": {"round": 3, "change": "MODULE.Thing"}}},
    {"controller": "MODULE.Thing"},
    {"study.sampler": "MODULE.Thing"},
    {"study.scheduler": {"class_path": "MODULE.Thing"}},
    {"study.sampler": INNER},
    {"search:algorithm": {"choice": ["FedAvg", "MODULE.Thing"]}},
]


@pytest.mark.parametrize("changes", NAMING, ids=str)
def test_only_what_the_environment_allows_is_imported(changes, module, tmp_path, monkeypatch):
    monkeypatch.setenv(IMPORT_ONLY, "flstudy, mylab, optuna")
    named = yaml.safe_load(yaml.safe_dump(changes).replace("MODULE", module))
    with pytest.raises(ConfigError, match=f"allows .*, got '{module}.Thing': add its package"):
        load(written(tmp_path, named, STRANGER, module))
    assert module not in sys.modules
    assert not (tmp_path / "was_here").exists()


def test_what_is_allowed_is_a_whole_package_and_no_prefix_of_its_name(module, tmp_path, monkeypatch):
    path = written(tmp_path, {"algorithm": f"{module}.Thing"}, STRANGER, module)
    for allowed in ("", "flstudy", module[:-1], f"{module}.Thing.more"):
        monkeypatch.setenv(IMPORT_ONLY, allowed)
        with pytest.raises(ConfigError, match=IMPORT_ONLY):
            load(path)
    monkeypatch.setenv(IMPORT_ONLY, f"flstudy,{module}")
    assert load(path).tags()["algorithm"] == "Thing"


def test_a_worker_asks_its_own_environment(module, tmp_path, monkeypatch):
    config = load(written(tmp_path, {"algorithm": f"{module}.Thing"}, STRANGER, module))
    sent = pickle.loads(pickle.dumps(config))
    monkeypatch.setenv(IMPORT_ONLY, "flstudy")
    with pytest.raises(ConfigError, match=IMPORT_ONLY):
        sent.build()
    assert worker_settings(Resources())[IMPORT_ONLY] == "flstudy"  # on machines of a cluster too


@pytest.mark.slow
def test_modules_are_imported_by_name_in_one_place_for_users():
    """The others' names are written in our own sources."""
    root = Path(flstudy.__file__).parent
    calling = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Name | ast.Attribute)
        and (getattr(node, "id", None) or getattr(node, "attr", None)) in ("import_module", "__import__")
    }
    users = {"config/registry.py"}
    ours = {
        "__init__.py",
        "cli.py",
        "registry.py",
        "reporting/section.py",
        "federation/checkpoint.py",
        "tuning/fork_server.py",
        "tuning/nodes.py",  # on a node, what the driver has imported already
    }
    assert calling == users | ours


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import sys\nsys.exit(3)", "SystemExit: 3 ({}.py:2)"),
        ("{}['a']", "KeyError: 'a' ({}.py:1)"),
        ("1 / 0", "ZeroDivisionError: division by zero ({}.py:1)"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module' ({}.py:1)"),
        ("class", "SyntaxError: invalid syntax ({}.py, line 1)"),
        ("Thing = 3", "must name a class, got {}.Thing, which is a int"),
        ("", "{} has no Thing"),
    ],
)
def test_a_module_that_fails_is_told_as_what_it_is(source, message, module, tmp_path):
    with pytest.raises(ConfigError) as refusal:
        load(written(tmp_path, {"algorithm": f"{module}.Thing"}, source, module))
    assert message.format(module) in str(refusal.value)
    assert len(str(refusal.value)) <= 200
