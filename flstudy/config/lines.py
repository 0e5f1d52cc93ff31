"""The line of a config's file on which stands what an error is about."""

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from flstudy.config.errors import ConfigError
from flstudy.config.reading import DEEPEST, composed_nodes

KEY = re.compile(r"(?<![\w.\]])[A-Za-z_][\w-]*(?:\[\d+\]|\.[\w-]+)*")
"""A dotted name in a sentence."""
TABLES = ("study.search.", "study.presets.", "study.arms.")
"""Parts of a study whose own keys are dotted names."""


class FileKey(NamedTuple):
    """A key of a file: how it is written, with ``init_args``; its line, from 1; whether it has ``init_args``."""

    written: str
    number: int
    arguments: bool = False


@contextlib.contextmanager
def errors_with_line(path: str | Path, text: str, edits: Iterable[tuple[str, Any]]) -> Iterator[None]:
    """Raise a ConfigError again with the file, the line and the written name of the first key that it names.

    Args:
        path: of the file.
        text: its content.
        edits: options and proposed values, whose keys stand in no file.
    """
    try:
        yield
    except ConfigError as error:
        name = Path(path).name
        message = str(error).removeprefix(f"{name}: ")
        lines = {} if message.startswith(f"{name}:") else keys_of_file(text)  # a line is told already
        key = first_key(message, lines, {key.removesuffix("+") for key, _ in edits})
        if key is None:
            raise
        dotted = key.startswith(TABLES)  # where keys of classes stand without init_args
        raise ConfigError(
            message if dotted else as_written(message, lines), at=f"{name}:{lines[key].number}"
        ) from error


def keys_of_file(text: str) -> dict[str, FileKey]:
    """Return the keys of a YAML text by their dotted names, in which ``init_args`` is left out."""
    lines: dict[str, FileKey] = {}

    def walk(node: yaml.Node, name: str, written: str, depth: int) -> None:
        pairs: list[tuple[str, yaml.Node, int]] = []
        if isinstance(node, yaml.MappingNode):
            pairs = [(str(key.value), value, key.start_mark.line + 1) for key, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            pairs = [(f"[{i}]", value, value.start_mark.line + 1) for i, value in enumerate(node.value)]
        for part, value, line in pairs if depth < DEEPEST else ():
            if part == "<<":
                walk(value, name, written, depth + 1)
                continue
            if part == "init_args" and name in lines:
                lines[name] = lines[name]._replace(arguments=True)
                walk(value, name, f"{written}.init_args", depth + 1)
                continue
            joint = "" if part.startswith("[") or not name else "."
            below = f"{name}{joint}{part}", f"{written}{joint}{part}"
            lines.setdefault(below[0], FileKey(below[1], line))
            walk(value, *below, depth + 1)

    if (root := composed_nodes(text)) is not None:
        walk(root, "", "", 0)
    return lines


def first_key(message: str, lines: Mapping[str, FileKey], elsewhere: set[str]) -> str | None:
    """Return the key of the file that a message names first, or that key's nearest parent in the file.

    Args:
        message: of an error. A word without a dot is a key where the message begins with it or calls it unknown.
        lines: of the file.
        elsewhere: keys whose values come from elsewhere; None is returned for these, and where no key is named.
    """
    within = re.match(r"(study\.\S+): (.*)", message)
    if within is not None:  # the keys after it are of this part
        part, names = within[1], [match[0] for match in KEY.finditer(within[2])]
        named = [*(f"{part}.{name}" for name in names if f"{part}.{name}" in lines), part]
    else:
        named = [
            match[0]
            for match in KEY.finditer(message)
            if "." in match[0] or message[: match.start()].endswith(("unknown ", "unknown key '")) or not match.start()
        ]
    for name in named:
        if any(name == key or name.startswith((f"{key}.", f"{key}[")) for key in elsewhere):
            return None
        if name not in lines and name.startswith("algorithm."):  # what a preset or an arm gives the config's own method
            last = name.removeprefix("algorithm")
            givers = [key for key in lines if key.startswith(TABLES) and key.endswith(last)]
            if len(givers) == 1:
                return givers[0]
        while name and name not in lines:
            name = name[: max(name.rfind("."), name.rfind("["), 0)]
        if name:
            return name
    return None


def as_written(message: str, lines: Mapping[str, FileKey]) -> str:
    """Return a message whose dotted names are those of the file, with ``init_args``."""
    for line in sorted(lines.values()):  # a class before those among its arguments
        if line.arguments:
            at = rf"(?<![\w.\]]){re.escape(line.written)}\.(?!init_args\b)"
            message = re.sub(at, f"{line.written}.init_args.", message)
    return message
