"""The pages of the reference, made from the schema, the metrics' registry, the commands and the methods' docstrings, so
that none can say what the code does not. MkDocs calls `on_files` as a hook."""

import ast
import contextlib
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from flstudy.cli import COMMANDS, main
from flstudy.config.help import KINDS, SECTION, Row, rows
from flstudy.config.schema import config_schema
from flstudy.metrics.registry import METRICS, NEEDS

PACKAGE = Path(__file__).parents[1] / "flstudy"
LONG = ("run", "tune")  # their help names every key, as the page of config keys does


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages."""
    from mkdocs.structure.files import File

    for name, content in pages().items():
        files.append(File.generated(config, f"reference/{name}.md", content=content))
    return files


def pages() -> dict[str, str]:
    """Markdown by the name of the page."""
    return {"config": config_keys(), "metrics": metrics(), "commands": commands(), "methods": methods()}


def table(heads: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    rendered = ["| " + " | ".join(one.replace("|", "\\|").replace("\n", " ") for one in line) + " |" for line in lines]
    heads = list(heads)
    return "\n".join(["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|", *rendered]) + "\n"


def config_keys() -> str:
    """Every key of a config, then the classes that keys name with their arguments."""
    parts = ["# Config keys\n", "Any of them is an option of `flstudy run` and `flstudy tune`, too.\n"]
    parts += _sections(rows(config_schema()["properties"], "", {}))
    definitions = config_schema()["$defs"]
    for kind, key in KINDS.items():
        parts.append(f"## {kind.replace('-', ' ').capitalize()} {'{'}#{kind}{'}'}\n\nClasses of `{key}`.\n")
        for name in definitions[key]["x-classes"]:
            one = definitions[name]
            parts.append(f"### {name}\n\n{one['description']}\n")
            found = [row for row in rows(one["properties"], "", {}) if row.kind != SECTION]
            if found:
                parts.append(_keys(found, f"{name.lower()}."))
    return "\n".join(parts)


def _sections(found: Iterable[Row]) -> Iterator[str]:
    gathered: list[Row] = []
    for row in found:
        if row.kind == SECTION:
            yield from [_keys(gathered)] if gathered else []
            yield f"## {row.key} {{#{row.key}}}\n\n{row.sentence}\n"
            gathered = []
        else:
            gathered.append(row)
    yield _keys(gathered)


def _keys(found: Iterable[Row], owner: str = "") -> str:
    """A table of keys, each with the anchor to which examples link."""
    lines = (
        (f"`{row.key}`{{#{owner}{row.key}}}", row.kind, f"`{row.default}`" if row.default else "", row.sentence)
        for row in found
    )
    return table(("key", "type, domain", "default", ""), lines)


def metrics() -> str:
    """Every metric that flstudy describes, by where it is measured."""
    parts = [
        "# Metrics\n",
        "Each can be an objective, a constraint or the column of a report where a run measures it.\n",
    ]
    for measured in dict.fromkeys(metric.measured for metric in METRICS.values()):
        lines = [
            (
                f"`{one.name}`",
                one.title,
                one.unit,
                one.better or "",
                one.sentence,
                ", ".join(NEEDS[n] for n in one.needs),
            )
            for one in METRICS.values()
            if one.measured == measured
        ]
        parts += [f"## Of each {measured}\n", table(("name", "heading", "unit", "better", "is", "needs"), lines)]
    return "\n".join(parts)


def _needs(names: Iterable[str]) -> str:
    return ", ".join(NEEDS[name] for name in names)


def commands() -> str:
    """Every command with its help."""
    parts = ["# Commands\n"]
    for name, sentence in COMMANDS.items():
        first = sentence.split(":")[0]
        parts.append(f"## flstudy {name}\n\n{first[0].upper()}{first[1:]}.\n")
        if name in LONG:
            lines = [line.strip() for line in sentence.splitlines()]
            parts.append("```text\n" + "\n".join(lines) + "\n```\n\nEvery [key](config.md) is an option.\n")
        else:
            parts.append(f"```text\n{_help(name)}\n```\n")
    return "\n".join(parts)


def _help(name: str) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        main([name, "--help"])
    return said.getvalue().strip()


def methods() -> str:
    """Every method as its file describes it: source, update, laws, and how it differs from the paper."""
    definitions = config_schema()["$defs"]
    parts = ["# Methods\n", "Each is one short file in `flstudy/algorithms`; this is what they say of themselves.\n"]
    for name in definitions["algorithm"]["x-classes"]:
        module = definitions[name]["x-class"].rpartition(".")[0]
        source = (PACKAGE.parent / Path(*module.split("."))).with_suffix(".py").read_text(encoding="utf-8")
        said = ast.get_docstring(ast.parse(source)) or ""
        parts.append(f"## {name}\n\n{definitions[name]['description']}\n\n```text\n{said}\n```\n")
        parts.append(f"[Its keys](config.md#{name.lower()})\n")
    return "\n".join(parts)
