"""What run and tune say before they begin."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from flstudy import cli
from flstudy.config import load
from flstudy.config.composition import quick_check
from flstudy.study import Space, Status, StudyFolder, Trial
from flstudy.study.announcement import WIDTH, run_announcement, study_announcement
from flstudy.study.outline import ConfigOutline
from flstudy.tuning.samplers import search_size

QUICK = str(Path(__file__).parents[2] / "tune_configs" / "quick.yaml")


def announce(*options, command=study_announcement, path=QUICK, resume=None):
    values = quick_check(path, options)
    lines = command(values, path, "mlflow.db", *([resume] if resume else []))
    assert max(map(len, lines)) <= WIDTH
    return " ".join(line.strip() for line in lines)


def test_a_study_tells_its_trials_rounds_seeds_and_places(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    text = announce()
    assert "quick: 15 trials of FedAvg, FedYogi and Flash (5 each), up to 60 rounds with 3 seeds each; " in text
    assert "then the best of each method again, with 5 new seeds" in text
    assert "on this machine's 4 cores, 1 core for a trial: 4 side by side" in text
    assert text.endswith("results: studies/quick; MLflow: mlflow.db")
    (tmp_path / "studies" / "quick").mkdir(parents=True)
    text = announce("--study.trials=null", "--study.budget.rounds=9000", "--study.scheduler=null", "--seeds=[0]")
    assert "quick-2: trials of FedAvg, FedYogi and Flash, as many as 9,000 rounds allow, up to 60 rounds" in text
    assert "with 1 seed each" in text
    assert "(5 each)" not in announce("--study.allocation=free")
    assert "2 cores for a trial: 2 side by side" in announce("--study.resources.cpu=2")
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert "on the Ray cluster at head:6379, 1 core and 0.5 GPU for a trial" in announce("--study.resources.gpu=0.5")


def test_a_study_that_goes_on_tells_what_is_over(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = StudyFolder(tmp_path / "studies" / "moving")
    folder.path.mkdir(parents=True)
    folder.config.write_text(yaml.safe_dump(quick_check(QUICK, [])))
    for number, status in enumerate(("finished", "interrupted")):
        folder.write_trial(Trial(number=number, algorithm="Flash", status=Status(status), rounds=3))
    text = announce(path=str(folder.config), resume=folder.path)
    assert text.startswith("going on with moving: 1 trial is over of 15, up to 60 rounds")
    assert "results: studies/moving;" in text


def test_a_run_tells_its_rounds_seeds_devices_and_places(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = announce(command=run_announcement)
    assert text == (
        "quick: 60 rounds of Flash with 3 seeds at once, 10 of 20 devices in each round "
        "results: runs/quick; MLflow: mlflow.db"
    )
    assert "MLflow" not in announce("--run.track=false", command=run_announcement)


GRID = {
    "task": "Logistic",
    "population": {"dataset": "Digits", "clients": 4, "participants": 2},
    "algorithm": "FedYogi",
    "rounds": 2,
    "study": {
        "sampler": {"class_path": "GridSearch", "init_args": {"points": 2}},
        "search": {
            "algorithm": {"choice": ["FedAvg", "FedYogi"]},
            "algorithm.lr": {"loguniform": [0.01, 1.0]},
            "algorithm.tau": {"choice": [0.001, 0.01, 0.1]},
        },
    },
}
OWN = {"class_path": "./mine.py:Mine"}


@pytest.mark.parametrize(
    ("options", "opening"),
    [
        ([], "grid: 8 trials of FedAvg and FedYogi, 2 rounds"),  # 2 of FedAvg, which has no tau, 6 of FedYogi
        (["--study.sampler.points=3", "--study.budget.rounds=9"], "grid: 12 trials of FedAvg and FedYogi within 9 rou"),
        (["--study.trials=null", "--study.budget.hours=1"], "grid: 8 trials of FedAvg and FedYogi within 1 hours, up"),
        (["--study.allocation=free"], "grid: 8 trials of FedAvg and FedYogi, 2 rounds"),
        (["--study.sampler=RandomSearch"], "grid: 16 trials of FedAvg and FedYogi (8 each), 2 rounds"),
        (["--study.search.algorithm", yaml.safe_dump({"choice": ["FedAvg", OWN]})], "grid: up to 16 trials of FedAvg"),
    ],
)
def test_a_grid_tells_its_points(options, opening, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("grid.yaml").write_text(yaml.safe_dump(GRID))
    Path("mine.py").write_text("raise RuntimeError('imported too early')\n")
    cli.announce("tune", quick_check("grid.yaml", options), "grid.yaml", None)
    assert " ".join(line.strip() for line in capsys.readouterr().out.splitlines()).startswith(opening)


def test_a_sweep_in_two_steps_tells_how_many_trials_it_has_at_most(capsys):
    path = str(Path(QUICK).parent / "fedada2" / "two_step.yaml")
    cli.announce("tune", quick_check(path, []), path, None)
    assert "up to 59 trials of FedAvg, FedAdaGrad" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name", ["flash/p_drift", "flash/early_stopping", "sessions/digits_ablation", "fedada2/two_step"]
)
def test_a_config_s_values_have_the_points_of_the_config(name):
    path = Path(QUICK).parent / f"{name}.yaml"
    outline, config = ConfigOutline(quick_check(path, [])), load(path, command="tune")
    size = search_size(Space.of_study(config.study), config)
    assert search_size(Space.of_study(config.study), outline) == size
    assert 0 < size.trials <= config.study.trials


@pytest.mark.parametrize("command", ["run", "tune"])
def test_it_is_said_before_torch_is_imported(command, tmp_path):
    """And so in less than importing torch takes."""
    script = f"""
import sys
from flstudy import cli
def then(*given, **named):
    assert not {{"torch", "ray", "mlflow", "optuna"}} & set(sys.modules)
    return 0
cli._trained = then
sys.exit(cli.main([{command!r}, {QUICK!r}]))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "results: " in done.stdout
