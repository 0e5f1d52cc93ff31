"""Links from the keys of a page's YAML to their lines in the reference. MkDocs calls `on_page_content` as a hook."""

import re
from collections.abc import Iterator
from functools import cache
from html import unescape
from typing import Any

import yaml

from flstudy.config.help import SECTION, rows
from flstudy.config.schema import config_schema

REFERENCE = "reference/config.html"
BLOCK = re.compile(r'<div class="highlight">.*?</div>', re.DOTALL)
KEY = re.compile(r'<span class="nt">(\s*)(.*?)</span>')
TAG = re.compile(r"<[^>]+>")


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Link the keys of every YAML block of a page."""
    from mkdocs.utils import get_relative_url

    reference = get_relative_url(REFERENCE, page.url)
    return BLOCK.sub(lambda block: linked(block[0], reference), html)


def linked(block: str, reference: str) -> str:
    """Return a highlighted block with links from its keys; one that is no YAML, or no config, stays as it is."""
    text = unescape(TAG.sub("", block))
    try:
        node = yaml.compose(text)
    except yaml.YAMLError:
        return block
    if not isinstance(node, yaml.MappingNode):
        return block
    anchors = list(anchors_of(node))
    if len(anchors) != len(KEY.findall(block)):
        return block
    following = iter(anchors)

    def link(key: re.Match[str]) -> str:
        anchor = next(following)
        named = key[2] if anchor is None else f'<a href="{reference}#{anchor}">{key[2]}</a>'
        return f'<span class="nt">{key[1]}{named}</span>'

    return KEY.sub(link, block)


def anchors_of(node: yaml.Node, at: str = "", owner: str = "", arm: str = "") -> Iterator[str | None]:
    """Yield the anchor of each key below a node, as they stand in the text; None for one that is no config's key.

    Args:
        node: a mapping, or a list of them.
        at: the dotted key that it is the value of.
        owner: the class whose arguments it holds.
        arm: the arm whose parts it holds.
    """
    if isinstance(node, yaml.SequenceNode):
        for element in node.value:
            yield from anchors_of(element, at, owner)
    if not isinstance(node, yaml.MappingNode):
        return
    entries = {key.value: value for key, value in node.value}
    named = getattr(entries.get("class_path"), "value", arm)
    for name, value in entries.items():
        inside, its_owner, its_arm = f"{at}.{name}" if at else name, "", ""
        if name == "class_path":
            anchor = named.lower()
        elif name == "init_args" or arm:
            anchor, inside, its_owner = named.lower(), at, named
        elif at == "study.arms":
            anchor, its_arm = name.lower(), name
        elif at == "study.presets":
            anchor, its_owner = name.lower(), name
        elif owner:
            anchor = f"{owner.lower()}.{name}"
        else:
            anchor = name if at == "study.search" else inside
            root = name.partition(".")[0]
            anchor = root if at == "study.search" and anchor not in anchors() else anchor
        yield anchor if anchor in anchors() else None
        yield from anchors_of(value, inside, its_owner, its_arm)


@cache
def anchors() -> frozenset[str]:
    """Return the anchors of the reference: keys, sections, classes and the arguments of classes."""
    names, definitions = set[str](), config_schema()["$defs"]
    for row in rows(config_schema()["properties"], "", {}):
        names.add(row.key)
    for definition in definitions.values():
        for name in definition.get("x-classes", ()):
            arguments = rows(definitions[name]["properties"], "", {})
            names |= {name.lower(), *(f"{name.lower()}.{row.key}" for row in arguments if row.kind != SECTION)}
    return frozenset(names)
