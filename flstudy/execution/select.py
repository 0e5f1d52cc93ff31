"""Selection of an executor, by name or by a short measurement."""

import logging
import math
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from flstudy.algorithms import Algorithm, Job
from flstudy.execution.compile_policy import CompilePolicy
from flstudy.execution.context import TrainingContext
from flstudy.execution.devices import accelerated, forked_random, synchronize
from flstudy.execution.executor import Executor, Fit
from flstudy.execution.programs import Programs
from flstudy.execution.sequential import Sequential, Threads
from flstudy.execution.trainer import PerJobTrainer
from flstudy.execution.trees import take
from flstudy.execution.vectorized import Vectorized
from flstudy.population import Batches
from flstudy.run_settings import Compile, ExecutorName
from flstudy.user_error import UserError

log = logging.getLogger(__name__)

SHORT, LONG = 1, 3  # local steps of the measured fits: their difference leaves out what a fit costs but once
MOST_SPEEDUP = 20.0  # compiling has never been seen to make steps this many times faster
ALONE = 0.7  # share of an eager step's time that a compiled one takes of a model too large to be mapped, as CNNs are
REPEATS, ENOUGH_S = 3, 0.1  # of each, unless one takes longer than this


def following(name: ExecutorName, algorithm: Algorithm) -> ExecutorName:
    """Return the executor's name, or another with a warning that says why, for devices whose optimizer is torch's."""
    if not algorithm.steps_by_torch or name in ("sequential", "trainer"):
        return name
    reason = "of modules' optimizers only SGD, Adam and AdamW without a schedule are mapped over devices"
    warnings.warn(f"executor: sequential in place of {name}, since {reason}", stacklevel=2)
    return "sequential"


def make_executor(name: str, context: TrainingContext, compile: Compile, max_lanes: int | None = None) -> Executor:
    """Return the executor of that name on this context.

    Raises:
        UserError: for an unknown name.
    """
    name = able(name, context)
    if name == "vectorized":
        return Vectorized(context, Programs(context, compile), max_lanes)
    if name == "auto":
        return Auto(context, compile, max_lanes)
    others: dict[str, type[Threads | Sequential]]
    others = {"threads": Threads, "sequential": Sequential, "trainer": PerJobTrainer}
    if name not in others:
        raise UserError(f"executor must be one of vectorized, {', '.join(others)}, auto, got {name!r}")
    return others[name](context)


def able(name: str, context: TrainingContext) -> str:
    """Return the executor's name, or that of one that can train this task, with a warning that says why."""
    findings = context.task_function.findings
    if findings.runs == "mapped" or name in ("trainer", *(["sequential"] if findings.runs == "one by one" else [])):
        return name
    if findings.runs == "one by one" and name == "threads":
        return name
    other = "sequential" if findings.runs == "one by one" else "trainer"
    task = type(context.task_function.module).__name__
    warnings.warn(f"executor: {other} in place of {name}, since {task} cannot run there: {findings.why}", stacklevel=2)
    return other


