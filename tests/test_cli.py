"""The command line as a user meets it."""

import contextlib
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flstudy.cli import COMMANDS, main
from flstudy.study.device_results import read_device_results
from flstudy.study.records import curve, read_records
from flstudy.tracking.store import open_store
from tests.waiting import LIMIT_S, wait_until

QUICK = str(Path(__file__).parents[1] / "tune_configs" / "quick.yaml")


MISTAKES = {
    ("rnu",): "unknown command 'rnu': did you mean 'run'?",
    ("run",): "flstudy run needs a config file, such as tune_configs/quick.yaml",
    ("run", "absent.yaml"): "there is no config file 'absent.yaml'",
    ("run", QUICK, "--algoritm", "Flash"): "unknown key 'algoritm': did you mean 'algorithm'?",
    ("run", QUICK, "--algorithm", "FedYoggi"): "unknown algorithm 'FedYoggi': did you mean 'FedYogi'?",
    ("tune", QUICK, "--algorithm.lr=-1"): "algorithm.lr must lie in (0, 1e12], got -1",
    ("tune", QUICK, "--study.trails", "3"): "unknown key 'study.trails': did you mean 'study.trials'?",
    ("bench", "--workloads", "mlpp"): "unknown workload 'mlpp': did you mean 'mlp'?",
    ("list", "algoritms"): "flstudy list knows no 'algoritms': did you mean 'algorithms'?",
}


@pytest.fixture
def output_of(monkeypatch, capsys):
    """What a command that succeeds prints, in this process."""
    monkeypatch.chdir(Path(QUICK).parents[1])

    def run(*arguments: str) -> str:
        with contextlib.suppress(SystemExit):  # of --help
            assert main(arguments) == 0
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("arguments", MISTAKES, ids=" ".join)
def test_a_mistake_is_a_sentence(arguments, capsys):
    assert main(arguments) == 2
    shown = capsys.readouterr().err
    assert MISTAKES[arguments] in shown
    assert len(shown.strip().splitlines()) == 1


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "flstudy", "rnu"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "flstudy: error: " + MISTAKES["rnu",] + "\n")


