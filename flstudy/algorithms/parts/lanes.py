"""Functions of tensors that cannot be mapped, such as steps that change tensors in place."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from flstudy import pytree


def lane_by_lane(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return ``function(*arguments)``, trees of tensors; ``torch.vmap`` calls the function once for each lane."""
    leaves, spec = pytree.tree_flatten(arguments)
    forms = []

    def of_leaves(*leaves: Tensor) -> tuple[Tensor, ...]:
        returned, form = pytree.tree_flatten(function(*pytree.tree_unflatten(leaves, spec)))
        forms.append(form)
        return tuple(returned)

    returned = LaneByLane.apply(of_leaves, *leaves)
    return pytree.tree_unflatten(returned, forms[-1])


class LaneByLane(torch.autograd.Function):
    """Function of tensors that returns a tuple of new ones, without gradients."""

    @staticmethod
    def forward(function: Callable[..., tuple[Tensor, ...]], *leaves: Tensor) -> tuple[Tensor, ...]:
        return function(*leaves)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        return

    @staticmethod
    def vmap(info: Any, in_dims: Any, function: Callable[..., tuple[Tensor, ...]], *leaves: Tensor) -> Any:
        dims = in_dims[1:]
        lanes = [
            LaneByLane.apply(
                function,
                *(leaf if dim is None else leaf.select(dim, lane) for leaf, dim in zip(leaves, dims, strict=True)),
            )
            for lane in range(info.batch_size)
        ]
        stacked = tuple(map(torch.stack, zip(*lanes, strict=True)))
        return stacked, (0,) * len(stacked)
