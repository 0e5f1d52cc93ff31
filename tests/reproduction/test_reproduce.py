"""`flstudy reproduce`, with a paper of two small worlds, real Ray workers and a real store."""

import io
import json
import shutil
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from flstudy.cli import main
from flstudy.config.errors import ConfigError
from flstudy.metrics.sessions import initial_accuracy
from flstudy.reproduction import stages
from flstudy.reproduction.measured import read_measured
from flstudy.reproduction.plan import read_paper, stage_config, stages_of
from flstudy.reproduction.stages import run_stage
from flstudy.study import load_study
from flstudy.study.folder import FORMAT
from flstudy.tuning.plan import check_study

from ..reporting.conftest import is_drawn

CONFIGS = Path(__file__).parents[2] / "tune_configs"
STUDY = {
    "task": {"class_path": "Logistic"},
    "population": {
        "dataset": "Digits",
        "clients": 6,
        "participants": 3,
        "drift": {"class_path": "SuddenDrift", "init_args": {"round": 3}},
    },
    "algorithm": "Flash",
    "rounds": 5,
    "seeds": [0, 44],
    "study": {
        "trials": 6,
        "search": {
            "algorithm": {"choice": ["FedAvg", "FedYogi", "Flash"]},
            "algorithm.lr": {"loguniform": [0.01, 1.0]},
        },
        "presets": {"FedAvg": {"lr": 0.5}, "FedYogi": {"lr": 0.2}, "Flash": {"lr": 0.1, "tau": 0.01}},
        "sampler": "RandomSearch",
        "concurrent": 1,  # a second worker would import more than it trains
    },
}
GRID = {"trials": 2, "search": {"population.epochs": {"choice": [1, 2]}}, "sampler": "GridSearch", "concurrent": 1}
SESSIONS = {
    **STUDY,
    "population": {
        "dataset": "Digits",
        "clients": 6,
        "participants": 3,
        "partition": {"class_path": "LabelGroups", "init_args": {"alpha": 5.0}},
        "availability": {"class_path": "AlternatingGroups", "init_args": {"rounds": 2}},
    },
    "rounds": 8,
    "wireless": {"complexity": 2.0},
    "study": {
        "trials": 2,
        "objective": {"metric": "valid/initial_accuracy"},
        "search": {"algorithm": {"choice": ["FedAvg", "Scaffold"]}, "algorithm.lr": {"loguniform": [0.01, 1.0]}},
        "sampler": "RandomSearch",
        "concurrent": 1,  # a second worker would import more than it trains
    },
}
ABLATION = {**STUDY, "study": GRID}


@pytest.fixture
def paper(tmp_path):
    """A folder of configs with one paper."""
    folder = tmp_path / "configs" / "small"
    folder.mkdir(parents=True)
    (folder / "study.yaml").write_text(yaml.safe_dump(STUDY))
    (folder / "ablation.yaml").write_text(yaml.safe_dump(ABLATION))
    plan = {
        "paper": "A small paper",
        "worlds": {
            "drift": {"title": "A drift", "config": "study.yaml", "measures": ["accuracy", "dip"]},
            "epochs": {"title": "Epochs", "config": "ablation.yaml", "kind": "ablation", "measures": ["personal"]},
        },
    }
    (folder / "reproduction.yaml").write_text(yaml.safe_dump(plan))
    (folder / "published.csv").write_text(
        "world,algorithm,measure,value,over_devices,over_seeds\n"
        "drift,FedAvg,accuracy,0.5,0.1,0.02\ndrift,FedYogi,accuracy,0.6,,\ndrift,Flash,accuracy,0.7,,\n"
        "drift,Flash,dip,0.4,,\n"
    )
    (folder / "differences.md").write_text("## Differences\n\nNone was looked for.\n")
    return folder


