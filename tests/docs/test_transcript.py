"""The transcript: its commands stand in the pages, and the page that it wrote shows them; nothing is run here."""

import importlib.util
import re
import sys

import pytest

from .blocks import DOCS, files_of


@pytest.fixture(scope="module")
def transcript():
    """docs/transcript.py as a module."""
    spec = importlib.util.spec_from_file_location("transcript", DOCS / "transcript.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["transcript"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["transcript"]


def test_every_command_stands_in_its_page(transcript):
    assert transcript.missing() == []
    for step in transcript.WALK:
        for word in step.command.split():
            if word.endswith(".py"):
                assert word in files_of(step.page), step.command


def test_a_command_that_a_page_shows_no_longer_is_named(transcript, monkeypatch):
    gone = transcript.Step("own.md", "flstudy run gone.yaml")
    monkeypatch.setattr(transcript, "WALK", (*transcript.WALK, gone))
    assert transcript.missing() == [gone]


def test_the_page_shows_these_commands_and_nothing_of_a_machine(transcript):
    page = (DOCS / transcript.PAGE).read_text()
    assert re.findall(r"^\$ (.*)$", page, re.MULTILINE) == [step.command for step in transcript.WALK]
    assert len(re.findall(r"^\d+\.\d s; the command stands in", page, re.MULTILINE)) == len(transcript.WALK)
    assert not re.findall(r"/tmp/|/root|/home/|\x1b|Traceback", page)
    assert max(map(len, page.splitlines())) <= 140


def test_output_is_made_readable(transcript, tmp_path):
    walk = transcript.Walk(tmp_path, tmp_path / "venv", 1.0)
    output = f"\x1b[1mbold\x1b[0m\n\nbar 1\rbar 2\nat {tmp_path}/lab/studies\n" + "x" * 200
    assert walk.readable(output) == ["bold", "bar 2", "at ./studies", "x" * (transcript.WIDTH - 1) + "…"]
    assert transcript.shortened([*"abcdef"], (1, 2)) == ["a", "… 3 lines", "e", "f"]
    assert transcript.shortened([*"abcd"], (1, 2)) == [*"abcd"]
