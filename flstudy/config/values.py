"""The values of a config: read from YAML and options, checked against the schema, completed with its defaults.

Nothing here imports torch. Classes of users are taken on trust until somebody asks for them to be imported.
"""

import contextlib
import copy
import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from flstudy.config.credentials import clean_values
from flstudy.config.errors import ConfigError, nearest, shown, spelled
from flstudy.config.registry import ROOTS, SECTIONS, by_module, check_files, import_class
from flstudy.config.schema import class_names, config_schema, described, types_of
from flstudy.hyper import within
from flstudy.metrics.registry import METRICS

KINDS = {"integer": "an integer", "number": "a number", "boolean": "true or false", "string": "a text", "null": "null"}
KINDS |= {"array": "a list", "object": "keys and values"}
TYPES = {bool: ("boolean",), int: ("integer", "number"), float: ("number",), str: ("string",), type(None): ("null",)}
TYPES |= {list: ("array",), tuple: ("array",), dict: ("object",)}
SEARCH = "study.search"
DEEPEST, MOST = 50, 1_000_000  # of nested values; of all

_users: dict[str, dict[str, Any]] = {}
"""Definitions of users' classes and of what they are made of, by name."""


class _Loader(yaml.SafeLoader):
    """YAML 1.2's numbers, of which 1e-3 is one, as editors have it; a date is a text; a key stands once."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Brackets in brackets are given up early: reading on would take seconds."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise RecursionError
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Of two equal keys YAML would drop the first without a word."""
        seen = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if (key.tag, str(key.value)) in seen:
                twice = f"the key {shown(key.value)} twice"
                raise yaml.constructor.ConstructorError(problem=twice, problem_mark=key.start_mark)
            seen.add((key.tag, str(key.value)))
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [known for known in resolvers if not known[0].endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
    list("-+0123456789."),
)


def parsed(text: str, path: str = "the config") -> Any:
    """What a YAML text says, the caller's to change.

    Raises:
        ConfigError: it is no YAML, or is deeper or larger than a config can be.
    """
    return copy.deepcopy(_read(text, path))


@functools.lru_cache(maxsize=8)
def _read(text: str, path: str) -> Any:
    """What is kept: the same text is asked for again and again."""
    try:
        content = yaml.load(text, _Loader)
        waiting, count = [(content, 0)], 0
        while waiting:  # a list of its own, since anchors can make a value that is in itself
            value, depth = waiting.pop()
            count += 1
            if depth > DEEPEST or count > MOST:
                raise RecursionError
            if type(value) not in TYPES:
                raise ConfigError(f"{path} must hold texts, numbers, lists and the like, got a {type(value).__name__}")
            parts = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
            waiting += [(part, depth + 1) for part in parts]
    except RecursionError as error:
        raise ConfigError(f"{path} must hold at most {MOST:,} values, {DEEPEST} deep at most: flatten it") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: of what looks like a number and is none
        if isinstance(error, ConfigError):
            raise
        where, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        line = f" in line {where.line + 1}" if where is not None else ""
        said = problem or str(error).splitlines()[0]
        raise ConfigError(f"{path} is not a YAML file that can be read: {said}{line}: mend it there") from error
    return content


def content_of(path: str | Path, text: str | None = None) -> dict[str, Any]:
    """The keys and values of a YAML file.

    Args:
        path: of the file.
        text: what it held when it was read; None reads it.

    Raises:
        ConfigError: there is none, it is no YAML, or something else.
    """
    content = parsed(text_of(path) if text is None else text, str(path))
    if not isinstance(content, Mapping):
        raise ConfigError(f"{path} must hold keys and values, got {type(content).__name__}: see flstudy init")
    return dict(content)


def text_of(path: str | Path) -> str:
    """A config file's text.

    Raises:
        ConfigError: there is no such file, or it is no text.
    """
    try:
        if not Path(path).is_file():
            raise ConfigError(f"there is no config file {shown(str(path))}: see flstudy list configs")
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a YAML file that can be read: {error}") from error


# ---- options -----------------------------------------------------------------------------------------------------