@pytest.mark.slow
def test_sessions_beside_each_other(tmp_path, monkeypatch, ray_cluster):
    folder = tmp_path / "configs" / "dynamic"
    folder.mkdir(parents=True)
    (folder / "study.yaml").write_text(yaml.safe_dump(SESSIONS))
    alone = {"study.search": {"algorithm": {"choice": ["Continuous"]}}, "study.trials": 2}
    alone |= {"study.arms": {"Continuous": {}, "Continuous-Scaffold": {"class_path": "Continuous"}}}
    alone |= {"study.presets": {"Continuous": {"lr": 0.1}, "Continuous-Scaffold": {"lr": 0.01}}}
    variants = {"Proposed": {"controller": "DynamicInitialModel"}, "Previous": {}, "Continuous": alone}
    world = {"title": "Sessions", "config": "study.yaml", "kind": "sessions", "sessions": [4], "variants": variants}
    world["bandwidths"] = [50, 200]
    (folder / "reproduction.yaml").write_text(
        yaml.safe_dump({"paper": "Sessions", "worlds": {"two": world}}, sort_keys=False)
    )
    (folder / "published.csv").write_text(
        "world,algorithm,measure,value,over_devices,over_seeds\ntwo,FedAvg,Previous 4,0.5,,\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "dynamic", "--configs", "configs"]) == 0
    names = sorted(path.name for path in Path("studies").iterdir())
    undealt = {**world, "title": "Too many", "options": {"population.partition": "Distinct"}}  # six devices, ten labels
    plan = {"paper": "Sessions", "worlds": {"three": world, "four": undealt}}
    (folder / "reproduction.yaml").write_text(yaml.safe_dump(plan, sort_keys=False))
    assert main(["reproduce", "dynamic", "--configs", "configs"]) == 2  # before the first study of three is run
    assert sorted(path.name for path in Path("studies").iterdir()) == names
    assert names == ["dynamic-two-continuous", "dynamic-two-previous", "dynamic-two-proposed"]
    page = (folder / "results" / "two.md").read_text()
    assert all(is_drawn(folder / "results" / f"two-{kind}.png") for kind in ("curves", "bandwidth"))
    lines = page.splitlines()
    table = lines[lines.index("**Session 4, accuracy % of its first 10 rounds: here / the paper's**") :][2:6]
    assert [line.split(" | ")[0] for line in table] == ["| Algorithm", "|:--|--:|--:|--:|", "| FedAvg", "| Scaffold"]
    previous, continuous = table[2].split(" | ")[2:4]
    assert previous.endswith("/ 50.00")
    measured = {trial.row: trial for trial in read_measured(folder / "results" / "two.csv") if "tuned" in trial.shown}
    in_ten = measured["FedAvg, Previous"].values("first_10_of_4").values()
    assert previous.startswith(f"{100 * sum(in_ten) / len(in_ten):.2f} ")
    of_previous = load_study(Path("studies/dynamic-two-previous"))
    _, values = of_previous.curve(next(t for t in of_previous.searched if t.algorithm == "FedAvg"), "test/accuracy")
    assert [*measured["FedAvg, Previous"].values("last_of_4").values()] == values[:, -1].tolist()
    of_continuous = load_study(Path("studies/dynamic-two-continuous"))
    for shown, name in ((continuous, "Continuous"), (table[3].split(" | ")[3], "Continuous-Scaffold")):
        trial = next(t for t in of_continuous.searched if t.algorithm == name)  # its rates are those of the row
        rounds, values = of_continuous.curve(trial, "test/accuracy")
        assert shown.startswith(f"{100 * initial_accuracy(rounds, values, 7, None).mean():.2f}")
    folders = [load_study(Path("studies") / f"dynamic-two-{name}") for name in ("proposed", "previous")]
    trials = [next(t for t in results.searched if t.algorithm == "FedAvg") for results in folders]
    rounds, ours = folders[0].curve(trials[0], "test/accuracy")
    _, theirs = folders[1].curve(trials[1], "test/accuracy")
    gain = 100 * (ours[:, rounds >= 7] - theirs[:, rounds >= 7]).sum(1).mean()
    row = next(line for line in lines if line.startswith("| FedAvg | Previous | ") and "lr" not in line)
    assert row.endswith(f" | {gain:+.1f} |")
    (folder / "reproduction.yaml").write_text(yaml.safe_dump({"paper": "Sessions", "worlds": {"two": world}}))
    for trials in Path("studies").glob("*/trials.jsonl"):
        trials.write_text(trials.read_text().replace('"status": "finished"', '"status": "failed"'))
    assert main(["reproduce", "dynamic", "--configs", "configs", "--write", "--out", "there"]) == 0
    assert [path.name for path in Path("there").iterdir() if path.stem == "two"] == []  # there is nothing to show


@pytest.mark.slow
def test_a_small_paper(paper, tmp_path, monkeypatch, capsys, ray_cluster):
    monkeypatch.chdir(tmp_path)
    arguments = ["reproduce", "small", "--configs", "configs"]
    assert main(arguments) == 0
    trials = {path.name: len(list((path / "records").glob("*.parquet"))) for path in Path("studies").iterdir()}
    assert trials == {"small-drift-preset": 3, "small-drift-tuned": 6, "small-epochs": 2}
    presets = yaml.safe_load(Path("studies/small-drift-preset/study.yaml").read_text())
    assert presets["study"]["trials"] == 3
    page = (paper / "results" / "drift.md").read_text()
    rows = {line.split(" | ")[0].strip("| "): line.split(" | ") for line in page.splitlines() if line.startswith("| ")}
    assert "50.00 ± 2.00 (10.0)" in rows["FedAvg"] or "50.00 ± 2.00 (10.0)" in page
    assert "Accuracy is of the server's model (" in page
    assert "Too few algorithms to order." in page  # three; a correlation's interval needs four
    assert "6 trials, 30 rounds" in page  # the search began with the three of the presets
    searched = load_study(Path("studies/small-drift-tuned")).searched
    assert [trial.source for trial in searched[:3]] == [f"small-drift-preset/{number}" for number in range(3)]
    assert all(trial.source is None and trial.status == "finished" and trial.run_id for trial in searched[3:])
    assert all(trial.run_id for trial in searched)
    assert "2 trials, 10 rounds" in (paper / "results" / "epochs.md").read_text()
    for world in ("drift", "epochs"):  # each page names the command that makes it, whichever made all of them
        command = f"`flstudy reproduce small --worlds {world} --configs configs`"
        assert command in (paper / "results" / f"{world}.md").read_text()
    readme = (paper / "results" / "README.md").read_text()
    assert "- [A drift](drift.md)\n- [Epochs](epochs.md)\n" in readme
    assert readme.rstrip().endswith("None was looked for.")
    for picture in ("drift-preset-curves.png", "drift-tuned-curves.png", "drift-preset-alarm.png"):
        assert f"({picture})" in page
        assert is_drawn(paper / "results" / picture)
    capsys.readouterr()
    before = {path: path.read_bytes() for path in Path("studies").rglob("trials.jsonl")}
    assert main([*arguments, "--write", "--out", "elsewhere"]) == 0
    assert main(arguments) == 0  # everything is there: nothing runs again
    assert "small-drift-tuned: done" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in Path("studies").rglob("trials.jsonl")} == before
    assert Path("elsewhere/README.md").is_file()
    trials = Path("studies/small-epochs/trials.jsonl")  # as if imported from a study of that name in another folder
    trials.write_text(trials.read_text().replace('"source": null', '"source": "small-epochs/0"'))
    assert main([*arguments, "--write", "--out", "elsewhere"]) == 0
    assert "2 trials, 10 rounds" in Path("elsewhere/epochs.md").read_text()
    shutil.rmtree("studies/small-epochs")
    epochs_page = (paper / "results" / "epochs.md").read_bytes()
    assert main([*arguments, "--write"]) == 0  # of another machine's world the page stays, with its link
    assert (paper / "results" / "epochs.md").read_bytes() == epochs_page
    assert (paper / "results" / "README.md").read_text() == readme


