"""The lanes of a round over several devices of one machine: worker processes on a CPU, threads on accelerators.

One process drives. Each place, a device or a process on one core, has an executor of its own with the task and the
examples, is told everything else in every round, and trains some of its jobs. What is large travels in shared memory.
"""

import contextlib
import copy
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flstudy.algorithms import Algorithm, Job
from flstudy.execution.devices import forked_random
from flstudy.execution.executor import Executor, Fit, TrainingContext
from flstudy.execution.programs import Compile, threads
from flstudy.execution.select import make_executor
from flstudy.execution.trees import leaves, take
from flstudy.population import Batches, ExampleStore
from flstudy.population.batches import HOST
from flstudy.population.streams import torch_seed

LARGE = 2**20  # bytes from which a message's numbers go through shared memory
ALIGNED = 64  # bytes at which each tensor of a message begins
GRACE_S = 5.0  # for a process to end by itself


class Modes(NamedTuple):
    """What torch is told for a process or a thread, and a round's fit depends on."""

    dtype: torch.dtype
    autocast: torch.dtype | None
    grad: bool
    seed: int  # of the round's dropout masks

    @classmethod
    def here(cls, kind: str, part: int) -> Self:
        """Of this thread, for a place with a stream of masks of its own."""
        autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        seed = torch_seed(torch.default_generator.initial_seed() % 2**32, f"place {part}")
        return cls(torch.get_default_dtype(), autocast, torch.is_grad_enabled(), seed)

    def call(self, device: torch.device, fit: Callable[..., Any], *work: Any) -> Any:
        """The result of a fit under these."""
        autocast = torch.autocast(device.type, self.autocast, enabled=self.autocast is not None)
        with autocast, torch.set_grad_enabled(self.grad), forked_random(device, self.seed):
            return fit(*work)


class Place(ABC):
    """Where some of a round's jobs are trained."""

    @abstractmethod
    def begin(self, call: str, *arguments: Any) -> None:
        """Have a method of the executor called, without waiting for it."""

    @abstractmethod
    def end(self) -> Any:
        """Its result."""

    @abstractmethod
    def close(self) -> None:
        """Nothing is asked any more."""

    def ask(self, call: str, *arguments: Any) -> Any:
        """The result of a call."""
        self.begin(call, *arguments)
        return self.end()


# ---- threads -----------------------------------------------------------------------------------------------------


class DeviceThread(Place):
    """A thread of this process that drives an accelerator.

    Args:
        make: an executor on a context.
        context: task and examples, where the run's models are; both are copied to the device.
        device: where this place computes.
    """

    def __init__(
        self, make: Callable[[TrainingContext], Executor], context: TrainingContext, device: torch.device
    ) -> None:
        self.device, self.home = device, context.store.x.device
        dtype = next(context.task_function.module.parameters()).dtype
        # Parameters are swapped in while a task is called, so places must not share one.
        task_function = copy.deepcopy(context.task_function).to(device, dtype)
        store = ExampleStore(*(part.to(device) for part in context.store))
        self.executor = make(context._replace(task_function=task_function, store=store))
        self.pool = ThreadPoolExecutor(1, f"{device}")
        self.found: Future[Any] | None = None

    def begin(self, call: str, *arguments: Any) -> None:
        self.found = self.pool.submit(self._call, call, arguments)

    def _call(self, call: str, arguments: tuple[Any, ...]) -> Any:
        method = getattr(self.executor, call)
        if call != "fit":
            return method(*arguments)
        modes, algorithm, servers, clients, jobs, batches = arguments
        servers, clients, jobs = tree_on((servers, clients, jobs), self.device)
        on_device = {name: part for name, part in batches._asdict().items() if name not in HOST}
        batches = batches._replace(**tree_on(on_device, self.device))
        return tree_on(modes.call(self.device, method, algorithm, servers, clients, jobs, batches), self.home)

    def end(self) -> Any:
        assert self.found is not None
        return self.found.result()

    def close(self) -> None:
        self.pool.shutdown()


def tree_on(tree: Any, device: torch.device) -> Any:
    """A tree whose tensors are on a device."""
    return pytree.tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, tree)


# ---- processes ---------------------------------------------------------------------------------------------------


class Reply(NamedTuple):
    """What a process sends back."""

    result: Any
    error: Exception | None = None


