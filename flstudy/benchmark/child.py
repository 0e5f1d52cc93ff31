"""One (workload, executor) in a process of its own: it runs rounds when its parent says so.

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
from flstudy.federation import Coordinator
from flstudy.population import Cohort, Population

NEVER = 10**9  # rounds between evaluations
LIMIT = "limit"  # the "executor" that only multiplies
COUNTED = ("calls", "validations", "sequential_steps")  # of an executor's programs, where they count them


@dataclass(frozen=True)
class Case:
    """The setting that a child measures."""

    workload: str
    executor: str  # one of EXECUTORS, or LIMIT
    threads: int
    seeds: int
    device: str  # cpu or cuda
    precision: str
    cache: str  # folder of torch's compiler, empty when the command starts: compile seconds are those of a first time
    imports_mib: float | None = None  # memory of the child when all is imported and nothing built


class TimedOrder(NamedTuple):
    """Run whole windows for at least so many seconds."""

    seconds: float
    evaluate: bool = False  # after every round


@dataclass
class TimedBlock:
    """What an order led to. Seconds of the parts are sums over the block's rounds."""

    round_s: list[float] = field(default_factory=list)
    fit_s: float = 0.0
    server_s: float = 0.0
    data_s: float = 0.0  # cohort and transfer
    evaluation_s: float = 0.0
    steps: float = 0.0  # local steps that trained, all seeds
    executed: float = 0.0  # the same with the padding of lanes
    seconds: float = 0.0  # from the order to the end of the last round
    peak_mib: float | None = None  # of the process beyond its imports, or of the GPU
    process_mib: float | None = None
    imports_mib: float | None = None
    counts: dict[str, int] = field(default_factory=dict)  # of COUNTED
    warned: list[str] = field(default_factory=list)  # what flstudy warned of, up to the end of the block
    moment: Quietness | None = None  # how quiet the machine was; the parent knows


class Stopped(Exception):
    """The parent needs no more rounds."""


class Pace:
    """Waits for the parent's orders and answers them; `reset` brings back the initial model."""

    def __init__(self, pipe: Connection, case: Case, reset: Callable[[], None]) -> None:
        self.pipe, self.reset, self.window = pipe, reset, WORKLOADS[case.workload].window
        self.cuda, self.imports = case.device == "cuda", case.imports_mib
        self.counted: Callable[[], dict[str, int]] = dict  # so far
        self.pipe.send(TimedBlock())  # ready
        self.wait()

    def wait(self) -> None:
        """Until there is an order."""
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
        """Note a round; at the end of a block answer, and wait for the next order."""
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
    """Lets a Trainer do rounds only when they are asked for."""

    def __init__(self, pipe: Connection, case: Case) -> None:
        self.pipe, self.case = pipe, case

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Everything is built: wait for the first order."""
        assert isinstance(pl_module, Coordinator)
        initial = pl_module.server

        def reset() -> None:
            pl_module.server = initial

        strategy = trainer.strategy
        strategy.batch_to_device = self.timed(strategy.batch_to_device)  # type: ignore[method-assign]
        population = pl_module.population
        population.cohort = repeated(population, WORKLOADS[self.case.workload].window)  # type: ignore
        population.ahead.made = self.timed(population.ahead.made)  # type: ignore[method-assign]
        self.pace = Pace(self.pipe, self.case, reset)
        self.pace.counted = partial(counts, pl_module)

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """A round begins, which the order may want evaluated."""
        trainer.check_val_every_n_epoch = 1 if self.pace.order.evaluate else NEVER

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function; its seconds count as data."""

        def run(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            result = function(*arguments, **options)
            self.pace.block.data_s += time.perf_counter() - start
            return result

        return run

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """A round is over."""
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
    """COUNTED of a coordinator's executor so far; nothing where its programs do not count."""
    programs = getattr(coordinator.executor, "programs", None)
    found = {name: getattr(programs, name, None) for name in COUNTED}
    return {name: int(count) for name, count in found.items() if isinstance(count, int)}


def repeated(population: Population, window: int) -> Callable[[int], Cohort]:
    """``population.cohort``, but the rounds of the first window come again and again."""
    cohort = population.cohort

    def again(round: int) -> Cohort:
        found = cohort((round - 1) % window + 1)
        return found._replace(round=found.round._replace(number=torch.full_like(found.round.number, round)))

    return again


def run_plain(pipe: Connection, case: Case, workload: Workload) -> None:
    """The plain loop, one seed."""
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
    """An executor under a Trainer."""
    name = "vectorized" if case.executor == "compiled" else case.executor
    coordinator = Coordinator(
        workload.task(),
        workload.algorithm(),
        seeds=range(case.seeds),
        executor=name,  # type: ignore[arg-type]
        compile=case.executor == "compiled",
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
    """The products of a round alone: a block's seconds are those of one step of one lane."""
    pipe.send(TimedBlock())
    while pipe.recv() is not None:
        pipe.send(TimedBlock(seconds=limit_seconds(workload, case.seeds, case.precision, torch.device(case.device))))


PACKAGE = Path(__file__).parents[1]
WARNED: list[str] = []  # sentences of flstudy's own warnings in this process


def hear(message: Warning | str, category: type[Warning], filename: str, *more: Any) -> None:
    """Keep what flstudy warns of: that steps run eagerly, or fewer lanes at once, changes what a row means. The rest
    (few workers, few batches) is known and meant."""
    sentence = (str(message).strip().splitlines() or [""])[0]
    if issubclass(category, UserWarning) and PACKAGE in Path(filename).parents and sentence not in WARNED:
        WARNED.append(sentence)


def serve(pipe: Connection, case: Case) -> None:
    """The child's life. Answers are blocks, an empty one first, and a string with the reason if anything fails."""
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
    """Memory of this process now; None where the system does not say."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:
        return peak_mib()


def peak_mib() -> float | None:
    """Largest memory that this process ever had; compiler processes do not count."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