def test_the_preset_stage_tries_each_algorithm_s_published_values_once(paper):
    plan = read_paper("small", paper.parent)
    preset, tuned, ablation = (stage_config(plan, stage) for stage in (*stages_of(plan, ["drift"]), stages_of(plan)[1]))
    assert (preset.study.trials, preset.study.name) == (3, "small-drift-preset")
    assert (tuned.study.trials, tuned.study.name) == (6, "small-drift-tuned")
    assert ablation.study.name == "small-epochs"
    from flstudy.study.space import Space

    points = {point["algorithm"]: point for point in Space.parse(preset.study.search).defaults(preset)}
    rates = {name: point["algorithm.lr"] for name, point in points.items()}
    assert rates == {"FedAvg": 0.5, "FedYogi": 0.2, "Flash": 0.1}
    assert preset.with_overrides({"algorithm": "Flash", "algorithm.lr": 0.3}).flat()["algorithm.tau"] == 0.01


def test_a_search_may_have_options_that_its_presets_do_not_have(paper):
    """Such as fewer seeds, since the best of each method are trained again on new ones."""
    path = paper / "reproduction.yaml"
    plan = yaml.safe_load(path.read_text())
    plan["worlds"]["drift"]["tuned"] = {"seeds": [44]}
    path.write_text(yaml.safe_dump(plan))
    plan = read_paper("small", paper.parent)
    preset, tuned = (stage_config(plan, stage) for stage in stages_of(plan, ["drift"]))
    assert (preset.seeds, tuned.seeds) == ([0, 44], [44])