class CoreProcess(Place):
    """A process of its own on one core. It ends with this one, however that ends.

    Args:
        make: an executor on a context.
        context: task and examples; a forked process has them without copying.
        number: of the place, from 0, and of how many.
        before: places that there are already, of whose pipes a forked process must hold no end.
    """

    def __init__(
        self,
        make: Callable[[TrainingContext], Executor],
        context: TrainingContext,
        number: tuple[int, int],
        before: Sequence["CoreProcess"],
    ) -> None:
        self.name = f"process {number[0] + 1} of {number[1]}"
        self.method, self.replied = start_method(), False
        self._start(make, context, before)
        if self.method == "fork" and not self.end():
            self.close()
            self.method = "spawn"
            self._start(make, context, before)

    def _start(
        self, make: Callable[[TrainingContext], Executor], context: TrainingContext, before: Sequence["CoreProcess"]
    ) -> None:
        told: Any = multiprocessing.get_context(self.method)
        self.pipe, theirs = told.Pipe()
        forked = self.method == "fork"
        others = [self.pipe, *(one.pipe for one in before)] if forked else []
        # Of a fork nothing is pickled: the user's classes may be in a notebook, or in a script that guards no main.
        given = theirs, others, make, context, forked
        self.process = told.Process(target=answer_calls, args=given, name=f"lanes, {self.name}", daemon=True)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*fork.*")
            self.process.start()
        theirs.close()

    def begin(self, call: str, *arguments: Any) -> None:
        try:
            send_message(self.pipe, (call, arguments))
        except OSError as error:
            raise self.death() from error

    def end(self) -> Any:
        if self.pipe not in wait([self.pipe, self.process.sentinel]):
            raise self.death()
        try:
            reply = received(self.pipe)
        except (EOFError, OSError) as error:
            raise self.death() from error
        self.replied = True
        if reply.error is not None:
            raise reply.error
        return reply.result

    def death(self) -> RuntimeError:
        """What to say of a process that is no more."""
        self.process.join(GRACE_S)
        code = self.process.exitcode
        why = (
            f"was killed by signal {-code}, perhaps for want of memory"
            if code and code < 0
            else f"ended with status {code}"
        )
        if self.method == "spawn" and not self.replied:
            why += " before it began: put trainer.fit under if __name__ == '__main__'"
            return RuntimeError(f"devices: {self.name} {why}")
        return RuntimeError(
            f"devices: {self.name} {why}: go on from a checkpoint, with fewer devices if it lacked memory"
        )

    def close(self) -> None:
        self.pipe.close()
        self.process.join(GRACE_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()


def start_method() -> str:
    """How processes begin: as forks, which have everything already and need no importable script; where a fork would
    have broken threads or accelerators, anew."""
    safe = threading.current_thread() is threading.main_thread() and not torch.cuda.is_available()
    return "fork" if safe and sys.platform == "linux" else "spawn"


def answer_calls(
    pipe: Connection,
    others: Sequence[Connection],
    make: Callable[[TrainingContext], Executor],
    context: TrainingContext,
    forked: bool,
) -> None:
    """A process's life: calls of its executor, until the other end of the pipe is closed. One that is forked first
    tells whether it can work."""
    for one in others:
        one.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver, which closes the pipe
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)  # a fork has no others, and N processes share the cores
    threads.cache_clear()  # of the process that was forked, and not alive here
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    if "torch._inductor.config" in sys.modules:
        sys.modules["torch._inductor.config"].compile_threads = 1  # type: ignore[attr-defined]
    if forked:
        send_message(pipe, Reply(differentiates()))
    executor, device = make(context), context.store.x.device
    while True:
        try:
            call, arguments = received(pipe)
        except (EOFError, OSError):
            return
        try:
            method = getattr(executor, call)
            if call == "fit":
                modes, *work = arguments
                torch.set_default_dtype(modes.dtype)
                reply = Reply(modes.call(device, method, *work))
            else:
                reply = Reply(method(*arguments))
        except Exception as error:
            reply = Reply(None, portable(error))
        try:
            send_message(pipe, reply)
        except OSError:
            return


def differentiates() -> bool:
    """Whether torch can differentiate in this process: not in a fork of one that has compiled."""
    try:
        torch.ones(1, requires_grad=True).sum().backward()  # type: ignore[no-untyped-call]
    except RuntimeError:
        return False
    return True


