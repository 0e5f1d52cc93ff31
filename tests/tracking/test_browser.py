"""MLflow's pages in a real browser: a study with its trials, a trial's curve, the report.

Needs the Python package playwright and Debian's chromium; skipped where one of them is missing. A screenshot of each
page is left (`shoot` in conftest.py says where).
"""

from types import SimpleNamespace

import pytest
from matplotlib.figure import Figure

from flstudy.config import StudySection
from flstudy.federation import Record
from flstudy.study import BestTrial, StudyFolder, Trial
from flstudy.tracking.content import NOTE, OVERVIEW, PARENT, STUDY_ID, TRIAL, concluded_note, outcome
from flstudy.tracking.pages import absolute, table_page
from flstudy.tracking.runs import StudyRun, TrialRun
from flstudy.tracking.store import MetricValue, open_store
from flstudy.tracking.ui import mlflow_server, study_pages
from tests.servers import free_port

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install '.[dev]'")
pytestmark = pytest.mark.slow
expect = playwright.expect
FRAME = "workflowType=machine_learning"
WAIT_MS = 180_000  # the first page compiles a lot of JavaScript


class Small:
    """As much of a config as a study's run asks for."""

    rounds, seeds = 20, [0, 44]
    study = StudySection(trials=2, search={"algorithm": {}, "algorithm.lr": {}})

    def tags(self):
        return {"algorithm": "Flash", "dataset": "Digits", "drift": "none", "task": "Mlp"}

    def plain(self):
        return {"rounds": self.rounds, "seeds": self.seeds}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The address of a server on a store with one study of two trials, and the runs' ids."""
    folder = tmp_path_factory.mktemp("browser")
    uri = f"sqlite:///{folder}/store/mlflow.db"
    store = open_store(uri)
    study_id = "5" * 32
    parent = StudyRun(store, name="moving-digits", study_id=study_id, config=Small())
    trials = []
    for number in range(2):
        key = {STUDY_ID: study_id, TRIAL: str(number)}
        run = TrialRun(store, name=f"{number} Flash", key=key, tags={PARENT: parent.run_id})
        run.start(params={"algorithm.lr": 0.1 * (number + 1)}, tags={"algorithm": "Flash"}, seeds=Small.seeds)
        for r in range(1, 21):
            losses, accuracies = [1 / r, 2 / r], [(1 - 1 / r) * (0.6 + 0.3 * number), 0.7 - 0.6 / r]
            drift = {"valid/dip": accuracies} if r == Small.rounds else {}
            run.log(Record(r, {"fit/steps": [r, r], "train/loss": losses, "valid/accuracy": accuracies, **drift}))
        assert run.finish(tags={"rounds": "20"})
        trials.append(run.run_id)
    study = StudyFolder(folder)
    study.report.mkdir()
    (study.report / "report.html").write_text("<html><body><h1>Study moving-digits</h1></body></html>")
    figure = Figure()
    figure.subplots().plot([1, 2])
    figure.savefig(study.report / OVERVIEW)
    parent.log_files(study)
    trial = Trial(number=0, algorithm="Flash", objective=0.95, run_id=trials[0], metrics={"valid/accuracy": 0.95})
    best = [BestTrial(trial=trial, value=0.95)]
    where = {"study": "moving-digits", "study_id": study_id, "experiment": store.experiment_id, "run": parent.run_id}
    store.client.set_tag(parent.run_id, NOTE, concluded_note("", **where, best=best, measured="valid/accuracy"))
    _, reached = outcome([trial], best, ["valid/accuracy"])
    store.log_metrics(parent.run_id, [MetricValue(name, value, 0, 1) for name, value in reached.items()])
    parent.finish()
    with mlflow_server(uri, free_port()) as (address, _):
        yield SimpleNamespace(
            address=address,
            experiment=store.experiment_id,
            parent=parent.run_id,
            trials=trials,
            folder=folder,
            study=study_pages(store, study_id, address),
        )


