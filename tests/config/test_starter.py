"""``flstudy init``: a study of one's choice that passes every check as it is written, and with what stands there as
comments."""

import re

import pytest
import yaml

from flstudy.cli import main
from flstudy.config import ConfigError, load
from flstudy.config.reading import content_of, parsed
from flstudy.config.schema import class_names, config_schema
from flstudy.config.starter import HEADS, NONE, RATES, Choice, ask_choice, starter
from flstudy.config.values import completed
from flstudy.tuning.plan import check_study

BUILT = {"Digits", "FashionMnist", "HeavyTails", "LeafShakespeare", "LibSvm", "Synthetic"}  # each its own kind, small
ASIDE = re.compile(r"^(\s*)# (\w[\w.]*: [\[{\w].*)$", re.MULTILINE)


def checked(choice, tmp_path):
    """The study's config, all parts built and the search space held against them."""
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.yaml"
    path.write_text(starter(choice))
    config = load(path, command="tune")
    check_study(config)
    return config


@pytest.mark.parametrize("dataset", class_names("population.dataset"))
def test_a_study_of_every_data_set(dataset, tmp_path):
    choice = Choice(dataset=dataset)
    if dataset in BUILT:
        assert checked(choice, tmp_path).tags()["dataset"] == dataset
    else:
        starter(choice)  # which makes the quick check


@pytest.mark.slow
def test_a_study_of_all_methods_and_of_each(tmp_path):
    every = class_names("algorithm")
    config = checked(Choice(algorithms=every), tmp_path)
    assert config.study.search["algorithm"] == {"choice": every}
    for name in every:
        search = content_of("FILE", starter(Choice(algorithms=[name])))["study"]["search"]
        rates = {f"algorithm.{rate}" for rate in RATES if rate in config_schema()["$defs"][name]["properties"]}
        assert rates <= set(search), name
        assert "algorithm" not in search


@pytest.mark.slow
@pytest.mark.parametrize("dataset", sorted(BUILT))
@pytest.mark.parametrize("arms", [False, True])
def test_methods_that_need_a_part_of_the_model_get_its_last_layers(dataset, arms, tmp_path):
    for algorithms in (["FedRep"], ["LgFedAvg", "FedRep"], ["FedBabu", "FedAvg", "LgFedAvg"]):
        choice = Choice(dataset=dataset, algorithms=algorithms, arms=arms)
        if config_schema()["$defs"][dataset]["x-first-task"] in HEADS:
            config = checked(choice, tmp_path)
            if "FedAvg" in algorithms:  # to which the others' parts do not go on
                assert (config.method, config.flat()["algorithm.personal"]) == ("FedAvg", [])
        else:
            with pytest.raises(ConfigError, match=r"must have a model of two parts, got \w+: take another"):
                starter(choice)


@pytest.mark.parametrize("algorithms", [("Flash", "FedYogi", "FedAvg"), ("FedAvg",), ("Ditto", "Scaffold", "FedProx")])
def test_arms_have_ranges_of_their_own_and_a_variant(algorithms, tmp_path):
    config = checked(Choice(algorithms=algorithms, arms=True), tmp_path)
    arms = config.study.arms
    assert list(arms)[:-1] == list(algorithms)
    variant = arms[[*arms][-1]]
    assert variant.class_path == algorithms[0]
    (held,) = variant.init_args
    assert {*arms[algorithms[0]].search} == {*variant.search, held}
    assert config.study.search["algorithm"] == {"choice": [*arms]}
    assert config.study.trials % len(arms) == 0
    assert config.study.trials >= 5 * len(arms)


@pytest.mark.slow
def test_every_method_may_be_an_arm_and_have_a_variant(tmp_path):
    for name in class_names("algorithm"):
        checked(Choice(algorithms=[name, "Flash"] if name != "Flash" else [name], arms=True), tmp_path)
    every = class_names("algorithm")
    assert len(checked(Choice(algorithms=every, arms=True), tmp_path).study.arms) == len(every) + 1


def test_the_arms_of_a_start_are_read_as_they_stand():
    study = content_of("FILE", starter(Choice(arms=True)))["study"]
    assert study["search"] == {"algorithm.lr": {"loguniform": [0.005, 0.5]}}  # the same for all three
    assert study["arms"]["FedAvg"] == {"search": {"server_lr": {"loguniform": [0.1, 10.0]}}}
    assert study["arms"]["FedYogi"]["search"]["server_lr"] == {"loguniform": [0.01, 1.0]}
    assert study["arms"]["Flash-tau-0.001"]["init_args"] == {"tau": 0.001}


@pytest.mark.parametrize("drift", [NONE, *class_names("population.drift")])
def test_a_study_of_every_drift(drift, tmp_path):
    config = checked(Choice(drift=drift, rounds=30), tmp_path)
    assert bool(config.drift_rounds()) == (drift != NONE)


