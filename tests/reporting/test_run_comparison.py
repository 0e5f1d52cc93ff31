"""Runs beside each other, from their files alone."""

import json

import pytest
import yaml

from flstudy.cli import main
from flstudy.federation import Record
from flstudy.reporting.run_comparison import differences, measures, read_run, runs_figure
from flstudy.study import Status, StudyFolder, Trial
from flstudy.study.records import RecordWriter

SEEDS = [0, 44, 56]
CURVE = {2: 0.5, 4: 0.9, 6: 0.8}


def recorded(path, lift=0.0, seeds=SEEDS, metric="valid/accuracy", **more):
    with RecordWriter(path, seeds) as writer:
        for at, level in CURVE.items():
            values = [level + lift + 0.01 * place for place in range(len(seeds))]
            writer.append(Record(at, {metric: values, "valid/loss": [1 - value for value in values], **more}))


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Two runs and a study with two trials, the second of which is its best."""
    monkeypatch.chdir(tmp_path)
    recorded(tmp_path / "runs/one/records.parquet")
    recorded(tmp_path / "runs/two/records.parquet", 0.05)
    study = StudyFolder(tmp_path / "studies/searched")
    study.path.mkdir(parents=True)
    study.config.write_text(yaml.safe_dump({"rounds": 6, "seeds": SEEDS, "study": {}}))
    study.write_state("finished")
    for number, lift in enumerate((-0.1, 0.1)):
        recorded(study.records(number), lift)
        ended = {"status": Status.FINISHED, "rounds": 6, "objective": 0.8 + lift}
        study.write_trial(Trial(number=number, algorithm="FedAvg", **ended))
    return tmp_path


def test_runs_studies_and_trials_are_read(home):
    assert read_run("runs/one").name == "one"
    assert read_run("searched").name == "searched/1 FedAvg"
    assert read_run(home / "studies/searched").name == "searched/1 FedAvg"
    assert read_run("searched/0").name == "searched/0 FedAvg"


def test_best_last_mean_and_differences_seed_by_seed(home):
    recorded(home / "runs/three/records.parquet", 0.2, seeds=[44, 56, 70])
    measured = measures([read_run(f"runs/{name}") for name in ("one", "two", "three")])
    assert list(measured) == ["valid/accuracy", "valid/loss"]
    first, second, third = measured["valid/accuracy"]
    assert first.rounds[first.best_at] == 4
    assert first.best == pytest.approx([0.9, 0.91, 0.92])
    assert first.last == pytest.approx([0.8, 0.81, 0.82])
    assert first.mean == pytest.approx([2.2 / 3 + 0.01 * place for place in range(3)])
    loss = measured["valid/loss"][0]
    assert loss.rounds[loss.best_at] == 4  # the lowest
    none, paired, fewer = differences([first, second, third])
    assert none is None
    assert (paired.first, paired.seeds, paired.difference) == ("two", 3, pytest.approx(0.05))
    assert (fewer.seeds, fewer.difference) == (2, pytest.approx(0.19))  # of seeds 44 and 56
    worse = differences([second, first])[1]
    assert (worse.first, worse.second, worse.difference) == ("one", "two", pytest.approx(-0.05))


@pytest.mark.slow
def test_the_table_fits_and_a_figure_is_drawn(home, capsys):
    plot = home / "curves.png"
    assert main(["compare", "runs/one", "runs/two", "searched", "searched/0", "--plot", str(plot)]) == 0
    output = capsys.readouterr().out
    assert max(map(len, output.splitlines())) <= 100
    assert "Accuracy (validation), %" in output
    assert "+5.0" in output
    assert "90.0 ± " in output or "91.0 ± 1.0" in output
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_json_has_every_seed(home, capsys):
    assert main(["compare", "runs/one", "searched", "--metrics", "valid/accuracy", "--json"]) == 0
    comparison = json.loads(capsys.readouterr().out)["valid/accuracy"]
    assert comparison["runs"][0]["last"] == pytest.approx([0.8, 0.81, 0.82])
    assert comparison["runs"][1]["run"] == "searched/1 FedAvg"
    assert comparison["differences"][0]["difference"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["runs/none", "runs/one"], "there is neither a run nor a study 'runs/none'"),
        (["searched/7"], "study searched has no trial '7'"),
        (["runs/one", "runs/two", "--metrics", "valid/acuracy"], "did you mean 'valid/accuracy'"),
        (["runs/one", "runs/one"], "must have different names, got 'one' twice"),
        (["runs/one", "--plot", "curves.gif"], "--plot must be a .png file"),
    ],
)
def test_what_cannot_be_compared_is_a_sentence(home, capsys, arguments, message):
    assert main(["compare", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_what_a_panel_measured_is_drawn_with_its_standard_error(tmp_path):
    recorded(tmp_path / "all/records.parquet")
    recorded(tmp_path / "panel/records.parquet", 0.1, **{"valid/accuracy_se": [0.01, 0.02, 0.02]})
    recorded(tmp_path / "everybody/records.parquet", 0.2, **{"valid/accuracy_se": [0.0, 0.0, 0.0]})
    measured = measures([read_run(tmp_path / name) for name in ("all", "panel", "everybody")], ["valid/accuracy"])
    assert [measure.errors is not None for measure in measured["valid/accuracy"]] == [False, True, False]
    bands = runs_figure(measured).axes[0].collections
    assert len(bands) == 4  # a deviation over seeds each, and one error
    corners = bands[2].get_paths()[0].vertices
    assert sorted(corners[corners[:, 0] == 4, 1]) == pytest.approx([100.0, 102.0])  # 101 ± √(1² + 2² + 2²) / 3
