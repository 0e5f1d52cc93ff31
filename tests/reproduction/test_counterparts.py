"""Every table and figure of the papers has a line that says what stands for it here, and the lines hold against plans,
configs, pages and published figures."""

import csv
import shlex
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest

from flstudy.cli import COMMANDS, main
from flstudy.config import ConfigError
from flstudy.reproduction.counterparts import Counterpart, overview, own_studies, read_all, read_counterparts
from flstudy.reproduction.plan import PublishedValue, read_paper, unknown_rows

CONFIGS = Path(__file__).parents[2] / "tune_configs"
ROMAN = ["I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII", "XIII", "XIV"]
ITEMS = {  # all that the papers number
    "fedada2": [*(f"Table {n}" for n in range(1, 7)), *(f"Fig. {n}" for n in range(1, 8))],
    "flash": [*(f"Table {n}" for n in range(1, 8)), *(f"Fig. {n}" for n in range(1, 10))],
    "masterfl": ["Table I", "Table II", *(f"Fig. {n}" for n in range(1, 4))],
    "sessions": [*(f"Table {n}" for n in ROMAN), *(f"Fig. {n}" for n in range(1, 7))],
}
LINES = [(paper, line) for paper in ITEMS for line in read_counterparts(CONFIGS / paper)]
HEAD = ",".join(Counterpart._fields)
plan_of = cache(partial(read_paper, configs=CONFIGS))  # a paper's plan builds each of its worlds: once is enough


@pytest.mark.parametrize("paper", ITEMS)
def test_every_table_and_figure_has_a_line_and_no_other(paper):
    assert list(dict.fromkeys(line.item for line in read_counterparts(CONFIGS / paper))) == ITEMS[paper]


def test_the_page_is_what_the_command_makes_of_the_lines():
    page = overview(read_all(CONFIGS), own_studies(CONFIGS))
    assert (CONFIGS / "README.md").read_text() == page, "run flstudy reproduce --counterparts"


def test_a_study_that_is_no_paper_s_publishes_nothing_and_is_on_the_page():
    plans = own_studies(CONFIGS)
    assert [plan.name for plan in plans] == ["ditto", "personal", "together"]
    page = (CONFIGS / "README.md").read_text()
    for plan in plans:
        assert not plan.published
        assert all(f"`flstudy reproduce {plan.name} --worlds {world.name}`" in page for world in plan.worlds)


@pytest.mark.parametrize(("paper", "line"), LINES, ids=lambda value: getattr(value, "name", value))
def test_a_line_s_command_can_be_given_and_makes_its_page(paper, line):
    if not line.command:
        return
    _, verb, *rest = shlex.split(line.command)
    assert verb in COMMANDS
    if verb != "reproduce":
        assert (CONFIGS.parent / rest[0]).is_file()
        return
    named, _, *asked = rest
    worlds = [world.name for world in plan_of(named).worlds]
    assert named == paper
    assert rest[1] == "--worlds"
    assert set(asked) <= set(worlds)
    assert not line.page or Path(line.page).stem in asked


@pytest.mark.parametrize("paper", ITEMS)
def test_every_published_figure_has_a_world_a_row_a_measure_and_a_line(paper):
    plan = plan_of(paper)
    assert unknown_rows(plan) == []
    with (plan.folder / "published.csv").open() as file:
        tables = {row["table"] for row in csv.DictReader(file) if "table" in row}
    assert tables <= set(ITEMS[paper])


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        (("synthetic", "Flahs", "accuracy"), "synthetic: unknown row 'Flahs': did you mean 'Flash'?"),
        (("synthetics", "Flash", "accuracy"), "unknown world 'synthetics': did you mean 'synthetic'?"),
        (("synthetic", "Flash", "acuracy"), "synthetic, Flash: unknown measure 'acuracy': did you mean 'accuracy'?"),
    ],
)
def test_a_published_figure_that_no_page_could_show_is_found(key, sentence):
    plan = replace(plan_of("flash"), published={key: PublishedValue(0.5, None, None)})
    assert unknown_rows(plan) == [sentence]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("Table 1,,accuracy,papers,,,no", "on must be one of paper, settings, other, none, got 'papers'"),
        ("Table 1,,accuracy,none,,,", "Table 1 is not here: say because of what, and no page"),
        ("Table 1,,accuracy,paper,python x.py,,no", "command must be a command of flstudy, got 'python x.py'"),
        ("Table 1,,accuracy,paper,flstudy tune x,results/x.md,", "there is no page 'results/x.md'"),
        ("Table 1,,accuracy,paper,flstudy tune x,,", "Table 1 has no page: say in because why it was not run"),
        ("Table 1,,accuracy,paper", "must have 7 values"),
        ("Table 1,,a,none,,,no\nTable 1,,a,none,,,no", "line 3: Table 1 has a line already"),
    ],
)
def test_a_wrong_line_is_refused(tmp_path, line, sentence, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a sentence has at most 200 characters, and the folder of a test many of them
    Path("counterparts.csv").write_text(f"{HEAD}\n{line}\n")
    with pytest.raises(ConfigError, match=sentence):
        read_counterparts(Path())


def test_the_page_is_written_by_its_command(tmp_path, capsys):
    paper = tmp_path / "small"
    paper.mkdir()
    (paper / "study.yaml").touch()
    (paper / "reproduction.yaml").write_text("paper: A small paper\nworlds: {w: {title: W, config: study.yaml}}\n")
    assert main(["reproduce", "--counterparts", "--configs", str(tmp_path)]) == 2
    assert "holds no counterparts.csv" in capsys.readouterr().err
    (paper / "counterparts.csv").write_text(f"{HEAD}\nTable 1,EMNIST,accuracy,paper,flstudy reproduce small,,days\n")
    assert main(["reproduce", "--counterparts", "--configs", str(tmp_path)]) == 0
    page = (tmp_path / "README.md").read_text()
    assert "## A small paper" in page
    line = "| Table 1, EMNIST | accuracy | not run here; on the paper's data | – | `flstudy reproduce small` | days |"
    assert line in page
