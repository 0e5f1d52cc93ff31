"""Claims about a paper's pages: each is carried by the measured values beside the page, and the page shows these."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from flstudy.config import ConfigError
from flstudy.config.errors import spelled
from flstudy.reproduction.claims import FILE, PageClaim, read_claims, refuted, remarks_page
from flstudy.reproduction.measured import SPREAD, MeasuredTrial, as_csv, read_measured
from flstudy.reproduction.pages import DIGESTS, write_digests
from flstudy.reproduction.plan import MEASURES, REMARKS, RESULTS, read_paper
from flstudy.reproduction.sessions import SPANS
from flstudy.reproduction.values import format_values, measure_heading

CONFIGS = Path(__file__).parents[2] / "tune_configs"
PAPERS = sorted(path.parent.name for path in CONFIGS.glob(f"*/{FILE}"))
FOLDERS = sorted(CONFIGS.glob(f"*/{RESULTS}"))
PAGES = sorted(path.relative_to(CONFIGS) for path in CONFIGS.glob(f"*/{RESULTS}/*.csv"))


def trial(row, number, accuracies, *, shown=("tuned",), **settings):
    by_seed = {seed: {"accuracy": value, f"accuracy{SPREAD}": 0.1} for seed, value in enumerate(accuracies)}
    return MeasuredTrial(row, shown, "tuned", number, None, settings, 5, float(np.mean(accuracies)), by_seed)


@pytest.fixture
def folder(tmp_path):
    """A paper's folder with one page: A is surely better than B, of C nobody can tell, D is as good as A."""
    trials = [
        trial("A", 0, [0.80, 0.82, 0.81]),
        trial("B", 1, [0.70, 0.71, 0.70]),
        trial("C", 2, [0.60, 0.95, 0.71]),
        trial("D", 3, [0.80, 0.82, 0.81]),
        *(trial("A", 10 + draw, [0.5 + draw / 20] * 3, shown=(), **{"algorithm.lr": draw}) for draw in range(6)),
        *(trial("B", 20 + draw, [0.4 + draw / 30] * 3, shown=(), **{"algorithm.lr": draw}) for draw in range(6)),
    ]
    (tmp_path / RESULTS).mkdir()
    (tmp_path / RESULTS / "page.csv").write_text(as_csv(trials, ["accuracy"]))
    return tmp_path


NUMBERS = {name.lower(): ["page", name, "tuned", "accuracy"] for name in "ABCD"} | {
    "spread": ["page", "C", "tuned", "accuracy", "deviation"],
    "place": ["page", "B", "tuned", "accuracy", "place"],
    "first": ["page", "D", "tuned", "accuracy", "place"],
    "drawn_a": ["page", "A", "draws", "accuracy"],
    "drawn_b": ["page", "B", "draws", "accuracy", "median"],
}


def claim(folder, *holds, says="A reaches {a} %.", numbers=NUMBERS):
    (folder / FILE).write_text(yaml.safe_dump({"Part": [{"says": says, "numbers": numbers, "holds": list(holds)}]}))
    (claim,) = read_claims(folder)["Part"]
    return claim


HELD = (
    *("b < a", "b << a", "b < a < 82", "70 < b", "c ~ a", "c ~ a ~ d", "place = 4", "first = 1", "a = 81.0"),
    *("drawn_b << drawn_a", "5 < spread"),
)
REFUTED = (
    *("a < b", "a << b", "c << a", "a ~ b", "d < a", "a << d", "place = 3", "a < 81", "a = 81.1"),
    *("drawn_a << drawn_b", "a << 82"),
)


@pytest.mark.parametrize(("relation", "holds"), [*((r, True) for r in HELD), *((r, False) for r in REFUTED)])
def test_a_relation_holds_or_is_refuted(folder, relation, holds):
    parts = {"Part": [claim(folder, relation)]}
    assert (not refuted(parts)) is holds
    if not holds:
        assert relation in refuted(parts)[0]


def test_a_sentence_takes_its_numbers_from_the_data(folder):
    sentence = "A reaches {a} % [{a:.0f}], C {c} ± {spread}; B is {place}th, the median of its draws {drawn_b}."
    assert (
        str(claim(folder, says=sentence))
        == "A reaches 81.0 % [81], C 75.3 ± 17.9; B is 4th, the median of its draws 50.0."
    )
    assert remarks_page({"Part": ["Plain.", claim(folder)]}).endswith("**Part.** Plain. A reaches 81.0 %.\n")


@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [
        ({"a": ["page", "E", "tuned", "accuracy"]}, "the page has no row 'E' under 'tuned'"),
        ({"a": ["page", "A", "preset", "accuracy"]}, "the page has no row 'A' under 'preset'"),
        ({"a": ["page", "A", "tuned", "acuracy"]}, "unknown measure 'acuracy': did you mean 'accuracy'?"),
        ({"a": ["page", "A", "tuned", "dip"]}, "A has no dip under 'tuned'"),
        ({"a": ["page", "A", "tuned", "accuracy", "mode"]}, "unknown statistic 'mode'"),
        ({"a": ["other", "A", "tuned", "accuracy"]}, "other.csv is missing"),
    ],
)
def test_a_number_that_no_page_has_is_refused(folder, numbers, sentence):
    with pytest.raises(ConfigError, match=sentence.replace("?", r"\?")):
        claim(folder, numbers=numbers)


