"""Child process that measures one (workload, executor) and runs rounds when its parent orders them.

Executors run as in any script: a Coordinator under a ``lightning.Trainer``, with a callback that waits between rounds.
"""

import contextlib
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import torch

from flstudy.benchmark.gauge import Quietness
from flstudy.benchmark.limit import limit_seconds
from flstudy.benchmark.plain import PlainLoop
from flstudy.benchmark.workloads import PARTICIPANTS, WORKLOADS, Workload
from flstudy.federation import Coordinator, RunSettings
from flstudy.population import Cohort, Population

NEVER = 10**9  # rounds between evaluations
LIMIT = "limit"  # the "executor" that only multiplies
COUNTED = ("calls", "validations", "sequential_steps")  # counters of an executor's programs, where they have them


@dataclass(frozen=True)
class Case:
    """Case of the benchmark: the setting that one child process measures."""

    workload: str
    executor: str  # one of EXECUTORS, or LIMIT
    threads: int
    seeds: int
    device: str  # cpu or cuda
    precision: str
    cache: str  # folder of torch's compiler, empty when the command starts: compile seconds are those of a first time
    imports_mib: float | None = None  # memory of the child when all is imported and nothing built


class TimedOrder(NamedTuple):
    """Order to run whole windows of rounds for at least ``seconds``."""

    seconds: float
    evaluate: bool = False  # whether to evaluate after every round


@dataclass
class TimedBlock:
    """Measurements of the rounds that an order ran. Seconds of the parts are sums over these rounds."""

    round_s: list[float] = field(default_factory=list)
    fit_s: float = 0.0
    server_s: float = 0.0
    data_s: float = 0.0  # cohort and transfer
    evaluation_s: float = 0.0
    steps: float = 0.0  # local steps that trained, all seeds
    executed: float = 0.0  # local steps with the padding of lanes
    seconds: float = 0.0  # from the order to the end of the last round
    peak_mib: float | None = None  # peak memory of the process beyond its imports, or of the GPU
    process_mib: float | None = None
    imports_mib: float | None = None
    counts: dict[str, int] = field(default_factory=dict)  # the counters of COUNTED
    warned: list[str] = field(default_factory=list)  # flstudy's warnings up to the end of the block
    moment: Quietness | None = None  # how quiet the machine was; set by the parent


class Stopped(Exception):
    """Signal that the parent needs no more rounds."""


class Pace:
    """Waits for the parent's orders and answers them; `reset` brings back the initial model."""

    def __init__(self, pipe: Connection, case: Case, reset: Callable[[], None]) -> None:
        self.pipe, self.reset, self.window = pipe, reset, WORKLOADS[case.workload].window
        self.cuda, self.imports = case.device == "cuda", case.imports_mib
        self.counted: Callable[[], dict[str, int]] = dict  # reads the counters as they are now
        self.pipe.send(TimedBlock())  # ready
        self.wait()

    def wait(self) -> None:
        """Block until the parent sends an order; raises Stopped when it needs no more rounds."""
        order = self.pipe.recv()
        if order is None:
            raise Stopped
        self.order, self.block, self.before = order, TimedBlock(), self.counted()
        self.synchronize()
        self.start = self.last = time.perf_counter()

    def synchronize(self) -> None:
        """Wait for the GPU."""
        if self.cuda:
            torch.cuda.synchronize()

    def round_done(self) -> None:
        """Record a finished round; at the end of a block send the answer and wait for the next order."""
        now = time.perf_counter()
        self.block.round_s.append(now - self.last)
        self.last = now
        if len(self.block.round_s) % self.window:
            return
        self.reset()
        if now - self.start >= self.order.seconds:
            self.synchronize()
            self.block.seconds = time.perf_counter() - self.start
            self.block.imports_mib, self.block.process_mib = self.imports, peak_mib()
            self.block.counts = {name: count - self.before.get(name, 0) for name, count in self.counted().items()}
            self.block.warned = list(WARNED)
            if self.cuda:
                self.block.peak_mib = torch.cuda.max_memory_allocated() / 2**20
            elif self.imports is not None and self.block.process_mib is not None:
                self.block.peak_mib = max(self.block.process_mib - self.imports, 0.0)
            self.pipe.send(self.block)
            self.wait()


class Paced(L.Callback):
    """Lightning callback that lets a Trainer run rounds only when the parent orders them."""

    def __init__(self, pipe: Connection, case: Case) -> None:
        self.pipe, self.case = pipe, case

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start timing and wait for the first order, now that everything is built."""
        assert isinstance(pl_module, Coordinator)
        state = pl_module.run.state
        initial = state.server

        def reset() -> None:
            state.server = initial

        strategy = trainer.strategy
        strategy.batch_to_device = self.timed(strategy.batch_to_device)  # type: ignore[method-assign]
        population = pl_module.population
        population.cohort = repeated(population, WORKLOADS[self.case.workload].window)  # type: ignore
        population.ahead.made = self.timed(population.ahead.made)  # type: ignore[method-assign]
        self.pace = Pace(self.pipe, self.case, reset)
        self.pace.counted = partial(counts, pl_module)

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Switch evaluation on or off for the round that begins, as the order wants it."""
        trainer.check_val_every_n_epoch = 1 if self.pace.order.evaluate else NEVER

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function so that its seconds count as data."""

        def run(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            result = function(*arguments, **options)
            self.pace.block.data_s += time.perf_counter() - start
            return result

        return run

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Add up the seconds and steps of the finished round."""
        assert isinstance(pl_module, Coordinator)
        assert pl_module.record is not None
        metrics, block = pl_module.record.metrics, self.pace.block
        block.fit_s += metrics.get("time/fit_s", metrics["time/round_s"])[0]
        block.server_s += metrics.get("time/server_s", [0.0])[0]
        block.evaluation_s += metrics.get("time/evaluation_s", [0.0])[0]
        steps = sum(metrics["fit/steps"]) * PARTICIPANTS
        block.steps += steps
        block.executed += steps / metrics["fit/lane_utilization"][0]
        try:
            self.pace.round_done()
        except Stopped:
            trainer.should_stop = True


