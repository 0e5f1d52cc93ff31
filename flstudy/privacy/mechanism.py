"""Clipping and noise for all replicas at once. Uploads are trees with leaves [S, J, ...]."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flstudy import pytree
from flstudy.privacy.privacy import AdaptiveClip
from flstudy.user_error import UserError


class Clipped(NamedTuple):
    """Uploads of which none is longer than the bound."""

    uploads: Any  # leaves [S, J, ...]
    within: Tensor  # [S, D] whether a device's upload was so already


def clipped(uploads: Any, bound: Tensor, jobs_per_device: int = 1) -> Clipped:
    """Clip the uploads u of every device to u min(1, c / ‖u‖), all leaves and jobs of a device being one vector.

    Args:
        uploads: leaves [S, J, ...] of real numbers.
        bound: c [S].
        jobs_per_device: jobs of a device, which are neighbours: D = J / jobs_per_device.

    Raises:
        UserError: if an upload holds numbers that are not real.
    """
    leaves, spec = pytree.tree_flatten(uploads)
    if not leaves:
        return Clipped(uploads, torch.ones(len(bound), 1, dtype=torch.bool))
    if not all(leaf.is_floating_point() for leaf in leaves):
        kinds = sorted({str(leaf.dtype) for leaf in leaves if not leaf.is_floating_point()})
        raise UserError(f"privacy: uploads must be real numbers to be clipped, got {', '.join(kinds)}")
    flat = [leaf.reshape(*leaf.shape[:2], -1) for leaf in leaves]
    squares = [torch.linalg.vector_norm(leaf, dim=-1, dtype=torch.float64) ** 2 for leaf in flat]
    norm = torch.stack(squares).sum(0).unflatten(1, (-1, jobs_per_device)).sum(-1).sqrt()
    bound = bound.to(norm)[:, None]
    factor = torch.where(norm.isfinite(), (bound / norm).clamp(max=1), 0).repeat_interleave(jobs_per_device, 1)
    factor = factor[..., None]
    scaled = [torch.where(factor > 0, leaf * factor.to(leaf.dtype), 0) for leaf in flat]
    shorter = [part.view(leaf.shape) for part, leaf in zip(scaled, leaves, strict=True)]
    return Clipped(pytree.tree_unflatten(shorter, spec), norm <= bound)


def draws(uploads: Any, seeds: Sequence[int]) -> tuple[Any, Tensor]:
    """Return the standard normal numbers: a tree with leaves [S, ...] for leaves [S, J, ...], and one more for each
    replica [S]. A replica's depend on its seed only, whatever device the run is on."""
    leaves, spec = pytree.tree_flatten(uploads)
    lines, more = [], []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        lines.append([torch.randn(leaf.shape[2:], generator=generator, dtype=leaf.dtype) for leaf in leaves])
        more.append(torch.randn((), generator=generator, dtype=torch.float64))
    stacked = [torch.stack(parts).to(leaf.device) for parts, leaf in zip(zip(*lines, strict=True), leaves, strict=True)]
    return pytree.tree_unflatten(stacked, spec), torch.stack(more)


def noisy_mean(uploads: Any, normal: Any, std: Tensor, count: float) -> Any:
    """Return noisy mean (Σ_j u_j + std z) / count with leaves [S, ...].

    Args:
        uploads: u, leaves [S, J, ...], clipped.
        normal: z, leaves [S, ...].
        std: [S] of the noise in the sum.
        count: the devices by which the mean divides: |S|, under Poisson sampling q N.
    """

    def mean(leaf: Tensor, z: Tensor) -> Tensor:
        return (leaf.sum(1) + std.to(z).view(-1, *[1] * (z.dim() - 1)) * z) / count

    return pytree.tree_map(mean, uploads, normal)


def split(noise: float, count_noise: float) -> float:
    """Return the noise multiplier z_Δ of the uploads that leaves σ in all when the count of those within the bound has
    noise σ_b: (σ⁻² - (2 σ_b)⁻²)^(-1/2) (Andrew et al. 2021, Theorem 1); σ itself where nothing is counted, σ_b = ∞.

    Raises:
        UserError: if the count alone takes the whole budget.
    """
    if noise == 0 or count_noise == math.inf:
        return noise
    if not 2 * count_noise > noise:
        raise UserError(
            f"privacy: adaptive_clip.count_noise must be > noise / 2 = {noise / 2:g}, or the count of uploads within "
            f"the bound spends the whole budget, got {count_noise:g}"
        )
    return float((noise**-2 - (2 * count_noise) ** -2) ** -0.5)


def moved(bound: Tensor, within: Tensor, settings: AdaptiveClip, noise: Tensor, count: float) -> Tensor:
    """Return the clipping bound c exp(-η_C (b̃ - γ)) [S] of the next round (Andrew et al. 2021, Algorithm 1). The count
    is of b - 1/2, so that a device moves it by 1/2 at most.

    Args:
        bound: c [S].
        within: b [S, D].
        settings: γ and η_C.
        noise: [S], added to the count.
        count: as for the mean.
    """
    share = ((within.to(bound) - 0.5).sum(1) + noise.to(bound)) / count + 0.5
    return bound * torch.exp(-settings.lr * (share - settings.quantile))
