"""Help on the keys of a config: ``--help`` and ``flstudy list``, all from the schema."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flstudy.config.composition import composed
from flstudy.config.errors import ConfigError, nearest, spelled
from flstudy.config.reading import content_of, parse_options
from flstudy.config.registry import ROOTS
from flstudy.config.schema import config_schema
from flstudy.config.shipped import configs
from flstudy.config.values import completed, dereferenced, flat_items

KINDS = {root.kind: key for key, root in ROOTS.items() if root.kind}
WIDTH = 100
SECTION = "section"


class Row(NamedTuple):
    """Help on one key."""

    key: str
    kind: str
    default: str
    sentence: str


def rows(properties: Mapping[str, Any], at: str, class_by_key: Mapping[str, str]) -> Iterator[Row]:
    """Yield every key below one, those of sections and of the classes ``class_by_key`` included."""
    for name, node in properties.items():
        key = f"{at}.{name}" if at else name
        parts = [dereferenced(part) for part in [node, *dereferenced(node).get("anyOf", ())]]
        section = next((part for part in parts if "properties" in part and "x-class" in part), None)
        classes = next((part["x-classes"] for part in parts if "x-root" in part), None)
        if section is None:
            yield Row(key, "class" if classes else kind(node), _shown(node), node.get("description", ""))
        else:
            if "description" in node:
                yield Row(key, SECTION, "null" if node.get("default", 0) is None else "", node["description"])
            yield from rows(section["properties"], key, class_by_key)
        if class_by_key.get(key) in (classes or ()):
            yield from rows(config_schema()["$defs"][class_by_key[key]]["properties"], key, class_by_key)


def kind(node: Mapping[str, Any]) -> str:
    """Return the type and the domain of a key, short."""
    node = dereferenced(node)
    if "enum" in node:
        return " | ".join(
            "null" if choice is None else str(choice).lower() if choice in (True, False) else str(choice)
            for choice in node["enum"]
        )
    if "anyOf" in node:
        return " | ".join(dict.fromkeys(kind(part) for part in node["anyOf"]))
    types = [node.get("type", "any")] if isinstance(node.get("type", ""), str) else node["type"]
    names = {"array": "list", "object": "keys and values", "string": "text"}
    bounds = [mark + node[word] for word, mark in (("x-domain", ""), ("x-at-most", "≤ ")) if word in node]
    return " ".join([" | ".join(names.get(type_name, type_name) for type_name in types), *bounds])


def _shown(node: Mapping[str, Any]) -> str:
    return spelled(node["default"]) if "default" in node else "required"


def print_rows(rows: Iterable[Row], prefix: str = "") -> None:
    """Print a table of keys, no wider than a page."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console(width=min(WIDTH, Console().width), highlight=False)
    for row in rows:
        head = Text.assemble((f"{prefix}{row.key}", "bold"), "  ", (row.kind, "cyan"), "  ", (row.default, "green"))
        if row.kind == SECTION:
            console.print()
        console.print(head)
        console.print(Padding(Text(row.sentence), (0, 0, 0, 6), expand=False))


OF_STUDIES = {
    "--resume STUDY": "goes on with a study, with no CONFIG.",
    "--import-from STUDY": "begins with another study's trials that this one would train alike.",
    "--address auto | HOST:PORT | ray://HOST:PORT": "joins a Ray cluster in place of starting a Ray here.",
    "--json": "prints one object at the end and nothing else.",
}
OPTIONS = {
    **OF_STUDIES,
    "--print_config": "prints the complete config and trains nothing.",
    "--trust": "agrees to the code that the folder of somebody else's study names.",
}
"""Options of ``flstudy run`` and ``flstudy tune`` that are no keys of a config; those of a study alone, and all."""


def print_help(command: str, path: str | None, options: list[str]) -> None:
    """Print the help of ``flstudy run`` or ``flstudy tune``; with a config, also the arguments of its classes."""
    values = {} if path is None else completed(composed(content_of(path), parse_options(options)), imports=False)
    class_by_key = {key: str(name) for key, name in flat_items(values) if key in ROOTS}
    what = {"run": "Train one configuration.", "tune": "Search hyper-parameters: what study.search names."}[command]
    print(f"usage: flstudy {command} CONFIG [--KEY VALUE ...]\n\n{what} Any key of the config is an option:")
    print("--algorithm.tau 1e-3, --algorithm FedAvg, --population.drift null. Key, type and domain, default:\n")
    for option, sentence in OPTIONS.items():
        if command == "tune" or option not in OF_STUDIES:
            print(f"{option} {sentence}")
    print()
    print_rows(rows(config_schema()["properties"], "", class_by_key), "--")
    print("\nThe arguments of classes: flstudy list algorithms Flash, or this help with a CONFIG before it.")


def print_list(kind: str, name: str | None = None) -> None:
    """Print ``flstudy list``: the classes that a key can name, or the arguments of one; or the available configs."""
    from rich.console import Console
    from rich.table import Table

    defs = config_schema()["$defs"]
    if name is not None:
        class_names = defs[KINDS[kind]]["x-classes"] if kind in KINDS else []
        if name not in class_names:
            raise ConfigError(f"flstudy list {kind} knows no {name!r}{nearest(name, class_names)}")
        print(f"{KINDS[kind]}: {name}\n{defs[name]['description']}\n")
        print_rows(rows(defs[name]["properties"], KINDS[kind], {}))
        return
    if kind == "configs":
        described = {str(path): first_comment(path) for path in configs()}
    else:
        described = {class_name: defs[class_name]["description"] for class_name in defs[KINDS[kind]]["x-classes"]}
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for entry, sentence in described.items():
        table.add_row(entry, sentence)
    Console().print(table)


def first_comment(path: Path) -> str:
    """Return the first comment of a YAML file that is not for an editor."""
    comments = [line.lstrip("# ") for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    return next((line for line in comments if not line.startswith("yaml-language-server")), "")
