"""`flstudy bench`: a real run of a tiny setting, and the plain loop's equality with the executors it is measured by."""

import json
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from flstudy.benchmark import child, command, tables
from flstudy.benchmark.gauge import ATTEMPTS, Account, BusyMachine, Gauge, Quietness, Watched, account_lines, own_ticks
from flstudy.benchmark.limit import products
from flstudy.benchmark.options import PRECISIONS, bench_options
from flstudy.benchmark.plain import PRECISIONS as DTYPES
from flstudy.benchmark.plain import PlainLoop
from flstudy.benchmark.workloads import PARTICIPANTS, WORKLOADS
from flstudy.execution import vectorized
from flstudy.tasks import TaskFunction

from ..worlds import flat_parameters, run
from . import speed

ROOT = Path(__file__).parents[2]


def bench(*arguments: str) -> subprocess.CompletedProcess:
    """The command where only the engine is installed."""
    command = [sys.executable, "-m", "flstudy.benchmark", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    """A short run."""
    tiny = (
        "--executors",
        "plain",
        "vectorized",
        "--repeats",
        "2",
        "--seconds",
        "0.05",
        "--accelerator",
        "cpu",
        "--busy",
    )
    done = bench("--workloads", "mlp", *tiny, "--threads", "2", "--json", "-")
    assert done.returncode == 0, done.stderr
    assert "mlp: pass 2 of 2, about" in done.stderr
    content: dict[str, Any] = json.loads(done.stdout)
    return content


@pytest.mark.slow
def test_what_a_run_reports(report: dict[str, Any]) -> None:
    assert report["schema"] == 1
    assert report["hardware"]["cpu"]
    assert report["hardware"]["gpu"] is None
    assert report["versions"]["torch"] == torch.__version__.partition("+")[0]
    assert report["settings"] == {
        "device": "cpu", "threads": 2, "repeats": 2, "seconds": 0.05, "seeds": None, "precision": "32-true",
    }  # fmt: skip
    assert report["command"].startswith("flstudy bench --workloads mlp")
    (workload,) = report["workloads"]
    assert workload["sentence"] == WORKLOADS["mlp"].sentence
    rows = workload["rows"]
    assert [(r["executor"], r["threads"]) for r in rows] == [("plain", 1), ("plain", 2), ("vectorized", 1)]
    best = max(r["seed_rounds_per_s"] for r in rows[:2])
    for r in rows:
        assert r["seed_rounds_per_s"] > 0
        assert r["fits_per_s"] == pytest.approx(PARTICIPANTS * r["seed_rounds_per_s"])
        assert r["x_plain"] == pytest.approx(r["seed_rounds_per_s"] / best)
        assert sum(r["shares"].values()) == pytest.approx(1, abs=0.02)
        assert min(r["shares"].values()) > -0.02
        assert 0 < r["lane_utilization"] <= 1
        assert r["steps_per_seed_round"] == 400
        assert 0 < r["peak_mib"] < r["process_mib"]
        assert r["round_ms"] == pytest.approx(1e3 / r["seed_rounds_per_s"])
        assert 0 < r["limit_ms"] < r["round_ms"]  # multiplying is a part of it
        assert r["warned"] == []
        assert len(r["repeats"]) in ((1, 2) if r["executor"] == "plain" else (2,))  # a slower plain loop has one
        for block in r["repeats"]:
            assert sum(block["round_s"]) == pytest.approx(block["seconds"], rel=0.05)
            assert len(block["moment"]) == 2
    assert rows[2]["evaluation_s"] > 0
    assert report["quiet"]["blocks"] >= 1 + 2 + 3  # a check, the limit twice, the rows
    assert report["quiet"]["loop_worst"] >= report["quiet"]["loop_median"] >= 1


@pytest.mark.slow
def test_the_table_fits_a_hundred_columns(report: dict[str, Any]) -> None:
    (workload,) = json.loads(json.dumps(report))["workloads"]
    long = {"seed_rounds_per_s": 12345.6, "round_ms": 1234.5, "x_plain": 123.4, "peak_mib": 123456.0}
    slow = {"executor": "compiled", "compile_s": 123.4, "busy": True, "counts": {"calls": 50.0, "validations": 8.0}}
    slow["warned"] = ["local steps run eagerly, since torch could not compile them: " + "y" * 90]
    workload["rows"] += [
        workload["rows"][2] | long | slow,
        {"executor": "threads", "threads": 2, "error": "E: " + "x" * 90},
    ]
    text = tables.workload_table(workload) + tables.head_lines(report) + tables.foot_lines(report)
    assert max(map(len, text.splitlines())) <= 100
    assert "12346" in text
    assert "1234" in text
    assert "compiled, 1!*" in text
    assert "compiled, 1, per round: 50.0 program calls, 8.00 validations" in text
    assert "no word about speed" in text
    for sentence in (f"{w.name}: {w.sentence}" for w in WORKLOADS.values()):
        assert len(sentence) <= 100


def test_an_error_of_all_rows_is_told_once() -> None:
    rows = [{"executor": name, "threads": 1, "error": "ValueError: none"} for name in ("plain", "vectorized")]
    text = tables.workload_table({"name": "lstm", "sentence": "an LSTM", "rows": rows})
    assert text == "lstm: an LSTM\nnot measured: ValueError: none\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "synthetic"])
def test_the_plain_loop_does_the_same_work(name: str) -> None:
    workload, task = WORKLOADS[name], WORKLOADS[name].task()
    population = workload.population().settle([0])
    loop = PlainLoop(workload, population.store, torch.device("cpu"))
    done = loop.round(population.cohort(1))
    module = run(workload.algorithm(), 1, population=population, task=task, precision="32-true", executor="sequential")
    layout = TaskFunction(task).layout
    model = layout.flat({name: p.detach() for name, p in loop.model.named_parameters()})
    assert (model - module.server.x[0]).abs().max() < 1e-5
    assert not torch.equal(model, flat_parameters(workload.task(), layout))
    assert done.steps == module.last.fit.steps[0].tolist()
    planned = population.cohort(1).batches.steps[0].tolist()
    assert (done.steps != planned) == (name == "synthetic")  # some stopped early
    loop.reset()
    assert torch.equal(layout.flat(dict(loop.model.named_parameters())), flat_parameters(workload.task(), layout))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--workloads", "mpl"], "unknown workload 'mpl': did you mean 'mlp'?"),
        (["--executors", "plain", "vectorised"], "unknown executor 'vectorised': did you mean 'vectorized'?"),
        (["--accelerator", "tpux"], "unknown accelerator 'tpux': choose one of auto, cpu, cuda"),
        (["--precision", "bf16-mix"], "unknown precision 'bf16-mix': did you mean 'bf16-mixed'?"),
        (["--repeats", "0"], "--repeats must be ≥ 1, got 0"),
        (["--seconds", "0"], "--seconds must be > 0, got 0.0"),
        (["--json", "absent/file.json"], "--json: there is no folder absent; make it first"),
    ],
)
def test_mistakes(arguments: list[str], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        bench_options(arguments)


def test_names_agree() -> None:
    assert tuple(DTYPES) == PRECISIONS
    assert bench_options([]).workloads == tuple(WORKLOADS)
    assert bench_options(["--executors", "compiled", "plain"]).executors == ("plain", "compiled")
    assert math.isclose(bench_options([]).seconds, 0.4)


@pytest.mark.slow
def test_a_mistake_is_one_line() -> None:
    done = bench("--workloads", "mpl")
    assert done.returncode == 2
    assert done.stderr == "flstudy: error: unknown workload 'mpl': did you mean 'mlp'?\n"


def gauge_of(monkeypatch: pytest.MonkeyPatch, moments: list[Quietness], *, strict: bool) -> Gauge:
    """A gauge beside whose pieces of work the machine is as told, its loop's best one second."""
    gauge = Gauge(strict=strict)
    gauge.best_s, upcoming = 1.0, iter(moments)
    monkeypatch.setattr(gauge, "beside", lambda work: Watched(work(), next(upcoming)))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    gauge.end()
    return gauge


QUIET, FOREIGN, SLOW = Quietness(0.0, 1.1), Quietness(0.5, 1.0), Quietness(0.0, 1.5)


def test_a_busy_machine_ends_the_command_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def busy(*_: object) -> None:
        raise BusyMachine(FOREIGN, 1.0)

    monkeypatch.setattr(Gauge, "check", busy)
    assert command.main(["--workloads", "mlp"]) == 2
    assert capsys.readouterr().err.strip().splitlines()[-1].startswith("error: a machine must be quiet to be timed")


def test_a_disturbed_block_is_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    gauge, messages = gauge_of(monkeypatch, [FOREIGN, SLOW, QUIET], strict=True), list[str]()
    done = iter([1, 2, 3])
    assert gauge.quietly(lambda: next(done), say=messages.append) == (3, QUIET)
    assert [line.partition(",")[0] for line in messages] == [
        "busy: others take 0.50 cores (at most 0.15)", "busy: others take 0.00 cores (at most 0.15)",
    ]  # fmt: skip
    assert gauge.account()["busy_blocks"] == 0


def test_a_machine_that_stays_busy_is_refused_or_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BusyMachine, match=r"^a machine must be quiet to be timed, but others take 0\.50 cores"):
        gauge_of(monkeypatch, [FOREIGN] * ATTEMPTS, strict=True).quietly(lambda: None)
    assert len(str(BusyMachine(FOREIGN, 1.0))) <= 200
    gauge = gauge_of(monkeypatch, [FOREIGN], strict=False)
    assert gauge.quietly(lambda: 7).result == 7
    assert gauge.account()["busy_blocks"] == 1
    assert "1 of 1 blocks were disturbed" in account_lines(gauge.account())


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="Linux tells who uses the processor")
def test_foreign_load_is_that_of_others_only() -> None:
    spin = [sys.executable, "-c", "import time\nwhile time.process_time() < 0.5: pass"]
    process = subprocess.Popen(spin)
    before = sum(own_ticks().values())
    process.wait()
    ticks = os.sysconf("SC_CLK_TCK")
    assert sum(own_ticks().values()) - before >= 0.4 * ticks  # a child's count as ours, dead or alive
    account = Account(None)
    with account.open():
        time.sleep(0.2)
    assert account.foreign() is not None


