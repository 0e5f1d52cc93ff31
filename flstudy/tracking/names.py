"""Names and texts as MLflow takes them: it refuses a whole request for one that it does not take."""

import functools
import hashlib
import os
import re
from collections.abc import Iterable

NAME_LENGTH = 250  # of a metric or a parameter
_REFUSED = re.compile(r"[^\w.\- /]" if os.name == "nt" else r"[^\w.\- :/]")
_NOT_STORED = re.compile("[\ud800-\udfff\0]")  # no UTF-8, or no text of PostgreSQL


@functools.cache
def mlflow_name(name: str) -> str:
    """Return the name by which MLflow has a metric or a parameter, which is its own if MLflow takes that.

    A character that MLflow refuses becomes an underscore: it takes letters, digits, spaces and ``_ - . : /``. So does a
    part between slashes that is empty, ``.`` or ``..``. Of a name of more than 250 characters the first 241 stay, and a
    hash of the whole follows.
    """
    parts = _REFUSED.sub("_", name).split("/")
    accepted = "/".join("_" * max(len(part), 1) if part in ("", ".", "..") else part for part in parts)
    if accepted.startswith(".."):
        accepted = f"__{accepted[2:]}"
    if len(accepted) <= NAME_LENGTH:
        return accepted
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{accepted[: NAME_LENGTH - 9]}-{digest}"


def mlflow_text(text: str) -> str:
    """Return a text that every store of MLflow can hold: lone surrogates and NUL become U+FFFD."""
    return _NOT_STORED.sub("\N{REPLACEMENT CHARACTER}", text)


def renamings(names: Iterable[str]) -> list[str]:
    """Return the sentences about metrics that MLflow has by another name, or, since two would share one, not at all."""
    owners, sentences = dict[str, str](), []
    ordered = sorted(dict.fromkeys(names), key=lambda name: mlflow_name(name) != name)  # stable: own names first
    for name in ordered:
        accepted = mlflow_name(name)
        owner = owners.setdefault(accepted, name)
        if owner != name:
            sentences.append(f"MLflow lacks {name!r}, which it cannot tell from {owner!r}: log it under another name")
        elif accepted != name:
            sentences.append(f"MLflow has {name!r} as {accepted}")
    return sentences
