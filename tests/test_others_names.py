"""Others' libraries are used by their documented names: nothing private is imported, read or replaced, but for what is
listed here with its reason."""

import ast
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "flstudy"
STDLIB = sys.stdlib_module_names
CONTAINERS = "nested containers as torch.func and vmap take them apart, all of them by flstudy.pytree"
BASE = "the common base of torch's layers of a kind, also of others' such as apex's, which has no public name"
ALLOWED = {
    **{f"torch.utils._pytree.tree_{name}": CONTAINERS for name in ("flatten", "leaves", "map", "unflatten")},
    "torch.utils._python_dispatch.TorchDispatchMode": "torch's notes name it for counting and recording operators",
    "torch.nn.modules.batchnorm._BatchNorm": BASE,
    "torch.nn.modules.batchnorm._NormBase": BASE,
    "?._accelerator_connector": "the only place of Trainer(sync_batchnorm=True); without it that is not refused",
    "?._layer_sync": "as _accelerator_connector",
    "?._hparams_name": "a constructor's argument hparams by Lightning's name for it; without it checkpoints lack that",
    "?._opt_called": "a schedule of torch's warns that its optimizer never stepped; without it the warning is back",
    "?._unsafe_view": "an operator's name",
    "PopulationTraining._trial_state": "Ray's population forgets a trial that starts again after its worker died",
    "PopulationTraining.super()._get_new_config": "Ray's explore function does not know whose config it makes",
}
"""Name: why there is no other way, and of attributes what happens where it is gone; without a class or a function the
module that imports it fails. Tried with torch 2.11 and 2.15 and with the other libraries of constraints.txt."""
TUPLES = ("_asdict", "_fields", "_replace")  # which Python documents
COMPILING = {"tasks/compiler.py"}
"""The file that may use torch's compiler by the names that it has, and replaces a method of it."""
COMPILER_NAMES = ("torch._C", "torch._decomp", "torch._dynamo", "torch._higher_order_ops", "torch._inductor")
COMPILER_NAMES += ("torch._ops", "torch._subclasses", "torch.utils._python_dispatch", "?.")


def is_private(name: str) -> bool:
    """Whether a dotted name has a part that its owner may change without a word."""
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def chain(node: ast.AST) -> list[str]:
    """The names of ``a.b.c``; empty for anything else."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute) and (before := chain(node.value)):
        return [*before, node.attr]
    return []


def targets(node: ast.AST) -> list[ast.AST]:
    """What a statement assigns to or deletes."""
    if isinstance(node, ast.Assign | ast.Delete):
        return [*node.targets]
    return [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign) else []


def inherited(node: ast.ClassDef) -> set[str]:
    """Private names that a class has from others: those of its own that it neither sets nor defines, and of super()."""
    defined = {part.name for part in ast.walk(node) if isinstance(part, ast.FunctionDef)}
    used = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and is_private(part.attr):
            if chain(part.value) == ["self"] and isinstance(part.ctx, ast.Store):
                defined.add(part.attr)
            elif chain(part.value) == ["self"]:
                used.add(part.attr)
            elif isinstance(part.value, ast.Call) and chain(part.value.func) == ["super"]:
                used.add(f"super().{part.attr}")
    defined |= {*TUPLES, *(name for part in node.body for target in targets(part) for name in chain(target))}
    return {f"{node.name}.{name}" for name in used - defined}


def named_here(tree: ast.AST) -> set[str]:
    """Private names that a source gives to functions, attributes and variables of its own."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and chain(node.value) == ["self"] and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return {name for name in names if is_private(name)}


def of_objects(tree: ast.AST, ours: set[str]) -> set[str]:
    """Private names, none of flstudy's own (``ours``), that a source reads of whatever object, also by getattr."""
    read_names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not isinstance(node.value, ast.Name | ast.Attribute):
            read_names.add(node.attr)
        elif isinstance(node, ast.Attribute) and (names := chain(node)) and names[0] not in ("self", "cls"):
            read_names |= {node.attr}
        elif isinstance(node, ast.Attribute) and len(chain(node)) > 2:
            read_names.add(node.attr)
        elif isinstance(node, ast.Call) and chain(node.func) in (["getattr"], ["setattr"], ["hasattr"]):
            read_names |= {part.value for part in node.args[1:2] if isinstance(part, ast.Constant)}
    return {f"?.{name}" for name in read_names if is_private(str(name)) and name not in {*ours, *TUPLES}}


def insides(source: str) -> set[str]:
    """Private names of others that a source uses, and names of others that it replaces (with `` =``)."""
    tree, roots, used = ast.parse(source), dict[str, str](), set[str]()
    for node in ast.walk(tree):
        pairs = []
        if isinstance(node, ast.Import):
            pairs = [(alias.asname or alias.name.split(".")[0], alias.name, bool(alias.asname)) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            pairs = [(alias.asname or alias.name, f"{node.module}.{alias.name}", True) for alias in node.names]
        for name, whole, is_whole in pairs:
            if whole.split(".")[0] not in ("flstudy", "__future__"):
                roots[name] = whole if is_whole else name
                used |= {whole} if is_private(whole) else set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any((names := chain(base)) and names[0] in roots for base in node.bases):
            used |= inherited(node)
        if isinstance(node, ast.Attribute) and (names := chain(node)) and names[0] in roots:
            whole = ".".join([roots[names[0]], *names[1:]])
            used |= {whole} if is_private(whole) and node.attr.startswith("_") else set()
        for target in targets(node):
            place = target.value if isinstance(target, ast.Subscript) else target
            names = chain(place)
            if len(names) > 1 and names[0] in roots:
                whole = ".".join([roots[names[0]], *names[1:]])
                used |= {f"{whole} ="} if whole.split(".")[0] not in STDLIB or whole == "sys.modules" else set()
    return used


@pytest.mark.slow
def test_nobody_else_s_insides():
    used, wrong = set(), []
    sources = {path: path.read_text() for path in PACKAGE.rglob("*.py")}
    ours = {name for source in sources.values() for name in named_here(ast.parse(source))}
    for path, source in sources.items():
        file = path.relative_to(PACKAGE).as_posix()
        for name in insides(source) | of_objects(ast.parse(source), ours):
            used.add(name)
            if name not in ALLOWED and not (file in COMPILING and name.startswith(COMPILER_NAMES)):
                wrong.append((file, name))
    assert not wrong
    assert set(ALLOWED) <= used  # else it is needless here


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import ray\nray._private.worker", {"ray._private"}),
        (
            "from ray._private import parameter\nparameter.RayParams = 1",
            {"ray._private.parameter", "ray._private.parameter.RayParams ="},
        ),
        ("import sys\nsys.modules['torchmetrics'] = 1", {"sys.modules ="}),
        ("from torch._inductor import config as c", {"torch._inductor.config"}),
        ("import ray\nray.init()\nimport os\nos.environ['A'] = '1'", set()),
        ("from flstudy.x import _y\nclass A:\n    def f(self):\n        self._z = 1", set()),
    ],
)
def test_what_is_found(source, expected):
    assert insides(source) == expected
