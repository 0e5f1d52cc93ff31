"""Loops over the steps of many lanes as C++ programs, compiled ahead of time.

One lane's step is traced to a graph of tensor operations, its gradient included; that graph is mapped over lanes, and
a loop is put around it. Torch's ahead-of-time compiler makes a library of it, for any number of lanes and of steps. A
call of it enters no Python before its last step, costs some ten microseconds beside its steps, and releases Python's
lock, so that several threads can each run lanes of their own.

The library is kept on disk under the hash of its graph: what a program computes, and nothing else, decides which one is
found again.
"""

import hashlib
import operator
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flstudy import pytree
from flstudy.execution.trees import leaves, refill
from flstudy.population.ahead import leaves_python
from flstudy.tasks import compiler, kernels
from flstudy.user_error import UserError
from flstudy.whole_file import whole_file

Step = Callable[[Any, Tensor, Tensor, Any, Any], Any]
WIDTHS = 7, 11  # numbers of lanes at which a step is mapped, to see where the number occurs in the graph


class NotCompiled(Exception):
    """Error of a loop that could not be compiled, or failed: its steps run eagerly instead."""


def reason(error: Exception) -> str:
    """Return the kind of an error and the first line of what it says."""
    first, *_ = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {first}"


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
        NotCompiled: with the reason, also when it is called and fails, as for a label that is no class.
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
            arguments = carried, rows, constants, shared, self.captured
            self._library = loaded(mapped, arguments, alone)
        except Exception as error:
            raise NotCompiled(reason(error)) from error

    def __call__(self, carried: Any, begin: Tensor, rows: Tensor, todo: Tensor, constants: Any, shared: Any) -> Any:
        """Return the carried tree after its lanes' steps ``begin`` [] to ``todo`` [A]."""
        lane_inputs = [*leaves(carried), rows, todo, *leaves(constants)]
        inputs = [begin, *(leaf.contiguous() for leaf in lane_inputs), *leaves(shared), *self.captured]
        try:
            return refill(carried, self._library(inputs))
        except compiler.LibraryFailed as error:
            raise NotCompiled(reason(error)) from error


