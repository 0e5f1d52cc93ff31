"""Parent side of the benchmark: starts one child process per case and lets one run at a time.

All cases of a workload are alive together and take turns in short blocks, ``repeats`` times, every other pass in
reverse order, so that a busy minute of the machine affects all alike. A figure is the median over the blocks of rounds
/ seconds. The quietness of the machine is measured beside every block, and a block that others disturbed is repeated.
Rates exclude evaluation; an extra last block with an evaluation in every round gives its seconds, and the shares of
time are those of a run that evaluates every ``EVALUATE_EVERY`` rounds.
"""

import contextlib
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

from flstudy.benchmark.child import COUNTED, LIMIT, Case, TimedBlock, TimedOrder, serve
from flstudy.benchmark.gauge import Gauge
from flstudy.benchmark.options import BenchOptions
from flstudy.benchmark.workloads import PARTICIPANTS, WORKLOADS

EVALUATE_EVERY = 10
PATIENCE_S = 900.0  # seconds to wait for one answer; the longest is a compilation
# By default, threads of GNU OpenMP that wait for each other spin for a millisecond and more: beside any other process,
# small steps on several threads then take up to fifty times as long, for minutes.
SPINS = {"GOMP_SPINCOUNT": "1000"}
SLOW_S = 1.0  # a round that takes so long needs no second one to warm up

Say = Callable[[str, float | None], None]  # (what is being measured, about how many seconds the workload still takes)


class Child:
    """Child process that measures one case."""

    def __init__(self, context: BaseContext, case: Case) -> None:
        self.case, self.error = case, ""
        self.blocks: list[TimedBlock] = []
        self.warm = self.evaluated = TimedBlock()
        self.pipe, theirs = multiprocessing.Pipe()
        self.process: BaseProcess = context.Process(target=serve, args=(theirs, case), daemon=False)  # type: ignore
        self.process.start()
        theirs.close()
        self.listen()  # until it has built everything

    def ask(self, seconds: float, *, evaluate: bool = False) -> TimedBlock:
        """Send an order and return the child's answer."""
        with contextlib.suppress(OSError):  # it has ended, as `listen` will find
            self.pipe.send(TimedOrder(seconds, evaluate))
        return self.listen()

    def listen(self) -> TimedBlock:
        """Wait for the child's next answer; if it fails, return an empty one and set ``error``."""
        if self.error:
            return TimedBlock()
        answer = f"no answer within {PATIENCE_S:.0f} s"
        try:
            if self.pipe.poll(PATIENCE_S):
                answer = self.pipe.recv()
        except (EOFError, ConnectionError):
            self.process.join(5)
            code = self.process.exitcode
            why = f"killed by signal {-code}, perhaps out of memory" if code and code < 0 else f"exit status {code}"
            answer = f"the process ended: {why}"
        if isinstance(answer, TimedBlock):
            return answer
        self.error = answer
        return TimedBlock()

    def end(self) -> None:
        """Stop the process."""
        with contextlib.suppress(OSError):  # it has ended already
            self.pipe.send(None)
        self.pipe.close()
        self.process.join(10 if not self.error else 1)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def context() -> BaseContext:
    """Fork server that has imported everything once and computed nothing, or spawned processes where there is none."""
    for name, value in SPINS.items():
        os.environ.setdefault(name, value)  # read when torch is imported
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    forkserver = multiprocessing.get_context("forkserver")
    forkserver.set_forkserver_preload(["flstudy.benchmark.child"])
    return forkserver


def cases(name: str, options: BenchOptions, device: str, cache: str) -> list[Case]:
    """Return the cases to measure on a workload, by executor and number of threads."""
    workload, selected = WORKLOADS[name], []
    for executor in options.executors or workload.executors:
        seeds = 1 if executor == "plain" else options.seeds or workload.seeds
        counts = {"one": (1,), "all": (options.threads,), "both": (1, options.threads)}[workload.threads]
        if executor == "plain":  # always on one thread too, since more of them slow it down on small models
            counts = (1, options.threads) if workload.plain_threads == "both" else (1,)
        if executor == "threads" or device != "cpu":
            counts = (options.threads,)
        for threads in dict.fromkeys(counts):
            selected.append(Case(name, executor, threads, seeds, device, options.precision, cache))
    return selected


