"""The values of a config, checked against the schema and completed with its defaults.

Nothing here imports torch. Classes of users are accepted unchecked until a caller asks for their import.
"""

import contextlib
import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flstudy.config.credentials import clean_values
from flstudy.config.domain import INTEGER, Domain
from flstudy.config.errors import ConfigError, nearest, shown, spelled
from flstudy.config.reading import SEARCH, TYPES, Given
from flstudy.config.registry import ROOTS, by_module, import_class
from flstudy.config.schema import FILE, class_names, config_schema, described, types_of
from flstudy.hyper import within
from flstudy.metrics.registry import METRICS
from flstudy.remote import is_uri

KINDS = {"integer": "an integer", "number": "a number", "boolean": "true or false", "string": "a text", "null": "null"}
KINDS |= {"array": "a list", "object": "keys and values"}

_users: dict[str, dict[str, Any]] = {}
"""Definitions of users' classes and of what they are made of, by name."""


def resolved(key: str, path: Any) -> str:
    """Return the identifier of a class at a key: the short name of a class of flstudy's, the module and name of a
    user's."""
    path = str(by_module(path.get("class_path") if isinstance(path, Mapping) else path))
    name = path.rpartition(".")[2]
    return name if path.startswith("flstudy.") and name in class_names(key) else path


def class_label(key: str, path: Any) -> str:
    """Return the displayed name of a class, with its module where a user's has the name of one of flstudy's."""
    path = resolved(key, path)
    name = path.rpartition(".")[2]
    return path if name in class_names(key) else name


def argument_nodes(key: str, path: str, *, imports: bool) -> Mapping[str, Any]:
    """Return the schema's nodes of a class's arguments by name; none of an unknown class, or of a user's that may not
    be imported."""
    path = resolved(key, path)
    if path in class_names(key):
        return dict(config_schema()["$defs"][path]["properties"])
    return dict(_definition(path, key)["properties"]) if imports and "." in path else {}


