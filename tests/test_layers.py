"""Laws of the house: who may import whom, what the engine needs, and that a name means one thing."""

import ast
import functools
import graphlib
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "flstudy"
ROWS = [
    {"escaping", "user_error", "lightning_hooks", "process_state", "pytree", "user_choices", "whole_file"},
    {"hyper", "local_ray", "registry", "remote"},
    {"run_settings"},
    {"algorithms"},
    {"population", "tasks", "privacy"},
    {"execution", "controllers", "metrics"},  # the radio channel draws from the population's streams
    {"federation"},
    {"testing"},  # the laws of users' own classes
    {"config"},
    {"study"},  # what a study is: on it stand those who write, show and run it
    {"tracking"},
    {"recording"},  # of a training, which a run and a trial share
    {"reporting"},  # reads what tracking wrote
    {"preparation"},  # of data sets, before anything trains
    {"tuning", "run"},  # a study, and a single run
    {"studies"},  # a study as an object
    {"tune"},  # a trial for others that search
    {"benchmark"},
    {"reproduction"},
    {"cli"},
    {"__main__"},
]
ENGINE = set().union(*ROWS[: ROWS.index({"federation"}) + 1])
STUDY = {"ray", "mlflow", "optuna"}
FILES = sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)


def room(path: Path) -> str:
    """The room of a module's file: its folder, or its name at the top of the house."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else path.stem


def row(name: str) -> int:
    """The floor of a room."""
    floors = [number for number, rooms in enumerate(ROWS) if name in rooms]
    assert floors, f"flstudy/{name} has no row: add it to the layers"
    return floors[0]


@functools.cache
def tree(path: Path) -> ast.Module:
    """A file's code, read once."""
    return ast.parse(path.read_text())


def imported(path: Path) -> list[str]:
    """Names of all modules that a file imports, wherever in the file; ``from a import b`` counts as a.b."""
    names = []
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def at_the_top(path: Path) -> set[str]:
    """Packages that a file needs as soon as it is imported."""
    packages, waiting = set(), list(tree(path).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            packages |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            packages.add(node.module.split(".")[0])
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and not typing_only(node):
            waiting += ast.iter_child_nodes(node)
    return packages


def typing_only(node: ast.AST) -> bool:
    """``if TYPE_CHECKING:``"""
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


ROOMS = sorted({room(path) for path in FILES})


def files(name: str) -> list[Path]:
    """All files of a room."""
    return [path for path in FILES if room(path) == name]


@pytest.mark.parametrize("here", ROOMS)
def test_a_room_imports_only_from_rows_above(here):
    names = [name.split(".") for path in files(here) for name in imported(path)]
    theirs = {parts[1] for parts in names if parts[0] == "flstudy" and len(parts) > 1} - {here}
    if here == "__init__":  # the front door loads what is asked for: beside the engine's names, studies from Python
        assert theirs <= {*ENGINE, "studies", "tune"}
        assert at_the_top(PACKAGE / "__init__.py") <= sys.stdlib_module_names
        return
    for there in sorted(theirs):
        if there in (
            "__version__",
            "Coordinator",
            "FederatedRun",
            "Population",
            "Record",
            "RunSettings",
        ):  # from the front door: the engine's top
            assert row(here) > row("federation"), f"{here} imports flstudy.{there}"
        else:
            assert row(there) < row(here), f"{here} imports from {there}"


@pytest.mark.slow
def test_no_file_imports_itself_by_way_of_others():
    """Imports inside of functions and for types alone count, too."""
    modules = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in FILES}
    graph = {}
    for module, path in modules.items():
        names = {name if name in modules else name.rpartition(".")[0] for name in imported(path)}
        graph[module] = names & {*modules} - {module}
    assert list(graphlib.TopologicalSorter(graph).static_order())  # a CycleError names the circle


def test_algorithms_import_torch_and_their_own_room_only():
    for path in files("algorithms"):
        for name in imported(path):
            assert name.split(".")[0] in sys.stdlib_module_names | {"torch"} or name.startswith(
                ("flstudy.algorithms", "flstudy.hyper", "flstudy.pytree", "flstudy.registry", "flstudy.user_error")
            ), f"{path}: {name}"


def test_what_is_raised_for_a_user_to_mend_is_a_user_error():
    """The terminal shows it as a sentence; a ValueError would be told as a mistake of ours."""
    for path in FILES:
        for node in ast.walk(tree(path)):
            error = getattr(node.exc, "func", node.exc) if isinstance(node, ast.Raise) else None
            assert getattr(error, "id", "") != "ValueError", f"{path}:{node.lineno}: raise UserError in its place"


def test_the_engine_needs_no_study_tools_at_import():
    others = {
        "sklearn",
        "yaml",
        "pyarrow",
        "matplotlib",
        "rich",
        "torchvision",
        "h5py",
        "dp_accounting",
    }
    for name in ENGINE:
        for path in files(name):
            assert not at_the_top(path) & (STUDY | others), path


@pytest.mark.slow
def test_neither_an_import_nor_a_run_needs_study_tools():
    """Asked of one fresh process: first after the import, then after a round with its evaluation."""
    code = f"""
import sys, flstudy
assert not {STUDY} & set(sys.modules), "import flstudy"
from flstudy.algorithms import FedAvg
from tests.worlds import run
run(FedAvg(lr=0.1), 1, evaluate=True)
assert not {STUDY} & set(sys.modules), "a run"
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PACKAGE.parent)


OWN_PART = {"Server", "Client", "Local", "Message", "Upload"}  # each method's file calls its states by these names


def test_a_class_or_function_name_means_one_thing():
    """Names at the top of modules; `main` is each command's, private names are a module's own affair."""
    where = defaultdict(list)
    for path in FILES:
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name != "main" and node.name[0] != "_":
                where[node.name].append(path.relative_to(PACKAGE))
    for name in OWN_PART:
        where[name] = [path for path in where[name] if path.parts[0] != "algorithms"]
    assert not {name: paths for name, paths in where.items() if len(paths) > 1}