def test_a_relation_of_a_name_that_is_no_number_is_refused(folder):
    with pytest.raises(ConfigError, match="'e' is no number of"):
        claim(folder, "a < e").faults()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.parent.name)
def test_no_result_is_changed_by_hand(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / RESULTS)
    now = write_digests(copy).read_text()
    assert now == (folder / DIGESTS).read_text(), (
        "a result is changed, or flstudy reproduce PAPER --write has not been run"
    )


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.parent.name)
def test_the_first_page_has_the_remarks_page(folder):
    assert (folder.parent / REMARKS).read_text().strip() in (folder / "README.md").read_text()


@pytest.mark.parametrize("name", PAPERS)
def test_the_data_carry_every_claim(name):
    parts = read_claims(CONFIGS / name)
    assert refuted(parts) == []
    assert (CONFIGS / name / REMARKS).read_text() == remarks_page(parts)


@pytest.mark.parametrize("name", PAPERS)
def test_a_sentence_without_data_neither_counts_nor_compares(name):
    """Numbers of such a sentence are of settings and citations: none is a share, and nobody is better or worse."""
    words = {"better", "worse", "best", "worst", "higher", "lower", "faster", "slower", "points", "%", "than"}
    for part, sentences in read_claims(CONFIGS / name).items():
        for sentence in sentences:
            plain = "" if isinstance(sentence, PageClaim) else sentence
            assert not words & {*plain.replace(",", " ").split()}, (part, sentence)


def tables_of(page):
    """Rows of each table of a page, by its title, as cells by column."""
    tables, title, header = {}, "", None
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if line.startswith("**"):
            title, header = line.strip("*"), None
        elif line.startswith("|") and not {*line} <= {*"|:-"}:
            if header is None:
                header, tables[title] = cells, []
            else:
                tables[title].append(dict(zip(header, cells, strict=True)))
    return tables


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_a_page_shows_its_measured_values(path):
    """Whoever speaks for a row has, in each measure, what the file has; draws and pairs are held by digests alone."""
    paper = read_paper(path.parts[0], CONFIGS)
    world = next(world for world in paper.worlds if world.name == path.stem)
    tables = tables_of((CONFIGS / path).with_suffix(".md").read_text())
    trials = [trial for trial in read_measured(CONFIGS / path) if trial.shown]
    assert trials
    if world.kind == "sessions":
        starts_are_shown(tables, trials)
        return
    for trial in trials:
        for measure in world.measures:
            values, spread = (np.array(list(trial.values(key).values())) for key in (measure, measure + SPREAD))
            text, heading = format_values(values, spread, MEASURES[measure]), measure_heading(measure)
            for column in trial.shown:
                if world.kind == "crossed" and column == "preset" and measure != world.measures[0]:
                    continue  # presets have a column for the first measure alone
                assert cell(world, tables, trial, heading, column) == text, (trial.row, column, measure)


def starts_are_shown(tables, trials):
    """Each start of a session has its cell: a row's own method, or one that stands in every row without its own."""
    compared = [row["Algorithm"] for row in next(iter(tables.values()))]
    rows = {trial.row: trial for trial in trials if "tuned" in trial.shown}
    for start in dict.fromkeys(row.rpartition(", ")[2] for row in rows):
        for name in compared:
            every = (f"{name}, {start}", f"{start}-{name}, {start}", f"{start}, {start}")
            trial = next(rows[row] for row in every if row in rows)
            for measure in next(iter(trial.by_seed.values())):
                span, number = measure.split("_of_")
                heading = f"Session {number}, accuracy % of its {SPANS[span]}"
                title = next(title for title in tables if title.startswith(heading))
                values = 100 * np.array(list(trial.values(measure).values()))
                (row,) = [row for row in tables[title] if row["Algorithm"] == name]
                assert row[start].partition(" / ")[0] == f"{values.mean():.2f} ± {values.std(ddof=1):.2f}", (
                    name,
                    title,
                )


def cell(world, tables, trial, heading, column):
    """Text of a page for a trial's measure."""
    if world.kind == "comparison":
        title, named, place = heading, {"Algorithm": trial.row}, column.capitalize()
    elif world.kind == "ablation":
        named = {key.rpartition(".")[2]: spelled(value) for key, value in trial.settings.items()}
        title, place = "Every trial", heading
    else:
        title = next(iter(tables))
        named = {next(iter(tables[title][0])): trial.row}
        place = f"{heading}, {column}" if world.kind == "sweep" or column == "preset" else heading
    (row,) = [row for row in tables[title] if named.items() <= row.items()]
    return row[place]
