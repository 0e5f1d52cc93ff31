"""The docs: built without a warning, their configs valid, their commands known, their scripts run."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from flstudy.cli import COMMANDS
from flstudy.config.composition import quick_check
from flstudy.config.shipped import find_config
from flstudy.study import load_study
from tests.docs.blocks import DOCS, files_of

ROOT = DOCS.parent
PAGES = sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))
CONFIGS = [
    (page, text)
    for page in PAGES
    for text in re.findall(r"^```yaml\n(?!# \S+\.yaml)(.*?)^```$", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
]
SHELL = [
    (page, line)
    for page in PAGES
    for text in re.findall(r"^```sh\n(.*?)^```$", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
    for line in text.splitlines()
]


@pytest.mark.parametrize(("page", "text"), CONFIGS)
def test_a_config_is_valid(page, text, tmp_path):
    """What a block leaves out is that of the quick study."""
    base = yaml.safe_load(Path(find_config("quick")).read_text())
    block = yaml.safe_load(text)
    study = {**base["study"], **block.get("study", {})}
    if "study" not in block or "search" not in block["study"]:
        study["search"] = {"algorithm.lr": {"loguniform": [0.01, 1.0]}}
    path = tmp_path / "block.yaml"
    path.write_text(yaml.safe_dump({**base, **block, "study": study}))
    assert quick_check(str(path), [])["rounds"] == block.get("rounds", 60)


@pytest.mark.parametrize(("page", "line"), SHELL)
def test_a_command_is_there(page, line):
    words = [word for word in shlex.split(line, comments=True) if "=" not in word or word.startswith("-")]
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif words[0] == "flstudy" and len(words) > 1:
        assert words[1] in COMMANDS
        if words[1] in ("run", "tune") and len(words) > 2 and not words[2].startswith("-"):
            options = [word for word in words[3:] if word not in ("--print_config", "--help")]
            for option in ("--import-from", "--address"):
                if option in options:
                    del options[options.index(option) : options.index(option) + 2]
            assert quick_check(find_config(words[2]), options)
    else:
        assert words[0] in ("pip", "export", "ray", "flstudy", ".venv/bin/python", ".venv/bin/ruff"), line


@pytest.mark.slow
def test_the_script_of_the_lightning_page_runs(tmp_path):
    (tmp_path / "script.py").write_text(files_of("lightning.md")["script.py"])
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300, env={**os.environ}
    )
    assert done.returncode == 0, done.stderr
    assert float(re.search(r"tensor\(([\d.]+)", done.stdout.splitlines()[-1])[1]) < 1.0


def test_the_run_without_a_trainer_of_the_lightning_page_goes_on_from_its_checkpoint(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(files_of("lightning.md")["rounds.py"], "rounds.py", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert (len(lines), lines[-1]) == (10, "True")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The docs as ``make docs`` builds them, warnings being errors."""
    site = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return site


@pytest.mark.slow
def test_they_hold_what_comes_from_the_code_and_fetch_nothing(site):
    """Links between pages and to headings lead somewhere, or building them would have ended with an error."""
    keys = (site / "reference" / "config.html").read_text()
    assert "algorithm" in keys
    assert "η_ℓ, learning rate of the devices." in keys
    assert "dynamic initial model" in (site / "papers" / "sessions.html").read_text()
    start = (site / "index.html").read_text()
    assert not re.findall(r"(?:src|href)=\"https?://(?!squidfunk)[^\"]+\.(?:js|css|woff2?)", start)


@pytest.mark.slow
def test_keys_of_yaml_blocks_lead_to_their_lines_in_the_reference(site):
    reference = (site / "reference" / "config.html").read_text()
    ids = re.findall(r'\bid="([^"]+)"', reference)
    links = [
        anchor
        for page in site.glob("*.html")
        for anchor in re.findall(r'<span class="nt">\s*<a href="reference/config.html#([^"]+)"', page.read_text())
    ]
    assert len(links) > 200
    assert {*links} <= {*ids}
    assert [name for name in ids if ids.count(name) > 1 and not name.startswith("__")] == []


@pytest.fixture
def page(browser):
    """A page of a browser without a network; no script of it may fail."""
    context = browser.new_context(viewport={"width": 1400, "height": 900}, offline=True)
    page, wrong = context.new_page(), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    yield page
    context.close()
    assert wrong == []


@pytest.mark.slow
def test_the_gallery_in_a_browser(site, page, shoot):
    page.goto((site / "gallery.html").as_uri())
    for heading in ("A first study", "Devices that come and go"):
        assert page.get_by_role("heading", name=heading).is_visible()
    widths = page.locator("article img").evaluate_all("all => all.map(one => one.complete && one.naturalWidth)")
    assert len(widths) == len(list((DOCS / "studies").iterdir()))
    assert min(widths) >= 400
    shoot(page)
    page.get_by_role("link", name="Report", exact=True).first.click()
    best = load_study(DOCS / "studies" / "first_study").best[0].trial
    assert page.get_by_role("heading", level=1).inner_text().startswith(f"Study first_study: {best.algorithm} ")


@pytest.mark.slow
def test_an_example_in_a_browser(site, page, shoot):
    study = load_study(DOCS / "studies" / "first_study")
    best, count = study.best[0].trial, len(study.trials)
    page.goto((site / "examples" / "first_study.html").as_uri())
    assert page.get_by_role("heading", level=1).inner_text().strip("¶ ") == "A first study"
    shown = page.locator("article").inner_text()
    assert f"{best.algorithm} {{'algorithm': '{best.algorithm}'" in shown  # printed
    assert f"{count}/{count} trials, 100% of rounds" in shown  # the live table
    assert page.locator("article svg", has_text="Round").is_visible()  # the curves
    shoot(page)


@pytest.mark.slow
def test_a_key_of_a_yaml_block_in_a_browser(site, page, shoot):
    page.goto((site / "first_study.html").as_uri())
    page.locator(".highlight a", has_text="partition").first.click()
    assert page.url.endswith("reference/config.html#population.partition")
    assert page.locator("[id='population.partition']").is_visible()
    shoot(page)


@pytest.mark.slow
def test_the_start_page_in_a_browser(site, page, shoot):
    """From files, without a network: a heading, the first picture as large as it was made, the way to the first study,
    and a search."""
    page.goto((site / "index.html").as_uri())
    assert page.get_by_role("heading", level=1).inner_text().strip("¶ ") == "flstudy"
    widths = page.locator("article img").evaluate_all("all => all.map(one => one.complete && one.naturalWidth)")
    assert widths
    assert min(widths) >= 400
    shoot(page)
    page.locator("article").get_by_role("link", name="First study").first.click()
    assert page.url.endswith("first_study.html")
    assert page.get_by_role("heading", level=1).is_visible()
    page.keyboard.press("/")
    page.locator(".md-search__input").press_sequentially("checkpoint", delay=50)
    page.get_by_text("matching documents").wait_for()
    assert page.locator(".md-search-result__item").count() > 3
