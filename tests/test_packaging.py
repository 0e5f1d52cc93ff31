"""The wheel: all that a user without the checkout needs, and one version."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

import flstudy
from flstudy.config import ConfigError
from flstudy.config.shipped import configs, find_config
from flstudy.reproduction.plan import read_paper
from flstudy.reproduction.stages import results_folder

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """What is inside the wheel, unpacked as pip does it."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    assert built.name == f"flstudy-{flstudy.__version__}-py3-none-any.whl"
    assert built.stat().st_size < 2_000_000
    with zipfile.ZipFile(built) as files:
        files.extractall(folder / "site-packages")
    return folder / "site-packages"


def test_it_holds_configs_types_and_licence(wheel):
    for name in (
        "py.typed",
        "config/schema.json",
        "tasks/kernels.cpp",
        "reporting/report.html.j2",
        "reporting/interactive.html.j2",
        "reporting/interactive.js",
        "reporting/sorting.js",
        "reporting/page.css",
        "tune_configs/quick.yaml",
    ):
        assert (wheel / "flstudy" / name).is_file(), name
    metadata = wheel / f"flstudy-{flstudy.__version__}.dist-info"
    assert (metadata / "licenses" / "LICENSE").read_text().lstrip().startswith("Apache License")
    assert not list(wheel.rglob("*.png"))


def test_a_checkout_can_be_installed_editable(tmp_path):
    """As ``make setup`` does: hatchling refuses it where a folder is renamed and none is named for it."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel:editable", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as files:
        assert files.read("_flstudy.pth").decode() == str(ROOT)


@pytest.mark.slow
def test_its_configs_are_found_by_name_anywhere(wheel, tmp_path):
    """In a process of its own, elsewhere and without the checkout."""

    def run_script(script: str) -> str:
        environment = {"PYTHONPATH": str(wheel), "PATH": ""}
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    shown = run_script(
        "import sys; from flstudy.cli import main; sys.exit(main(['tune', 'flash/digits', '--print_config']))"
    )
    assert yaml.safe_load(shown)["population"]["dataset"]["class_path"].endswith("Digits")
    where = run_script("from flstudy.config.shipped import *; print(config_folder(), is_installed(config_folder()))")
    assert where.split() == [str(wheel / "flstudy" / "tune_configs"), "True"]


def test_ones_own_configs_go_before_those_of_the_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Path(find_config("quick")) == ROOT / "tune_configs" / "quick.yaml"
    (tmp_path / "tune_configs").mkdir()
    own_config = tmp_path / "tune_configs" / "quick.yaml"
    own_config.write_text("rounds: 1\n")
    assert Path(find_config("quick")).resolve() == own_config
    assert configs() == [Path("tune_configs/quick.yaml")]
    assert find_config("nowhere") == "nowhere"


def test_pages_go_beside_a_papers_configs():
    paper = read_paper("flash", ROOT / "tune_configs")
    assert results_folder(paper) == ROOT / "tune_configs" / "flash" / "results"
    with pytest.raises(ConfigError, match="unknown paper 'flsh': did you mean 'flash'"):
        read_paper("flsh", ROOT / "tune_configs")


def test_the_citation_names_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == flstudy.__version__
    assert cited["license"] == "Apache-2.0"
    assert f"\n## {flstudy.__version__} " in (ROOT / "CHANGELOG.md").read_text()


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIREMENTS = [Requirement(line) for line in sum(PROJECT["optional-dependencies"].values(), PROJECT["dependencies"])]
TESTED = {
    requirement.name: Version(str(requirement.specifier).removeprefix("=="))
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line.strip() and not line.startswith("#")
    for requirement in [Requirement(line)]
}
"""Exact versions that were tested together."""


@pytest.mark.parametrize("name", ["torch", "lightning", "ray"])
def test_what_is_used_by_private_names_is_admitted_up_to_the_next_minor_version(name):
    tested = TESTED[name]
    for requirement in REQUIREMENTS:
        if requirement.name == name:
            assert requirement.specifier.contains(str(tested))
            assert not requirement.specifier.contains(f"{tested.major}.{tested.minor + 1}.0")


@pytest.mark.parametrize("name", ["mlflow", "optuna"])
def test_other_large_ones_are_admitted_up_to_the_next_major_version(name):
    (requirement,) = [requirement for requirement in REQUIREMENTS if requirement.name == name]
    assert requirement.specifier.contains(str(TESTED[name]))
    assert not requirement.specifier.contains(f"{TESTED[name].major + 1}.0.0")


def test_every_tested_version_is_admitted():
    for requirement in REQUIREMENTS:
        if requirement.name in TESTED:
            assert requirement.specifier.contains(str(TESTED[requirement.name]), prereleases=True), requirement.name