@pytest.mark.slow
def test_help_and_mistakes_wait_for_nothing_slow() -> None:
    script = f"""
import contextlib, io, sys
from flstudy.cli import COMMANDS, main

def fast(arguments):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), contextlib.suppress(SystemExit):
        main(arguments)
    slow = {{"torch", "ray", "mlflow", "optuna", "matplotlib"}} & set(sys.modules)
    assert not slow, (arguments, slow)
    return said.getvalue()

for command in {sorted(COMMANDS)!r}:
    assert "usage: flstudy " + command in fast([command, "--help"]), command
for arguments, sentence in {MISTAKES!r}.items():
    assert sentence in fast(arguments), arguments
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_mistake_in_a_config_waits_for_nothing_that_reads_studies(tmp_path):
    (tmp_path / "small.yaml").write_text(
        "task: Logistic\npopulation: {dataset: Digits}\nalgorithm: {class_path: FedAvg, init_args: {lrr: 1}}\n"
    )
    script = "import sys\nfrom flstudy.cli import main\nassert main(sys.argv[1:]) == 2\n"
    script += "assert not {'numpy', 'pyarrow', 'flstudy.study'} & set(sys.modules)"
    words = [sys.executable, "-c", script, "run", str(tmp_path / "small.yaml")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "unknown key 'algorithm.init_args.lrr'" in done.stderr


LISTED = {
    "algorithms": ["FedAdaGrad", "FedAdam", "FedAvg", "FedAvgM", "FedProx", "FedYogi", "Flash", "Scaffold"],
    "datasets": ["AgNews", "Cifar10", "Digits", "Emnist", "FashionMnist", "Mnist", "Svhn", "TinyImageNet"],
    "tasks": ["Cnn", "FastText", "Logistic", "Lstm", "Mlp", "ResNet18", "ResNet34", "TagLogistic", "Vgg", "Vit"],
    "partitions": ["BalancedDirichlet", "Dirichlet", "Iid", "Shards"],
    "drifts": ["IncrementalDrift", "RecurrentDrift", "ScheduledDrift", "StaggeredDrift", "SuddenDrift"],
    "changes": ["FeatureShift", "LabelSwap", "Rotation"],
    "samplers": ["CmaEs", "GaussianProcess", "GridSearch", "Nsga2", "RandomSearch", "Tpe", "TwoStep"],
    "schedulers": ["Asha", "MedianStopping"],
    "configs": ["tune_configs/quick.yaml"],
}


@pytest.mark.parametrize("kind", LISTED)
def test_list(kind, output_of):
    listed = [
        line.split()[0] for line in output_of("list", kind).splitlines() if line.strip() and not line.startswith(" ")
    ]
    assert [name for name in listed if name in LISTED[kind]] == LISTED[kind]


def test_help_and_print_config(output_of):
    assert "flstudy tune CONFIG" in output_of("--help")
    run_help = output_of("run", "--help")
    assert "--population.clients" in run_help
    assert "devices drawn without" in run_help  # from the docstring
    printed = output_of("run", QUICK, "--algorithm", "FedProx", "--algorithm.mu", "0.5", "--print_config")
    assert "mu: 0.5" in printed
    assert "shape" not in printed  # the data set's


@pytest.mark.slow
def test_sigterm_ends_a_run_after_its_round_with_a_checkpoint_from_which_it_goes_on(tmp_path, monkeypatch):
    options = ("--rounds", "400", "--population.drift", "null", "--evaluate_every", "100", "--compile", "false")
    small = ("--seeds", "[0]", "--run.checkpoint_every", "1000")
    command = [sys.executable, "-m", "flstudy.cli", "run", str(QUICK), *options, *small]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        records = tmp_path / "runs" / "quick" / "records.parquet"
        wait_until(lambda: list(records.glob("*.parquet")), run.poll)
        run.send_signal(signal.SIGTERM)
        out, err = run.communicate(timeout=LIMIT_S)
    assert run.returncode == 130, err
    stopped = re.search(r"stopped after round (\d+): go on with --run.resume true", out)
    assert stopped
    assert "Traceback" not in out + err
    done = int(stopped[1])
    assert 25 <= done < 400
    table = read_records(records)
    assert max(table["round"].to_pylist()) == done
    store = f"sqlite:///{tmp_path}/mlflow_tracking/mlflow.db"
    (stored_run,) = open_store(store).client.search_runs([open_store(store).experiment_id])
    assert stored_run.info.status == "KILLED"
    monkeypatch.chdir(tmp_path)
    more = ("--run.resume", "true", "--rounds", str(done + 3), "--run.track", "false")
    assert main(["run", str(QUICK), *options, *small, *more]) == 0
    assert sorted(set(read_records(records)["round"].to_pylist())) == list(range(1, done + 4))


@pytest.mark.slow
def test_run_leaves_records_checkpoints_and_a_table(tmp_path, monkeypatch, capsys):
    small = ("--rounds", "6", "--population.drift.round", "3", "--population.participants", "3")
    options = ("run", QUICK, *small, "--run.checkpoint_every", "2")
    monkeypatch.chdir(tmp_path)
    assert main(options) == 0
    assert "test/accuracy" in capsys.readouterr().out
    folder = tmp_path / "runs" / "quick"
    assert (folder / "config.yaml").is_file()
    assert (folder / "checkpoints" / "last.ckpt").exists()
    assert (tmp_path / "mlflow_tracking" / "mlflow.db").is_file()
    rounds, values = curve(read_records(folder / "records.parquet"), "valid/accuracy")
    assert rounds.tolist() == [1, 2, 3, 4, 5, 6]
    assert values.shape == (3, 6)
    by_device = read_device_results(folder / "devices.parquet").to_pandas().groupby("seed", sort=False)
    assert by_device["valid/accuracy"].mean().tolist() == pytest.approx(values[:, -1].tolist(), abs=1e-6)
    assert main([*options, "--run.resume", "true", "--rounds", "8", "--run.track", "false"]) == 0
    resumed, after = curve(read_records(folder / "records.parquet"), "valid/accuracy")
    assert resumed.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert (after[:, :6] == values).all()
