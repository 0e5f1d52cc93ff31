"""Loops over the steps of many lanes as C++ programs, compiled ahead of time.

One lane's step is traced to a graph of tensor operations, its gradient included; that graph is mapped over lanes, and
a loop is put around it. Torch's ahead-of-time compiler makes a library of it, for any number of lanes and of steps. A
call of it enters no Python before its last step, costs some ten microseconds beside its steps, and releases Python's
lock, so that several threads can each run lanes of their own.

The library is kept on disk under the hash of its graph: what a program computes, and nothing else, decides which one is
found again.
"""

import contextlib
import ctypes
import hashlib
import itertools
import operator
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flstudy.execution.trees import leaves, refill
from flstudy.population.ahead import leaves_python
from flstudy.tasks import kernels

Step = Callable[[Any, Tensor, Tensor, Any, Any], Any]
WIDTHS = 7, 11  # numbers of lanes at which a step is mapped, to see where the number occurs in the graph
HEADERS_PAY = 6  # new libraries of a process
TOGETHER = 64  # calls of one program that may run at the same time


class NotCompiled(Exception):
    """A loop could not be compiled: its steps run eagerly instead."""


class LoopProgram:
    """A compiled loop. Called with the same kinds of trees as it was made from, of any number of lanes A and of any
    number of steps T ≥ 2, it returns the carried leaves after the steps from ``begin`` on.

    Args:
        step: the step of one lane: (carried, line [B], real [], constants, shared) → carried. Steps from
            ``todo`` on are not ``real``.
        carried: leaves [A, ...].
        rows: [A, T, B] lines of all steps.
        constants: leaves [A, ...] that a lane keeps.
        shared: leaves of all lanes.
        alone: the program is of one lane and nothing is mapped: what no mapping makes faster, or can do at all, as with
            convolutions.

    Raises:
        NotCompiled: with the reason.
    """

    def __init__(
        self, step: Step, carried: Any, rows: Tensor, constants: Any, shared: Any, *, alone: bool = False
    ) -> None:
        try:
            lane = lane_graph(step, carried, rows, constants, shared)
            self.captured = [getattr(lane, name) for name in captured(lane)]
            if alone:
                mapped = alone_graph(lane, carried, rows, constants, shared)
            else:
                mapped = generalised(*(mapped_graph(lane, width, carried, rows, constants, shared) for width in WIDTHS))
            names = [str(node.target) for node in mapped.graph.nodes]
            # Random numbers have an order; operators from elsewhere are called by way of Python's binding.
            self.side_by_side = not any("rand" in name or "bernoulli" in name for name in names) and not foreign(names)
            given = carried, rows, constants, shared, self.captured
            self._library = loaded(mapped, given, alone)
        except Exception as error:
            first, *_ = str(error).strip().splitlines() or [""]
            raise NotCompiled(f"{type(error).__name__}: {first}") from error

    def __call__(self, carried: Any, begin: Tensor, rows: Tensor, todo: Tensor, constants: Any, shared: Any) -> Any:
        """The carried tree after its lanes' steps ``begin`` [] to ``todo`` [A]."""
        given = [*leaves(carried), rows, todo, *leaves(constants)]
        inputs = [begin, *(leaf.contiguous() for leaf in given), *leaves(shared), *self.captured]
        return refill(carried, self._library(inputs))


