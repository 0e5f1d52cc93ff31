"""A section is one file that nothing else names, and no heading claims more than the tests beside it show."""

import re

import numpy as np
import pytest

from flstudy.reporting import section as sections
from flstudy.reporting import write_report
from flstudy.reporting.ranking import Findings
from flstudy.reporting.sections.summary import study_headline
from flstudy.study import load_study

OWN = """
from matplotlib.figure import Figure

from flstudy.reporting.section import Content, ReportSection, pictures
from flstudy.reporting.style import new_figure
from flstudy.reporting.tables import Cells


class OwnSection(ReportSection):
    order = 45

    def of_study(self, found):
        figure = new_figure(2.0)
        figure.add_subplot().plot([1, 2], [3, 4])
        cells = Cells(title="A table", header=("x",), rows=(("42",),), words=frozenset(), label="own")
        return Content(name="Own", title="A figure of one's own", tables=[cells], brief=[cells],
                       pictures=pictures((figure, "Two points.")), values={"own": 42})
"""


@pytest.fixture
def own_section(tmp_path, monkeypatch):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "own.py").write_text(OWN)
    monkeypatch.setattr(sections.folder, "__path__", [*sections.folder.__path__, str(tmp_path / "parts")])
    sections.every_section.cache_clear()
    yield
    kinds = [kind for kind in sections.ReportSection.__subclasses__() if kind.__name__ == "OwnSection"]
    for kind in kinds:
        kind.__module__ = "gone"
    sections.every_section.cache_clear()


@pytest.mark.slow
def test_a_new_section_is_one_file_and_in_every_form_of_the_report(drifting, own_section):
    written = write_report(drifting)
    page = written.page_path.read_text()
    assert "curves own" in " ".join(re.findall(r'<section id="([^"]+)"', page))
    assert "A figure of one" in page
    assert "Two points." in page
    assert "A table" in written.summary_path.read_text()
    assert "A table" in [cells.title for cells in written.tables]
    assert r"\label{tab:quick-own}" in written.latex_path.read_text()
    assert written.values["own"] == 42


def test_sections_have_their_own_places():
    orders = [section.order for section in sections.every_section()]
    assert orders == sorted(set(orders))


def headline(folder, write_study, trial, levels, noise=0.001, confirmation=None):
    """Of a study of one trial per algorithm, tested on five seeds with this much noise of each algorithm's own."""
    rng = np.random.default_rng(1)
    trials = [trial(str(place), name, level) for place, (name, level) in enumerate(levels.items())]
    if confirmation:
        trials += [confirmation(str(10 + t["number"]), str(t["number"]), t["algorithm"], t["objective"])
                   for t in trials]  # fmt: skip
    curves = {}
    for entry in trials:
        accuracies = levels[entry["algorithm"]] + rng.normal(0, noise, 5)
        curves[str(entry["number"])] = np.repeat(accuracies[:, None], 10, 1)
    folder = write_study(folder, trials, curves=curves, seeds=range(5))
    return study_headline(Findings(results=load_study(folder)))


def test_best_is_said_only_of_what_is_shown_on_new_seeds(tmp_path, write_study, trial, confirmation):
    levels = {"A": 0.9, "B": 0.8, "C": 0.7}
    shown = headline(tmp_path / "s", write_study, trial, levels, confirmation=confirmation)
    assert shown == "A did best of 3 algorithms"
    chosen = headline(tmp_path / "t", write_study, trial, levels)
    assert chosen == "A ranks first of 3 algorithms; not confirmed on new seeds"


def test_no_difference_shown_is_in_the_heading(tmp_path, write_study, trial, confirmation):
    levels = {"A": 0.9, "B": 0.895, "C": 0.2}
    sentence = headline(tmp_path / "s", write_study, trial, levels, noise=0.05, confirmation=confirmation)
    assert sentence == "A ranks first of 3 algorithms; no difference to B shown"


@pytest.mark.slow
def test_too_few_seeds_are_in_the_heading(drifting):
    assert study_headline(Findings(results=load_study(drifting))) == (
        "Flash ranks first of 2 algorithms; too few seeds to tell it from FedAvg"
    )
    page = write_report(drifting).page_path.read_text()
    assert "did best" not in page
