"""A first look at a config without importing torch, which takes seconds that a misspelt key should not cost.

What a config may say is read from the package's own sources: dataclass fields and constructor arguments with their
annotations, defaults and domains. Only flstudy's own classes are looked at, and only what is certainly wrong is
refused; everything else is for the parser.
"""

import ast
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from flstudy.config.names import nearest
from flstudy.config.sections import ConfigError
from flstudy.config.values import check_rounds, check_value

PACKAGE = Path(__file__).parents[1]
ROOTS = {  # config key -> base class of what it may name
    "algorithm": "Algorithm",
    "task": "Task",
    "population.dataset": "Dataset",
    "population.partition": "Partition",
    "population.drift.change": "Change",  # before the drift that it is a part of: the first root that fits is a key's
    "population.drift": "Drift",
    "population.availability": "Availability",
    "population.data_stream": "DataStream",
    "controller": "Controller",
    "schedule": "Schedule",
    "study.sampler": "Sampler",
    "study.scheduler": "Scheduler",
}
SECTIONS = {"run": "Run", "study": "Study", "wireless": "Wireless", "privacy": "Privacy"}
SECTIONS |= {"privacy.adaptive_clip": "AdaptiveClip", "regret": "Regret", "recovery": "Recovery"}
SECTIONS |= {f"study.{name.lower()}": name for name in ("Objective", "Resources", "Budget", "Confirm", "Failures")}
HIDDEN = {  # bases of what can be named
    *(
        "Algorithm",
        "Clustered",
        "FedOpt",
        "Joint",
        "Task",
        "Partition",
        "Drift",
        "OneChange",
        "DatedDrift",
        "Availability",
    ),
    *("Controller", "Detector"),
    *("Schedule", "DataStream"),
    *("Dataset", "FileDataset", "DecodedImages", "Natural", "Images", "TorchvisionImages", "Cifar", "Idx", "InMemory"),
    "ResNet",
}
LINKED = ("shape", "classes", "tokens")  # what a task is told of its data set


class Parameter(NamedTuple):
    """What a key may hold."""

    annotation: str
    domain: str | None


class Class(NamedTuple):
    """A class of the package as its source says."""

    bases: tuple[str, ...]
    parameters: dict[str, Parameter]
    summary: str


@functools.cache
def classes() -> dict[str, Class]:
    """All classes of the rooms that a config can name."""
    found = {}
    for room in ("algorithms", "tasks", "population", "metrics", "config", "controllers", "privacy"):
        for path in sorted((PACKAGE / room).rglob("*.py")):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef):
                    bases = tuple(ast.unparse(base).rpartition(".")[2] for base in node.bases)
                    doc = ast.get_docstring(node) or ""
                    summary = " ".join(doc.split("\n\n")[0].split())
                    found[node.name] = Class(bases, dict(_parameters(node)), summary)
    return found


def _parameters(node: ast.ClassDef) -> Iterator[tuple[str, Parameter]]:
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            annotation = ast.unparse(item.annotation)
            if not annotation.startswith("ClassVar"):
                yield item.target.id, Parameter(annotation, _domain(item.value))
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            for argument in [*item.args.args[1:], *item.args.kwonlyargs]:
                yield argument.arg, _argument(argument.annotation)


def _argument(annotation: ast.expr | None) -> Parameter:
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Annotated":
        kind, domain = annotation.slice.elts  # type: ignore[attr-defined]
        return Parameter(ast.unparse(kind), str(ast.literal_eval(domain)))
    return Parameter(ast.unparse(annotation) if annotation else "Any", None)


def _domain(value: ast.expr | None) -> str | None:
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "hyper":
        keyword = next((word.value for word in value.keywords if word.arg == "domain"), None)
        return str(ast.literal_eval(keyword or value.args[1]))
    return None


