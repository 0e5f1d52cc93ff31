"""A study at a glance, as one picture."""

import numpy as np
import pytest
from PIL import Image

from flstudy.reporting import write_report
from flstudy.reporting.ranking import Findings
from flstudy.reporting.sections.curves import accuracy_figure
from flstudy.reporting.sections.overview import OverviewSection, below_each_other, ranking_figure
from flstudy.study import load_study
from flstudy.tracking.content import OVERVIEW


@pytest.mark.slow
def test_it_is_written_beside_the_curves(drifting):
    report = write_report(drifting)
    assert report.figure_path.name == "curves.png"  # which the terminal names
    with Image.open(report.folder / OVERVIEW) as picture:
        width, height = picture.size
        pixels = np.asarray(picture.convert("L"))
    assert height > width
    assert (report.folder / OVERVIEW).stat().st_size < 500_000
    for part in np.array_split(pixels, 3):  # ranking, curves and history: something is drawn in each
        assert (part < 128).any()
    assert f"![At a glance]({OVERVIEW})" in report.summary_path.read_text()


def test_the_ranking_names_methods_from_the_best_on_with_their_values(drifting):
    findings = Findings(results=load_study(drifting))
    ranking = findings.ranking
    (axes,) = ranking_figure(findings, "title").axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [row.algorithm for row in ranking.rows]
    assert [text.get_text() for text in axes.texts] == [f"{ranking.final(row)} %" for row in ranking.rows]


def test_figures_lie_below_each_other(drifting):
    findings = Findings(results=load_study(drifting))
    upper, lower = ranking_figure(findings, "one"), accuracy_figure(findings)
    whole = below_each_other([upper, lower])
    assert whole.get_figheight() == pytest.approx(upper.get_figheight() + lower.get_figheight(), abs=0.02)  # pixels
    assert whole.get_figwidth() == upper.get_figwidth()


def test_a_study_without_a_result_has_none(tmp_path, write_study, trial):
    folder = write_study(tmp_path / "s", [trial("0", status="failed")])
    assert OverviewSection().of_study(Findings(results=load_study(folder))) is None