def lane_graph(step: Step, carried: Any, rows: Tensor, constants: Any, shared: Any) -> torch.fx.GraphModule:
    """Return the step of one lane as a graph: (carried leaves, line, real, constants' leaves, shared leaves) → carried
    leaves.

    The arguments are those of `LoopProgram`: carried [A, ...], rows [A, T, B], constants [A, ...]. Tensors that the
    step finds elsewhere, as in a module, are the graph's attributes.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    first_lane = [leaf[0] for leaf in leaves(carried)], rows[0, 0], [leaf[0] for leaf in leaves(constants)]
    flat = [*first_lane[0], first_lane[1], torch.tensor(True), *first_lane[2], *leaves(shared)]
    count, constant_count = len(first_lane[0]), len(first_lane[2])

    def function(*tensors: Tensor) -> list[Tensor]:
        line, real = tensors[count : count + 2]
        rest = tensors[count + 2 :]
        after = step(
            refill(carried, list(tensors[:count])),
            line,
            real,
            refill(constants, list(rest[:constant_count])),
            refill(shared, list(rest[constant_count:])),
        )
        return leaves(after)

    with compiler.fake_tensors(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(leaf) for leaf in flat]
        graph = make_fx(function, decomposition_table=compiler.core_decompositions())(*fakes)
        if any(compiler.mutates(node.target) for node in graph.graph.nodes):
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
                constant = graph.graph.call_function(
                    aten.full.default,
                    (list(like.shape), fills[node.target](node)),
                    {"dtype": like.dtype, "device": like.device},
                )
            constant.meta["val"] = like
            node.replace_all_uses_with(constant)
            graph.graph.erase_node(node)
        elif node.target is aten.copy.default:
            old, new = (argument.meta["val"] for argument in node.args[:2])
            if (old.shape, old.dtype) == (new.shape, new.dtype):
                node.replace_all_uses_with(node.args[1])
                graph.graph.erase_node(node)


def captured(graph: torch.fx.GraphModule) -> list[str]:
    """Return the names of the tensors that a graph has as attributes, in the order of their first use."""
    return list(dict.fromkeys(node.target for node in graph.graph.nodes if node.op == "get_attr"))


def mapped_graph(
    lane: torch.fx.GraphModule, width: int, carried: Any, rows: Tensor, constants: Any, shared: Any
) -> torch.fx.GraphModule:
    """Return the graph of `lane_graph` for W = ``width`` lanes at once; captured tensors are its last inputs.

    Carried leaves, lines, ``real`` and constants are [W, ...]; shared and captured tensors have no lane axis. The other
    arguments are those of `LoopProgram`.
    """

    def mapped(function: Callable[..., Any], own_count: int, others: int) -> Callable[..., Any]:
        return torch.vmap(function, tuple([0] * own_count + [None] * others), randomness="different")

    return graph_of_lanes(mapped, lane, width, carried, rows, constants, shared)


def alone_graph(
    lane: torch.fx.GraphModule, carried: Any, rows: Tensor, constants: Any, shared: Any
) -> torch.fx.GraphModule:
    """Return the graph of `mapped_graph` for one lane without a map: all its lanes' inputs and outputs are [1, ...]."""

    def first(function: Callable[..., Any], own_count: int, others: int) -> Callable[..., Any]:
        def run(*tensors: Tensor) -> Any:
            lane_tensors = (leaf.squeeze(0) for leaf in tensors[:own_count])
            return [leaf.unsqueeze(0) for leaf in function(*lane_tensors, *tensors[own_count:])]

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
    """Return the graph of a step of W = ``width`` lanes.

    Args:
        wrapped: makes the step of W lanes of one lane's step, the number of its arguments [W, ...], and that of those
            that lanes share.
        lane: the graph of `lane_graph`.
        width: W.
        carried: leaves [A, ...]; it and the others as in `LoopProgram`.
        rows: [A, T, B].
        constants: leaves [A, ...].
        shared: leaves of all lanes.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    lane_tensors = [*leaves(carried), rows[:, 0], torch.ones(len(rows), dtype=torch.bool), *leaves(constants)]
    names = captured(lane)
    others = [*leaves(shared), *(getattr(lane, name) for name in names)]
    inner = len(lane_tensors) + len(others) - len(names)

    def function(*tensors: Tensor) -> Any:
        run = functional_attributes(lane, dict(zip(names, tensors[inner:], strict=True)))
        return run(*tensors[:inner])

    with compiler.fake_tensors() as mode:
        inputs = [torch.empty((width, *leaf.shape[1:]), dtype=leaf.dtype) for leaf in lane_tensors]
        inputs += map(mode.from_tensor, others)
        return make_fx(wrapped(function, len(lane_tensors), len(others)))(*inputs)


def functional_attributes(graph: torch.fx.GraphModule, values: dict[str, Tensor]) -> Callable[..., Any]:
    """Return the graph as a function whose attributes have other values, by name and of the same shapes."""

    class Interpreter(torch.fx.Interpreter):
        def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
            return values[target]

    return Interpreter(graph).run


def generalised(narrow: torch.fx.GraphModule, wide: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Return the graph for any number of lanes, from the graphs for two: where their integers differ they are multiples
    of the number of lanes.

    Raises:
        UserError: if the graphs differ otherwise, as where an operation can be mapped only lane by lane.
    """
    graph, nodes = torch.fx.Graph(), dict[Any, Any]()
    factors: dict[int, Any] = {}
    pairs = list(zip(narrow.graph.nodes, wide.graph.nodes, strict=False))
    if len(narrow.graph.nodes) != len(wide.graph.nodes) or any(a.target != b.target for a, b in pairs):
        raise UserError("some operation of the local step can be mapped only lane by lane")

    def common(a: Any, b: Any) -> Any:
        if isinstance(a, torch.fx.Node):
            return nodes[a]
        if type(a) is int and a != b:
            factor, rest = divmod(a, WIDTHS[0])
            if rest or b != factor * WIDTHS[1]:
                raise UserError(f"the local step computes with the number of lanes ({a} at {WIDTHS[0]} of them)")
            if 1 not in factors:
                factors[1] = graph.call_function(torch.ops.aten.sym_size.int, (nodes[pairs[0][0]], 0))
            if factor not in factors:
                factors[factor] = graph.call_function(operator.mul, (factors[1], factor))
            return factors[factor]
        return a

    def both(a: Any, b: Any) -> Any:
        (these, spec), (those, _) = pytree.tree_flatten(a), pytree.tree_flatten(b)
        return pytree.tree_unflatten(list(map(common, these, those)), spec)

    for a, b in pairs:
        args, kwargs = both(a.args, b.args), both(a.kwargs, b.kwargs)
        nodes[a] = (
            graph.output(args[0]) if a.op == "output" else graph.create_node(a.op, a.target, args, kwargs, a.name)
        )
    return torch.fx.GraphModule(narrow, graph)