def parameters(name: str) -> dict[str, Parameter]:
    """Parameters of a class, inherited ones included."""
    if name not in classes():
        return {}
    merged: dict[str, Parameter] = {}
    for base in classes()[name].bases:
        merged.update(parameters(base))
    merged.update(classes()[name].parameters)
    if name in ("Dataset", "Task"):
        return {}
    return {key: value for key, value in merged.items() if key not in LINKED or name == "InMemory"}


def names(key: str) -> list[str]:
    """Classes that a key can name without a module's path."""
    base = ROOTS[key]

    def descends(name: str) -> bool:
        return any(parent == base or (parent in classes() and descends(parent)) for parent in classes()[name].bases)

    return sorted(name for name in classes() if descends(name) and name not in HIDDEN)


def precheck(path: str | Path, options: Sequence[str]) -> None:
    """Refuse what is certainly wrong in a YAML file and in ``--key value`` options.

    Raises:
        ConfigError: one sentence with key, value, domain and next step.
    """
    try:
        content = yaml.safe_load(Path(path).read_text())
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a YAML file that can be read: {str(error).splitlines()[0]}") from error
    if not isinstance(content, Mapping):
        raise ConfigError(f"{path} must hold keys and values, got {type(content).__name__}")
    chosen: dict[str, str] = {}  # class of each root
    _walk("", content, chosen)
    given = list(pairs(options))
    for key, value in given:  # classes first, whatever their order
        if key in ROOTS:
            chosen[key] = _class(key, value)
    for key, value in given:
        _leaf(key, value, chosen)
    check_rounds(content, dict(given))


