"""What a study's files say is shown as text wherever it is shown: in a terminal, on a page, in a paper's tables."""

import json
import re
import shlex
import sys
from html.parser import HTMLParser

import pytest
import yaml

from flstudy.cli import main
from flstudy.escaping import TerminalStream, for_markdown, for_terminal
from flstudy.federation import Record
from flstudy.reporting import write_report
from flstudy.reporting.interactive import NAME
from flstudy.reporting.tables import escape_latex
from flstudy.study.records import RecordWriter
from tests.foreign_study import SEEDS, foreign_study

STEERING = "".join(map(chr, [0, 7, 8, *range(11, 32), 127, *range(128, 160), 0x200B, 0x202E, 0x2066, 0x2028, 0xFEFF]))
NASTY = [
    "\x1b]0;owned\x07",
    "\x1b[2J",
    "\x9b31m",
    "\u202egnp.exe",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "</script><b>",
    "&lt;&#60;",
    "\\input{/etc/passwd}",
    "$(touch owned)`touch owned`",
    "%\n\\write18{touch owned}",
    "[click](javascript:alert(1))",
    "![seen](http://127.0.0.1:1/x.png)",
    "a | b\n| c | d |",
    "'; touch owned; '",
    '"},"x":{"',
    "[bold red]m[/]",
    "} @misc{x,",
    "$\\frac{$",
    "=1+1",
    *STEERING[1:],
]


@pytest.fixture(scope="module")
def nasty(tmp_path_factory):
    """A study whose every text is the whole vocabulary."""
    home = tmp_path_factory.mktemp("home")
    study = foreign_study(home / "a '$(b)' $_{$", home / "canary")
    text = " ".join(NASTY)
    values = yaml.safe_load(study.config.read_text())
    values["population"]["drift"] = {"class_path": text, "init_args": {text: text}}
    values["task"]["init_args"] |= {text: text}
    values["study"]["search"] = {f"task.{text}": {"choice": [text, "other"]}, text: {"uniform": [0, 1]}}
    study.config.write_text(yaml.safe_dump(values))
    study.events.write_text(json.dumps([{"round": 2, "label": text}]))
    state = json.loads(study.state_file.read_text())
    study.state_file.write_text(json.dumps({**state, "reason": text, "environment": {text: text}}))
    lines = [json.loads(line) for line in study.trials.read_text().splitlines()]
    for line in lines:
        line.pop("crc32")
        line["overrides"] |= {f"task.{text}": [text, "other"][line["number"]], text: 0.5 * line["number"]}
        line["metrics"] |= {text: 0.5}
    failed = {**lines[0], "number": 2, "status": "failed", "reason": text, "error": text, "objective": None}
    study.trials.write_text("".join(json.dumps(line) + "\n" for line in [*lines, failed]))
    with RecordWriter(study.records(1), SEEDS) as writer:
        writer.append(Record(4, {text: [0.5, 0.5], "valid/accuracy": [0.6, 0.6]}))
    return study


COMMANDS = ("report {study}", "report {study} --json", "studies {home}", "show {study} 1", "show {study} 2",
            "show {study} best --json", "compare {study} {study}/0", "compare {study} --metric nothing")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_terminal_gets_no_steering_character(nasty, command, capsys, monkeypatch):
    words = [word.format(study=nasty.path, home=nasty.path.parent) for word in command.split(" ")]
    monkeypatch.setattr("sys.stderr", TerminalStream(sys.stderr))
    assert main(words) in (0, 2)
    out, err = capsys.readouterr()
    assert out + err
    assert not set(STEERING) & set(out + err)


@pytest.fixture(scope="module")
def report(nasty):
    return write_report(nasty.path)


class Tags(HTMLParser):
    """The tags of a page, with their attributes' names."""

    def __init__(self, text):
        super().__init__()
        self.tags = set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.add((tag, *sorted(name for name, _ in attributes)))


@pytest.mark.slow
def test_a_page_gets_no_tag_of_a_text(report, tmp_path, nasty):
    plain = foreign_study(tmp_path / "plain", tmp_path / "canary")
    plain.events.write_text(json.dumps([{"round": 2, "label": "drift"}]))
    written = write_report(plain.path)
    for name in ("report.html", NAME):
        text = (report.folder / name).read_text()
        assert "alert(1)" in text
        assert Tags(text).tags <= Tags((written.folder / name).read_text()).tags | {("details",), ("summary",)}
        assert not set(STEERING) & set(text)


@pytest.mark.slow
def test_a_script_s_data_end_no_script(report):
    page = (report.folder / NAME).read_text()
    assert page.count("</script>") == page.count("<script")
    assert "alert(1)" in page


@pytest.mark.slow
def test_a_paper_s_tables_hold_no_command_of_a_text(report):
    text = report.latex_path.read_text()
    printed = [line for line in text.splitlines() if not line.startswith("%")]
    assert not re.search(r"\\(input|write18)", "\n".join(printed))
    assert "@misc{x" not in report.citations_path.read_text()
    assert not set(STEERING) & set(text)


@pytest.mark.slow
def test_a_summary_has_no_link_tag_or_column_of_a_text(report):
    text = report.summary_path.read_text()
    unescaped = re.sub(r"\\.", "", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    assert "alert" in text
    assert "<" not in unescaped
    assert re.findall(r"!?\[.*?\]\(.*?\)", unescaped) == re.findall(r"!\[.*?\]\([\w.-]+\)", unescaped)
    for table in re.findall(r"(?:^\|.*\n)+", unescaped, flags=re.MULTILINE):
        assert len({row.count("|") for row in table.splitlines()}) == 1
    assert not set(STEERING) & set(text)


@pytest.mark.slow
def test_a_printed_command_names_what_it_should(report, nasty):
    commands = [shlex.split(command) for _, command in report.next_commands]
    assert ["flstudy", "run", str(nasty.best / "Method.yaml")] in commands
    assert all(command[0] == "flstudy" for command in commands)


@pytest.mark.parametrize("text", NASTY)
def test_an_escaped_text_is_on_one_line_of_what_can_be_seen(text):
    for escape in (for_markdown, escape_latex):
        assert "\n" not in escape(text)
    for escape in (for_terminal, for_markdown, escape_latex):
        assert not set(STEERING) & set(escape(text))
    assert for_terminal("tab\tand\nline, 精度 ±") == "tab\tand\nline, 精度 ±"
