"""Reading of a config's YAML file, and of keys with values on a command line. Nothing is checked here."""

import copy
import functools
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from flstudy.config.errors import ConfigError, shown, spelled
from flstudy.config.registry import ROOTS, SECTIONS

TYPES = {bool: ("boolean",), int: ("integer", "number"), float: ("number",), str: ("string",), type(None): ("null",)}
TYPES |= {list: ("array",), tuple: ("array",), dict: ("object",)}
SEARCH, ARMS = "study.search", "study.arms"
DEEPEST, MOST_VALUES = 50, 1_000_000  # levels and values of a config


class _Loader(yaml.SafeLoader):
    """YAML loader with the numbers of YAML 1.2, such as 1e-3; dates are texts, and duplicate keys are refused."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Refuse brackets that are nested too deeply at once: reading on would take seconds."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise RecursionError
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Refuse a duplicate key, whose first value YAML would drop without a word."""
        seen = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if (key.tag, str(key.value)) in seen:
                twice = f"the key {shown(key.value)} twice"
                raise yaml.constructor.ConstructorError(problem=twice, problem_mark=key.start_mark)
            seen.add((key.tag, str(key.value)))
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [resolver for resolver in resolvers if not resolver[0].endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
    list("-+0123456789."),
)


def study_of_config(path: str | Path) -> Path | None:
    """Return the folder of the study of which a config is a file, such as study.yaml or best/FedAvg.yaml; None for
    others."""
    parents = Path(path).absolute().parents
    return next((folder for folder in parents[:2] if os.path.lexists(folder / "state.json")), None)


def parsed(text: str, path: str = "the config") -> Any:
    """Return the content of a YAML text, which the caller may change.

    Raises:
        ConfigError: it is no YAML, or is deeper or larger than a config can be.
    """
    return copy.deepcopy(_read(text, path))


@functools.lru_cache(maxsize=8)
def _read(text: str, path: str) -> Any:
    """Return the content of a YAML text, cached, since one text is read many times."""
    try:
        content = yaml.load(text, _Loader)
        waiting, count = [(content, 0)], 0
        while waiting:  # a list of its own, since anchors can make a value that is in itself
            value, depth = waiting.pop()
            count += 1
            if depth > DEEPEST or count > MOST_VALUES:
                raise RecursionError
            if type(value) not in TYPES:
                raise ConfigError(f"{path} must hold texts, numbers, lists and the like, got a {type(value).__name__}")
            if isinstance(value, str) and "\0" in value:
                raise ConfigError(f"{path} must hold texts without NUL characters, got {value!r}: leave them out")
            parts = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
            waiting += [(part, depth + 1) for part in parts]
    except RecursionError as error:
        limits = f"{MOST_VALUES:,} values, {DEEPEST} deep at most"
        raise ConfigError(f"{path} must hold at most {limits}: flatten it") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: of what looks like a number and is none
        if isinstance(error, ConfigError):
            raise
        where, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        line = f" in line {where.line + 1}" if where is not None else ""
        reason = problem or str(error).splitlines()[0]
        raise ConfigError(f"{path} is not a YAML file that can be read: {reason}{line}: mend it there") from error
    return content


def composed_nodes(text: str) -> yaml.Node | None:
    """Return the nodes of a YAML text that `parsed` has read, which know their lines; None of an empty one."""
    node: yaml.Node | None = yaml.compose(text, _Loader)
    return node


def content_of(path: str | Path, text: str | None = None) -> dict[str, Any]:
    """Return the keys and values of a YAML file.

    Args:
        path: of the file.
        text: the file's content, if it was read before; None reads it.

    Raises:
        ConfigError: there is no such file, it is no YAML, or it holds no mapping.
    """
    content = parsed(text_of(path) if text is None else text, str(path))
    if not isinstance(content, Mapping):
        raise ConfigError(f"{path} must hold keys and values, got {type(content).__name__}: see flstudy init")
    return dict(content)


def text_of(path: str | Path) -> str:
    """Return a config file's text.

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


def parse_options(options: Sequence[str]) -> list[tuple[str, Any]]:
    """Return the keys and values of ``--key value`` and ``--key=value``; a bare ``--key`` is true."""
    edits, waiting = [], list(options)
    while waiting:
        option = waiting.pop(0)
        if not option.startswith("--"):
            raise ConfigError(f"options look like --key value, got {option!r}: write --KEY {option}")
        key, equals, text = option[2:].partition("=")
        if not equals:
            text = waiting.pop(0) if waiting and not waiting[0].startswith("--") else "true"
        try:
            value = parsed(text)
        except ConfigError:
            value = text
        edits.append((short_key(key), Given(value, text) if isinstance(value, int | float) else value))
    return edits


def short_key(key: str) -> str:
    """Return a key without its ``init_args`` and ``class_path``: ``algorithm.init_args.lr`` as ``algorithm.lr``."""
    return key.replace(".init_args", "").removesuffix(".class_path")


MAPPINGS = (SEARCH, "study.presets", "study.constraints", "study.resources.custom")
"""Keys whose values are mappings of the user's own names."""


def dotted(values: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    """Return the keys as the command line has them, of nested or dotted ones: ``{"study": {"trials": 8}}`` and
    ``{"study.trials": 8}`` are equivalent. A class with its arguments stays one value."""
    flattened: dict[str, Any] = {}
    for name, value in values.items():
        key = short_key(f"{at}.{name}" if at else str(name))
        section = key in ROOTS or key in SECTIONS or (key.startswith("study.") and key.count(".") == 1)
        if isinstance(value, Mapping) and section and "class_path" not in value and key not in MAPPINGS:
            flattened |= dotted(value, key)
        else:
            flattened[key] = value
    return flattened


def arguments(overrides: Mapping[str, Any]) -> list[str]:
    """Return the overrides as options, a class before its own parameters."""
    outer_first = {key: overrides[key] for key in sorted(overrides, key=lambda key: key.count("."))}
    return [
        f"--{key}={in_a_line(value) if isinstance(value, dict | list) else spelled(value)}"
        for key, value in outer_first.items()
    ]


def in_a_line(value: Any) -> str:
    """Return a plain value as YAML in one line."""
    written = yaml.safe_dump(value, default_flow_style=True, width=math.inf, allow_unicode=True, sort_keys=False)
    return str(written).removesuffix("...\n").strip()
