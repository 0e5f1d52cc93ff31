"""Trees of tensors (NamedTuples of states) with leading axes: taking, stacking and reshaping every leaf alike."""

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flstudy.execution.devices import numbers


def leaves(tree: Any) -> list[Tensor]:
    """The tensors of a tree, in a fixed order."""
    return pytree.tree_leaves(tree)


def take(tree: Any, index: Any) -> Any:
    """``leaf[index]`` of every leaf; a list of places is sent to their devices without waiting."""
    if not isinstance(index, list):
        return pytree.tree_map(lambda leaf: leaf[index], tree)
    places = {device: numbers(index, device) for device in {leaf.device for leaf in leaves(tree)}}
    return pytree.tree_map(lambda leaf: leaf[places[leaf.device]], tree)


def stack(trees: list[Any]) -> Any:
    """One tree whose leaves have a new leading axis."""
    return pytree.tree_map(lambda *parts: torch.stack(parts), *trees)


def join(trees: list[Any]) -> Any:
    """One tree whose leaves continue each other along the first axis."""
    return pytree.tree_map(lambda *parts: torch.cat(parts), *trees)


def lanes(tree: Any) -> Any:
    """Leaves [S, J, ...] as [S·J, ...]."""
    return pytree.tree_map(lambda leaf: leaf.flatten(0, 1), tree)


def grid(tree: Any, replicas: int) -> Any:
    """Leaves [S·J, ...] as [S, J, ...]."""
    return pytree.tree_map(lambda leaf: leaf.unflatten(0, (replicas, -1)), tree)


def refill(tree: Any, values: list[Tensor]) -> Any:
    """A tree of the same structure with other leaves."""
    return pytree.tree_unflatten(values, pytree.tree_structure(tree))


def nbytes(tree: Any, jobs: int) -> int:
    """Bytes of one job's share of a tree whose leaves hold ``jobs`` jobs."""
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves(tree)) // jobs