def measure(name: str, options: BenchOptions, device: str, cache: str, say: Say, gauge: Gauge) -> dict[str, Any]:
    """Measure all executors on one workload and return plain data; ``cache`` is a folder for torch's compiler.

    Raises:
        BusyMachine: if others disturb a block again and again, and the gauge is strict.
    """
    workload, children = WORKLOADS[name], list[Child]()
    start = time.perf_counter()

    def timed(child: Child, seconds: float) -> TimedBlock:
        def busy(line: str) -> None:
            say(f"{name}: {child.case.executor}, {line}", None)

        done = gauge.quietly(lambda: child.ask(seconds), say=busy)
        done.result.moment = done.moment
        return done.result

    try:
        say(f"{name}: the limit", None)
        seeds = sorted({case.seeds for case in cases(name, options, device, cache)})
        limits = {count: limit(Case(name, LIMIT, 1, count, device, options.precision, cache), timed) for count in seeds}
        for case in cases(name, options, device, cache):
            say(f"{name}: starting {case.executor}", None)
            children.append(child := Child(context(), case))
            if not child.error:
                say(f"{name}: warming {case.executor}", None)
            child.warm = child.ask(0.0)
            if child.warm.seconds < SLOW_S or case.executor == "compiled":
                again = child.ask(0.0)
                child.warm.round_s += again.round_s
                child.warm.seconds += again.seconds
        once = slower(children)
        turn = {child: max(options.seconds, min(child.warm.round_s, default=0) * workload.window) for child in children}
        for repeat in range(options.repeats):
            left = sum(turn.values()) * (options.repeats - repeat)
            say(f"{name}: pass {repeat + 1} of {options.repeats}", left)
            for child in children if repeat % 2 == 0 else reversed(children):
                if repeat and child in once:
                    continue
                child.blocks.append(timed(child, options.seconds))
        say(f"{name}: evaluation", None)
        for child in children:
            if child.case.executor != "plain":
                child.ask(0.0, evaluate=True)  # the first one compiles, where evaluations are compiled
                child.evaluated = child.ask(0.0, evaluate=True)
    finally:
        for child in children:
            child.end()
    rows = [row(child, limits[child.case.seeds], gauge.best_s) for child in children]
    plain = max((r["seed_rounds_per_s"] for r in rows if r["executor"] == "plain" and "error" not in r), default=None)
    for r in rows:
        if "error" not in r:
            r["x_plain"] = r["seed_rounds_per_s"] / plain if plain else None
    return {
        "name": name,
        "sentence": workload.sentence,
        "participants": PARTICIPANTS,
        "window": workload.window,
        "evaluate_every": EVALUATE_EVERY,
        "seconds": time.perf_counter() - start,
        "rows": rows,
    }


def limit(case: Case, timed: Callable[[Child, float], TimedBlock]) -> float | None:
    """Return the seconds that the products of one local step of one lane take; None where they cannot be measured."""
    child = Child(context(), case)
    try:
        seconds = min(timed(child, 0.0).seconds for _ in range(2))
        return None if child.error else seconds
    finally:
        child.end()


def slower(children: Sequence[Child]) -> list[Child]:
    """Return plain loops that are clearly slower than with another number of threads: one pass is enough for them."""
    plain = [child for child in children if child.case.executor == "plain" and child.warm.round_s]
    best = min((min(child.warm.round_s) for child in plain), default=0.0)
    return [child for child in plain if min(child.warm.round_s) > 1.1 * best]


def row(child: Child, limit_s: float | None, best_s: float) -> dict[str, Any]:
    """Compute the figures of one child.

    Args:
        child: the child, after its blocks.
        limit_s: seconds of the products of one local step of one lane.
        best_s: seconds of the gauge's loop at its best.
    """
    case, blocks = child.case, child.blocks
    head = {"executor": case.executor, "threads": case.threads, "seeds": case.seeds}
    if child.error:
        return {**head, "error": child.error}
    rate = statistics.median(len(block.round_s) / block.seconds for block in blocks)
    rounds, seconds = sum(len(block.round_s) for block in blocks), sum(block.seconds for block in blocks)
    evaluation = child.evaluated.evaluation_s / max(len(child.evaluated.round_s), 1)
    total = seconds + rounds / EVALUATE_EVERY * evaluation
    parts = {name: sum(getattr(block, f"{name}_s") for block in blocks) / total for name in ("fit", "data", "server")}
    parts["evaluation"] = rounds / EVALUATE_EVERY * evaluation / total
    counts = {
        name: sum(block.counts[name] for block in blocks) / rounds for name in COUNTED if name in blocks[0].counts
    }
    steps, last = sum(block.steps for block in blocks), max(blocks, key=lambda block: block.peak_mib or 0.0)
    return {
        **head,
        "seed_rounds_per_s": rate * case.seeds,
        "fits_per_s": rate * case.seeds * PARTICIPANTS,
        "x_plain": None,
        "round_ms": 1e3 / rate,
        "limit_ms": None if limit_s is None else 1e3 * limit_s * steps / rounds,
        "busy": any(block.moment is not None and block.moment.busy(best_s) for block in blocks),
        "warned": list(dict.fromkeys(sentence for block in blocks for sentence in block.warned)),
        "counts": counts,
        "lane_utilization": steps / sum(block.executed for block in blocks),
        "steps_per_seed_round": steps / rounds / case.seeds,
        "peak_mib": last.peak_mib,
        "process_mib": last.process_mib,
        "imports_mib": last.imports_mib,
        "warm_s": child.warm.seconds,
        "compile_s": max(child.warm.seconds - len(child.warm.round_s) / rate, 0.0),
        "evaluation_s": evaluation if child.evaluated.round_s else None,
        "shares": {**parts, "rest": 1 - sum(parts.values())},
        "repeats": [asdict(block) for block in blocks],
    }
