"""Lower limit of a round's time: the matrix products of its local steps alone, on one core.

The products of one local step (forward, and both backward products of each layer but the first, whose input needs no
gradient) are recorded from a step of the workload's task, then timed with the shapes of all lanes of a round. They are
timed batched over the lanes and lane by lane, and for images in either order of the channels; the fastest way counts. A
real round also gathers examples, adds, and steps.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from flstudy.benchmark.plain import PRECISIONS, cross_entropy
from flstudy.benchmark.workloads import PARTICIPANTS, Workload

MATRICES = ("mm", "addmm", "bmm", "baddbmm")
CONVOLUTIONS = ("convolution", "convolution_backward")
AT_LEAST_S = 0.1  # seconds for which every way is timed
Product = tuple[str, tuple[Any, ...]]  # aten's name; of each argument the shape and strides, or the value


class Products(TorchDispatchMode):
    """Dispatch mode that counts the matrix products and convolutions of the code that runs in it."""

    def __init__(self) -> None:
        super().__init__()
        self.found = Counter[Product]()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in (*MATRICES, *CONVOLUTIONS):
            self.found[name, tuple(shape_of(argument) for argument in args)] += 1
        return func(*args, **(kwargs or {}))


def shape_of(argument: Any) -> Any:
    """Return hashable description of an argument, so that equal products are counted together."""
    if isinstance(argument, Tensor):
        return "tensor", tuple(argument.shape), tuple(argument.stride()), argument.dtype
    return tuple(argument) if isinstance(argument, list) else argument


def products(workload: Workload, precision: str) -> Counter[Product]:
    """Count the products of one local step of one client."""
    dtype, autocast = PRECISIONS[precision]
    population = workload.population().settle([0])
    rows = population.cohort(1).batches.rows[0, 0, 0]
    x, y = population.store.x[rows], population.store.y[rows]
    module, counting = (workload.plain or workload.task)().to(dtype), Products()
    mixed = torch.autocast("cpu", autocast) if autocast else contextlib.nullcontext()
    unfused = torch.backends.mkldnn.flags(enabled=False)  # oneDNN's recurrent layer is one call, its products unseen
    with mixed, unfused, counting:
        cross_entropy(module, x.to(dtype) if x.is_floating_point() else x, y).backward()
    return counting.found


def limit_seconds(workload: Workload, seeds: int, precision: str, device: torch.device) -> float:
    """Return the seconds that the products of one local step take for one of the round's lanes."""
    lanes, total = PARTICIPANTS * seeds, 0.0
    for product, count in products(workload, precision).items():
        together = 1 if product[0] in CONVOLUTIONS else lanes  # grouped convolutions gain nothing
        total += count * min(best_seconds(way, device) for way in ways(product, together, device)) / together
    return total


def ways(product: Product, lanes: int, device: torch.device) -> list[Callable[[], object]]:
    """Return the ways to compute a product for all lanes, or a convolution for one lane."""
    name, arguments = product
    if name in CONVOLUTIONS:
        call = getattr(torch.ops.aten, name).default
        inputs = [like(argument, device) for argument in arguments]
        last = [channels_last(argument) for argument in inputs]
        return [lambda: call(*inputs), lambda: call(*last)]
    left, right = [argument for argument in arguments if isinstance(argument, tuple) and argument[0] == "tensor"][-2:]
    a, b = ([like(side, device) for _ in range(lanes)] for side in (left, right))
    outs = [torch.matmul(p, q) for p, q in zip(a, b, strict=True)]
    x, y, out = lane_stack(a), lane_stack(b), torch.stack(outs)
    return [
        lambda: torch.matmul(x, y, out=out),
        lambda: [torch.matmul(p, q, out=o) for p, q, o in zip(a, b, outs, strict=True)],
    ]


def lane_stack(sides: list[Tensor]) -> Tensor:
    """Stack matrices [..., m, n] of L lanes to [L, ..., m, n] and keep their order in memory."""
    turned = sides[0].stride(-2) < sides[0].stride(-1)
    return torch.stack([side.mT for side in sides]).mT if turned else torch.stack(sides)


def like(argument: Any, device: torch.device) -> Any:
    """Return random argument of the described shape, strides and dtype; other arguments as they are."""
    if not isinstance(argument, tuple) or not argument or argument[0] != "tensor":
        return list(argument) if isinstance(argument, tuple) else argument
    _, shape, strides, dtype = argument
    return torch.randn(shape, device=device).to(dtype).as_strided(shape, dense(shape, strides))


def dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> list[int]:
    """Return the strides of the same order without gaps, since the described tensor may be a view or expanded."""
    compact, step = [0] * len(shape), 1
    for axis in sorted(range(len(shape)), key=lambda axis: (strides[axis], -axis)):
        compact[axis], step = step, step * shape[axis]
    return compact


def channels_last(argument: Any) -> Any:
    """Return the image tensor in channels-last order; any other argument as it is."""
    is_image = isinstance(argument, Tensor) and argument.ndim == 4
    return argument.contiguous(memory_format=torch.channels_last) if is_image else argument


def best_seconds(way: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of the fastest of the calls that fit into ``AT_LEAST_S``."""
    shortest, until = float("inf"), time.perf_counter() + AT_LEAST_S
    with torch.no_grad():
        while time.perf_counter() < until or shortest == float("inf"):
            start = time.perf_counter()
            way()
            if device.type == "cuda":
                torch.cuda.synchronize()
            shortest = min(shortest, time.perf_counter() - start)
    return shortest
