"""Places that are Ray actors: on the cores of this machine, or on those and the accelerators of several.

Models and examples go to a node once, by Ray's object store, which all of its places read without copying. An actor
that dies is replaced, and its part of the round is done again from the same objects, with the same digits.
"""

import contextlib
import copy
import gc
import importlib.util
import os
import pickle
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flstudy import pytree
from flstudy.algorithms import Algorithm
from flstudy.execution.context import TrainingContext
from flstudy.execution.parts import PartResult, PartWork, RoundPart
from flstudy.execution.places import LaneWorker, Make, Modes, Place, Rows
from flstudy.execution.trees import leaves, refill
from flstudy.population import ExampleStore
from flstudy.process_state import import_path
from flstudy.tasks import TaskFunction, compiler
from flstudy.user_error import UserError

DEATHS = 3  # of actors, one after another, on one part
WAIT_S = 60.0  # for a cluster to have room
OWN_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # one: places share the cores
_idle: list[tuple[str, Any]] = []  # actors that wait for this process's next run, with the node of Ray they are on

# ---- messages ------------------------------------------------------------------------------------------------------


class Sent(NamedTuple):
    """A tensor as Ray keeps it: bytes that several processes of a node read in place."""

    content: NDArray[np.uint8]
    shape: tuple[int, ...]
    dtype: torch.dtype


def packed(tree: Any) -> Any:
    """Return a tree whose tensors are `Sent`."""

    def sent(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        flat = leaf.detach().cpu().contiguous().reshape(-1)
        return Sent(flat.view(torch.uint8).numpy(), tuple(leaf.shape), leaf.dtype)

    return pytree.tree_map(sent, tree)


def unpacked(tree: Any) -> Any:
    """Unpack a packed tree; its tensors must not be written to."""

    def tensor(leaf: Any) -> Any:
        if not isinstance(leaf, Sent):
            return leaf
        if not leaf.content.size:  # whose bytes have no stride
            return torch.empty(leaf.shape, dtype=leaf.dtype)
        return torch.from_numpy(leaf.content).view(leaf.dtype).view(leaf.shape)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return pytree.tree_map(tensor, tree, is_leaf=lambda node: isinstance(node, Sent))


def writable(tree: Any) -> Any:
    """Unpack a packed tree into tensors of this process's own."""
    return pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, unpacked(tree))


def portable(error: Exception) -> Exception:
    """Return an error that can be sent, with its notes."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever a constructor with more arguments raises
        plain = RuntimeError(f"{type(error).__name__}: {error}")
        for note in getattr(error, "__notes__", ()):
            plain.add_note(note)
        return plain
    return error


# ---- in the actor --------------------------------------------------------------------------------------------------


class LaneActor:
    """A process on one core, or with an accelerator, that trains parts of rounds."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        compiler.use_one_process()
        self.worker: LaneWorker | None = None

    def import_from(self, folders: Sequence[str]) -> None:
        """Import the user's modules from the driver's folders, too, after all packages."""
        sys.path.extend(folder for folder in folders if folder not in sys.path)

    def open(self, make: Make, task_function: TaskFunction, store: Any, kind: str) -> Exception | None:
        """Take up a run; returns the error where that fails."""
        try:
            device = torch.device(kind)
            examples = ExampleStore(*(part.to(device) for part in unpacked(store)))
            dtype = next(task_function.module.parameters()).dtype
            self.worker = LaneWorker(make, TrainingContext(task_function.to(device, dtype), examples))
        except Exception as error:
            return portable(error)
        return None

    def ask(self, call: str, *arguments: Any) -> tuple[Any, Exception | None]:
        """Return the result of a method of the executor, or the error."""
        assert self.worker is not None
        try:
            return getattr(self.worker.executor, call)(*arguments), None
        except Exception as error:
            return None, portable(error)

    def train(self, modes: Modes, shared: Any, part: Any, *rows: Any) -> Any:
        """Train a part of a round; returns its result, or the error, and its rows one by one.

        Args:
            modes: the driver's.
            shared: algorithm, servers and the models that first visitors are sent, if not the servers'.
            part: the rest of the work.
            rows: of the jobs' devices, one after another; None for a first visitor.
        """
        assert self.worker is not None
        torch.set_default_dtype(modes.dtype)
        try:
            algorithm, servers, first = unpacked(shared)
            work = PartWork(algorithm, servers, *unpacked(part))
            first = first_model(servers) if first is None else first
            states = rows_of(algorithm, first, unpacked(rows), len(work.jobs.client))
            done = self.worker.train(modes, work, states)
        except Exception as error:
            return [(None, portable(error)), *[None] * len(rows)] if rows else (None, portable(error))
        reply = packed(done._replace(rows=())), None
        if not rows:
            return reply
        flat = [leaf.flatten(0, 1) for leaf in leaves(done.rows)]
        return [reply, *(packed(tuple(leaf[row] for leaf in flat)) for row in range(len(rows)))]

    def close(self) -> None:
        """Forget the run."""
        self.worker = None
        gc.collect()


