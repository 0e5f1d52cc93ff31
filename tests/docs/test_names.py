"""What README and docs name is there: extras, commands, options and files, read out of the text."""

import contextlib
import io
import re
import tomllib
from functools import cache

import pytest

from flstudy.cli import COMMANDS, main
from flstudy.config import ConfigError
from flstudy.config.composition import quick_check
from flstudy.config.shipped import find_config
from tests.docs.blocks import DOCS

ROOT = DOCS.parent
TEXTS = [*DOCS.rglob("*.md"), *ROOT.glob("*.md"), ROOT / "docker" / "README.md", ROOT / "mlflow_tracking" / "README.md"]
TEXTS = sorted(path for path in TEXTS if path.name not in ("transcript.md", "CHANGELOG.md"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OURS = ("tests", "docs", "flstudy", "tune_configs", "docker")
"""Folders of the checkout whose files the texts name."""


def codes(text: str) -> list[str]:
    """All that stands as code: inline, and each line of a block."""
    blocks = re.findall(r"^```\w*\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    return lines + re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE))


@cache
def options_of(command: str) -> str:
    """What a command's help says, in which each of its options stands."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        main([command, "--help"])
    return shown.getvalue()


def named(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", TEXTS, ids=named)
def test_extras(path):
    extras = re.findall(r"pip install [^`\n]*?['\"]?(?:flstudy|\.)\[([\w,]+)\]", path.read_text())
    for extra in (name for names in extras for name in names.split(",")):
        assert extra in PROJECT["optional-dependencies"], extra


@pytest.mark.parametrize("path", TEXTS, ids=named)
def test_commands_and_their_options(path):
    for code in codes(path.read_text()):
        for match in re.finditer(r"(?<![\w./-])(?<!from )flstudy ([a-z]+)((?: [^|#;]*)?)", code.partition("  # ")[0]):
            command, rest = match[1], match[2]
            assert command in COMMANDS, code
            for option in re.findall(r"(?<= )--([a-zA-Z][\w.-]*)", rest) if command != "data" else ():
                assert f"--{option}" in f"{options_of(command)} --help" or is_key(option), f"{code}: --{option}"


@cache
def is_key(option: str) -> bool:
    """Whether a config has the key; a value of the wrong kind tells it by its domain."""
    try:
        quick_check(find_config("quick"), [f"--{option}", "?"])
    except ConfigError as error:
        return f"unknown key '{option}'" not in str(error)
    return True


@pytest.mark.parametrize("path", TEXTS, ids=named)
def test_files(path):
    for code in codes(path.read_text()):
        for word in re.findall(rf"(?<![\w/.-])(?:{'|'.join(OURS)})/[\w./-]+", code):
            word = word.rstrip(".")
            if re.search(r"/[A-Z]{2,}\b|\.env$", word):  # a placeholder, as in tune_configs/NAME.yaml; the reader's own
                continue
            assert (ROOT / word).exists() or (path.parent / word).exists(), f"{code}: {word}"