def pairs(options: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Keys and values of `--key value` and `--key=value` options."""
    waiting = list(options)
    while waiting:
        option = waiting.pop(0)
        if not option.startswith("--"):
            continue
        key, given, value = option[2:].partition("=")
        if not given:
            value = waiting.pop(0) if waiting and not waiting[0].startswith("--") else "true"
        if key not in ("help", "config", "print_config") and not key.endswith("+"):
            try:
                parsed = yaml.safe_load(value)
            except yaml.YAMLError:
                parsed = value
            yield key.replace(".init_args.", "."), parsed


def _walk(prefix: str, content: Mapping[str, Any], chosen: dict[str, str]) -> None:
    for name, value in content.items():
        key = f"{prefix}.{name}" if prefix else str(name)
        if key in ROOTS and value is not None:
            _object(key, value, chosen)
        elif isinstance(value, Mapping) and (key in ("population", "run", "study") or key in SECTIONS):
            _walk(key, value, chosen)
        else:
            _leaf(key, value, chosen)


def _object(key: str, value: Any, chosen: dict[str, str]) -> None:
    """Check a class and its arguments, of which some may be classes again."""
    chosen[key] = _class(key, value)
    values = value.get("init_args") or {} if isinstance(value, Mapping) else {}
    if not isinstance(values, Mapping):
        raise ConfigError(f"{key}.init_args must hold keys and values, got {values!r}")
    for name, argument in values.items():
        if f"{key}.{name}" in ROOTS and argument is not None:
            _object(f"{key}.{name}", argument, chosen)
        else:
            _leaf(f"{key}.{name}", argument, chosen)


def _class(key: str, value: Any, root: str | None = None) -> str:
    """The class that a root names; '' for one that only the parser can judge."""
    known = names(root or key)
    path = value.get("class_path") if isinstance(value, Mapping) else value
    if value is None:
        return ""
    if not isinstance(path, str):
        raise ConfigError(f"{key} must name a class, such as {known[0]}, got {value!r}")
    short = path.rpartition(".")[2]
    if "." in path and not path.startswith("flstudy."):
        return ""
    if short not in known:
        at = key.rpartition(".")[0] + ": " if key.startswith("study.presets") else "study.search: " if root else ""
        raise ConfigError(f"{at}unknown {(root or key).rpartition('.')[2]} {short!r}{nearest(short, known)}")
    return short


def _leaf(key: str, value: Any, chosen: Mapping[str, str]) -> None:
    """Check one key and its value."""
    if key == "study.search" and isinstance(value, Mapping):
        _search(value, chosen)
        return
    if key == "study.presets" and isinstance(value, Mapping):
        _presets(value)
        return
    known = _known(key, chosen)
    if known is None:
        return
    owner, _, name = key.rpartition(".")
    if name not in known:
        root = _root(key)
        where = f" of {chosen[root]}" if root else ""
        raise ConfigError(f"unknown key {key!r}{where}{nearest(key, _full(owner, known))}")
    check_value(key, value, known[name].annotation, known[name].domain)


def _search(space: Mapping[str, Any], chosen: Mapping[str, str]) -> None:
    """Check that each key of a search space is one of some candidate's."""
    candidates: dict[str, list[str]] = {root: [name] for root, name in chosen.items()}
    for key, domain in space.items():
        if key in ROOTS and isinstance(domain, Mapping) and isinstance(domain.get("choice"), list):
            candidates[key] = [_class(f"study.search.{key}", choice, key) for choice in domain["choice"]]
    for key in space:
        root, (owner, _, name) = _root(key), str(key).rpartition(".")
        options = [{**chosen, root: candidate} for candidate in candidates.get(root, [""])] if root else [dict(chosen)]
        found = [_known(str(key), option) for option in options]
        if all(known is not None and name not in known for known in found):
            every = sorted({full for known in found if known is not None for full in _full(owner, known)})
            whose = f" of {' or '.join(candidates[root])}" if root else ""
            raise ConfigError(f"study.search: unknown key {key!r}{whose}{nearest(str(key), every)}")


def _presets(presets: Mapping[str, Any]) -> None:
    """Check that each preset is one of an algorithm, of hyper-parameters that there are, and within their domains."""
    for name, values in presets.items():
        where = f"study.presets.{name}"
        short = _class(where, name, "algorithm")
        if not isinstance(values, Mapping):
            raise ConfigError(f"{where} must hold hyper-parameters and values, got {values!r}")
        for key, value in values.items():
            owner, _, own = str(key).rpartition(".")  # a dotted key is one of the config: privacy.clip
            known = _known(str(key), {}) if owner else parameters(short) if short else None
            if known is None:
                continue
            if own not in known:
                raise ConfigError(f"unknown key {f'{where}.{key}'!r}{nearest(str(key), sorted(_full(owner, known)))}")
            check_value(f"{where}.{key}", value, known[own].annotation, known[own].domain)


def _root(key: str) -> str:
    """The root whose class's parameter a key is, or ''."""
    return next((root for root in ROOTS if str(key).startswith(root + ".")), "")


def _full(owner: str, known: Mapping[str, Parameter]) -> list[str]:
    return [f"{owner}.{name}" if owner else name for name in known]


def _known(key: str, chosen: Mapping[str, str]) -> dict[str, Parameter] | None:
    """The parameters among which a key's last name must be; None where only the parser can judge."""
    owner, _, name = key.rpartition(".")
    root = _root(key)
    if key in ROOTS or key in SECTIONS or (root and owner != root):
        return None
    if root:
        return parameters(chosen[root]) if chosen.get(root) and name not in LINKED else None
    if owner == "population":
        return parameters("Population")
    if owner in SECTIONS:
        return parameters(SECTIONS[owner])
    return top_level() if owner == "" else {}


@functools.cache
def top_level() -> dict[str, Parameter]:
    """The options that the parser defines one by one."""
    tree = ast.parse((PACKAGE / "config" / "parser.py").read_text())
    found = {"population": Parameter("Any", None), "run": Parameter("Any", None), "study": Parameter("Any", None)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "parser.add_argument",
            "parser.add_subclass_arguments",
        ):
            literals = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
            key = str(literals[-1]).removeprefix("--")
            kind = next((ast.unparse(word.value) for word in node.keywords if word.arg == "type"), "Any")
            if "." not in key:
                found[key] = Parameter(kind, None)
    return found
