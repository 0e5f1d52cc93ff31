"""The interactive page and its charts: their values, and in a real browser what a click and a pointer do."""

import html
import json
import re

import numpy as np
import plotly.graph_objects as go
import pytest
from plotly.offline import get_plotlyjs

from flstudy import Study
from flstudy.reporting import write_report
from flstudy.reporting.charts import CHARTS, POINTS
from flstudy.reporting.interactive import write_interactive
from flstudy.reporting.ranking import Findings
from flstudy.study import load_study
from tests.reporting.test_page import Reader


def charts_of(path):
    """The charts that the page holds for Plotly, by name."""
    each = re.findall(
        r'id="(\w+)"></div>\n<script type="application/json">(.*?)</script>', path.read_text(encoding="utf-8")
    )
    return {name: json.loads(chart) for name, chart in each}


def entries(chart):
    """The arguments of the entries of a chart's menu by label."""
    return {button["label"]: button["args"] for button in chart["layout"]["updatemenus"][0]["buttons"]}


def of_method(chart, method):
    return [trace for trace in chart["data"] if trace.get("legendgroup") == method]


@pytest.fixture(scope="module")
def written(searched):
    return write_report(searched)


@pytest.fixture(scope="module")
def charts(written):
    return charts_of(written.interactive_path)


@pytest.mark.slow
def test_its_curves_are_those_of_the_study(charts, searched):
    findings = Findings(results=load_study(searched))
    chart = charts["curves"]
    row = findings.ranking.rows[0]
    band, line = of_method(chart, row.algorithm)
    mean, deviation = 100 * row.accuracy.mean(0), 100 * row.accuracy.std(0, ddof=1)
    np.testing.assert_allclose(line["y"], mean, rtol=1e-4)
    np.testing.assert_allclose(line["customdata"], deviation, rtol=0.05)  # of two digits
    np.testing.assert_allclose(band["y"], [*(mean + deviation), *(mean - deviation)[::-1]], rtol=1e-4)
    assert {
        t["legendgroup"]: t["line"].get("color", t.get("fillcolor")) for t in chart["data"] if "legendgroup" in t
    } == {name: look.colour for name, look in findings.looks.items()}
    happened = chart["data"][-1]
    assert (happened["x"], happened["customdata"][0]) == ([5, 5, None], "sudden drift")
    menu = entries(chart)
    assert [*menu] == ["Accuracy, %", "Accuracy (validation), %", "Accuracy (validation), %, best so far"]
    traces, layout = menu["Accuracy (validation), %, best so far"]
    assert (traces["line.shape"], layout["xaxis.title.text"]) == (["hv"], "Trials of the method")
    assert traces["x"][-1] == []  # drifts are on axes of rounds
    for values in zip(*traces["y"][3:6], strict=False):
        assert None not in values


def test_its_trials_are_those_of_the_study(charts, searched):
    results = load_study(searched)
    chart = charts["trials"]
    assert [*entries(chart)] == ["by number", "by lr", "by momentum", "by tau"]
    shown = {told[0]: told for trace in chart["data"] for told in trace["customdata"]}
    whole = [trial for trial in results.searched if results.eligible(trial)]
    assert {trial.number for trial in whole} < set(shown)
    best = max(whole, key=results.value_of)
    told = shown[best.number]
    assert told[:3] == [best.number, best.algorithm, "finished, 10 rounds"]
    np.testing.assert_allclose(told[3], 100 * results.value_of(best), rtol=1e-4)
    np.testing.assert_allclose(told[4], best.overrides["algorithm.lr"], rtol=1e-4)
    filled = [symbol for trace in chart["data"] for symbol in trace["marker"]["symbol"]].count("circle")
    assert filled == len(whole)
    layouts = {label: args[1] for label, args in entries(chart).items()}
    assert [layout["xaxis.type"] for layout in layouts.values()] == ["linear", "log", "category", "log"]
    assert layouts["by momentum"]["scattermode"] == "group"
    _, layout = entries(charts["parallel"])["FedAvg"]
    assert layout["xaxis.ticktext"] == ["lr (log)", "momentum", "Accuracy (validation), %"]


def test_plotly_knows_every_attribute_of_every_chart(charts):
    """Also those that an entry of a menu sets."""
    assert [*charts] == [*CHARTS]
    for chart in charts.values():
        figure = go.Figure(chart)
        assert len(figure.data) == len(chart["data"])
        for menu in figure.layout.updatemenus:
            for button in menu.buttons:
                for key, values in button.args[0].items():
                    for place, trace in enumerate(figure.data):
                        trace[key] = values[place % len(values)] if isinstance(values, list) else values
                for key, value in button.args[1].items() if button.method == "update" else ():
                    figure.layout[key] = value


