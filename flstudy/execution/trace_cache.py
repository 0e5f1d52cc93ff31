"""Trace cache of pure functions of tensors: their operations are recorded once and then repeated without Python.

A map over replicas, a call of a module and the trees around both take longer than the arithmetic of a small model.
The operations that ran before are the ones that are repeated, so the numbers are the same, bit for bit.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flstudy.execution.trees import collect
from flstudy.tasks import compiler

PATIENCE = 16  # calls before recording pays: it takes about as long as what that many calls lose
MOST_BYTES = 2**26  # of the arguments
ATEN = torch.ops.aten
VIEWS = {ATEN.view.default, ATEN._unsafe_view.default, ATEN.permute.default, ATEN.expand.default}
KEPT = 64  # recordings; where shapes change in every round most are never made


@dataclass
class CachedTrace:
    """Trace of one function for tensors of one kind."""

    of: Any  # held, since its id is a part of the key
    calls: int = 0
    graph: Callable[..., Sequence[Tensor]] | None = None
    rebuild: Callable[[Iterator[Any]], Any] = next  # makes its result of the graph's


class TraceCache:
    """Trace cache that calls functions, and records those that are called often.

    A function must be pure: it depends on nothing but the tensors of its arguments, what ``of`` holds and its name. One
    that cannot be recorded, or whose recording gives another result, is called as it is for good.
    """

    def __init__(self) -> None:
        self._traces: OrderedDict[Hashable, CachedTrace] = OrderedDict()

    def __call__(self, name: str, of: Any, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return ``function(*arguments)``, without gradients.

        Args:
            name: of the function.
            of: the object whose fields it reads, an algorithm say.
            function: may be another object in every call.
            arguments: trees of tensors.
        """
        leaves = list[Any]()
        collect(arguments, leaves)
        with torch.no_grad():
            if not all(type(leaf) is Tensor or leaf is None for leaf in leaves):
                return function(*arguments)
            kind = [leaf if leaf is None else (leaf.shape, leaf.stride(), leaf.dtype, leaf.device) for leaf in leaves]
            key = (name, id(of), torch.is_inference_mode_enabled(), *kind)
            trace = self._traces.get(key)
            if trace is None:
                trace = self._traces[key] = CachedTrace(of)
                if len(self._traces) > KEPT:
                    self._traces.popitem(last=False)
            self._traces.move_to_end(key)
            if trace.graph is not None:
                return trace.rebuild(iter(trace.graph(*leaves)))
            trace.calls += 1
            if trace.calls == PATIENCE and worthwhile([leaf for leaf in leaves if leaf is not None]):
                return record(trace, function, arguments, leaves)
            return function(*arguments)


def worthwhile(tensors: Sequence[Tensor]) -> bool:
    """Return whether a trace of a function of these tensors, of any shape, is valid and pays.

    It is valid where nothing but the tensors decides which operations run. It pays where they hold at most `MOST_BYTES`
    bytes, so that the Python around the operations is felt.
    """
    decided = compiler.dispatching() or any(map(torch.is_autocast_enabled, kinds_of(tensors)))
    return not decided and sum(tensor.numel() * tensor.element_size() for tensor in tensors) <= MOST_BYTES


def kinds_of(tensors: Sequence[Tensor]) -> set[str]:
    """Return the kinds of devices on which tensors [...] lie, such as ``cpu``."""
    return {tensor.device.type for tensor in tensors}


def record(trace: CachedTrace, function: Callable[..., Any], arguments: tuple[Any, ...], leaves: list[Any]) -> Any:
    """Return the function's result; its operations are kept if they give the same, bit for bit."""
    from torch.fx.experimental.proxy_tensor import make_fx

    again = rebuilder(arguments)

    def flat(*tensors: Any) -> list[Any]:
        result, results = function(*again(iter(tensors))), list[Any]()
        trace.rebuild = rebuilder(result)
        collect(result, results)
        return results

    result, expected = function(*arguments), list[Any]()
    collect(result, expected)
    try:
        with torch.random.fork_rng(devices=[]):  # should it draw, it draws no more often for being recorded
            graph = make_fx(flat)(*leaves)
            leave_out(graph)
            if all(map(same_bits, expected, graph(*leaves))):
                trace.graph = graph.forward
    except Exception:  # torch's tracer has many; the function itself has just run
        pass
    return result


def leave_out(graph: torch.fx.GraphModule) -> None:
    """Take out of a recording what nobody uses, and views that lie as their tensors do: maps leave many behind."""
    for node in list(graph.graph.nodes):
        if node.target in VIEWS:
            seen, source = node.meta["val"], node.args[0].meta["val"]
            if (seen.shape, seen.stride()) == (source.shape, source.stride()):
                node.replace_all_uses_with(node.args[0])
    graph.graph.eliminate_dead_code(compiler.acts)
    graph.recompile()


def rebuilder(tree: Any) -> Callable[[Iterator[Any]], Any]:
    """Return a function that makes a tree like this one of leaves in order."""
    if isinstance(tree, tuple | list):
        parts = [rebuilder(part) for part in tree]
        make = getattr(tree, "_make", type(tree))
        return lambda leaves: make([part(leaves) for part in parts])
    if type(tree) is dict:
        named = {name: rebuilder(part) for name, part in tree.items()}
        return lambda leaves: {name: part(leaves) for name, part in named.items()}
    return next


def same_bits(a: Any, b: Any) -> bool:
    """Return whether two results are the same, NaN for NaN, and lie alike."""
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return a is b
    if (a.shape, a.stride(), a.dtype, a.device) != (b.shape, b.stride(), b.dtype, b.device):
        return False
    return torch.equal(a.nan_to_num(), b.nan_to_num()) and torch.equal(a.isnan(), b.isnan())