def lane_graph(step: Step, carried: Any, rows: Tensor, constants: Any, shared: Any) -> torch.fx.GraphModule:
    """The step of one lane as a graph: (carried leaves, line, real, constants' leaves, shared leaves) → carried leaves.
    Tensors that the step finds elsewhere, as in a module, are its attributes."""
    from torch._decomp import core_aten_decompositions
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    one = [leaf[0] for leaf in leaves(carried)], rows[0, 0], [leaf[0] for leaf in leaves(constants)]
    flat = [*one[0], one[1], torch.tensor(True), *one[2], *leaves(shared)]
    count, kept = len(one[0]), len(one[2])

    def function(*given: Tensor) -> list[Tensor]:
        line, real = given[count : count + 2]
        rest = given[count + 2 :]
        after = step(
            refill(carried, list(given[:count])),
            line,
            real,
            refill(constants, list(rest[:kept])),
            refill(shared, list(rest[kept:])),
        )
        return [new.to(old.dtype) for new, old in zip(leaves(after), given[:count], strict=True)]

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(leaf) for leaf in flat]
        graph = make_fx(function, decomposition_table=dict(core_aten_decompositions()))(*fakes)
        if any(getattr(getattr(node.target, "_schema", None), "is_mutable", False) for node in graph.graph.nodes):
            graph = make_fx(torch.func.functionalize(graph, remove="mutations"))(*fakes)  # as compilers want it
    simplify(graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def simplify(graph: torch.fx.GraphModule) -> None:
    """Replace what torch cannot map without looking at single lanes: tensors that are filled like another one, which
    are constants, and copies over another one."""
    aten = torch.ops.aten
    fills: dict[Any, Callable[[Any], Any]] = {
        aten.zeros_like.default: lambda node: 0,
        aten.ones_like.default: lambda node: 1,
        aten.empty_like.default: lambda node: 0,
        aten.full_like.default: lambda node: node.args[1],
        aten.new_zeros.default: lambda node: 0,
        aten.new_ones.default: lambda node: 1,
        aten.new_empty.default: lambda node: 0,
        aten.new_full.default: lambda node: node.args[2],
    }
    for node in list(graph.graph.nodes):
        if node.target in fills:
            like = node.meta["val"]
            with graph.graph.inserting_before(node):
                made = graph.graph.call_function(
                    aten.full.default,
                    (list(like.shape), fills[node.target](node)),
                    {"dtype": like.dtype, "device": like.device},
                )
            made.meta["val"] = like
            node.replace_all_uses_with(made)
            graph.graph.erase_node(node)
        elif node.target is aten.copy.default:
            old, new = (argument.meta["val"] for argument in node.args[:2])
            if (old.shape, old.dtype) == (new.shape, new.dtype):
                node.replace_all_uses_with(node.args[1])
                graph.graph.erase_node(node)


def captured(graph: torch.fx.GraphModule) -> list[str]:
    """Names of the tensors that a graph has as attributes, in the order of their first use."""
    return list(dict.fromkeys(node.target for node in graph.graph.nodes if node.op == "get_attr"))


def mapped_graph(
    lane: torch.fx.GraphModule, width: int, carried: Any, rows: Tensor, constants: Any, shared: Any
) -> torch.fx.GraphModule:
    """The step of so many lanes at once: (…, captured tensors) as inputs, the first three kinds with a lane axis."""

    def mapped(function: Callable[..., Any], own: int, others: int) -> Callable[..., Any]:
        return torch.vmap(function, tuple([0] * own + [None] * others), randomness="different")

    return graph_of_lanes(mapped, lane, width, carried, rows, constants, shared)


def alone_graph(
    lane: torch.fx.GraphModule, carried: Any, rows: Tensor, constants: Any, shared: Any
) -> torch.fx.GraphModule:
    """The step of one lane with the inputs and outputs of several, whose lane axis has size 1."""

    def first(function: Callable[..., Any], own: int, others: int) -> Callable[..., Any]:
        def run(*given: Tensor) -> Any:
            return [leaf.unsqueeze(0) for leaf in function(*(leaf.squeeze(0) for leaf in given[:own]), *given[own:])]

        return run

    return graph_of_lanes(first, lane, 1, carried, rows, constants, shared)


def graph_of_lanes(
    wrapped: Callable[[Callable[..., Any], int, int], Callable[..., Any]],
    lane: torch.fx.GraphModule,
    width: int,
    carried: Any,
    rows: Tensor,
    constants: Any,
    shared: Any,
) -> torch.fx.GraphModule:
    """The step of so many lanes: as a function of one lane's tensors and of shared ones, ``wrapped``."""
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    own = [*leaves(carried), rows[:, 0], torch.ones(len(rows), dtype=torch.bool), *leaves(constants)]
    names = captured(lane)
    others = [*leaves(shared), *(getattr(lane, name) for name in names)]
    inner = len(own) + len(others) - len(names)

    def function(*given: Tensor) -> Any:
        run = functional_attributes(lane, dict(zip(names, given[inner:], strict=True)))
        return run(*given[:inner])

    with FakeTensorMode() as mode:
        inputs = [torch.empty((width, *leaf.shape[1:]), dtype=leaf.dtype) for leaf in own]
        inputs += map(mode.from_tensor, others)
        return make_fx(wrapped(function, len(own), len(others)))(*inputs)


def functional_attributes(graph: torch.fx.GraphModule, values: dict[str, Tensor]) -> Callable[..., Any]:
    """The graph as a function whose attributes have other values."""

    class Interpreter(torch.fx.Interpreter):
        def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
            return values[target]

    return Interpreter(graph).run


def generalised(one: torch.fx.GraphModule, other: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph of any number of lanes, from those of two numbers: where their integers differ they are multiples of
    the number of lanes.

    Raises:
        ValueError: if the graphs differ otherwise, as where an operation can be mapped only lane by lane.
    """
    graph, found = torch.fx.Graph(), dict[Any, Any]()
    factors: dict[int, Any] = {}
    pairs = list(zip(one.graph.nodes, other.graph.nodes, strict=False))
    if len(one.graph.nodes) != len(other.graph.nodes) or any(a.target != b.target for a, b in pairs):
        raise ValueError("some operation of the local step can be mapped only lane by lane")

    def common(a: Any, b: Any) -> Any:
        if isinstance(a, torch.fx.Node):
            return found[a]
        if type(a) is int and a != b:
            factor, rest = divmod(a, WIDTHS[0])
            if rest or b != factor * WIDTHS[1]:
                raise ValueError(f"the local step computes with the number of lanes ({a} at {WIDTHS[0]} of them)")
            if 1 not in factors:
                factors[1] = graph.call_function(torch.ops.aten.sym_size.int, (found[pairs[0][0]], 0))
            if factor not in factors:
                factors[factor] = graph.call_function(operator.mul, (factors[1], factor))
            return factors[factor]
        return a

    def both(a: Any, b: Any) -> Any:
        (these, spec), (those, _) = pytree.tree_flatten(a), pytree.tree_flatten(b)
        return pytree.tree_unflatten(list(map(common, these, those)), spec)

    for a, b in pairs:
        args, kwargs = both(a.args, b.args), both(a.kwargs, b.kwargs)
        found[a] = (
            graph.output(args[0]) if a.op == "output" else graph.create_node(a.op, a.target, args, kwargs, a.name)
        )
    return torch.fx.GraphModule(one, graph)


def loop(mapped: Callable[..., Any], count: int, while_loop: Any, begin: Tensor, given: list[Tensor]) -> Any:
    """All steps of all lanes: the loop that is compiled, around a mapped step of ``count`` carried leaves."""
    rows, todo = given[count : count + 2]

    def goes_on(k: Tensor, *state: Tensor) -> Tensor:
        return k < state[count]

    def body(k: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        now, (_, rows, todo, *others) = state[:count], state[count:]
        line = rows.index_select(1, k.reshape(1)).squeeze(1)
        after = mapped(*now, line, k < todo, *others)
        return k + 1, *(leaf.contiguous() for leaf in after)

    start = begin.clone(), *(leaf.clone() for leaf in given[:count])
    kept = todo.amax(), rows, todo, *given[count + 2 :]
    return while_loop(goes_on, body, start, tuple(kept))[1:]


def loaded(mapped: torch.fx.GraphModule, given: tuple[Any, Tensor, Any, Any, list[Tensor]], alone: bool) -> Any:
    """The library of a program, from disk or new."""
    carried, rows, constants, shared, others = given
    kinds = [(tuple(leaf.shape[1:]), str(leaf.dtype)) for leaf in (*leaves(carried), rows[:, 0], *leaves(constants))]
    kinds += [(tuple(leaf.shape), str(leaf.dtype)) for leaf in (*leaves(shared), *others)]
    cpu = torch.backends.cpu.get_cpu_capability()
    told = mapped.code, alone, kinds, torch.__version__, cpu, Path(__file__).read_bytes()
    key = hashlib.sha256(repr(told).encode()).hexdigest()[:32]
    folder = cache_folder()
    for path in folder.glob(f"{key}.*.so"):
        if digest(path) == path.name.split(".")[1]:
            return library(path)
    made = Path(compiled(mapped, given, alone))
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / f"{key}.{digest(made)}.so"
    for suffix in (".json", ".so"):  # the library last: it is what is looked for
        if made.with_suffix(suffix).exists():
            with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
                file.write(made.with_suffix(suffix).read_bytes())
            os.replace(file.name, kept.with_suffix(suffix))  # whole or not at all, whoever else writes it
    return library(kept)


def digest(path: Path) -> str:
    """Of a library and of what stands beside it about foreign operators."""
    beside = path.with_suffix(".json")
    content = path.read_bytes() + (beside.read_bytes() if beside.exists() else b"")
    return hashlib.sha256(content).hexdigest()[:16]


def library(path: Path) -> Callable[[list[Tensor]], list[Tensor]]:
    """The program of a library; one with foreign operators by torch's own binding, which knows them."""
    if path.with_suffix(".json").exists():
        runner: Any = torch._C._aoti.AOTIModelContainerRunnerCpu(str(path), 1)
        return lambda inputs: runner.run(inputs)
    return Library(path)


def foreign(names: Sequence[str]) -> bool:
    """Whether some of these targets of a graph are operators that libraries do not know how to call."""
    own = {str(operator) for operator in kernels.shims()}
    return any("." in name and name.split(".")[0] not in ("aten", "prims") for name in {*names} - own)


def cache_folder() -> Path:
    """Where libraries are kept: beside what torch's compiler keeps."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Path(cache_dir()) / "flstudy"


def compiled(mapped: torch.fx.GraphModule, given: tuple[Any, Tensor, Any, Any, list[Tensor]], alone: bool) -> str:
    """The path of a new library."""
    import torch._inductor
    import torch._inductor.lowering  # some of the decompositions need it, and do not say so
    from torch._higher_order_ops.while_loop import while_loop_op
    from torch._inductor.decomposition import select_decomp_table
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    carried, rows, constants, shared, others = given
    width, steps = (1 if alone else WIDTHS[0]), WIDTHS[1]
    mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=False)

    def fake(leaf: Tensor, free: tuple[int, ...]) -> Tensor:
        """A tensor whose first sizes are any."""
        example = torch.empty((*free, *leaf.shape[len(free) :]), dtype=leaf.dtype)
        sizes = [DimDynamic.DUCK if d < len(free) else DimDynamic.STATIC for d in range(leaf.dim())]
        return mode.from_tensor(example, symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes))

    own = [fake(leaf, (width,)) for leaf in leaves(carried)]
    rows = fake(rows, (width, steps))
    inputs = [*own, rows, fake(torch.zeros(width, dtype=torch.int64), (width,))]
    inputs += [fake(leaf, (width,)) for leaf in leaves(constants)]
    inputs += [fake(leaf, ()) for leaf in (*leaves(shared), *others)]

    def function(begin: Tensor, *flat: Tensor) -> Any:
        return loop(mapped, len(own), while_loop_op, begin, list(flat))

    begin = fake(torch.zeros((), dtype=torch.int64), ())
    with mode:
        graph = make_fx(function, decomposition_table=select_decomp_table())(begin, *inputs)
    # One thread each: lanes are what cores share. Torch 2.11 does not have all of what hastens.
    options = {"cpp.threads": 1, "aot_inductor.custom_ops_to_c_shims": kernels.shims()}
    hastening = {"aot_inductor.enable_line_tables": False, "aot_inductor.precompile_headers": headers_pay()}
    options |= {name: value for name, value in hastening.items() if hasattr(torch._inductor.config, name)}
    if torch.__version__ < "2.15":  # whose estimate of what is worth reusing takes a loop's lines for those around it
        options["allow_buffer_reuse"] = False
    with side_by_side():
        made: str = kernels.trusting(lambda: torch._inductor.aot_compile(graph, (begin, *inputs), options=options))
    free = rows.shape[1:2] if alone else rows.shape[:2]
    if any(not isinstance(size, torch.SymInt) or size.node.expr.is_number for size in free):
        raise ValueError("the compiler takes the number of lanes or of steps for a constant")
    return made


_asked = itertools.count()  # for new libraries in this process


def headers_pay() -> bool:
    """Whether a new library takes torch's headers from a file in which they are compiled already. To make that takes as
    long as some six programs gain by it."""
    from torch._inductor import codecache

    there = any(Path(getattr(codecache, "_HEADER_DIR", "")).rglob("*.gch"))
    return next(_asked) >= HEADERS_PAY or there


@contextlib.contextmanager
def side_by_side() -> Iterator[None]:
    """The two files of a library are compiled at the same time, which torch does one after the other, and only waited
    for when they are linked."""
    from torch._inductor.cpp_builder import CppBuilder

    build, running = CppBuilder.build, list[Future[None]]()

    def begun(builder: Any) -> None:
        if str(builder.get_target_file_path()).endswith((".wrapper.o", ".kernel.o")):
            running.append(compilers.submit(build, builder))
            return
        while running:
            running.pop().result()
        build(builder)

    with ThreadPoolExecutor(2, "compiler") as compilers:
        CppBuilder.build = begun  # type: ignore[assignment, method-assign]
        try:
            yield
        finally:
            CppBuilder.build = build  # type: ignore[method-assign]


class Library:
    """The program of a library. Python's own binding of it would hold Python's lock while it runs.

    Raises:
        OSError: if it cannot be loaded.
    """

    def __init__(self, path: Path) -> None:
        self._library, handle, count = ctypes.CDLL(str(path)), ctypes.c_void_p(), ctypes.c_size_t()
        create = self._library.AOTInductorModelContainerCreateWithDevice
        create.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_char_p]
        outputs = self._library.AOTInductorModelContainerGetNumOutputs
        outputs.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        if create(ctypes.byref(handle), TOGETHER, b"cpu", None) or outputs(handle, ctypes.byref(count)):
            raise OSError(f"{path} cannot be loaded")
        self._handle, self._outputs = handle, count.value
        self._run = self._library.AOTInductorModelContainerRun
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        self._run.argtypes = [pointer, pointer, size, pointer, size, pointer, pointer]

    def __call__(self, inputs: list[Tensor]) -> list[Tensor]:
        """The outputs of the program."""
        binding: Any = torch._C._aoti
        capsules = binding.unsafe_alloc_void_ptrs_from_tensors(inputs)
        handles = (ctypes.c_void_p * len(inputs))(*(address(capsule, None) for capsule in capsules))
        results = (ctypes.c_void_p * self._outputs)()
        leaves_python()
        if self._run(self._handle, handles, len(inputs), results, self._outputs, None, None):
            raise RuntimeError(
                "a compiled loop failed, as it does where there is not enough memory; see the line above"
            )
        made = [wrapped(result, None, None) for result in results]
        outputs: list[Tensor] = binding.alloc_tensors_by_stealing_from_void_ptrs(made)
        return outputs


address = ctypes.pythonapi.PyCapsule_GetPointer
address.restype, address.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
wrapped = ctypes.pythonapi.PyCapsule_New
wrapped.restype, wrapped.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