@pytest.mark.parametrize(
    ("world", "state", "had", "asked", "gets"),
    [
        ("drift", "finished", 6, 6, None),
        ("drift", "finished", 6, 3, None),
        ("drift", "finished", 6, 9, 9),
        ("drift", "interrupted", 6, 3, 6),
        ("drift", "interrupted", 6, 9, 9),
        ("epochs", "finished", 2, 9, None),  # an ablation's grid is what it is
        ("epochs", "interrupted", 2, 9, 2),
    ],
)
def test_a_search_that_is_there_is_extended_when_more_trials_are_asked_for(
    paper, tmp_path, monkeypatch, world, state, had, asked, gets
):
    plan = read_paper("small", paper.parent)
    stage = stages_of(plan, [world])[-1]
    options = [f"--study.folder={tmp_path}"]
    folder = tmp_path / stage.study(plan)
    folder.mkdir()
    (folder / "study.yaml").write_text(
        yaml.safe_dump(stage_config(plan, stage, [*options, f"--study.trials={had}"]).whole_study())
    )
    (folder / "state.json").write_text(json.dumps({"state": state, "format": FORMAT}))
    asked_for = []

    def run_study(config, console, going_on):
        asked_for.append(config.study.trials)
        assert going_on == folder
        (folder / "state.json").write_text(json.dumps({"state": "finished", "format": FORMAT}))
        return 0

    monkeypatch.setattr(stages, "run_study", run_study)
    assert run_stage(plan, stage, Console(file=io.StringIO()), [*options, f"--study.trials={asked}"]) == folder
    assert asked_for == ([] if gets is None else [gets])


