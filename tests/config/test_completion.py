"""Completion in a real bash: what Tab offers of commands, options, keys, values, configs and studies."""

import subprocess

import pytest

from flstudy.cli import COMMANDS, main
from flstudy.config.completion import option_keys, options_in
from flstudy.config.schema import class_names

TAB = r"""
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_flstudy
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """The scripts' folder."""
    import contextlib
    import io

    folder = tmp_path_factory.mktemp("completion")
    for shell in ("bash", "zsh", "fish"):
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            assert main(["completion", shell]) == 0
        (folder / shell).write_text(output.getvalue())
    return folder


@pytest.fixture
def tab(scripts, tmp_path):
    """What bash offers after some words, of which the last is being typed."""
    for name in ("moving-digits", "still"):
        (tmp_path / "studies" / name).mkdir(parents=True)
        (tmp_path / "studies" / name / "state.json").touch()
    (tmp_path / "mine.yaml").touch()

    def offered(*words: str) -> set[str]:
        command = ["bash", "--norc", "-c", TAB, "bash", str(scripts / "bash"), "flstudy", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=300)
        assert not done.stderr
        return set(done.stdout.split())

    return offered


def test_bash_takes_the_script(scripts):
    shown = subprocess.run(
        ["bash", "--norc", "-c", f"source {scripts / 'bash'} && complete -p flstudy"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout == "complete -o filenames -F _flstudy flstudy\n"


def test_commands_and_their_options(tab):
    assert tab("") >= {*COMMANDS}
    assert tab("st") == {"studies"}
    assert tab("report", "--") == {"--json", "--help", "--traceback"}
    assert tab("init", "--a") == {"--algorithms", "--arms"}
    assert {"prepare", "describe", "list", "quick"} <= tab("data", "")
    assert tab("completion", "") >= {"bash", "zsh", "fish"}


def test_keys_come_section_by_section_with_their_values(tab):
    first = tab("tune", "--")
    assert {"--population", "--population.", "--algorithm", "--algorithm.", "--rounds", "--resume"} <= first
    assert not any(option.count(".") > 1 or (option.count(".") and not option.endswith(".")) for option in first)
    assert tab("run", "--population.dr") == {"--population.drift", "--population.drift."}
    assert {"--algorithm.tau", "--algorithm.lr"} <= tab("run", "quick", "--algorithm.")
    assert tab("run", "quick", "--algorithm", "") == {*class_names("algorithm")}
    assert tab("run", "quick", "--algorithm", "=", "Fla") == {"Flash"}
    assert tab("run", "quick", "--compile", "=") == {"true", "false", "auto"}
    assert "valid/accuracy" in tab("tune", "quick", "--study.objective.metric", "valid/a")
    assert "--study.search.algorithm.tau" in tab("tune", "quick", "--study.search.algorithm.t")


def test_configs_and_studies(tab):
    assert {"quick", "flash/digits", "mine.yaml"} <= tab("tune", "")
    assert {"moving-digits", "still"} <= tab("report", "")
    assert tab("tune", "--resume", "m") == {"moving-digits"}
    assert "datasets" in tab("list", "")
    assert "flash" in tab("reproduce", "")


def test_every_key_of_a_config_is_one():
    keys = option_keys()
    assert keys["population.drift.change"] == class_names("population.drift.change")
    assert keys["algorithm.moment"]
    assert keys["rounds"] == []
    assert options_in("usage: x [--one] [--two N]\n\n  -t N, --two N  sets\n  --three  see --four") == [
        *("--one", "--two", "--three", "--traceback", "--help"),
    ]


def test_other_shells(scripts):
    assert (scripts / "zsh").read_text().startswith("#compdef flstudy\n")
    fish = (scripts / "fish").read_text()
    assert "complete -c flstudy -n __fish_use_subcommand -a tune -d 'search hyper-parameters'" in fish
    assert "-l algorithm -x -a 'AdaptiveFedAvg " in fish
    assert main(["completion", "tcsh"]) == 2
