"""Nested containers of tensors as torch.func takes them apart; torch has no public name for its functions on them.

Tried with torch 2.11 and 2.15. Without these functions nothing of the engine can be imported.
"""

from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

__all__ = ["tree_flatten", "tree_leaves", "tree_map", "tree_unflatten"]