def portable(error: Exception) -> Exception:
    """An error that can be sent, with its notes."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever a constructor with more arguments raises
        plain = RuntimeError(f"{type(error).__name__}: {error}")
        for note in getattr(error, "__notes__", ()):
            plain.add_note(note)
        return plain
    return error


class Parcel(NamedTuple):
    """Where a tensor lies in a message."""

    begin: int
    shape: torch.Size
    dtype: torch.dtype


def send_message(pipe: Connection, message: Any) -> None:
    """A message, whose tensors are sent as one: few large ones through shared memory, as each costs a file."""
    parts, end = list[tuple[int, Tensor]](), 0

    def place(leaf: Any) -> Any:
        nonlocal end
        if not isinstance(leaf, Tensor):
            return leaf
        begin, size = end, leaf.numel() * leaf.element_size()
        end = -(-(begin + size) // ALIGNED) * ALIGNED
        parts.append((begin, leaf))
        return Parcel(begin, leaf.shape, leaf.dtype)

    plain = pytree.tree_map(place, message)
    buffer = torch.empty(end, dtype=torch.uint8)
    if end > LARGE:
        buffer.share_memory_()  # type: ignore[no-untyped-call]
    for begin, leaf in parts:
        flat = buffer[begin : begin + leaf.numel() * leaf.element_size()].view(leaf.dtype)
        flat.view(leaf.shape).copy_(leaf.detach())
    pipe.send((plain, buffer if end > LARGE else buffer.numpy().tobytes()))


def received(pipe: Connection) -> Any:
    """The message, with tensors of this process's own."""
    plain, buffer = pipe.recv()
    if isinstance(buffer, bytes):
        buffer = torch.frombuffer(bytearray(buffer), dtype=torch.uint8) if buffer else torch.empty(0, dtype=torch.uint8)
    else:
        buffer = buffer.clone()  # shared memory is a file, and there may be few

    def tensor(leaf: Any) -> Any:
        size = leaf.shape.numel() * leaf.dtype.itemsize
        return buffer[leaf.begin : leaf.begin + size].view(leaf.dtype).view(leaf.shape)

    return pytree.tree_map(
        lambda leaf: tensor(leaf) if isinstance(leaf, Parcel) else leaf,
        plain,
        is_leaf=lambda one: isinstance(one, Parcel),
    )


# ---- the executor ------------------------------------------------------------------------------------------------


class Sharded(Executor):
    """An executor on each of several places, among which the jobs of a round are divided by their steps. Its results
    are those of one place but for the rounding of lanes that train together; dropout draws other masks.

    Args:
        name: of the executor.
        context: task and examples, where the run's models are.
        devices: one for each place; of a CPU's, each is a process.
        compile: as for one.
        max_lanes: most lanes that train at once in one place.
    """

    def __init__(
        self,
        name: str,
        context: TrainingContext,
        devices: Sequence[torch.device],
        compile: Compile,
        max_lanes: int | None = None,
    ) -> None:
        make = partial(make_named, name, compile, max_lanes)
        make(context)  # what cannot be is refused here
        self.places: list[Place] = []
        self.kind, self._last, self._idle = devices[0].type, dict[str, Any](), True
        try:
            for number, device in enumerate(devices):
                if device.type == "cpu":
                    before = [one for one in self.places if isinstance(one, CoreProcess)]
                    self.places.append(CoreProcess(make, context, (number, len(devices)), before))
                else:
                    self.places.append(DeviceThread(make, context, device))
        except BaseException:
            self.close()
            raise

    def fit(self, algorithm: Algorithm, servers: Any, clients: Any, jobs: Job, batches: Batches) -> Fit:
        parts = shares(batches.steps, len(self.places))
        self._idle = False
        for number, (place, part) in enumerate(zip(self.places, parts, strict=False)):
            some = part.of((clients, jobs, batches))
            place.begin("fit", Modes.here(self.kind, number), algorithm, part.of_servers(servers), *some)
        fits = self._all_of(self.places[: len(parts)])
        self._idle = True
        return merged_fits(fits, parts, jobs.client.shape)

    def _all_of(self, places: Sequence[Place]) -> list[Any]:
        """Results of a call of all; where one fails, the others are heard first, so that they can be asked again."""
        found, errors = list[Any](), list[Exception]()
        for place in places:
            try:
                found.append(place.end())
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return found

    def weigh(self, seconds: float, rounds_left: float) -> bool:
        """As the first place decides, for all."""
        settled: bool = self.places[0].ask("weigh", seconds, rounds_left)
        first: dict[str, Any] = self.places[0].ask("choices")
        for place in self.places[1:]:
            own = place.ask("choices")
            if own:
                place.ask("choose", {**own, **first, "max_lanes": own["max_lanes"]})
        return settled

    def choices(self) -> dict[str, Any]:
        """Those of every place."""
        if self.places:
            self._last = {"places": [place.ask("choices") for place in self.places]}
        return self._last

    def choose(self, choices: dict[str, Any]) -> None:
        """As the checkpoint's run did; with another number of places, all like its first."""
        each = choices.get("places", [choices])
        each = each if len(each) == len(self.places) else each[:1] * len(self.places)
        for place, own in zip(self.places, each, strict=True):
            if own:
                place.ask("choose", own)

    def close(self) -> None:
        """End processes and threads; their choices stay known."""
        if self._idle and self.places:
            with contextlib.suppress(RuntimeError):  # of a process that is no more
                self.choices()
        places, self.places = self.places, []
        for place in places:
            place.close()


