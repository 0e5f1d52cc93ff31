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
from flstudy.config.shipped import find_config
from flstudy.config.values import quick_check
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
            for option in ("--import-from", "--store"):
                if option == "--import-from" and option in options:
                    del options[options.index(option) : options.index(option) + 2]
            assert quick_check(find_config(words[2]), options)
    else:
        assert words[0] in ("pip", "export", "ray", "flstudy", ".venv/bin/python", ".venv/bin/ruff"), line


def test_the_script_of_the_lightning_page_runs(tmp_path):
    (tmp_path / "script.py").write_text(files_of("lightning.md")["script.py"])
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300, env={**os.environ}
    )
    assert done.returncode == 0, done.stderr
    assert float(re.search(r"tensor\(([\d.]+)", done.stdout.splitlines()[-1])[1]) < 1.0


def test_they_are_built_without_a_warning(tmp_path):
    """Links between pages and to headings included; what is generated from the code, too."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    keys = (tmp_path / "site" / "reference" / "config.html").read_text()
    assert "algorithm" in keys
    assert "η_ℓ, learning rate of the devices." in keys
    assert "dynamic initial model" in (tmp_path / "site" / "papers" / "sessions.html").read_text()
    start = (tmp_path / "site" / "index.html").read_text()
    assert not re.findall(r"(?:src|href)=\"https?://(?!squidfunk)[^\"]+\.(?:js|css|woff2?)", start)


def test_every_public_name_of_the_api_has_a_docstring():
    import flstudy

    for name in flstudy.__all__:
        assert getattr(flstudy, name).__doc__, name
