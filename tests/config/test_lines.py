"""An error of a config names its file and line, and the key as it is written there."""

from pathlib import Path

import pytest

from flstudy.cli import main
from flstudy.config import ConfigError, load
from flstudy.config.composition import quick_check

STUDY = """\
# a comment
task:
  class_path: Mlp
  init_args: {hidden: 64}
population:
  dataset: Digits
  drift:
    class_path: SuddenDrift
    init_args:
      round: 31
      change: {class_path: Rotation, init_args: {quarters: [1]}}
  clients: 20
algorithm: {class_path: Flash, init_args: {tau: 1.0e-3}}
rounds: 60
seeds: [0, 44, 56]
study:
  objective: {metric: valid/accuracy, mode: max}
  search:
    algorithm.lr: {loguniform: [1.0e-2, 1.0]}
  presets:
    Flash: {lr: 0.1}
  scheduler:
    class_path: Asha
    init_args: {grace_rounds: 40}
"""


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        (
            "hidden: 64",
            "hiden: 64",
            "4: unknown key 'task.init_args.hiden' of Mlp: did you mean 'task.init_args.hidden'?",
        ),
        ("hidden: 64", "hidden: wide", "4: task.init_args.hidden must be an integer, got 'wide'"),
        ("hidden: 64", "hidden: 0", "4: task.init_args.hidden must lie in [1, 1e5], got 0"),
        ("class_path: Mlp", "class_path: Mpl", "2: unknown task 'Mpl': did you mean 'Mlp'?"),
        ("clients: 20", "client: 20", "12: unknown key 'population.client': did you mean 'population.clients'?"),
        ("SuddenDrift", "SudenDrift", "7: unknown population.drift 'SudenDrift': did you mean 'SuddenDrift'?"),
        ("round: 31", "round: soon", "10: population.drift.init_args.round must be an integer, got 'soon'"),
        ("round: 31", "round: 61", "10: population.drift.init_args.round must be ≤ rounds (60), got 61"),
        ("      round: 31\n", "", "7: population.drift.init_args.round must be given with SuddenDrift, an integer"),
        (
            "quarters: [1]",
            "quarter: [1]",
            "11: unknown key 'population.drift.init_args.change.init_args.quarter' of Rotation",
        ),
        ("tau: 1.0e-3", "tau: -1", "13: algorithm.init_args.tau must lie in (0, 1e12], got -1"),
        ("rounds: 60", "round: 60", "14: unknown key 'round': did you mean 'rounds'?"),
        ("rounds: 60", "rounds: many", "14: rounds must be an integer, got 'many'"),
        ("[0, 44, 56]", "[0, x, 56]", "15: seeds[1] must be an integer, got 'x'"),
        ("valid/accuracy", "valid/acuracy", "17: study.objective.metric: unknown metric 'valid/acuracy'"),
        ("algorithm.lr:", "algorithm.rl:", "19: study.search: unknown key 'algorithm.rl' of Flash"),
        ("[1.0e-2, 1.0]", "[1.0, 1.0e-2]", "19: study.search.algorithm.lr: loguniform must have low < high"),
        ("{lr: 0.1}", "{rate: 0.1}", "21: unknown key 'algorithm.rate' of Flash"),
        ("grace_rounds: 40", "grace: 40", "24: unknown key 'study.scheduler.init_args.grace' of Asha"),
    ],
)
def test_a_wrong_key_or_value_has_its_line(right, wrong, message, tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(STUDY)
    quick_check(path, [])
    assert right in STUDY
    path.write_text(STUDY.replace(right, wrong))
    for read in (lambda: quick_check(path, []), lambda: load(path, command="tune")):
        with pytest.raises(ConfigError) as refusal:
            read()
        assert str(refusal.value).startswith(f"study.yaml:{message}"), str(refusal.value)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--task.hiden", "64", "unknown key 'task.hiden' of Mlp: did you mean 'task.hidden'?"),
        ("--task.hidden", "wide", "task.hidden must be an integer, got 'wide'"),
        ("--population.drift", "SudenDrift", "unknown population.drift 'SudenDrift'"),
    ],
)
def test_an_option_has_no_line_and_the_name_by_which_it_is_given(option, value, message, tmp_path, capsys):
    path = tmp_path / "study.yaml"
    path.write_text(STUDY)
    assert main(["tune", str(path), option, value]) == 2
    assert capsys.readouterr().err.strip().startswith(f"flstudy: error: {message}")


def test_a_value_that_a_constructor_refuses_names_the_file(tmp_path):
    text = STUDY.replace("      change:", "      p_drift: 0.5\n      change:").replace("SuddenDrift", "RecurrentDrift")
    path = tmp_path / "study.yaml"
    path.write_text(text.replace("round: 31", "round: 31\n      back: 20"))
    with pytest.raises(ConfigError, match=r"^study\.yaml: RecurrentDrift: back must be > round \(31\), got 20"):
        load(path)


def test_a_value_that_another_mapping_merges_has_the_line_where_it_stands(tmp_path):
    path = tmp_path / "study.yaml"
    shared = "    Flash: &shared {lr: 0.1}\n    FedAvg: {<<: *shared, server_lr: fast}\n"
    path.write_text(STUDY.replace("    Flash: {lr: 0.1}\n", shared))
    with pytest.raises(ConfigError) as refusal:
        quick_check(path, [])
    assert str(refusal.value).startswith("study.yaml:22: study.presets.FedAvg.server_lr must be a number, got 'fast'")


def test_a_shipped_config_that_is_changed_has_its_line(tmp_path):
    quick = (Path(__file__).parents[2] / "tune_configs" / "quick.yaml").read_text()
    path = tmp_path / "quick.yaml"
    for number, line in enumerate(quick.splitlines(), 1):
        key = line.strip().partition(":")[0]
        if not key.isidentifier() or key in ("class_path", "init_args"):
            continue
        lines = quick.splitlines()
        lines[number - 1] = line.replace(f"{key}:", f"{key}_x:", 1)
        path.write_text("\n".join(lines))
        with pytest.raises(ConfigError) as refusal:
            quick_check(path, [])
        assert str(refusal.value).startswith(f"quick.yaml:{number}: "), (line, str(refusal.value))