def arguments_of(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a class; a value in their place that cannot be any is left for `check_value` to
    refuse."""
    arguments = value.get("init_args")
    return arguments if isinstance(arguments, dict) else {}


def flat_items(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and values; a class as its path (flstudy's: its short name) under its key, its arguments
    below."""
    if isinstance(values, Mapping) and "class_path" in values:
        yield prefix, resolved(prefix, values) if prefix in ROOTS else values["class_path"]
        values = arguments_of(values)
    if isinstance(values, Mapping) and (values or not prefix):
        for key, value in values.items():
            yield from flat_items(value, f"{prefix}.{key}" if prefix else str(key))
    elif not (isinstance(values, Mapping) and prefix):
        yield prefix, values


# ---- against the schema ----------------------------------------------------------------------------------------------


def trained_items(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and values of the trained configuration, without the study, the run, the store and modules."""
    return flat_items({key: value for key, value in values.items() if key not in ("study", "run", "store", "modules")})


def class_tags(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of a configuration's classes by which runs are filtered."""
    flat = dict(trained_items(values))
    keys = {"algorithm": "algorithm", "dataset": "population.dataset", "drift": "population.drift", "task": "task"}
    return {tag: class_label(key, flat[key]) if flat.get(key) else "none" for tag, key in keys.items()}


def completed(content: Mapping[str, Any], *, imports: bool) -> dict[str, Any]:
    """Return a config's values in the schema's order, checked, with all defaults.

    Args:
        content: of a file and its options.
        imports: whether users' classes are imported, and their arguments checked and completed too.

    Raises:
        ConfigError: one sentence with key, value, domain and next step.
    """
    values = clean_values(_section("", config_schema(), content, imports))
    check_bounds(values)
    _check_study(values, imports)
    return values


def check_bounds(values: Mapping[str, Any], *, study: bool = False) -> None:
    """Refuse a number above that of the key which the schema names as its bound.

    Args:
        values: of a config.
        study: check the study section, which a single run does not use, in place of the trained values.

    Raises:
        ConfigError: with both numbers.
    """
    by_key = dict(flat_items(values))
    for root, path in classes_in({"study": values["study"]} if study else {**values, "study": None}):
        for name, node in config_schema()["$defs"].get(path, {}).get("properties", {}).items():
            if (key := f"{root}.{name}") in by_key and (bound := node.get("x-at-most")):
                refuse_above(key, by_key[key], bound, by_key[bound])


def refuse_above(key: str, value: Any, bound: str, most: int) -> None:
    """Raise ConfigError for a number, or one of a list, above that of another key; null is above none."""
    number = max(value, default=0) if isinstance(value, list) else value
    if number is not None and number > most:
        raise ConfigError(f"{key} must be ≤ {bound} ({most}), got {number}: raise {bound} or lower it")


def check_value(key: str, value: Any, node: Mapping[str, Any], *, imports: bool = False) -> Any:
    """Return a value checked against the schema's node, defaults filled in.

    Raises:
        ConfigError: for one that the node does not take.
    """
    node = _branch(node, value)
    kinds = types_of(node)
    if isinstance(value, Given):
        meant = "string" in kinds and not set(kinds) & set(TYPES.get(type(value.value), ()))
        value = value.text if meant else value.value
    if "x-root" in node:
        return _chosen(key, node, value, imports)
    if "enum" in node:
        return _one_of(key, node["enum"], value)
    value_kinds, written = TYPES.get(type(value), ()), value
    if "integer" in kinds and "number" not in kinds and isinstance(value, float) and value.is_integer():
        value, value_kinds = int(value), TYPES[int]
    if kinds and not set(kinds) & set(value_kinds):
        raise ConfigError(f"{key} must be {' or '.join(KINDS[kind] for kind in kinds)}, got {shown(value)}")
    if "anyOf" in node:
        parts = [dereferenced(part) for part in node["anyOf"] if "const" not in part]
        every = dict.fromkeys(KINDS.get(part.get("type", ""), "a class") for part in parts)
        raise ConfigError(f"{key} must be {' or '.join(every)}, got {shown(value)}")
    if isinstance(value, Mapping) and "properties" in node and "additionalProperties" in node:
        return _section(key, node, value, imports)
    if isinstance(value, Mapping):
        return _mapping(key, node, value, imports)
    if isinstance(value, list | tuple):
        return _list(key, node, value, imports)
    if isinstance(value, int | float) and not isinstance(value, bool):
        if "x-domain" in node and not within(value, node["x-domain"]):
            raise ConfigError(f"{key} must lie in {node['x-domain']}, got {shown(written)}")
        if isinstance(value, int) and value.bit_length() > 1000:
            raise ConfigError(f"{key} must be a number that a float can hold, got {shown(written)}")
        return float(value) if kinds and "integer" not in kinds else value
    return value


def dereferenced(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a node of the schema without references."""
    while "$ref" in node:
        place: Any = {"$defs": _Definitions()}
        for step in node["$ref"].removeprefix("#/").split("/"):
            place = place[step]
        node = place
    return node


class _Definitions(dict[str, Any]):
    """Definitions of flstudy's classes, and of users' that were imported."""

    def __missing__(self, name: str) -> dict[str, Any]:
        definition: dict[str, Any] = config_schema()["$defs"].get(name) or _users[name]
        return definition


def _branch(node: Mapping[str, Any], value: Any) -> Mapping[str, Any]:
    """Return the node without references; of several alternatives the one that fits the value's type."""
    node = dereferenced(node)
    if "anyOf" not in node or "x-root" in node:
        return node
    kinds = TYPES.get(type(value.value if isinstance(value, Given) else value), ("object",))
    for part in map(dereferenced, node["anyOf"]):
        if ("x-root" in part and value is not None) or set(kinds) & {part.get("type")}:
            return _branch(part, value)
    sections = [part for part in map(dereferenced, node["anyOf"]) if "properties" in part or "x-root" in part]
    return sections[0] if len(sections) == 1 else node


def _one_of(key: str, choices: Sequence[Any], value: Any) -> Any:
    """Return a value that is one of the choices, of the same type.

    Raises:
        ConfigError: for any other.
    """
    if any(type(choice) is type(value) and choice == value for choice in choices):
        return value
    names = [spelled(choice) for choice in choices]
    if True in [choice for choice in choices if isinstance(choice, bool)]:
        raise ConfigError(f"{key} must be {', '.join(names[:-1])} or {names[-1]}, got {shown(value)}")
    raise ConfigError(f"{key} must be one of {', '.join(names)}, got {shown(value)}{nearest(str(value), names, '')}")


def _list(key: str, node: Mapping[str, Any], value: Sequence[Any], imports: bool) -> list[Any]:
    """Return a list whose elements are checked against a node's.

    Raises:
        ConfigError: for a wrong number of elements, or a wrong element.
    """
    parts = node.get("prefixItems")
    least, most = node.get("minItems", 0), len(parts) if parts else node.get("maxItems", math.inf)
    if not least <= len(value) <= most:
        raise ConfigError(f"{key} must be a list of {least}{'' if most == least else ' or more'}, got {shown(value)}")
    nodes = parts or [node.get("items", {})] * len(value)
    return [check_value(f"{key}[{i}]", element, nodes[i], imports=imports) for i, element in enumerate(value)]


def _mapping(key: str, node: Mapping[str, Any], value: Mapping[Any, Any], imports: bool) -> dict[Any, Any]:
    """Check a mapping whose keys are of the user's choice."""
    numbers, inner, checked = "propertyNames" in node, node.get("additionalProperties") or {}, {}
    for name, part in value.items():
        if numbers and not re.match(node["propertyNames"]["pattern"], str(name)):
            raise ConfigError(f"{key} must have integers for keys, got {shown(name)}")
        checked[int(name) if numbers else name] = check_value(f"{key}.{name}", part, inner, imports=imports)
    return checked


def _section(key: str, node: Mapping[str, Any], value: Any, imports: bool, whose: str = "") -> dict[str, Any]:
    """Check and complete the values of one class's arguments."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{key} must hold keys and values, got {shown(value)}")
    properties, checked = node["properties"], {}
    full = [f"{key}.{name}" if key else name for name in properties]
    rest = node.get("additionalProperties", False)
    patterns = list(node.get("patternProperties", ()))
    for name in value:
        if name not in properties and rest is False and not any(re.search(pattern, str(name)) for pattern in patterns):
            full_key = f"{key}.{name}" if key else str(name)
            raise ConfigError(f"unknown key {shown(full_key)}{whose}{nearest(full_key, full)}")
    if not node.get("minProperties", 0) <= len(value) <= node.get("maxProperties", math.inf):
        exactly = "exactly one" if "maxProperties" in node else "at least one"
        raise ConfigError(f"{key} must have {exactly} of {', '.join(properties)}, got {shown(value)}")
    for (name, child), full_key in zip(properties.items(), full, strict=True):
        if name in value:
            checked[name] = check_value(full_key, value[name], child, imports=imports)
        elif "default" in child:
            checked[name] = check_value(full_key, child["default"], child, imports=imports)
        elif name in node.get("required", ()):
            what = " or ".join(KINDS[kind] for kind in types_of(dereferenced(child))) or "a class"
            raise ConfigError(f"{full_key} must be given{whose.replace(' of ', ' with ')}, {what}: it has no default")
    extra = {name: part for name, part in value.items() if name not in properties}
    return checked | _mapping(key, {"additionalProperties": rest if isinstance(rest, Mapping) else {}}, extra, imports)


# ---- classes -----------------------------------------------------------------------------------------------------


def _chosen(key: str, node: Mapping[str, Any], value: Any, imports: bool) -> dict[str, Any]:
    """Check a class and its arguments."""
    classes = node["x-classes"]
    path = value.get("class_path") if isinstance(value, Mapping) else value
    such = f"such as {classes[0]}" if classes else f"such as those of {ROOTS[key].module}"
    if not isinstance(path, str):
        raise ConfigError(f"{key} must name a class, {such}, got {shown(value)}")
    arguments = (value.get("init_args") or {}) if isinstance(value, Mapping) else {}
    for name in value if isinstance(value, Mapping) else ():
        if name not in ("class_path", "init_args"):
            raise ConfigError(f"{key} must have class_path and init_args, got {shown(name)}: put it under init_args")
    if not isinstance(arguments, Mapping):
        raise ConfigError(f"{key}.init_args must hold keys and values, got {shown(arguments)}")
    name = path.rpartition(".")[2]
    if "." in path and not path.startswith("flstudy."):
        return _users_own(key, path, arguments) if imports else {"class_path": path, "init_args": dict(arguments)}
    if not classes:
        raise ConfigError(f"{key} must name a class by its module, {such}, got {shown(path)}: write its whole path")
    if name not in classes:
        raise ConfigError(f"unknown {key} {shown(name)}{nearest(name, classes)}")
    return {
        "class_path": name,
        "init_args": _section(key, config_schema()["$defs"][name], arguments, imports, f" of {name}"),
    }


WRAPPERS = {"study.sampler": "OptunaSampler", "study.scheduler": "RayScheduler"}
"""Classes of flstudy's that wrap a class of Optuna's or Ray's, which is named by its path."""


def _users_own(key: str, path: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Import a user's class and check its arguments."""
    name, base = path.rpartition(".")[2], ROOTS[key].accepts()
    if not issubclass(import_class(key, path), base):
        if key in WRAPPERS and WRAPPERS[key] in config_schema()["$defs"]:
            wrapped = {"class_path": path, "init_args": dict(arguments)}
            node = config_schema()["$defs"][WRAPPERS[key]]
            return {"class_path": WRAPPERS[key], "init_args": _section(key, node, wrapped, True)}
        raise ConfigError(f"{key} must name a subclass of {base.__name__}, got {path}")
    return {"class_path": path, "init_args": _section(key, _definition(path, key), arguments, True, f" of {name}")}


def _definition(path: str, key: str) -> dict[str, Any]:
    cls: Any = import_class(key, path)
    return _described(cls, key)


@functools.cache
def _described(cls: Any, key: str) -> dict[str, Any]:
    parts = dict[str, dict[str, Any]]()
    definition = described(cls, key, parts)
    _users.update(parts)  # those of a class that was imported anew, too
    return definition


# ---- keys that a study names -------------------------------------------------------------------------------------


def nodes_of_key(
    key: str, classes_by_key: Mapping[str, Sequence[str]], *, imports: bool = False
) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Return the schema's nodes of a dotted key, one for each class that has it, and the keys that there are beside it.

    Args:
        key: such as ``population.drift.round``.
        classes_by_key: the classes that each key may name, flstudy's by their short names.
        imports: whether users' classes are looked into; else they have any key.
    """
    matches: list[Mapping[str, Any]] = []
    beside: dict[str, None] = {}

    def descend(properties: Mapping[str, Any], at: str, parts: Sequence[str]) -> None:
        full_key = f"{at}.{parts[0]}" if at else parts[0]
        beside.update(dict.fromkeys(f"{at}.{name}" if at else name for name in properties))
        if parts[0] not in properties or len(parts) == 1:
            matches.extend([properties[parts[0]]] if parts[0] in properties else [])
            return
        for node in map(dereferenced, [properties[parts[0]], *dereferenced(properties[parts[0]]).get("anyOf", ())]):
            for name in classes_by_key.get(full_key, ()) if "x-root" in node else ():
                if "." in name and not imports:
                    matches.append({})
                    continue
                below = _definition(name, full_key) if "." in name else config_schema()["$defs"][name]
                descend(below["properties"], full_key, parts[1:])
            if "properties" in node:
                descend(node["properties"], full_key, parts[1:])

    descend(config_schema()["properties"], "", key.split("."))
    return matches, list(beside)


def names_class(key: str, classes_by_key: Mapping[str, Sequence[str]], *, imports: bool) -> bool:
    """Return whether a dotted key names a class in one of the classes of a study; arguments as of `nodes_of_key`."""
    nodes, _ = nodes_of_key(key, classes_by_key, imports=imports) if key in ROOTS else ([], [])
    return any("x-root" in dereferenced(part) for node in nodes for part in (node, *node.get("anyOf", ())))


def classes_in(values: Any, at: str = "") -> Iterator[tuple[str, str]]:
    """Yield the keys that name classes, and the classes as they are written."""
    if not isinstance(values, Mapping):
        return
    if "class_path" in values:
        yield at, str(values["class_path"])
        values = arguments_of(values)
    for name, value in values.items():
        yield from classes_in(value, f"{at}.{name}" if at else str(name))


def anchored(values: Any, place: Path) -> Any:
    """Return complete values in which relative paths are resolved from a folder, so that they hold in any folder.

    Paths among the arguments of a user's class stay as they are, since these may be anything.
    """
    if not isinstance(values, Mapping):
        return values
    if "class_path" not in values:
        return {name: anchored(value, place) for name, value in values.items()}
    properties = config_schema()["$defs"].get(values["class_path"], {}).get("properties", {})
    arguments = {}
    for name, value in arguments_of(values).items():
        is_path = isinstance(value, str) and properties.get(name, {}).get("format") == FILE and not is_uri(value)
        arguments[name] = str(place / value) if is_path else anchored(value, place)
    return {**values, "init_args": arguments}


WORLD = tuple(f"population.{part}" for part in ("dataset", "partition", "drift", "availability", "clients"))
"""Keys that make the world in which methods are compared."""
ARM_NAME = re.compile(r"^[A-Za-z0-9_-][A-Za-z0-9_.-]*$")


SPENT = ("rounds", "seeds", "evaluate_every")
"""Keys by which trials cost and are measured alike."""


def of_world(key: str) -> bool:
    """Return whether a dotted key is one of the world's or of one of its parts."""
    return any(f"{key}.".startswith(f"{part}.") for part in WORLD)


def _check_study(values: Mapping[str, Any], imports: bool) -> None:
    """Check the keys of a study's search, arms and presets, their values, and the metrics that it names."""
    study = values["study"]
    classes_by_key = {key: [path] for key, path in classes_in({**values, "study": None})}
    for root, domain in sorted(study["search"].items(), key=lambda pair: pair[0].count(".")):
        is_root = names_class(root, classes_by_key, imports=imports)
        if is_root and "choice" not in domain:
            raise ConfigError(f"{SEARCH}.{root} must be a choice of classes, got {shown(domain)}: write {{choice: []}}")
        if is_root:
            choice, null = domain["choice"], ROOTS[root].default is None
            options = list(choice.values()) if isinstance(choice, Mapping) else choice
            options = [option for option in options if not (option is None and null)]
            arms = study["arms"] if root == "algorithm" else {}
            options = [
                _with_drawn(root, arm_class(arms.get(str(option), option)), ranges_of(study, option), imports)
                for option in options
            ]
            _choose(root, options, classes_by_key, imports)
    for name, arm in study["arms"].items():
        _check_arm(name, arm, ranges_of(study, name), classes_by_key, imports)
    for key, domain in study["search"].items():
        _check_searched(SEARCH, str(key), domain, classes_by_key, imports)
    searched = [(SEARCH, str(key)) for key in study["search"]]
    for name, arm in study["arms"].items():
        searched += [(f"study.arms.{name}.search", arm_key(str(key))) for key in arm["search"]]
    for where, key in searched:
        if key in SPENT:
            raise ConfigError(
                f"{where}.{key} must not be searched, since trials are compared after the same rounds on the same "
                "seeds, and a budget counts these: run a study for each value, or set the key in the config"
            )
        if not study["choose_world"] and of_world(key):
            raise ConfigError(
                f"{where}.{key} must not be searched, since a search would choose the easiest world: run a study for "
                "each world, or set study.choose_world"
            )
    sampler = study["sampler"] or {}
    sweep = sampler["init_args"] if sampler.get("class_path") == "TwoStep" else {"tie": [], "first": {}}
    for where, named in (("tie", [key for tied in sweep["tie"] for key in tied]), ("first", sweep["first"])):
        for key in named:
            if key not in [name for _, name in searched]:
                near = nearest(str(key), list(study["search"]), "")
                raise ConfigError(f"study.sampler.{where} must name keys of study.search, got {shown(key)}{near}")
    _check_presets(study, classes_by_key, imports)
    class_paths = [path for paths in classes_by_key.values() for path in paths]
    if not any("." in path for path in class_paths):  # users' classes may have their own metrics
        _check_metrics(study)


def _choose(root: str, options: Sequence[Any], classes_by_key: dict[str, list[str]], imports: bool) -> None:
    """Check the classes of a search's choice, and note them and those of their arguments in ``classes_by_key``."""
    with _prefixed_errors(SEARCH):
        checked = [check_value(root, option, config_schema()["$defs"][root], imports=imports) for option in options]
    classes_by_key |= {root: []}
    for key, path in (pair for choice in checked for pair in classes_in(choice, root)):
        classes_by_key.setdefault(key, []).append(path)


def ranges_of(study: Mapping[str, Any], name: Any) -> dict[str, Any]:
    """Return the distributions by key of the trials of an arm or class, by its name: the shared ones and the arm's
    own."""
    arm = (study.get("arms") or {}).get(name) if isinstance(name, str) else None
    its_own = (arm.get("search") or {}) if isinstance(arm, Mapping) else {}
    return {**(study.get("search") or {}), **{arm_key(str(key)): domain for key, domain in its_own.items()}}


def drawn_ends(
    root: str, path: str, fixed: Iterable[str], ranges: Mapping[str, Any], *, imports: bool
) -> dict[str, Any]:
    """Return stand-in values for a class's required arguments that are not fixed and that a search draws.

    The stand-in is the smallest value of the argument's range, or the first option of its choice.

    Args:
        root: key that names the class.
        path: of the class.
        fixed: names of arguments that have a value.
        ranges: of `ranges_of`.
        imports: whether users' classes are imported, to learn which arguments they have.
    """
    nodes = argument_nodes(root, path, imports=imports)
    missing = [name for name in nodes if "default" not in nodes[name] and name not in {*fixed}]
    keys = {name: f"{root}.{name}" for name in missing if f"{root}.{name}" in ranges}
    return {name: Domain.parse(f"{SEARCH}.{key}", ranges[key]).extremes()[0] for name, key in keys.items()}


def _with_drawn(root: str, option: Any, ranges: Mapping[str, Any], imports: bool) -> Any:
    """Return a class of a choice with the `drawn_ends` that it lacks."""
    path = option.get("class_path") if isinstance(option, Mapping) else option
    if not isinstance(path, str):
        return option
    fixed = arguments_of(option) if isinstance(option, Mapping) else {}
    drawn = drawn_ends(root, path, fixed, ranges, imports=imports)
    return {"class_path": path, "init_args": {**fixed, **drawn}} if drawn else option


def arm_class(arm: Any) -> Any:
    """Return the class of an arm, with the arguments that it gives; any other value unchanged."""
    if not isinstance(arm, Mapping) or not arm.get("class_path"):
        return arm
    return {"class_path": arm["class_path"], "init_args": arguments_of(arm)}


def arm_key(key: str) -> str:
    """Return the config's key for a key of an arm's search or preset, whose algorithm's keys need no prefix."""
    return key if "." in key else f"algorithm.{key}"


def _check_arm(
    name: str,
    arm: Mapping[str, Any],
    ranges: Mapping[str, Any],
    classes_by_key: Mapping[str, Sequence[str]],
    imports: bool,
) -> None:
    """Refuse an arm whose name or class is invalid, or whose own ranges are of keys that its class lacks."""
    where, path = f"study.arms.{name}", str(arm["class_path"])
    if not ARM_NAME.match(name):
        raise ConfigError(f"study.arms must have names of letters, digits, _, . and -, got {shown(name)}: rename it")
    if name in class_names("algorithm") and resolved("algorithm", path) != name:
        raise ConfigError(f"{where} must be a {name}, or have another name, got class_path {path}: rename it")
    with _prefixed_errors("study.arms"):
        option = _with_drawn("algorithm", arm_class(arm), ranges, imports)
        value = check_value("algorithm", option, config_schema()["$defs"]["algorithm"], imports=imports)
    arm_classes = {**classes_by_key, **{key: [inner] for key, inner in classes_in(value, "algorithm")}}
    for key, domain in arm["search"].items():
        _check_searched(f"{where}.search", arm_key(str(key)), domain, arm_classes, imports)


def _check_searched(
    where: str, key: str, domain: Mapping[str, Any], classes_by_key: Mapping[str, Sequence[str]], imports: bool
) -> None:
    """Refuse a searched key that no class of the study has, and a domain whose values it does not take."""
    matches, beside = nodes_of_key(key, classes_by_key, imports=imports)
    if not matches:
        root = max((root for root in classes_by_key if key.startswith(f"{root}.")), key=len, default="")
        labels = dict.fromkeys(class_label(root, path) for path in classes_by_key[root]) if root else ()
        whose = f" of {' or '.join(labels)}" if root else ""
        first = key.partition(".")[0]
        is_method = first in [class_label("algorithm", path) for path in classes_by_key["algorithm"]]
        hint = f": a range of its own is study.arms.{first}.search" if is_method else nearest(key, beside)
        raise ConfigError(f"{where}: unknown key {shown(key)}{whose}{hint}")
    for node in matches if not names_class(key, classes_by_key, imports=imports) else ():
        _check_domain(f"{where}.{key}", domain, node)


@contextlib.contextmanager
def _prefixed_errors(where: str) -> Iterator[None]:
    """Prefix ConfigErrors with the place."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def _check_domain(where: str, written: Mapping[str, Any], node: Mapping[str, Any]) -> None:
    """Refuse a distribution of values that a key does not take."""
    domain, options = Domain.parse(where, written), written.get("choice")
    if isinstance(options, Mapping):
        raise ConfigError(f"{where}: choice must be a list of values, got {shown(options)}: write {{choice: [a, b]}}")
    if domain.kind not in ("choice", *INTEGER) and "integer" in types_of(dereferenced(node)):
        raise ConfigError(f"{where} must be drawn from integers, got {domain.kind}: use randint or lograndint")
    for value in domain.extremes():
        with _prefixed_errors(f"{where} must hold only values that the config takes"):
            check_value(where.removeprefix(f"{SEARCH}."), value, node)


def _check_presets(study: Mapping[str, Any], classes_by_key: Mapping[str, Sequence[str]], imports: bool) -> None:
    """Refuse presets of unknown algorithms, and values that an algorithm does not take."""
    paths = {name: name for name in class_names("algorithm")}
    paths |= {class_label("algorithm", path): path for path in classes_by_key["algorithm"]}
    paths |= {name: arm["class_path"] for name, arm in study["arms"].items()}
    places = [(f"study.presets.{name}", name, values) for name, values in study["presets"].items()]
    for name, arm in study["arms"].items():
        places += [(f"study.arms.{name}.presets[{i}]", name, values) for i, values in enumerate(arm["presets"])]
    for where, name, values in places:
        if name not in paths:
            raise ConfigError(f"study.presets: unknown algorithm {shown(name)}{nearest(name, list(paths))}")
        for key, value in values.items():
            dotted = arm_key(str(key))
            preset_classes = {**classes_by_key, "algorithm": [resolved("algorithm", paths[name])]}
            matches, beside = nodes_of_key(dotted, preset_classes, imports=imports)
            if not matches:
                raise ConfigError(f"unknown key {shown(f'{where}.{key}')}{nearest(dotted, beside)}")
            for node in matches:
                check_value(f"{where}.{key}", value, node)
            if "[" in where and dotted not in study["search"] and key not in study["arms"][name]["search"]:
                raise ConfigError(
                    f"{where}.{key} must be a key that the arm searches, since its presets are its first trials: put "
                    f"it under study.arms.{name}.init_args"
                )


def _check_metrics(study: Mapping[str, Any]) -> None:
    """Refuse unknown metrics."""
    places = {"study.objective.metric": study["objective"]["metric"]}
    places |= {f"study.objectives[{i}].metric": objective["metric"] for i, objective in enumerate(study["objectives"])}
    places |= {f"study.constraints.{name}": name for name in study["constraints"]}
    for where, name in places.items():
        if name not in METRICS:
            near = nearest(name, list(METRICS), ": the schema has all of them (flstudy schema)")
            raise ConfigError(f"{where}: unknown metric {shown(name)}{near}")
