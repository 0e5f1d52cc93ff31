"""The page: one file that needs nothing else, with everything that the study found."""

import html
import re
from html.parser import HTMLParser

import pytest

from flstudy.reporting import write_report
from flstudy.reporting.ranking import Findings
from flstudy.reporting.report import write_page
from flstudy.reporting.section import Content
from flstudy.reporting.tables import Cells
from flstudy.study import load_study

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Reader(HTMLParser):
    """Elements in order, and whether they are closed as they were opened."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.words = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def page(searched):
    return write_report(searched).page_path.read_text()


@pytest.mark.slow
def test_it_is_well_formed_and_has_its_sections(page):
    reader = Reader(page)
    sections = [attributes["id"] for attributes in reader.all("section")]
    assert sections == [
        "summary", "ranking", "comparison", "curves", "sensitivity", "search", "pareto-front", "cost", "failures",
        "how-it-was-made", "citations",
    ]  # fmt: skip
    links = [attributes["href"] for attributes in reader.all("a") if "href" in attributes]
    assert links == [*(f"#{anchor}" for anchor in sections), "interactive.html"]
    # curves, importances, every run, history, slices, three parallel coordinates, the front
    assert len(reader.all("svg")) == 9
    assert len(reader.all("table")) >= 8


@pytest.mark.slow
def test_it_refers_to_nothing_outside(page):
    reader = Reader(page)
    for tag, attributes in reader.elements:
        assert tag not in ("link", "img", "iframe", "object"), tag
        for name, value in attributes.items():
            if name in ("src", "href", "xlink:href", "data", "action"):
                assert value.startswith("#") or (tag, value) == ("a", "interactive.html"), (tag, name, value)
            if name not in ("xmlns", "xmlns:xlink"):
                assert "://" not in (value or ""), (tag, name, value)
    assert not re.search(r"@import|url\((?!#)", page)
    assert reader.all("script") == [{}]
    ids = {attributes["id"] for _, attributes in reader.elements if "id" in attributes}
    used = set(re.findall(r"url\(#([^)]+)\)", page)) | {a["xlink:href"][1:] for a in reader.all("use")}
    assert used <= ids


@pytest.mark.slow
def test_screens_paper_and_sorting(page):
    assert "@media (prefers-color-scheme: dark)" in page
    assert "@media print" in page
    assert '<meta name="viewport"' in page
    reader = Reader(page)
    assert len(reader.all("button")) == len(reader.all("th"))
    assert "aria-sort" in page


@pytest.mark.slow
def test_it_says_what_came_out(page):
    words = html.unescape(re.sub(r"<[^>]+>", " ", page))
    for piece in (
        "Study searched: Flash did best of 3 algorithms",
        "On test/accuracy, Flash is better than FedYogi, FedAvg beyond what chance explains.",
        "highest valid/accuracy",
        "RuntimeError: out of <memory> & 100 %",
        "flstudy tune --resume searched",
        "@inproceedings{panchal2023,",
        "PED-ANOVA",
        "loguniform:",  # of the config
        "Tpe, Asha",
    ):
        assert piece in words, piece
    assert "out of &lt;memory&gt; &amp; 100 %" in page


def test_everything_but_figures_is_escaped(tmp_path):
    evil = "<script>alert(1)</script>"
    cells = Cells(title=evil, header=(evil,), rows=((evil,),), words=frozenset({0}))
    content = Content(name=evil, title=evil, lead=evil, points=[evil], tables=[cells], notes=[evil])
    text = write_page(tmp_path / "x.html", evil, {evil: evil}, [content]).read_text()
    assert evil not in text
    assert len(Reader(text).all("script")) == 1


def test_a_study_without_a_finished_trial_has_a_page(tmp_path, write_study, trial):
    written = write_report(write_study(tmp_path / "s", [trial("0", status="failed", rounds=3, error="ValueError: no")]))
    text = written.page_path.read_text()
    assert "No trial of study s has done all its rounds yet" in text
    assert "ValueError: no" in text
    assert Reader(text).all("svg") == []


@pytest.mark.slow
def test_a_study_without_confirmation_or_search_has_a_page(drifting):
    reader = Reader(write_report(drifting).page_path.read_text())
    sections = [attributes["id"] for attributes in reader.all("section")]
    assert "pareto-front" not in sections
    assert "search" not in sections
    assert "comparison" in sections


@pytest.mark.slow
def test_the_page_in_a_browser(searched, browser, shoot):
    """From the file, without a network: what comes first is seen, and each link of the page leads to a section."""
    page_path = write_report(searched).page_path
    context = browser.new_context(viewport={"width": 1400, "height": 900}, offline=True)
    shown, wrong = context.new_page(), []
    shown.on("pageerror", lambda error: wrong.append(str(error)))
    shown.goto(page_path.as_uri())
    ranking = Findings(results=load_study(searched)).ranking
    first = ranking.rows[0]
    assert first.algorithm in shown.get_by_role("heading", level=1).inner_text()
    assert f"{first.algorithm}: {ranking.final(first)} %" in shown.locator("#summary").inner_text()
    places = [section.bounding_box()["y"] for section in shown.locator("section").all()]
    assert places == sorted(places)
    assert shown.locator("#summary").is_visible()
    assert shown.locator("#curves svg").bounding_box()["width"] > 600
    assert shown.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    shown.get_by_role("navigation").get_by_role("link", name="Sensitivity").click()
    assert shown.evaluate("location.hash") == "#sensitivity"
    shoot(shown)
    context.close()
    assert wrong == []