@pytest.fixture(scope="module")
def window(browser):
    """One that keeps MLflow's JavaScript, which takes seconds to read."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    context.set_default_timeout(WAIT_MS)
    yield context
    context.close()


@pytest.fixture
def page(window, pages, shoot):
    """A page of a browser that has never seen MLflow."""
    tab = window.new_page()
    seen = {"origin": pages.address, "storageTypes": "cookies,local_storage,indexeddb"}
    window.new_cdp_session(tab).send("Storage.clearDataForOrigin", seen)
    yield tab
    shoot(tab)
    tab.close()


def test_the_table_shows_a_study_and_its_trials_below_it(page, pages):
    page.goto(f"{pages.address}/#/experiments/{pages.experiment}/runs")
    study = page.get_by_role("link", name="moving-digits")
    expect(study).to_be_visible(timeout=WAIT_MS)
    trials = [page.get_by_role("link", name=f"{number} Flash", exact=True) for number in range(2)]
    for trial in trials:
        expect(trial).to_have_count(0)
    page.locator(".ag-row").filter(has=study).get_by_role("button").first.click()
    for trial in trials:
        expect(trial).to_be_visible(timeout=WAIT_MS)
    trials[0].click()
    expect(page.get_by_role("heading", name="0 Flash")).to_be_visible(timeout=WAIT_MS)
    page.go_back()
    expect(study).to_be_visible(timeout=WAIT_MS)


def test_the_page_that_flstudy_names_is_the_table_of_runs(page, pages):
    """For a browser that sees MLflow for the first time: not traces and evaluations of language models."""
    page.goto(absolute(pages.address, table_page(pages.experiment)))
    expect(page.get_by_role("link", name="moving-digits")).to_be_visible(timeout=WAIT_MS)
    assert "/runs?workflowType=machine_learning" in page.url
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    row = page.locator(".ag-center-cols-container .ag-row").first
    expect(row).to_contain_text("0.95")  # what the study's best trial reached


def test_a_study_s_table_has_its_trials_the_best_first_with_what_was_searched(page, pages):
    page.goto(pages.study["Trials"])
    expect(page.get_by_role("link", name="1 Flash", exact=True)).to_be_visible(timeout=WAIT_MS)
    names = [name for name in page.locator(".ag-row a").all_inner_texts() if name]
    assert names == ["moving-digits", "1 Flash", "0 Flash"]  # the study has its best trial's metrics
    for heading in ("valid/accuracy", "algorithm.lr"):
        expect(page.locator(".ag-header").get_by_text(heading, exact=True).first).to_be_visible()
    page.get_by_role("link", name="1 Flash", exact=True).click()
    expect(page.get_by_role("heading", name="1 Flash")).to_be_visible(timeout=WAIT_MS)


def test_a_study_s_charts_are_curves_and_the_search(page, pages):
    page.goto(pages.study["Charts"])
    for name in ("By round", "What was searched"):
        expect(page.get_by_text(name).first).to_be_visible(timeout=WAIT_MS)
    curves = page.locator(".js-plotly-plot").first.locator("path.js-line")
    expect(curves.last).to_be_visible(timeout=WAIT_MS)  # the first is the study's own point, which is no line
    assert page.locator("path.point").count() > 2 * Small.rounds  # of both trials, and the study's


def test_a_study_s_page_shows_its_ranking_and_leads_to_its_picture_and_trials(page, pages):
    page.goto(f"{pages.address}/#/experiments/{pages.experiment}/runs/{pages.parent}?{FRAME}")
    expect(page.get_by_role("heading", name="moving-digits")).to_be_visible(timeout=WAIT_MS)
    description = page.get_by_role("table").filter(has_text="valid/accuracy").first
    expect(description).to_contain_text("Flash")
    expect(description).to_contain_text("0.95")
    assert f"/runs/{pages.trials[0]}?{FRAME}" in description.get_by_role("link").first.get_attribute("href")
    picture = page.get_by_role("link", name="At a glance").first.get_attribute("href")
    for name, there in (("all trials", "viewStateShareKey=study-5555"), ("their charts", "compareRunsMode=CHART")):
        assert there in page.get_by_role("link", name=name).first.get_attribute("href")
    assert picture.endswith(f"/artifacts/report/{OVERVIEW}?{FRAME}")
    page.goto(f"{pages.address}/{picture[picture.index('#') :]}")
    expect(page.locator("img[src^='blob:'], img[src*='overview'], img[src^='data:']").first).to_be_visible(
        timeout=WAIT_MS
    )


def test_a_browser_keeps_the_frame_that_was_chosen_once(page, pages):
    """A click in the table leads to a page without the frame in its address: MLflow 3.17 takes that of language models
    until somebody presses Model training on such a page."""
    run = f"{pages.address}/#/experiments/{pages.experiment}/runs"
    page.goto(f"{run}/{pages.parent}")
    expect(page.get_by_text("Evaluation runs")).to_be_visible(timeout=WAIT_MS)
    page.get_by_role("button", name="Model training").click()
    # It leads back to the table, which then writes its order into the address: unless that is awaited, it comes later.
    page.wait_for_url("**/runs?*workflowType=machine_learning*orderByKey=*", timeout=WAIT_MS)
    page.goto(f"{run}/{pages.trials[0]}")
    page.reload()
    expect(page.get_by_role("heading", name="0 Flash")).to_be_visible(timeout=WAIT_MS)
    expect(page.get_by_text("Evaluation runs")).to_have_count(0)


def test_a_trial_s_overview_begins_with_what_it_reached(page, pages):
    page.goto(f"{pages.address}/#/experiments/{pages.experiment}/runs/{pages.trials[0]}?{FRAME}")
    expect(page.get_by_role("heading", name="0 Flash")).to_be_visible(timeout=WAIT_MS)
    expect(page.get_by_role("link", name="train/loss")).to_be_visible(timeout=WAIT_MS)
    text = page.locator("body").inner_text()
    places = [text.index(name) for name in ("train/loss", "valid/accuracy", "fit/steps")]
    assert places == sorted(places)


def test_a_trial_has_curves(page, pages):
    page.goto(f"{pages.address}/#/experiments/{pages.experiment}/runs/{pages.trials[0]}/model-metrics")
    for section in ("fit", "train", "valid"):
        expect(page.get_by_text(section, exact=True).first).to_be_visible(timeout=WAIT_MS)
    curve = page.locator(".js-plotly-plot").first
    expect(curve.locator("path.js-line").first).to_be_visible(timeout=WAIT_MS)
    expect(curve.locator("path.point")).to_have_count(Small.rounds)  # the line itself leaves out points on its way


def test_the_report_opens(page, pages):
    page.goto(f"{pages.address}/#/experiments/{pages.experiment}/runs/{pages.parent}/artifacts/report/report.html")
    frame = page.frame_locator("iframe")
    expect(frame.get_by_role("heading", name="Study moving-digits")).to_be_visible(timeout=WAIT_MS)