class Auto(Executor):
    """Executor that measures a few local steps in the first round and goes on with the one that needs the least time
    for the rounds ahead: vectorized, threads or sequential; then compiles, if it may, when the rounds ahead pay for
    that, and goes back where compiled rounds turn out slower.

    A mapped step of A lanes takes o + A c: an overhead, which compiling removes, and arithmetic, which it does not.
    Both follow from steps of one lane and of all. Of a model that is compiled for one lane at a time the fastest of
    the others tells. The choice and the seconds that each would take for a round are in ``choices``, hence in
    checkpoints.

    Args:
        context: task and examples.
        compile: as for the vectorized executor; ``auto`` includes compiling in the choice.
        max_lanes: most lanes that train at once.
    """

    def __init__(self, context: TrainingContext, compile: Compile = "auto", max_lanes: int | None = None) -> None:
        self.compile = compile
        self.vectorized = Vectorized(context, Programs(context, compile), max_lanes)
        self.executors: dict[str, Executor] = {"vectorized": self.vectorized, "sequential": Sequential(context)}
        try:
            threads = Threads(context)
        except ValueError:  # a task with dropout
            threads = None
        if threads is not None and threads.workers > 1 and not accelerated(context.store.x.device):
            self.executors["threads"] = threads
        self.chosen: str | None = None
        self.seconds: dict[str, float] = {}  # estimated, of a round, by executor; "compiled" is vectorized too
        self._first = "vectorized"
        self._eager = ""  # what was chosen before compiling
        self._policy = CompilePolicy()
        self._planned = 0.0  # local steps of the round in which it was measured
        self._done: Tensor | None = None  # [S, J] of the last fit

    def fit(self, algorithm: Algorithm, servers: Any, clients: Any, jobs: Job, batches: Batches) -> Fit:
        if self.chosen is None and not self.seconds:
            with forked_random(jobs.client.device):  # dropout masks are those of a run that measures nothing
                self._measure(algorithm, servers, clients, jobs, batches)
            self._planned = float(batches.steps.sum())
            eager = {name: self.seconds.get(name, self.seconds.get("compiled", 0.0)) for name in self.executors}
            self._first = min(eager, key=eager.__getitem__)
        done = self.executors[self.chosen or self._first].fit(algorithm, servers, clients, jobs, batches)
        self._done = done.steps
        return done

    def weigh(self, seconds: float, rounds_left: float) -> bool:
        """Choose an executor for good by the seconds of a fit; and whether to compile, which is left open while rounds
        may become longer. The arguments are those of `Executor.weigh`."""
        steps, programs = 0.0 if self._done is None else float(self._done.sum()), self.vectorized.programs
        if self.chosen is None:
            self.chosen = self._best(rounds_left)
            seconds = self.seconds[self.chosen] * steps / max(self._planned, 1) if programs.undecided else seconds
        if programs.undecided:
            eager, compiled = self.seconds.get(self.chosen, 0.0), self.seconds.get("compiled", math.inf)
            if compiled >= eager:
                programs.decide(False)
            elif self._policy.pays(seconds, steps, rounds_left, 1 - compiled / eager, self.vectorized.cost_s()):
                log.info("executor: auto compiles, after %.3g s of %s", self._policy.spent, self.chosen)
                self._eager, self.chosen = self.chosen, "vectorized"
                programs.decide(True)
        elif programs.compiled and self._policy.lost(seconds, steps):
            log.info("executor: auto goes back to %s, which is faster than what was compiled", self._eager)
            programs.decide(False)
        if self._eager and not programs.compiled:  # it may be that nothing can be
            self.chosen = self._eager
        return not (programs.undecided or (programs.compiled and self._policy.open))

    def _best(self, rounds_left: float) -> str:
        """Return the executor for the rounds ahead, by the estimates. Where it is open whether to compile, the fastest
        eager one; else the cost of compiling counts."""
        undecided, rounds = self.vectorized.programs.undecided, min(rounds_left, 1e6)  # without an end, the fastest
        ahead = {name: rounds * took for name, took in self.seconds.items() if name != "compiled" or not undecided}
        if "compiled" in ahead:
            ahead["compiled"] += self.vectorized.cost_s()
        best = min(ahead, key=ahead.__getitem__)
        estimates = ", ".join(
            f"{name} {1000 * took:.3g}" for name, took in sorted(self.seconds.items(), key=lambda estimate: estimate[1])
        )
        log.info("executor: auto chose %s; estimated ms per round: %s", best, estimates)
        return "vectorized" if best == "compiled" else best

    def loops(self) -> Programs | None:
        return self.vectorized.loops() if self.chosen == "vectorized" else None

    def choices(self) -> dict[str, Any]:
        """Return the choice, and the measurement behind it."""
        return {"executor": self.chosen, "seconds": dict(self.seconds), **self.vectorized.choices()}

    def choose(self, choices: dict[str, Any]) -> None:
        """Choose as the checkpoint's run did."""
        self.chosen, self.seconds = choices["executor"], dict(choices["seconds"])
        self.vectorized.choose(choices)

    def _measure(self, algorithm: Algorithm, servers: Any, clients: Any, jobs: Job, batches: Batches) -> None:
        replicas, count = jobs.client.shape
        width = self.vectorized.chunk(replicas * count)
        wide = min(count, width)
        total = int(batches.steps.sum())  # of all jobs
        longest = math.ceil(int(batches.steps.max()) * replicas * count / width)  # of the longest job, over all chunks

        def step_s(executor: Executor, jobs_used: int) -> float:
            """Return the seconds of one more step of ``jobs_used`` jobs."""

            def short(steps: int) -> Callable[[], Any]:
                some = slice(0, 1), slice(0, jobs_used)
                part: Batches = take(batches, some)
                rows, never = part.rows[:, :, :steps], torch.zeros_like(part.epoch[:, :, :steps])
                part = part._replace(rows=rows, steps=part.steps.clamp(max=steps), epoch=never)
                arguments = take(servers, slice(0, 1)), take(clients, some), take(jobs, some), part
                return lambda: executor.fit(algorithm, *arguments)

            device = servers.x.device
            once = timed(short(SHORT), device)
            return max(timed(short(LONG), device) - once, 1e-9) / (LONG - SHORT)

        eager = self.vectorized
        if not self.vectorized.programs.undecided and self.vectorized.programs.compiled:
            eager = Vectorized(TrainingContext(eager.task_function, eager.store))  # measure what compiling removes
        single, all_ = step_s(eager, 1), step_s(eager, wide)
        arithmetic = max(all_ - single, 0.0) / max(wide - 1, 1)
        overhead = max(single - arithmetic, 0.0)
        vectorized = overhead * longest + arithmetic * total
        if not self.vectorized.programs.compiled:
            self.seconds["vectorized"] = vectorized
        self.seconds["sequential"] = step_s(self.executors["sequential"], 1) * total
        if "threads" in self.executors:
            used = min(count, self.executors["threads"].workers)  # type: ignore[attr-defined]
            self.seconds["threads"] = step_s(self.executors["threads"], used) * total / used
        programs = self.vectorized.programs
        if programs.undecided or programs.compiled:
            alone = programs.looped and programs.alone(servers.x)
            mapped = max(arithmetic * total, vectorized / MOST_SPEEDUP)
            self.seconds["compiled"] = ALONE * min(self.seconds.values()) if alone else mapped


def timed(call: Callable[[], Any], device: torch.device) -> float:
    """Return the seconds of the fastest of a few calls on a device; the first one does not count."""
    call()
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        synchronize(device)
        seconds.append(time.perf_counter() - start)
        if seconds[-1] > ENOUGH_S:
            break
    return min(seconds)
