"""The command line as a user meets it: in a process of its own."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flstudy.cli import COMMANDS, main
from flstudy.study.records import read_records
from flstudy.tracking.store import open_store

QUICK = str(Path(__file__).parents[1] / "tune_configs" / "quick.yaml")


def flstudy(*arguments: str, cwd: Path | None = None, timeout: float = 180) -> subprocess.CompletedProcess:
    """Run the command."""
    return subprocess.run(
        [sys.executable, "-m", "flstudy", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "COLUMNS": "100", "CUDA_VISIBLE_DEVICES": ""},
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("rnu",), "unknown command 'rnu': did you mean 'run'?"),
        (("run",), "flstudy run needs a config file, such as tune_configs/quick.yaml"),
        (("run", "absent.yaml"), "there is no config file 'absent.yaml'"),
        (("run", QUICK, "--algoritm", "Flash"), "unknown key 'algoritm': did you mean 'algorithm'?"),
        (("run", QUICK, "--algorithm", "FedYoggi"), "unknown algorithm 'FedYoggi': did you mean 'FedYogi'?"),
        (("tune", QUICK, "--algorithm.lr=-1"), "algorithm.lr must lie in (0, 1e12], got -1"),
        (("tune", QUICK, "--study.trails", "3"), "unknown key 'study.trails': did you mean 'study.trials'?"),
        (("bench", "--workloads", "mlpp"), "unknown workload 'mlpp': did you mean 'mlp'?"),
        (("list", "algoritms"), "flstudy list knows no 'algoritms': did you mean 'algorithms'?"),
    ],
)
def test_mistakes_are_found_before_torch_is_imported(arguments: tuple[str, ...], sentence: str) -> None:
    done = flstudy(*arguments)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_mistake_costs_a_fraction_of_what_importing_torch_costs() -> None:
    def seconds(command: list[str]) -> float:
        start = time.perf_counter()
        subprocess.run(command, capture_output=True, check=False)
        return time.perf_counter() - start

    torch = seconds([sys.executable, "-c", "import torch"])  # once is enough: it takes ten times as long
    mistake = min(seconds([sys.executable, "-m", "flstudy.cli", "run", QUICK, "--algoritm", "x"]) for _ in range(3))
    assert mistake < torch


@pytest.mark.parametrize(
    "kind",
    ["algorithms", "datasets", "tasks", "partitions", "drifts", "changes", "samplers", "schedulers", "configs"],
)
def test_list(kind: str) -> None:
    done = flstudy("list", kind, cwd=Path(QUICK).parents[1])
    expected = {
        "algorithms": ["FedAdaGrad", "FedAdam", "FedAvg", "FedAvgM", "FedProx", "FedYogi", "Flash", "Scaffold"],
        "datasets": ["AgNews", "Cifar10", "Digits", "Emnist", "FashionMnist", "Mnist", "Svhn", "TinyImageNet"],
        "tasks": ["Cnn", "FastText", "Logistic", "Lstm", "Mlp", "ResNet18", "ResNet34", "TagLogistic", "Vgg", "Vit"],
        "partitions": ["BalancedDirichlet", "Dirichlet", "Iid", "Shards"],
        "drifts": ["IncrementalDrift", "RecurrentDrift", "ScheduledDrift", "StaggeredDrift", "SuddenDrift"],
        "changes": ["FeatureShift", "LabelSwap", "Rotation"],
        "samplers": ["CmaEs", "GaussianProcess", "GridSearch", "Nsga2", "RandomSearch", "Tpe", "TwoStep"],
        "schedulers": ["Asha", "MedianStopping"],
        "configs": ["tune_configs/quick.yaml"],
    }[kind]
    assert done.returncode == 0
    listed = [line.split()[0] for line in done.stdout.splitlines() if line.strip() and not line.startswith(" ")]
    assert [name for name in listed if name in expected] == expected


def test_help_and_print_config() -> None:
    assert "flstudy tune CONFIG" in flstudy("--help").stdout
    run_help = flstudy("run", "--help").stdout
    assert "--population.clients" in run_help
    assert "devices drawn uniformly" in run_help  # from the docstring
    printed = flstudy("run", QUICK, "--algorithm", "FedProx", "--algorithm.mu", "0.5", "--print_config").stdout
    assert "mu: 0.5" in printed
    assert "shape" not in printed  # the data set's


def test_help_of_every_command_waits_for_nothing_slow() -> None:
    script = f"""
import contextlib, io, sys
from flstudy.cli import COMMANDS, main
for command in {sorted(COMMANDS)!r}:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        main([command, "--help"])
    assert "usage: flstudy " + command in said.getvalue(), command
    slow = {{"torch", "ray", "mlflow", "optuna", "matplotlib"}} & set(sys.modules)
    assert not slow, (command, slow)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.end_to_end
def test_sigterm_ends_a_run_after_its_round_with_a_checkpoint_from_which_it_goes_on(tmp_path, monkeypatch):
    options = ("--rounds", "400", "--population.drift", "null", "--evaluate_every", "100", "--compile", "false")
    small = ("--seeds", "[0]", "--run.checkpoint_every", "1000")
    command = [sys.executable, "-m", "flstudy.cli", "run", str(QUICK), *options, *small]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        records = tmp_path / "runs" / "quick" / "records.parquet"
        until = time.monotonic() + 120
        while not list(records.glob("*.parquet")) and time.monotonic() < until:
            time.sleep(0.05)
        run.send_signal(signal.SIGTERM)
        out, err = run.communicate(timeout=120)
    assert run.returncode == 130, err
    stopped = re.search(r"stopped after round (\d+): go on with --run.resume true", out)
    assert stopped
    assert "Traceback" not in out + err
    done = int(stopped[1])
    assert 25 <= done < 400
    table = read_records(records)
    assert max(table["round"].to_pylist()) == done
    store = f"sqlite:///{tmp_path}/mlflow_tracking/mlflow.db"
    (kept,) = open_store(store).client.search_runs([open_store(store).experiment_id])
    assert kept.info.status == "KILLED"
    monkeypatch.chdir(tmp_path)
    more = ("--run.resume", "true", "--rounds", str(done + 3), "--run.track", "false")
    assert main(["run", str(QUICK), *options, *small, *more]) == 0
    assert sorted(set(read_records(records)["round"].to_pylist())) == list(range(1, done + 4))


@pytest.mark.end_to_end
def test_run_leaves_records_checkpoints_and_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = (
        "--rounds",
        "6",
        "--population.drift.round",
        "3",
        "--population.participants",
        "3",
        "--run.checkpoint_every",
        "2",
    )
    done = flstudy("run", QUICK, *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "test/accuracy" in done.stdout
    folder = tmp_path / "runs" / "quick"
    assert (folder / "config.yaml").is_file()
    assert (folder / "checkpoints" / "last.ckpt").exists()
    assert (tmp_path / "mlflow_tracking" / "mlflow.db").is_file()
    from flstudy.study.records import curve, read_records

    rounds, values = curve(read_records(folder / "records.parquet"), "valid/accuracy")
    assert rounds.tolist() == [1, 2, 3, 4, 5, 6]
    assert values.shape == (3, 6)
    monkeypatch.chdir(tmp_path)
    more = ("--run.resume", "true", "--rounds", "8", "--run.track", "false")
    assert main(["run", QUICK, *options, *more]) == 0  # in this process: what differs from the first is the engine's
    resumed, after = curve(read_records(folder / "records.parquet"), "valid/accuracy")
    assert resumed.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert (after[:, :6] == values).all()