def make_named(name: str, compile: Compile, max_lanes: int | None, context: TrainingContext) -> Executor:
    """`make_executor` with its context last, for processes that begin anew."""
    return make_executor(name, context, compile, max_lanes)


def of_one_place(choices: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint's choices for an executor that is alone."""
    first: dict[str, Any] = choices.get("places", [choices])[0]
    return first


class Share(NamedTuple):
    """Jobs of one place: some of those of every replica, or all of some replicas."""

    axis: int  # 1: of jobs; 0: of replicas
    rows: list[int]

    def of(self, tree: Any) -> Any:
        """The part of leaves [S, J, ...]."""
        return take(tree, (slice(None), self.rows) if self.axis else self.rows)

    def of_servers(self, servers: Any) -> Any:
        """The part of leaves [S, ...]."""
        return servers if self.axis else take(servers, self.rows)


def shares(steps: Tensor, count: int) -> list[Share]:
    """The jobs, with so many steps [S, J], in at most ``count`` shares of about equal work: the longest first, each to
    the place that has least to do."""
    replicas, jobs = steps.shape
    axis = int(jobs >= min(count, replicas))
    work = steps.sum(0 if axis else 1).tolist()
    loads, rows = [0] * min(count, len(work)), [list[int]() for _ in range(min(count, len(work)))]
    for row in sorted(range(len(work)), key=lambda row: -work[row]):
        least = min(range(len(loads)), key=loads.__getitem__)
        loads[least] += work[row]
        rows[least].append(row)
    return [Share(axis, sorted(each)) for each in rows]


def by_replica(fit: Callable[..., Fit], algorithm: Algorithm, servers: Any, *work: Any) -> Fit:
    """A fit of each replica by itself, ``fit`` being called with its number first; ``work`` as of an executor."""
    grid = work[1].client.shape
    parts = [Share(0, [replica]) for replica in range(grid[0])]
    return merged_fits(
        [fit(part.rows[0], algorithm, part.of_servers(servers), *part.of(work)) for part in parts], parts, grid
    )


def merged_fits(fits: Sequence[Fit], parts: Sequence[Share], grid: torch.Size) -> Fit:
    """The fit of all jobs, of which places did their shares."""
    if len(fits) == 1:
        return fits[0]
    axis = parts[0].axis
    order = torch.tensor([row for part in parts for row in part.rows])
    back = order.argsort()

    def joined(*leaves_of: Tensor) -> Tensor:
        return torch.cat(leaves_of, axis).index_select(axis, back.to(leaves_of[0].device))

    whole: dict[str, Any] = {}
    for field in Fit._fields:
        values = [getattr(fit, field) for fit in fits]
        if field == "logged":
            names = dict.fromkeys(name for logged in values for name in logged)
            empty = [fit.loss.new_zeros((*fit.loss.shape, 2)) for fit in fits]
            values = [{name: one.get(name, none) for name in names} for one, none in zip(values, empty, strict=True)]
        if field == "lane_steps":
            whole[field] = sum(values)
        else:  # what a job sends and gets in bytes is the same everywhere
            whole[field] = values[0] if isinstance(values[0], int) else pytree.tree_map(joined, *values)
    assert leaves(whole["loss"])[0].shape == grid
    return Fit(**whole)