@pytest.mark.slow
def test_it_needs_plotly_beside_it_and_holds_no_text_as_html(tmp_path, write_study, trial):
    evil = "</script><script>alert(1)</script><b>\u2028"
    overrides = {"algorithm": "A<b>", "task.note": evil}
    search = {"task.note": {"choice": [evil, "x"]}}
    study = {"objective": {"metric": "valid/accuracy", "mode": "max"}, "search": search}
    others = {"algorithm": "A<b>", "task.note": "x"}
    trials = [trial("0", "A<b>", overrides=overrides), trial("1", "A<b>", 0.6, overrides=others)]
    folder = write_study(tmp_path / "s", trials, curves={"1": [[0.5] * 10] * 2}, study=study)
    page = write_report(folder).interactive_path
    text = page.read_text(encoding="utf-8")
    assert "<script>alert" not in text
    charts = charts_of(page)
    (dots,) = charts["trials"]["data"]
    assert (dots["name"], dots["customdata"][0][4]) == ("A&lt;b&gt;", html.escape(evil, quote=False))
    reader = Reader(text)
    assert [given["src"] for given in reader.all("script") if "src" in given] == ["plotly.min.js"]
    assert not [tag for tag, _ in reader.elements if tag in ("link", "img", "iframe", "object")]
    assert not re.search(r"@import|url\(|fetch\(|XMLHttp|innerHTML|https?://", text)
    assert (page.parent / "plotly.min.js").read_text(encoding="utf-8") == get_plotlyjs()


@pytest.mark.slow
def test_it_stays_below_three_megabytes(tmp_path, write_study, trial):
    """18 methods of 200 trials each, and curves of three metrics over 500 rounds."""
    rng = np.random.default_rng(0)
    names = [f"Method{place}" for place in range(18)]
    keys = {f"algorithm.{name}": {"loguniform": [1e-4, 1.0]} for name in ("lr", "server_lr", "tau", "beta")}
    trials, best = [], {}
    for place, name in enumerate(names):
        for again in range(200):
            chosen = {key: float(10 ** rng.uniform(-4, 0)) for key in keys}
            number, overrides = str(200 * place + again), {"algorithm": name} | chosen
            trials.append(trial(number, name, 0.5 + again / 1000, rounds=500, overrides=overrides))
        values = rng.uniform(0, 1, (3, 2, 500))
        best[number] = dict(zip(("test/accuracy", "valid/accuracy", "valid/loss"), values, strict=True))
    study = {"objective": {"metric": "valid/accuracy", "mode": "max"}, "search": keys}
    folder = write_study(tmp_path / "s", trials, curves=best, study=study, rounds=500)
    page = write_interactive(tmp_path, Findings(results=load_study(folder)), "18 methods", [])
    assert page.stat().st_size < 3_000_000
    charts = charts_of(page)
    assert sum(len(trace["y"]) for trace in charts["trials"]["data"]) == 3600
    lines = [trace["x"] for trace in charts["curves"]["data"] if trace.get("hovertemplate") and "legendgroup" in trace]
    assert len(lines) == 18
    assert all(x == lines[0] for x in lines)  # what is shown together is of one round
    assert (lines[0][0], lines[0][-1]) == (1, 500)
    assert 100 < len(lines[0]) <= POINTS


def test_a_study_without_a_result_has_a_page(tmp_path, write_study, trial):
    page = write_report(
        write_study(tmp_path / "s", [trial("0", objective=None, status="failed", rounds=0)])
    ).interactive_path
    assert charts_of(page) == {}


def test_a_study_s_figures_are_those_of_the_page(searched, drifting, charts):
    study = Study.open(searched)
    for name, chart in charts.items():
        figure = study.figure(name)
        assert [trace.name for trace in figure.data] == [trace.get("name") for trace in chart["data"]]
        assert figure.layout.title.text == CHARTS[name].title
        assert "newPlot" in figure._repr_html_()  # as a notebook asks
    with pytest.raises(ValueError, match="study quick has no figure 'sensitivity' yet: it needs 8 trials"):
        Study.open(drifting).figure("sensitivity")
    with pytest.raises(ValueError, match="unknown figure 'curve': did you mean 'curves'"):
        study.figure("curve")
    with pytest.raises(ValueError, match="unknown figure 'x': it must be one of curves, trials, parallel, sensitivity"):
        study.figure("x")