def test_warnings_of_flstudy_are_heard_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "WARNED", [])
    for _ in range(2):
        child.hear(UserWarning("local steps run eagerly, since torch could not compile them: x\ny"), UserWarning,
                   vectorized.__file__, 1)  # fmt: skip
    child.hear(UserWarning("few workers"), UserWarning, torch.__file__, 1)
    child.hear(DeprecationWarning("old"), DeprecationWarning, vectorized.__file__, 1)
    assert child.WARNED == ["local steps run eagerly, since torch could not compile them: x"]


def test_the_limit_multiplies_what_a_step_does() -> None:
    shapes = [
        (name, *(argument[1] for argument in arguments if isinstance(argument, tuple) and argument[0] == "tensor"))
        for (name, arguments), count in products(WORKLOADS["mlp"], "32-true").items() for _ in range(count)
    ]  # fmt: skip
    assert sorted(name for name, *_ in shapes) == ["addmm", "addmm", "mm", "mm", "mm"]
    assert ("mm", (64, 10), (10, 60)) in shapes
    assert products(WORKLOADS["cnn"], "32-true").total() == 2 + 2 + 2 + 4
    assert max(products(WORKLOADS["lstm"], "32-true").values()) >= 20  # the recurrence's, one by one


def test_the_tables_of_readme_and_docs_are_those_of_the_rates_that_were_kept() -> None:
    rates, readme = speed.read(), (ROOT / "README.md").read_text().splitlines()
    assert {len(runs) for workload in rates.values() for runs in workload.values()} == {4}
    assert {speed.readme_row(rates, name) for name in speed.IN_README} <= set(readme)
    assert "Compiling comes on top, {:.0f} to {:.0f} s".format(*speed.seconds_to_compile()) in " ".join(readme)
    docs = (ROOT / "docs" / "speed.md").read_text().splitlines()
    assert {speed.docs_row(rates, name) for name in speed.IN_DOCS} <= set(docs)
