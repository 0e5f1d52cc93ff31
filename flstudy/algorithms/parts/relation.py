"""GLFC's loss (Dong et al. 2022, sec. 4.1 and 4.2): old classes are compensated, and their relations distilled.

L = ½ L_GC + ½ L_RD;   L_GC = mean_u w_u BCE(z_u, 1_u);   L_RD = mean_u BCE(z_u, q_u)
w_u = g_u / mean g over the batch's old classes, or its new ones;  g_u = |σ(z_u)_label - 1|, a constant
1_u is one where the label is;  q_u = 1_u, but the teacher's σ(z'_u) in the old classes
"""

from torch import Tensor, where
from torch.nn.functional import binary_cross_entropy_with_logits as bce

from flstudy.algorithms.parts.signatures import Batch

SMALL = 1e-12  # of an empty group


def compensated(batch: Batch, z: Tensor, one: Tensor, old: Tensor) -> Tensor:
    """L_GC [] of logits z [B, C] and labels 1_u [B, C], given the old classes [C]."""
    group = one @ old  # [B] 1 for an example of an old class
    g = ((z.sigmoid() - 1).abs() * one).sum(-1).detach()
    mean_old, mean_new = (batch.mean(g * part) / batch.mean(part).clamp(min=SMALL) for part in (group, 1 - group))
    w = g / (group * mean_old + (1 - group) * mean_new).clamp(min=SMALL)
    return batch.mean(w * bce(z, one, reduction="none").mean(-1))


def distilled(batch: Batch, z: Tensor, taught: Tensor, one: Tensor, old: Tensor) -> Tensor:
    """L_RD [], given the teacher's logits z' [B, C] too."""
    q = where(old > 0, taught.sigmoid(), one)
    return batch.mean(bce(z, q, reduction="none").mean(-1))
