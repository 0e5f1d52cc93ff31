"""Trees of tensors (NamedTuples of states) with leading axes: taking, stacking and reshaping every leaf alike.

Torch's own trees are for any kind of node, and take as long as a small model's arithmetic.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from flstudy.execution.devices import numbers


def collect(tree: Any, collected: list[Any]) -> None:
    """Append the leaves of tuples, lists and dicts, in order."""
    if isinstance(tree, tuple | list):
        for part in tree:
            collect(part, collected)
    elif type(tree) is dict:
        for part in tree.values():
            collect(part, collected)
    else:
        collected.append(tree)


def names_of(tree: Any, name: str = "") -> list[str]:
    """Return the names of the leaves: fields with the state's name, and within them places in tuples and keys of
    dicts."""
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        parts = {f"{type(tree).__name__}.{field}": part for field, part in zip(tree._fields, tree, strict=True)}
    elif isinstance(tree, tuple | list):
        parts = {f"{name}[{place}]" if name else str(place): part for place, part in enumerate(tree)}
    elif type(tree) is dict:
        parts = {f"{name}[{key!r}]": part for key, part in tree.items()}
    else:
        return [name]
    return [leaf for path, part in parts.items() for leaf in names_of(part, path)]


def over_leaves(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Return a tree of what a function makes of each leaf, and of those in the same places of other trees."""
    if isinstance(tree, tuple | list):
        make = getattr(tree, "_make", type(tree))
        return make([over_leaves(function, *parts) for parts in zip(tree, *others, strict=True)])
    if type(tree) is dict:
        return {name: over_leaves(function, part, *(other[name] for other in others)) for name, part in tree.items()}
    return function(tree, *others)


def leaves(tree: Any) -> list[Tensor]:
    """Return the tensors [...] of a tree, in a fixed order."""
    collected = list[Tensor]()
    collect(tree, collected)
    return collected


def take(tree: Any, index: Any) -> Any:
    """Return ``leaf[index]`` of every leaf; a list of places is sent to their devices without waiting."""
    if not isinstance(index, list):
        return over_leaves(lambda leaf: leaf[index], tree)
    places = {device: numbers(index, device) for device in {leaf.device for leaf in leaves(tree)}}
    return over_leaves(lambda leaf: leaf[places[leaf.device]], tree)


def stack(trees: list[Any]) -> Any:
    """Return one tree of K trees with leaves [...]: its leaves are [K, ...]."""
    return over_leaves(lambda *parts: torch.stack(parts), *trees)


def join(trees: list[Any]) -> Any:
    """Return one tree of trees with leaves [K_i, ...]: its leaves are [Σ K_i, ...], one after another."""
    return over_leaves(lambda *parts: torch.cat(parts), *trees)


def lanes(tree: Any) -> Any:
    """Return leaves [S, J, ...] as [S·J, ...]."""
    return over_leaves(lambda leaf: leaf.flatten(0, 1), tree)


def grid(tree: Any, replicas: int) -> Any:
    """Return leaves [S·J, ...] as [S, J, ...]."""
    return over_leaves(lambda leaf: leaf.unflatten(0, (replicas, -1)), tree)


def replaced(tree: Any, places: Tensor, parts: Any) -> Any:
    """Return a tree [L, ...] with other leaves [K, ...] at the places [K]; of the type that holds both."""

    def leaf_replaced(leaf: Tensor, part: Tensor) -> Tensor:
        dtype = torch.promote_types(leaf.dtype, part.dtype)
        return leaf.to(dtype).index_copy(0, places, part.to(dtype))

    return over_leaves(leaf_replaced, tree, parts)


def refill(tree: Any, values: list[Tensor]) -> Any:
    """Return a tree of the same structure with other leaves [...], in the order of `leaves`."""
    left: Iterator[Tensor] = iter(values)
    return over_leaves(lambda _: next(left), tree)


def nbytes(tree: Any, jobs: int) -> int:
    """Return the bytes of one job's share of a tree whose leaves hold ``jobs`` jobs."""
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves(tree)) // jobs