class Given(NamedTuple):
    """A number or bool on a command line, which may have been meant as a text."""

    value: Any
    text: str

    def __repr__(self) -> str:
        return self.text


def pairs(options: Sequence[str]) -> list[tuple[str, Any]]:
    """Keys and values of ``--key value`` and ``--key=value``; a bare ``--key`` is true."""
    found, waiting = [], list(options)
    while waiting:
        option = waiting.pop(0)
        if not option.startswith("--"):
            raise ConfigError(f"options look like --key value, got {option!r}: write --KEY {option}")
        key, given, text = option[2:].partition("=")
        if not given:
            text = waiting.pop(0) if waiting and not waiting[0].startswith("--") else "true"
        try:
            value = parsed(text)
        except ConfigError:
            value = text
        found.append((short_key(key), Given(value, text) if isinstance(value, int | float) else value))
    return found


def short_key(key: str) -> str:
    """``algorithm.init_args.lr`` as ``algorithm.lr``, and ``algorithm.class_path`` as ``algorithm``."""
    return key.replace(".init_args", "").removesuffix(".class_path")


MAPPINGS = (SEARCH, "study.presets", "study.constraints")
"""Keys whose values are mappings of the user's own names."""


def dotted(given: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """Keys as the command line has them, of nested or dotted ones: ``{"study": {"trials": 8}}`` and
    ``{"study.trials": 8}`` say the same. A class with its arguments stays one value."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        key = short_key(f"{at}.{name}" if at else str(name))
        section = key in ROOTS or key in SECTIONS or (key.startswith("study.") and key.count(".") == 1)
        if isinstance(value, Mapping) and section and "class_path" not in value and key not in MAPPINGS:
            found |= dotted(value, key)
        else:
            found[key] = value
    return found


def arguments(overrides: Mapping[str, Any]) -> list[str]:
    """Overrides as options, of which a class comes before its own parameters."""
    return [
        f"--{key}={spelled(value)}" for key, value in sorted(overrides.items(), key=lambda item: item[0].count("."))
    ]


def merged(content: Mapping[str, Any], given: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """A file's content with keys replaced.

    A class that differs from the file's starts from its own defaults: FedAvg must not silently run with the server
    learning rate of another method. The class that a file or a key chooses gets its values of ``study.presets``, but
    for those that are said.
    """
    nested = by_module(content)
    changes = [pair for key, value in given for pair in _apart(key, by_module(value))]
    changes = [*_preset(content, changes), *changes]
    for key, value in sorted(changes, key=lambda change: change[0].count(".")):  # stable: the last word counts
        put(nested, key, value)
    return nested


def _apart(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A class with arguments as the class and its arguments."""
    if key not in ROOTS or not isinstance(value, Mapping) or "class_path" not in value:
        yield key, value
        return
    yield key, value["class_path"]
    for name, argument in arguments_of(value).items():
        yield from _apart(f"{key}.{name}", argument)


def _preset(content: Mapping[str, Any], changes: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    study = content.get("study")
    said_of_presets = [value for key, value in changes if key == "study.presets"]  # replaces the file's
    presets = said_of_presets[-1] if said_of_presets else study.get("presets") if isinstance(study, Mapping) else None
    own = short(content.get("algorithm"))
    chosen = next((value for key, value in reversed(changes) if key == "algorithm"), content.get("algorithm"))
    values = presets.get(short(chosen)) if isinstance(presets, Mapping) else None
    if not isinstance(values, Mapping):
        return []
    said = dict(flat(content)) if short(chosen) == own else {}  # of the file's own algorithm it knows best
    every = {str(key) if "." in str(key) else f"algorithm.{key}": value for key, value in values.items()}
    path = chosen.get("class_path") if isinstance(chosen, Mapping) else chosen
    return [("algorithm", path), *((key, value) for key, value in every.items() if key not in said)]


def put(nested: dict[str, Any], key: str, value: Any) -> None:
    """Set one dotted key in nested content."""
    key, more = key.removesuffix("+"), key.endswith("+")
    parents, name = key.split(".")[:-1], key.rpartition(".")[2]
    if key.startswith(f"{SEARCH}."):  # whose own keys have dots
        parents, name = SEARCH.split("."), key.removeprefix(f"{SEARCH}.")
    place, at = nested, ""
    for parent in parents:
        at = f"{at}.{parent}" if at else parent
        below: Any = place.get(parent)
        if at in ROOTS and (below is None or isinstance(below, str)):
            below = below or ROOTS[at].default
            if not below:
                raise ConfigError(f"{key} needs a class, and {at} names none: give --{at} as well")
            below = place[parent] = {"class_path": below}
        elif not isinstance(below, Mapping):
            below = place[parent] = {}
        if "class_path" in below:
            below["init_args"] = arguments_of(below)
            below = below["init_args"]
        place = below
    if more:
        value = [one for part in (place.get(name) or [], value) for one in (part if isinstance(part, list) else [part])]
    if key not in ROOTS or value is None or short(place.get(name)) != short(value):
        place[name] = value


def short(given: Any) -> str:
    """The class name in a class path, or in a mapping that has one."""
    path = given.get("class_path") if isinstance(given, Mapping) else given
    return str(path).rpartition(".")[2]


def arguments_of(value: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a class; what is written in their place and cannot be any is for `check_value` to refuse."""
    given = value.get("init_args")
    return given if isinstance(given, dict) else {}


def flat(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values; a class is its short name under its key, and its arguments below."""
    if isinstance(values, Mapping) and "class_path" in values:
        yield prefix, short(values)
        values = arguments_of(values)
    if isinstance(values, Mapping) and (values or not prefix):
        for key, value in values.items():
            yield from flat(value, f"{prefix}.{key}" if prefix else str(key))
    elif not (isinstance(values, Mapping) and prefix):
        yield prefix, values


# ---- against the schema ----------------------------------------------------------------------------------------------


def completed(content: Mapping[str, Any], *, imports: bool) -> dict[str, Any]:
    """A config's values in the schema's order, checked, with all defaults.

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


def quick_check(path: str | Path, options: Sequence[str]) -> dict[str, Any]:
    """The values of a YAML file and options, checked without importing torch or anything of the user's.

    Raises:
        ConfigError: as `completed`.
    """
    content, given = content_of(path), pairs(options)
    check_files([content, *(value for _, value in given)], Path(path).parent)
    return completed(merged(content, given), imports=False)


def check_bounds(values: Mapping[str, Any], *, study: bool = False) -> None:
    """Refuse a number above that of the key which the schema names as its bound.

    Args:
        values: of a config.
        study: look at the study, which means nothing to a single run, and not at what it trains.

    Raises:
        ConfigError: with both numbers.
    """
    given = dict(flat(values))
    for root, path in classes_in({"study": values["study"]} if study else {**values, "study": None}):
        for name, node in config_schema()["$defs"].get(path, {}).get("properties", {}).items():
            if (key := f"{root}.{name}") in given and (bound := node.get("x-at-most")):
                refuse_above(key, given[key], bound, given[bound])


def refuse_above(key: str, given: Any, bound: str, most: int) -> None:
    """Raise ConfigError for a number, or one of a list, above that of another key."""
    number = max(given, default=0) if isinstance(given, list) else given
    if number > most:
        raise ConfigError(f"{key} must be ≤ {bound} ({most}), got {number}: raise {bound} or lower it")


def check_value(key: str, value: Any, node: Mapping[str, Any], *, imports: bool = False) -> Any:
    """A value as the schema's node has it, defaults filled in.

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
    given, written = TYPES.get(type(value), ()), value
    if "integer" in kinds and "number" not in kinds and isinstance(value, float) and value.is_integer():
        value, given = int(value), TYPES[int]
    if kinds and not set(kinds) & set(given):
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
    """A node of the schema without references."""
    while "$ref" in node:
        place: Any = {"$defs": _Definitions()}
        for step in node["$ref"].removeprefix("#/").split("/"):
            place = place[step]
        node = place
    return node


class _Definitions(dict[str, Any]):
    """flstudy's definitions, and users' that were imported."""

    def __missing__(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = config_schema()["$defs"].get(name) or _users[name]
        return found


def _branch(node: Mapping[str, Any], value: Any) -> Mapping[str, Any]:
    """The node without references, and of several the one that a value's kind fits."""
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
    if any(type(choice) is type(value) and choice == value for choice in choices):
        return value
    names = [spelled(choice) for choice in choices]
    if True in [choice for choice in choices if isinstance(choice, bool)]:
        raise ConfigError(f"{key} must be {', '.join(names[:-1])} or {names[-1]}, got {shown(value)}")
    raise ConfigError(f"{key} must be one of {', '.join(names)}, got {shown(value)}{nearest(str(value), names, '')}")


def _list(key: str, node: Mapping[str, Any], value: Sequence[Any], imports: bool) -> list[Any]:
    parts = node.get("prefixItems")
    least, most = node.get("minItems", 0), len(parts) if parts else node.get("maxItems", math.inf)
    if not least <= len(value) <= most:
        raise ConfigError(f"{key} must be a list of {least}{'' if most == least else ' or more'}, got {shown(value)}")
    nodes = parts or [node.get("items", {})] * len(value)
    return [check_value(f"{key}[{i}]", one, nodes[i], imports=imports) for i, one in enumerate(value)]


def _mapping(key: str, node: Mapping[str, Any], value: Mapping[Any, Any], imports: bool) -> dict[Any, Any]:
    """Keys of the user's choice."""
    numbers, inner, found = "propertyNames" in node, node.get("additionalProperties") or {}, {}
    for name, one in value.items():
        if numbers and not re.match(node["propertyNames"]["pattern"], str(name)):
            raise ConfigError(f"{key} must have integers for keys, got {shown(name)}")
        found[int(name) if numbers else name] = check_value(f"{key}.{name}", one, inner, imports=imports)
    return found


def _section(key: str, node: Mapping[str, Any], value: Any, imports: bool, whose: str = "") -> dict[str, Any]:
    """The values of one class's arguments."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{key} must hold keys and values, got {shown(value)}")
    known, found = node["properties"], {}
    full = [f"{key}.{name}" if key else name for name in known]
    rest = node.get("additionalProperties", False)
    patterns = list(node.get("patternProperties", ()))
    for name in value:
        if name not in known and rest is False and not any(re.search(pattern, str(name)) for pattern in patterns):
            own = f"{key}.{name}" if key else str(name)
            raise ConfigError(f"unknown key {shown(own)}{whose}{nearest(own, full)}")
    if not node.get("minProperties", 0) <= len(value) <= node.get("maxProperties", math.inf):
        exactly = "exactly one" if "maxProperties" in node else "at least one"
        raise ConfigError(f"{key} must have {exactly} of {', '.join(known)}, got {shown(value)}")
    for (name, child), own in zip(known.items(), full, strict=True):
        if name in value:
            found[name] = check_value(own, value[name], child, imports=imports)
        elif "default" in child:
            found[name] = check_value(own, child["default"], child, imports=imports)
        elif name in node.get("required", ()):
            what = " or ".join(KINDS[kind] for kind in types_of(dereferenced(child))) or "a class"
            raise ConfigError(f"{own} must be given{whose.replace(' of ', ' with ')}, {what}: it has no default")
    extra = {name: one for name, one in value.items() if name not in known}
    return found | _mapping(key, {"additionalProperties": rest if isinstance(rest, Mapping) else {}}, extra, imports)


# ---- classes -----------------------------------------------------------------------------------------------------


def _chosen(key: str, node: Mapping[str, Any], value: Any, imports: bool) -> dict[str, Any]:
    """A class and its arguments."""
    known = node["x-classes"]
    path = value.get("class_path") if isinstance(value, Mapping) else value
    if not isinstance(path, str):
        raise ConfigError(f"{key} must name a class, such as {known[0]}, got {shown(value)}")
    given = (value.get("init_args") or {}) if isinstance(value, Mapping) else {}
    for name in value if isinstance(value, Mapping) else ():
        if name not in ("class_path", "init_args"):
            raise ConfigError(f"{key} must have class_path and init_args, got {shown(name)}: put it under init_args")
    if not isinstance(given, Mapping):
        raise ConfigError(f"{key}.init_args must hold keys and values, got {shown(given)}")
    name = path.rpartition(".")[2]
    if "." in path and not path.startswith("flstudy."):
        return _users_own(key, path, given) if imports else {"class_path": path, "init_args": dict(given)}
    if name not in known:
        raise ConfigError(f"unknown {key.rpartition('.')[2]} {shown(name)}{nearest(name, known)}")
    return {
        "class_path": name,
        "init_args": _section(key, config_schema()["$defs"][name], given, imports, f" of {name}"),
    }


WRAPPERS = {"study.sampler": "OptunaSampler", "study.scheduler": "RayScheduler"}
"""Classes of ours that carry one of Optuna's or Ray's, named by its path."""


def _users_own(key: str, path: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """A user's class, imported, and its arguments."""
    name, base = path.rpartition(".")[2], ROOTS[key].accepts()
    if not issubclass(import_class(key, path), base):
        if key in WRAPPERS and WRAPPERS[key] in config_schema()["$defs"]:
            wrapped = {"class_path": path, "init_args": dict(given)}
            node = config_schema()["$defs"][WRAPPERS[key]]
            return {"class_path": WRAPPERS[key], "init_args": _section(key, node, wrapped, True)}
        raise ConfigError(f"{key} must name a subclass of {base.__name__}, got {path}")
    return {"class_path": path, "init_args": _section(key, _definition(path, key), given, True, f" of {name}")}


@functools.cache
def _definition(path: str, key: str) -> dict[str, Any]:
    return described(import_class(key, path), key, _users)


# ---- keys that a study names -------------------------------------------------------------------------------------


def nodes(
    key: str, chosen: Mapping[str, Sequence[str]], *, imports: bool = False
) -> tuple[list[Mapping[str, Any]], list[str]]:
    """The schema's nodes of a dotted key, one for each class that has it, and the keys that there are beside it.

    Args:
        key: such as ``population.drift.round``.
        chosen: the classes that each key may name, flstudy's by their short names.
        imports: whether users' classes are looked into; else they have any key.
    """
    found: list[Mapping[str, Any]] = []
    beside: dict[str, None] = {}

    def descend(known: Mapping[str, Any], at: str, parts: Sequence[str]) -> None:
        own = f"{at}.{parts[0]}" if at else parts[0]
        beside.update(dict.fromkeys(f"{at}.{name}" if at else name for name in known))
        if parts[0] not in known or len(parts) == 1:
            found.extend([known[parts[0]]] if parts[0] in known else [])
            return
        for node in map(dereferenced, [known[parts[0]], *dereferenced(known[parts[0]]).get("anyOf", ())]):
            for name in chosen.get(own, ()) if "x-root" in node else ():
                if "." in name and not imports:
                    found.append({})
                    continue
                below = _definition(name, own) if "." in name else config_schema()["$defs"][name]
                descend(below["properties"], own, parts[1:])
            if "properties" in node:
                descend(node["properties"], own, parts[1:])

    descend(config_schema()["properties"], "", key.split("."))
    return found, list(beside)


def classes_in(values: Any, at: str = "") -> Iterator[tuple[str, str]]:
    """The keys that name classes, and the classes as they are written."""
    if not isinstance(values, Mapping):
        return
    if "class_path" in values:
        yield at, str(values["class_path"])
        values = arguments_of(values)
    for name, value in values.items():
        yield from classes_in(value, f"{at}.{name}" if at else str(name))


def _check_study(values: Mapping[str, Any], imports: bool) -> None:
    """The keys of a study's search and presets, the values that they may take, and the metrics that it names."""
    study = values["study"]
    chosen = {key: [path] for key, path in classes_in({**values, "study": None})}
    for root, domain in study["search"].items():
        if root in ROOTS and "choice" not in domain:
            raise ConfigError(f"{SEARCH}.{root} must be a choice of classes, got {shown(domain)}: write {{choice: []}}")
        if root in ROOTS:
            node, null = config_schema()["$defs"][root], ROOTS[root].default is None
            options = [one for one in domain["choice"] if not (one is None and null)]
            with _saying(SEARCH):
                found = [check_value(root, option, node, imports=imports) for option in options]
            chosen |= {root: []}
            for key, path in (pair for one in found for pair in classes_in(one, root)):
                chosen.setdefault(key, []).append(path)
    for key, domain in study["search"].items():
        found, known = nodes(str(key), chosen, imports=imports)
        if not found:
            root = max((root for root in chosen if str(key).startswith(f"{root}.")), key=len, default="")
            whose = f" of {' or '.join(map(short, chosen[root]))}" if root else ""
            raise ConfigError(f"{SEARCH}: unknown key {shown(key)}{whose}{nearest(key, known)}")
        for node in found if key not in ROOTS else ():
            _check_domain(key, domain, node)
    sampler = study["sampler"] or {}
    sweep = sampler["init_args"] if sampler.get("class_path") == "TwoStep" else {"tie": [], "first": {}}
    for where, named in (("tie", [key for tied in sweep["tie"] for key in tied]), ("first", sweep["first"])):
        for key in named:
            if key not in study["search"]:
                near = nearest(str(key), list(study["search"]), "")
                raise ConfigError(f"study.sampler.{where} must name keys of study.search, got {shown(key)}{near}")
    _check_presets(study["presets"], chosen, imports)
    if not any("." in path for paths in chosen.values() for path in paths):  # users' may measure something of their own
        _check_metrics(study)


@contextlib.contextmanager
def _saying(where: str) -> Iterator[None]:
    """Refusals that say where."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def _check_domain(key: str, domain: Mapping[str, Any], node: Mapping[str, Any]) -> None:
    """Refuse a distribution of values that a key does not take."""
    ((kind, values),) = domain.items()
    if kind != "choice" and not all(map(math.isfinite, values)):
        raise ConfigError(f"{SEARCH}.{key} must have finite ends, got {shown(domain)}: give numbers")
    if kind in ("randint", "lograndint"):
        values = [int(values[0]), int(values[1]) - 1]
    elif kind != "choice":
        values = values[:2]
        if "integer" in types_of(dereferenced(node)):
            raise ConfigError(f"{SEARCH}.{key} must be drawn from integers, got {kind}: use randint or lograndint")
    for value in values:
        with _saying(f"{SEARCH}.{key} must hold only values that the config takes"):
            check_value(key, value, node)


def _check_presets(presets: Mapping[str, Any], chosen: Mapping[str, Sequence[str]], imports: bool) -> None:
    """Refuse presets of no algorithm, and values that it does not take."""
    paths = {name: name for name in class_names("algorithm")} | {short(path): path for path in chosen["algorithm"]}
    for name, values in presets.items():
        where = f"study.presets.{name}"
        if name not in paths:
            raise ConfigError(f"study.presets: unknown algorithm {shown(name)}{nearest(name, list(paths))}")
        for key, value in values.items():
            dotted = str(key) if "." in str(key) else f"algorithm.{key}"
            found, known = nodes(dotted, {**chosen, "algorithm": [paths[name]]}, imports=imports)
            if not found:
                raise ConfigError(f"unknown key {shown(f'{where}.{key}')}{nearest(dotted, known)}")
            for node in found:
                check_value(f"{where}.{key}", value, node)


def _check_metrics(study: Mapping[str, Any]) -> None:
    """Refuse metrics that there are not."""
    places = {"study.objective.metric": study["objective"]["metric"]}
    places |= {f"study.objectives[{i}].metric": one["metric"] for i, one in enumerate(study["objectives"])}
    places |= {f"study.constraints.{name}": name for name in study["constraints"]}
    for where, name in places.items():
        if name not in METRICS:
            near = nearest(name, list(METRICS), ": the schema has all of them (flstudy schema)")
            raise ConfigError(f"{where}: unknown metric {shown(name)}{near}")
