"""What an optimizer keeps on a device while it trains, beside the model."""

import torch
from torch.utils import _pytree as pytree

from flstudy.algorithms.parts.algorithm import Algorithm
from flstudy.algorithms.parts.layout import Layout
from flstudy.algorithms.parts.signatures import Rule


def rule_memory(rule: Rule, layout: Layout, dtype: torch.dtype = torch.float32) -> int:
    """Bytes of a rule's state for a model of this layout; nothing is allocated."""
    state = rule.init(torch.empty(layout.n, dtype=dtype, device="meta"), layout)
    return sum(leaf.numel() * leaf.element_size() for leaf in pytree.tree_leaves(state))


def device_memory(algorithm: Algorithm, layout: Layout, dtype: torch.dtype = torch.float32) -> int:
    """Bytes of the state of a method's device optimizer: 0 for plain SGD, 4 n for AdaGrad in single precision, the
    lengths of all axes for SM3 (the column "Memory" of FedAda², Table 2, less the d of the model itself). Where devices
    differ, the most that one of them keeps."""
    return max(rule_memory(rule, layout, dtype) for rule in algorithm.device_rules())