def test_a_search_of_something_else_is_not_extended(paper, tmp_path):
    plan = read_paper("small", paper.parent)
    stage = stages_of(plan, ["drift"])[-1]
    options = [f"--study.folder={tmp_path}"]
    folder = tmp_path / stage.study(plan)
    folder.mkdir()
    (folder / "study.yaml").write_text(yaml.safe_dump(stage_config(plan, stage, options).whole_study()))
    (folder / "state.json").write_text(json.dumps({"state": "finished", "format": FORMAT}))
    wider = {**STUDY["study"], "search": {**STUDY["study"]["search"], "algorithm.lr": {"loguniform": [0.001, 1.0]}}}
    (paper / "study.yaml").write_text(yaml.safe_dump({**STUDY, "study": wider}))
    console = Console(file=io.StringIO())
    assert run_stage(plan, stage, console, [*options, "--study.trials=9"]) == folder
    assert console.file.getvalue() == "small-drift-tuned: done\n"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"config": "missing.yaml"}, "worlds.drift.config must be a file beside it, got 'missing.yaml'"),
        (
            {"kind": "contest"},
            "worlds.drift.kind must be one of comparison, ablation, sessions, sweep, variants, crossed",
        ),
        ({"kind": "ablation", "tuned": {"seeds": [0]}}, "worlds.drift.tuned is of a comparison only"),
        ({"measures": ["acuracy"]}, "worlds.drift.measures: unknown 'acuracy'.*accuracy"),
    ],
)
def test_a_wrong_plan_is_refused(paper, change, sentence, monkeypatch):
    monkeypatch.chdir(paper.parent)  # a sentence has at most 200 characters, and the folder of a test many of them
    path = paper / "reproduction.yaml"
    plan = yaml.safe_load(path.read_text())
    plan["worlds"]["drift"] |= change
    path.write_text(yaml.safe_dump(plan))
    with pytest.raises(ConfigError, match=sentence):
        read_paper("small", Path())


def test_worlds_on_request_run_where_they_are_named_only(paper):
    path = paper / "reproduction.yaml"
    plan = yaml.safe_load(path.read_text())
    plan["worlds"]["drift"]["on_request"] = True
    path.write_text(yaml.safe_dump(plan))
    plan = read_paper("small", paper.parent)
    assert [stage.world.name for stage in stages_of(plan)] == ["epochs"]
    assert [stage.world.name for stage in stages_of(plan, ["drift"])] == ["drift", "drift"]


def test_unknown_papers_worlds_and_stages_are_named(paper, capsys):
    for arguments, sentence in (
        (["smal"], "unknown paper 'smal': did you mean 'small'?"),
        (["small", "--worlds", "drif"], "unknown world 'drif': did you mean 'drift'?"),
        (["small", "--stages", "tune"], "unknown stage 'tune': did you mean 'tuned'?"),
        (["small", "--write"], "no study of small is there yet: leave out --write"),
    ):
        here = ["--configs", str(paper.parent), "--options", f"--study.folder {paper}"]
        assert main(["reproduce", *arguments, *here]) == 2
        assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*/reproduction.yaml")), ids=lambda path: path.parent.name)
def test_the_papers_plans_are_right(path):
    plan = read_paper(path.parent.name, CONFIGS)
    for stage in stages_of(plan):
        config = stage_config(plan, stage)
        assert config.whole_study()["study"]["name"] == stage.study(plan)  # with which its study begins
        if stage.world.kind == "sessions":
            assert set(stage.world.sessions) <= set(range(2, len(config.session_rounds()) + 2))
            assert config.study.allocation == "equal"
            continue
        drifts = bool(config.drift_rounds())
        assert drifts or not {"dip", "recovery"} & set(stage.world.measures), f"{stage.world.name} does not drift"
        if stage.world.kind == "comparison":
            presets, arms = config.study.presets, config.study.arms.items()
            assert {*presets} == {name if name in presets else arm.class_path for name, arm in arms}
            assert config.study.allocation == "equal"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:MasterFL")
@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*/reproduction.yaml")), ids=lambda path: path.parent.name)
def test_every_study_can_begin(path):
    """Also those that wait for files: a preset outside its search is found here. The ones that wait for weights are in
    test_fedada2_configs."""
    plan = read_paper(path.parent.name, CONFIGS)
    worlds = [world.name for world in plan.worlds if world.config.stem not in ("cifar100", "gld23k")]
    searches = {}  # several worlds and variants of a config have the same
    for stage in stages_of(plan, worlds, ["tuned"]):
        config = stage_config(plan, stage)
        searches[stage.world.config, str((config.study.search, config.study.arms, config.study.presets))] = config
    for config in searches.values():
        check_study(config)