def counts(coordinator: Coordinator) -> dict[str, int]:
    """Return the values of the counters COUNTED of a coordinator's executor so far; empty where its programs do not
    count."""
    programs = getattr(coordinator.executor, "programs", None)
    values = {name: getattr(programs, name, None) for name in COUNTED}
    return {name: int(count) for name, count in values.items() if isinstance(count, int)}


def repeated(population: Population, window: int) -> Callable[[int], Cohort]:
    """Return ``population.cohort`` with the rounds of the first window repeated for ever."""
    cohort = population.cohort

    def again(round: int) -> Cohort:
        replayed = cohort((round - 1) % window + 1)
        return replayed._replace(round=replayed.round._replace(number=torch.full_like(replayed.round.number, round)))

    return again


def run_plain(pipe: Connection, case: Case, workload: Workload) -> None:
    """Run the plain loop with one seed."""
    population = workload.population().settle([0])
    loop = PlainLoop(workload, population.store, torch.device(case.device), case.precision)
    pace = Pace(pipe, case, loop.reset)
    while True:
        start = time.perf_counter()
        cohort = population.cohort(len(pace.block.round_s) % pace.window + 1)
        pace.block.data_s += time.perf_counter() - start
        done = loop.round(cohort)
        pace.block.fit_s += done.fit_s
        pace.block.server_s += done.server_s
        pace.block.steps += sum(done.steps)
        pace.block.executed += sum(done.steps)
        pace.round_done()


def run_executor(pipe: Connection, case: Case, workload: Workload) -> None:
    """Run an executor under a Trainer."""
    name = "vectorized" if case.executor == "compiled" else case.executor
    coordinator = Coordinator(
        workload.task(),
        workload.algorithm(),
        RunSettings(
            seeds=range(case.seeds),
            executor=name,  # type: ignore[arg-type]
            compile=case.executor == "compiled",
        ),
    )
    trainer = L.Trainer(
        max_epochs=-1,
        accelerator="gpu" if case.device == "cuda" else "cpu",
        devices=1,
        precision=case.precision,  # type: ignore[arg-type]
        check_val_every_n_epoch=NEVER,
        callbacks=[Paced(pipe, case)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(coordinator, datamodule=workload.population())


def run_limit(pipe: Connection, case: Case, workload: Workload) -> None:
    """Time the matrix products alone: a block's seconds are those of one step of one lane."""
    pipe.send(TimedBlock())
    while pipe.recv() is not None:
        pipe.send(TimedBlock(seconds=limit_seconds(workload, case.seeds, case.precision, torch.device(case.device))))


PACKAGE = Path(__file__).parents[1]
WARNED: list[str] = []  # sentences of flstudy's own warnings in this process


def hear(message: Warning | str, category: type[Warning], filename: str, *more: Any) -> None:
    """Keep flstudy's own warnings, as of steps that run eagerly or of fewer lanes at once: they change what a row
    means. Others (few workers, few batches) are expected."""
    sentence = (str(message).strip().splitlines() or [""])[0]
    if issubclass(category, UserWarning) and PACKAGE in Path(filename).parents and sentence not in WARNED:
        WARNED.append(sentence)


def serve(pipe: Connection, case: Case) -> None:
    """Measure in a child: send blocks, an empty one first, and a string with the reason if it fails."""
    warnings.simplefilter("always", UserWarning)
    warnings.showwarning = hear  # type: ignore[assignment]
    for name in ("lightning.pytorch", "lightning.fabric", "torch.utils.cpp_extension"):
        logging.getLogger(name).setLevel(logging.ERROR)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = case.cache
    torch.set_num_threads(case.threads)
    workload, case = WORKLOADS[case.workload], replace(case, imports_mib=resident_mib())
    try:
        {"plain": run_plain, LIMIT: run_limit}.get(case.executor, run_executor)(pipe, case, workload)
    except (Stopped, EOFError, BrokenPipeError, KeyboardInterrupt):
        return
    except Exception as error:
        first, *_ = str(error).strip().splitlines() or [""]
        with contextlib.suppress(OSError):  # the parent is gone
            pipe.send(f"{type(error).__name__}: {first}")


def resident_mib() -> float | None:
    """Return the resident memory of this process now, MiB; None where the system does not report it."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:
        return peak_mib()


def peak_mib() -> float | None:
    """Return the peak resident memory of this process, MiB, without its compiler processes; None where it is not
    reported."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
