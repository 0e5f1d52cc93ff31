"""Texts that others may have written, escaped for where they are shown: a function for each place."""

import json
import re
from typing import Any, TextIO

_UNPRINTED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
"""Control characters but tab and newline, which would steer a terminal, and those that change the order of letters."""
_IN_SCRIPT = str.maketrans({letter: f"\\u{ord(letter):04x}" for letter in "<>&"})
_IN_MARKDOWN = re.compile(r"([\\`*<>|]|\](?=\())")


def for_terminal(text: str) -> str:
    """Show control characters by their codes, such as \\x1b: a terminal would obey them."""
    return _UNPRINTED.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def for_markdown(text: str) -> str:
    """Escape a text on one line so that Markdown shows it as it stands: no link, picture, tag or column of a table."""
    return _IN_MARKDOWN.sub(r"\\\1", for_terminal(" ".join(text.split())))


def for_column(markdown: str) -> str:
    """Put a text that is Markdown already into a column of a table: on one line, with its bars escaped."""
    return for_terminal(" ".join(markdown.split())).replace("|", r"\|")


def for_figure(text: str) -> str:
    """Escape a text so that Matplotlib draws it as it stands, not as mathematics."""
    return for_terminal(text).replace("$", r"\$")


def for_script(values: Any) -> str:
    """Write values as JSON for a script element, which no text among them ends. Control characters are shown by their
    codes, as in a terminal."""
    return json.dumps(_shown(values), ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_IN_SCRIPT)


def _shown(values: Any) -> Any:
    if isinstance(values, dict):
        return {_shown(key): _shown(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [_shown(value) for value in values]
    return for_terminal(values) if isinstance(values, str) else values


class TerminalStream:
    """Text stream that shows control characters by their codes, in front of another one.

    Args:
        stream: to which it writes.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text; carriage returns stay, since progress bars need them."""
        self._stream.write("\r".join(map(for_terminal, text.split("\r"))))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