def test_its_comments_are_right_too(tmp_path):
    for choice in (Choice(drift=NONE), Choice(sessions=True), Choice(algorithms=["Flash", "FedAcg", "FedDyn"])):
        text = starter(choice)
        more, count = ASIDE.subn(r"\1\2", text)
        assert count >= 3
        path = tmp_path / "study.yaml"
        path.write_text(more)
        check_study(load(path, command="tune"))
        assert completed(parsed(more), imports=False) != completed(parsed(text), imports=False)


def test_what_is_searched_is_what_the_methods_have():
    search = content_of("FILE", starter(Choice(algorithms=["Flash", "FedAvg", "Scaffold"])))["study"]["search"]
    assert search == {
        "algorithm": {"choice": ["Flash", "FedAvg", "Scaffold"]},
        "algorithm.lr": {"loguniform": [0.005, 0.5]},
        "algorithm.server_lr": {"loguniform": [0.01, 10.0]},
        "algorithm.tau": {"loguniform": [0.0001, 0.01]},
    }  # not gamma, which would stop FedAvg's and Scaffold's devices early
    flash = content_of("FILE", starter(Choice(algorithms=["Flash"])))
    assert flash["study"]["search"]["algorithm.gamma"] == {"loguniform": [0.004, 0.4]}
    assert flash["algorithm"]["init_args"]["gamma"] == 0.04
    momentum = content_of("FILE", starter(Choice(algorithms=["FedAvgM"])))["study"]["search"]
    assert momentum["algorithm.beta"] == {"choice": [0.0, 0.5, 0.9, 0.99]}


def test_each_of_several_methods_begins_with_its_own_defaults(tmp_path):
    """A value that the config gives would hold for all: FedAvg would step by Flash's η_g, and stop early by its γ."""
    names = ["Flash", "FedAvg", "FedYogi", "Scaffold"]
    for arms in (False, True):
        config = checked(Choice(algorithms=names, arms=arms), tmp_path)
        for name in names:
            properties = config_schema()["$defs"][name]["properties"]
            chosen = config.with_overrides({"algorithm": name}).flat()
            wanted = {f"algorithm.{key}": node["default"] for key, node in properties.items()}
            assert {key: chosen[key] for key in wanted} == wanted


def test_the_command_takes_names_and_refuses_others(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("builtins.input", lambda question: pytest.fail("nobody is there"))
    names = ["--dataset", "Synthetic", "--algorithms", "Scaffold", "FedProx", "--drift", "StaggeredDrift"]
    assert main(["init", "mine.yaml", *names, "--rounds", "40", "--trials", "6"]) == 0
    content = yaml.safe_load((tmp_path / "mine.yaml").read_text())
    assert (content["population"]["dataset"], content["rounds"]) == ("Synthetic", 40)
    assert content["study"]["trials"] == 6
    assert main(["init", "sessions.yaml", "--sessions"]) == 0
    content = yaml.safe_load((tmp_path / "sessions.yaml").read_text())["population"]
    assert content["availability"]["class_path"] == "AlternatingGroups"
    assert "drift" not in content
    for options, message in (
        (("--dataset", "Digit"), "unknown dataset 'Digit': did you mean 'Digits'?"),
        (("--algorithms", "Flush"), "unknown algorithm 'Flush': did you mean 'Flash'?"),
        (("--drift", "Suddendrift"), "unknown drift 'Suddendrift': did you mean 'SuddenDrift'?"),
        (("--algorithms", "Flash", "Flash"), "algorithms must be one or more different ones, got Flash Flash"),
        (("--rounds", "0"), "rounds must lie in [1, 1e6], got 0"),
    ):
        capsys.readouterr()
        assert main(["init", "never.yaml", *options]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "never.yaml").exists()


def test_a_terminal_is_asked_until_it_names_what_there_is():
    answers, messages = iter(["Digit", "Digits", "Flash, FedAvg", "", "none"]), []
    assert ask_choice(lambda question: next(answers), messages.append) == Choice(algorithms=("Flash", "FedAvg"))
    assert messages == ["unknown dataset 'Digit': did you mean 'Digits'? (flstudy list datasets shows all)"]
    assert next(answers) == "none"


def test_without_a_terminal_nothing_is_asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("builtins.input", lambda question: pytest.fail("nobody is there"))
    assert main(["init"]) == 0
    assert (tmp_path / "study.yaml").read_text() == starter()
    with pytest.raises(ConfigError, match="must be of 2 to 1000 labels, got 10004: take another drift"):
        starter(Choice(dataset="StackOverflow", drift="ClassIntroduction"))