def first_model(servers: Any) -> Tensor:
    """Return [S, n]: the model that servers, leaves [S, ...], send to first visitors by default."""
    x: Tensor = servers.x
    return x[:, 0] if x.dim() > 2 else x


def rows_of(algorithm: Algorithm, x: Tensor, rows: Sequence[Any], replicas: int) -> Any:
    """Return the tree with leaves [S, P, ...] of rows one after another; those of first visitors are made of x [S,
    n]."""
    template = algorithm.client_init(x[0])
    if not leaves(template):
        return template
    fresh = leaves(torch.vmap(algorithm.client_init)(x))
    jobs = len(rows) // replicas
    row_leaves = [[leaf[k // jobs] for leaf in fresh] if row is None else row for k, row in enumerate(rows)]
    whole = [torch.stack([row[number] for row in row_leaves]) for number in range(len(fresh))]
    return refill(template, [leaf.view(replicas, jobs, *leaf.shape[1:]) for leaf in whole])


# ---- in the driver -------------------------------------------------------------------------------------------------


class Claim(NamedTuple):
    """A part that an actor trains."""

    generation: int  # of the place's actors
    arguments: tuple[Any, ...]
    reply: Any  # Ray's references
    rows: list[Any]


class ActorPlace(Place):
    """An actor that trains, and is replaced when it dies.

    Args:
        crew: of the run.
        number: of the place, from 0.
    """

    def __init__(self, crew: "Crew", number: int) -> None:
        self.crew, self.number, self.generation, self.deaths = crew, number, 0, 0
        self.choices: tuple[Any, ...] = ()
        self.actor = crew.actor(number)
        self.opened = self._open()

    def _open(self) -> Any:
        opened = self.actor.open.remote(*self.crew.run)
        if self.choices:
            self.actor.ask.remote("choose", *self.choices)
        return opened

    def begin(self, modes: Modes, work: PartWork, rows: Rows, part: RoundPart) -> Claim:
        algorithm, servers, *more = work
        first, references = rows.lend(part)
        shared = self.crew.shared(algorithm, servers, first)
        return self._begin(modes, shared, packed(tuple(more)), *(packed(row) for row in references))

    def _begin(self, *arguments: Any) -> Claim:
        rows = len(arguments) - 3
        replies = self.actor.train.options(num_returns=1 + rows).remote(*arguments)
        reply, *lying = replies if rows else [replies]
        return Claim(self.generation, arguments, reply, lying)

    def end(self, claim: Claim) -> PartResult:
        ray = self.crew.ray
        while True:
            try:
                if self.opened is not None and (error := ray.get(self.opened)) is not None:
                    raise error
                self.opened = None
                done, error = ray.get(claim.reply)
                break
            except ray.exceptions.RayActorError as death:
                if claim.generation == self.generation:
                    self._replace(death)
                claim = self._begin(*claim.arguments)
            except ray.exceptions.ObjectLostError as lost:
                raise lost_rows() from lost
        self.deaths = 0
        if error is not None:
            raise error
        copied: PartResult = writable(done)
        return copied._replace(rows=claim.rows)

    def _replace(self, death: Exception) -> None:
        self.deaths += 1
        if self.deaths == DEATHS:
            raise RuntimeError(
                f"devices: place {self.number + 1} of {self.crew.count} died {DEATHS} times on one part of a round, "
                "perhaps for want of memory: go on from a checkpoint, with fewer devices if it lacked memory"
            ) from death
        self.generation += 1
        self.actor = self.crew.actor(self.number)
        self.opened = self._open()

    def keep(self, rows: Rows, part: RoundPart, result: PartResult) -> None:
        rows.leave(part, result.rows, self.crew.fetch)

    def ask(self, call: str, *arguments: Any) -> Any:
        if call == "choose":
            self.choices = arguments
        while True:
            try:
                result, error = self.crew.ray.get(self.actor.ask.remote(call, *arguments))
                break
            except self.crew.ray.exceptions.RayActorError as death:
                self._replace(death)
        if error is not None:
            raise error
        return result

    def close(self, orderly: bool) -> None:
        self.crew.release(self.actor, orderly)


class Crew:
    """The actors of a run, and the Ray that they are in: the one that runs, or a local one until the run's end.

    Args:
        make: an executor on a context.
        context: task and examples.
        kind: of the devices, such as ``cpu``.
        each: places of a machine.
        nodes: machines.

    Raises:
        UserError: without Ray, or where it has fewer machines.
    """

    def __init__(self, make: Make, context: TrainingContext, kind: str, per_machine: int, nodes: int) -> None:
        self.count, self.kind, self.each, self.nodes = per_machine * nodes, kind, per_machine, nodes
        self.ending, self.group, self.left = contextlib.ExitStack(), None, self.count
        self.mine = "ray" not in sys.modules or not sys.modules["ray"].is_initialized()  # ends with the run
        self.ray = running_ray(self.ending, nodes)
        self.node: str = self.ray.get_runtime_context().get_node_id()
        try:
            if nodes > 1:
                self.group = self._reserved()
            task_function = context.task_function
            if kind != "cpu":
                dtype = next(task_function.module.parameters()).dtype
                task_function = copy.deepcopy(task_function).to(torch.device("cpu"), dtype)
            self.run = make, self.ray.put(task_function), self.ray.put(packed(context.store)), kind
        except BaseException:
            self.end()
            raise
        self._last: tuple[Any, Any, Any] | None = None

    def _reserved(self) -> Any:
        """Return a placement group with room for the places of each machine."""
        from ray.util.placement_group import placement_group, remove_placement_group

        share = {"CPU": self.each, **({} if self.kind == "cpu" else {"GPU": self.each})}
        group = placement_group([share] * self.nodes, strategy="STRICT_SPREAD")
        if not group.wait(WAIT_S):
            remove_placement_group(group)
            there = sum(node["Alive"] for node in self.ray.nodes())
            raise UserError(
                f"num_nodes: Ray must have {self.nodes} machines with {self.each} free {self.kind.upper()} each, got "
                f"{there} machines within {WAIT_S:.0f} s: start more, or lower num_nodes or devices"
            )
        return group

    def actor(self, number: int) -> Any:
        """Return an actor for a place: one that waits, or a new one."""
        actor = self._waiting_or_new(number)
        actor.import_from.remote(import_path())
        return actor

    def _waiting_or_new(self, number: int) -> Any:
        from ray.util import scheduling_strategies as strategies

        actor_class = self.ray.remote(LaneActor)
        if self.group is None:
            _idle[:] = [waiting for waiting in _idle if waiting[0] == self.node]  # others are of a Ray that is gone
            if _idle:
                return _idle.pop()[1]
            here = strategies.NodeAffinitySchedulingStrategy(self.node, soft=False)
            return actor_class.options(num_cpus=0, scheduling_strategy=here).remote()
        there = strategies.PlacementGroupSchedulingStrategy(
            self.group, placement_group_bundle_index=number // self.each, placement_group_capture_child_tasks=False
        )
        return actor_class.options(num_cpus=1, num_gpus=int(self.kind != "cpu"), scheduling_strategy=there).remote()

    def shared(self, algorithm: Algorithm, servers: Any, first: Tensor | None) -> Any:
        """Return a reference to what all parts of a round share, put into the store once.

        Args:
            algorithm: the method.
            servers: leaves [S, ...].
            first: [S, n] models that first visitors are sent, as in `Rows.lend`; None: there are none.
        """
        if first is not None and first.data_ptr() == servers.x.data_ptr():
            first = None
        if self._last is None or self._last[0] is not algorithm or self._last[1] is not servers:
            self._last = algorithm, servers, self.ray.put(packed((algorithm, servers, first)))
        return self._last[2]

    def fetch(self, lying: Sequence[Any]) -> list[Any]:
        """Return the leaves of rows in the store.

        Raises:
            RuntimeError: where they are lost.
        """
        try:
            return [unpacked(row) for row in self.ray.get(list(lying))]
        except self.ray.exceptions.RayError as lost:
            raise lost_rows() from lost

    def release(self, actor: Any, orderly: bool) -> None:
        """End an actor, or in a Ray that goes on let it wait for the next run."""
        with contextlib.suppress(self.ray.exceptions.RayError):
            if orderly and self.group is None and not self.mine:
                actor.close.remote()
                _idle.append((self.node, actor))
            else:
                self.ray.kill(actor)
        self.left -= 1
        if not self.left:
            self.end()

    def end(self) -> None:
        """Give back what was reserved, and end a Ray that was started for the run."""
        if self.group is not None:
            from ray.util.placement_group import remove_placement_group

            remove_placement_group(self.group)
        self.ending.close()


def running_ray(ending: contextlib.ExitStack, nodes: int) -> Any:
    """Return Ray: the one that runs, or a local one, which ends with ``ending``.

    Raises:
        UserError: where it is not installed, or several machines are wanted and none runs.
    """
    if importlib.util.find_spec("ray") is None:
        raise UserError("devices: several on a CPU or several machines need Ray: pip install 'flstudy[study]'")
    if "ray" in sys.modules and sys.modules["ray"].is_initialized():
        return sys.modules["ray"]
    if nodes > 1:
        raise UserError(f"num_nodes: {nodes} machines need a Ray: call ray.init(address=...) before trainer.fit")
    from flstudy.local_ray import owned_session, start_local_ray

    os.environ.setdefault("RAY_worker_niceness", "0")  # 15 would let places starve, for which the driver waits
    ending.enter_context(owned_session(start_local_ray(dict.fromkeys(OWN_THREADS, "1"))))
    import ray

    ending.callback(ray.shutdown)
    return ray


def actor_places(make: Make, context: TrainingContext, kind: str, per_machine: int, nodes: int) -> list[Place]:
    """Return the places of a run, as many on each machine; see `Crew`."""
    crew = Crew(make, context, kind, per_machine, nodes)
    return [ActorPlace(crew, number) for number in range(crew.count)]


def lost_rows() -> RuntimeError:
    """Return the error for rows on a machine, or in a Ray, that is gone."""
    return RuntimeError("devices: states of devices are lost with the machine that had them: go on from a checkpoint")
