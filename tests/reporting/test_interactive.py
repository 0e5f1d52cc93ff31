"""The interactive page: its values, and in a real browser what a click and a pointer do."""

import json
import re

import numpy as np
import pytest

from flstudy.escaping import for_terminal
from flstudy.reporting import write_report
from flstudy.reporting.interactive import POINTS, interactive_values
from flstudy.reporting.ranking import Findings
from flstudy.study import load_study
from tests.reporting.test_page import Reader


def values_of(path):
    """What the page holds for its script."""
    return json.loads(
        re.search(r'<script type="application/json" id="study">(.*?)</script>', path.read_text()).group(1)
    )


@pytest.fixture(scope="module")
def written(searched):
    return write_report(searched)


@pytest.mark.slow
def test_its_values_are_those_of_the_study(written, searched):
    page = values_of(written.interactive_path)
    findings = Findings(results=load_study(searched))
    assert [method["name"] for method in page["methods"]] == ["Flash", "FedYogi", "FedAvg"]
    assert [method["colour"] for method in page["methods"]] == [look.colour for look in findings.looks.values()]
    first = page["charts"][0]
    assert first["name"] == "Accuracy, %"
    row = findings.ranking.rows[0]
    np.testing.assert_allclose(first["lines"][0]["y"], 100 * row.accuracy.mean(0), rtol=1e-4)
    np.testing.assert_allclose(first["lines"][0]["deviation"], 100 * row.accuracy.std(0, ddof=1), rtol=1e-4)
    assert page["events"] == [{"round": 5, "label": "sudden drift"}]
    assert [key["name"] for key in page["keys"]] == ["lr", "momentum", "tau"]
    assert len(page["trials"]) == len(findings.results.searched)
    whole = [trial for trial in page["trials"] if trial[5]]
    assert len(whole) == sum(findings.results.eligible(trial) for trial in findings.results.searched)
    assert 'href="interactive.html"' in written.page_path.read_text()


@pytest.mark.slow
def test_it_needs_nothing_else_and_holds_no_text_as_html(tmp_path, write_study, trial):
    evil = "</script><script>alert(1)</script><b>\u2028"
    overrides = {"algorithm": "A", "task.note": evil}
    search = {"task.note": {"choice": [evil, "x"]}}
    study = {"objective": {"metric": "valid/accuracy", "mode": "max"}, "search": search}
    trials = [trial("0", "A", overrides=overrides), trial("1", "A", overrides={"algorithm": "A", "task.note": "x"})]
    folder = write_study(tmp_path / "s", trials, curves={"0": [[0.5] * 10] * 2}, study=study)
    page = write_report(folder).interactive_path
    text = page.read_text()
    assert "<script>alert" not in text
    assert values_of(page)["trials"][0][6] == [for_terminal(evil)]
    reader = Reader(text)
    assert len(reader.all("script")) == 3
    assert not [tag for tag, _ in reader.elements if tag in ("link", "img", "iframe", "object")]
    assert not re.search(r"@import|url\(|fetch\(|XMLHttp|innerHTML", text)
    assert set(re.findall(r"https?://[^\s\"']+", text)) == {"http://www.w3.org/2000/svg"}


@pytest.mark.slow
def test_it_stays_below_two_megabytes(tmp_path, write_study, trial):
    """18 methods of 200 trials each over 1,000 rounds."""
    rng = np.random.default_rng(0)
    names = [f"Method{place}" for place in range(18)]
    keys = {f"algorithm.{name}": {"loguniform": [1e-4, 1.0]} for name in ("lr", "server_lr", "tau", "beta")}
    trials = []
    for place, name in enumerate(names):
        for again in range(200):
            chosen = {key: float(10 ** rng.uniform(-4, 0)) for key in keys}
            trials.append(
                trial(str(200 * place + again), name, 0.5 + again / 1000, overrides={"algorithm": name} | chosen)
            )
    best = {str(200 * place + 199): rng.uniform(0, 1, (2, 10)) for place in range(18)}
    study = {"objective": {"metric": "valid/accuracy", "mode": "max"}, "search": keys}
    findings = Findings(results=load_study(write_study(tmp_path / "s", trials, curves=best, study=study)))
    page = interactive_values(findings)
    assert len(page["trials"]) == 3600
    of_trials = len(json.dumps(page, separators=(",", ":")))
    a_chart = len(names) * POINTS * 3 * 8  # x, mean and deviation of at most so many characters
    assert of_trials + 6 * a_chart < 2_000_000 - 60_000  # scripts and style


def test_a_study_without_a_result_has_a_page(tmp_path, write_study, trial):
    page = write_report(write_study(tmp_path / "s", [trial("0", status="failed", rounds=0)])).interactive_path
    assert values_of(page)["charts"] == []


def test_the_interactive_page_in_a_browser(written, browser, shoot):
    """From the file, without a network: a value under the pointer, a method hidden by a click, a table sorted."""
    address = written.interactive_path.as_uri()
    context = browser.new_context(viewport={"width": 1400, "height": 900}, offline=True, color_scheme="dark")
    page = context.new_page()
    asked, wrong = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.goto(address)
    lines = page.locator("#curves g[data-method]")
    assert lines.count() == 3
    box = page.locator("#curves svg").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 3)
    tip = page.locator("#tip").inner_text()
    assert tip.startswith("Round ")
    assert all(f"{name}\n" in tip for name in ("Flash", "FedYogi", "FedAvg"))
    assert "±" in tip

    page.get_by_role("button", name="Flash", exact=True).click()
    assert sorted(lines.evaluate_all("all => all.map(one => one.dataset.method)")) == ["FedAvg", "FedYogi"]
    assert page.locator('#scatter circle[data-method="Flash"]').count() == 0
    page.get_by_role("button", name="Show all").click()
    assert lines.count() == 3

    first = page.locator("#trials tbody tr").first.locator("td")
    page.locator("#trials th button", has_text="lr").click()
    low = float(first.nth(5).inner_text())
    page.locator("#trials th button", has_text="lr").click()
    assert (low, float(first.nth(5).inner_text())) == (0.001, 1.0)
    ranking = page.locator("table", has_text="best trial per algorithm")
    ranking.get_by_role("button", name="Algorithm").click()
    assert ranking.locator("tbody tr td:nth-child(2)").all_inner_texts() == ["FedAvg", "FedYogi", "Flash"]

    dot = page.locator('#scatter circle[data-method="Flash"]').first
    dot.scroll_into_view_if_needed()
    spot = dot.bounding_box()
    page.mouse.move(spot["x"] + spot["width"] / 2, spot["y"] + spot["height"] / 2)
    tip = page.locator("#tip").inner_text()
    assert tip.startswith("Trial ")
    assert "lr\n" in tip
    shoot(page, full_page=True)
    context.close()
    assert asked == [address]
    assert wrong == []