def loop(mapped: Callable[..., Any], count: int, while_loop: Any, begin: Tensor, inputs: list[Tensor]) -> Any:
    """Return the carried leaves [A, ...] after all steps of all lanes: the loop that is compiled.

    Args:
        mapped: the graph of a step of all lanes.
        count: number of carried leaves.
        while_loop: torch's operator.
        begin: [] the first step.
        inputs: carried leaves [A, ...], rows [A, T, B], steps ``todo`` [A], then constants, shared, captured tensors.
    """
    rows, todo = inputs[count : count + 2]

    def goes_on(k: Tensor, *state: Tensor) -> Tensor:
        return k < state[count]

    def body(k: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        now, (_, rows, todo, *others) = state[:count], state[count:]
        line = rows.index_select(1, k.reshape(1)).squeeze(1)
        after = mapped(*now, line, k < todo, *others)
        return k + 1, *(leaf.contiguous() for leaf in after)

    start = begin.clone(), *(leaf.clone() for leaf in inputs[:count])
    fixed = todo.amax(), rows, todo, *inputs[count + 2 :]
    return while_loop(goes_on, body, start, tuple(fixed))[1:]


def loaded(mapped: torch.fx.GraphModule, arguments: tuple[Any, Tensor, Any, Any, list[Tensor]], alone: bool) -> Any:
    """Return the program of a library, found on disk or compiled.

    Args:
        mapped: the graph of a step of all lanes.
        arguments: carried [A, ...], rows [A, T, B], constants [A, ...], shared, captured tensors.
        alone: whether the program is of one lane.

    Raises:
        UserError: if the compiler fixes the number of lanes or of steps.
    """
    carried, rows, constants, shared, others = arguments
    kinds = [(tuple(leaf.shape[1:]), str(leaf.dtype)) for leaf in (*leaves(carried), rows[:, 0], *leaves(constants))]
    kinds += [(tuple(leaf.shape), str(leaf.dtype)) for leaf in (*leaves(shared), *others)]
    cpu = torch.backends.cpu.get_cpu_capability()
    signature = (
        mapped.code,
        alone,
        kinds,
        torch.__version__,
        cpu,
        Path(__file__).read_bytes(),
        Path(compiler.__file__).read_bytes(),
    )
    key = hashlib.sha256(repr(signature).encode()).hexdigest()[:32]
    folder = compiler.cache_folder()
    for path in folder.glob(f"{key}.*.so"):
        if digest(path) == path.name.split(".")[1]:
            return library(path)
    built = Path(compiled(mapped, arguments, alone))
    folder.mkdir(parents=True, exist_ok=True)
    cached = folder / f"{key}.{digest(built)}.so"
    for suffix in (".json", ".so"):  # the library last: it is what is looked for
        if built.with_suffix(suffix).exists():
            with whole_file(cached.with_suffix(suffix), shared=True) as hidden:
                hidden.write_bytes(built.with_suffix(suffix).read_bytes())
    return library(cached)


def digest(path: Path) -> str:
    """Return the hash of a library and of the file beside it that names foreign operators."""
    beside = path.with_suffix(".json")
    content = path.read_bytes() + (beside.read_bytes() if beside.exists() else b"")
    return hashlib.sha256(content).hexdigest()[:16]


def library(path: Path) -> Callable[[list[Tensor]], list[Tensor]]:
    """Return the program of a library, from ``begin`` [] and the inputs of `loop` to the carried leaves [A, ...].

    One with foreign operators is called by torch's own binding, which knows them.
    """
    if path.with_suffix(".json").exists():
        return compiler.binding_of(path)
    return compiler.Library(path, leaves_python)


def foreign(names: Sequence[str]) -> bool:
    """Return whether some of these targets of a graph are operators that libraries do not know how to call."""
    callable_names = {str(operator) for operator in kernels.shims()}
    return any("." in name and name.split(".")[0] not in ("aten", "prims") for name in {*names} - callable_names)


def compiled(mapped: torch.fx.GraphModule, arguments: tuple[Any, Tensor, Any, Any, list[Tensor]], alone: bool) -> str:
    """Compile a program, given the arguments of `loaded`; returns the path of its library.

    Raises:
        UserError: if the compiler fixes the number of lanes or of steps.
    """
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    carried, rows, constants, shared, others = arguments
    width, steps = (1 if alone else WIDTHS[0]), WIDTHS[1]
    mode = compiler.fake_tensors(shape_env=ShapeEnv(), static_shapes=False)

    def fake(leaf: Tensor, free: tuple[int, ...]) -> Tensor:
        """Return a fake tensor whose first sizes are symbolic."""
        example = torch.empty((*free, *leaf.shape[len(free) :]), dtype=leaf.dtype)
        sizes = [DimDynamic.DUCK if d < len(free) else DimDynamic.STATIC for d in range(leaf.dim())]
        tensor: Tensor = mode.from_tensor(example, symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes))
        return tensor

    states = [fake(leaf, (width,)) for leaf in leaves(carried)]
    rows = fake(rows, (width, steps))
    inputs = [*states, rows, fake(torch.zeros(width, dtype=torch.int64), (width,))]
    inputs += [fake(leaf, (width,)) for leaf in leaves(constants)]
    inputs += [fake(leaf, ()) for leaf in (*leaves(shared), *others)]

    def function(begin: Tensor, *flat: Tensor) -> Any:
        return loop(mapped, len(states), compiler.while_loop(), begin, list(flat))

    begin = fake(torch.zeros((), dtype=torch.int64), ())
    with mode:
        graph = make_fx(function, decomposition_table=compiler.decompositions())(begin, *inputs)
    path = compiler.compile_library(graph, (begin, *inputs), kernels.shims())
    free = rows.shape[1:2] if alone else rows.shape[:2]
    if any(not isinstance(size, torch.SymInt) or size.node.expr.is_number for size in free):
        raise UserError("the compiler takes the number of lanes or of steps for a constant")
    return path