@pytest.mark.slow
def test_the_interactive_page_in_a_browser(written, browser, shoot):
    """From the file, without a network: values under the pointer, methods hidden and alone, menus, a table sorted."""
    address = written.interactive_path.as_uri()
    context = browser.new_context(viewport={"width": 1200, "height": 900}, offline=True, color_scheme="dark")
    page = context.new_page()
    page.set_default_timeout(60_000)  # the first page reads plotly.js
    asked, wrong = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.goto(address)

    def shown(chart):
        drawn = (
            "all => [...new Set(all.filter(t => t.legendgroup && t.visible !== 'legendonly').map(t => t.legendgroup))]"
        )
        return sorted(page.locator(f"#{chart}").evaluate(f"plot => ({drawn})(plot.data)"))

    def say(chart, x, y):
        """What stands under the pointer at a place of a chart's axes, in shares of their width and height."""
        page.locator(f"#{chart}").scroll_into_view_if_needed()
        box = page.locator(f"#{chart} .nsewdrag").first.bounding_box()
        page.mouse.move(box["x"] + x * box["width"] - 3, box["y"] + y * box["height"])
        page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
        page.locator(f"#{chart} .hoverlayer text").first.wait_for()
        return page.locator(f"#{chart} .hoverlayer").text_content()

    def becomes(*methods):
        """Waits for the legend, which waits for a second click; no evaluation of strings, which the page forbids."""
        for _ in range(200):
            if shown("curves") == shown("trials") == shown("sensitivity") == [*methods]:
                return
            page.wait_for_timeout(50)
        raise AssertionError(f"{shown('curves')}, {shown('trials')}, {shown('sensitivity')} are not {methods}")

    said = say("curves", 4 / 9, 0.3)
    assert said.startswith("Round 5")
    assert re.search(r"Flash : 49\.\d+ ± 0\.\d+.*FedYogi : .*FedAvg : ", said)
    assert "sudden drift" in said
    methods = ["FedAvg", "FedYogi", "Flash"]
    becomes(*methods)
    legend = page.locator("#curves .legendtoggle")
    rows = page.locator("#trials-table tbody tr:visible")
    assert rows.count() == 39
    legend.first.click()
    becomes("FedAvg", "FedYogi")
    assert rows.count() == 25
    page.locator("#trials .legendtoggle").nth(2).dblclick()
    becomes("FedAvg")

    page.locator("#trials .updatemenu-header").click()
    page.locator("#trials .updatemenu-dropdown-button", has_text="by lr").click()
    assert page.locator("#trials").evaluate("plot => [plot.layout.xaxis.type, plot.data[2].x[0]]") == ["log", 0.001]
    assert shown("trials") == ["FedAvg"]  # what is hidden stays so
    page.locator("#trials .legendtoggle").nth(2).dblclick()
    becomes(*methods)
    place = page.locator("#trials .point").first
    place.scroll_into_view_if_needed()
    spot = place.bounding_box()
    page.mouse.move(spot["x"] + spot["width"] / 2, spot["y"] + spot["height"] / 2)
    label = page.locator("#trials .hoverlayer text").first
    label.wait_for()
    assert re.match(r"Trial \d+, Flash", label.text_content())
    assert re.search(r"lr: 0\.\d+tau: 0\.\d+", label.text_content())

    page.locator("#parallel .updatemenu-header").click()
    page.locator("#parallel .updatemenu-dropdown-button", has_text="FedAvg").click()
    assert page.locator("#parallel").evaluate("plot => plot.data.filter(t => t.y.length).length") == 11
    assert re.match(r"Trial \d+, FedAvg.*momentum: ", say("parallel", 1.1 / 2.4, 0.5))

    first = page.locator("#trials-table tbody tr").first.locator("td")
    page.locator("#trials-table th button", has_text="lr").click()
    low = float(first.nth(5).inner_text())
    page.locator("#trials-table th button", has_text="lr").click()
    assert (low, float(first.nth(5).inner_text())) == (0.001, 1.0)
    ranking = page.locator("table", has_text="best trial per algorithm")
    ranking.get_by_role("button", name="Algorithm").click()
    assert ranking.locator("tbody tr td:nth-child(2)").all_inner_texts() == methods
    shoot(page, full_page=True)
    context.close()
    assert asked == [address, address.replace("interactive.html", "plotly.min.js")]
    assert wrong == []
