"""Clipping and noise against theory."""

import math
from typing import NamedTuple

import pytest
import torch

from flstudy.privacy import AdaptiveClip, clipped, draws, moved, noisy_mean, split


class Upload(NamedTuple):
    delta: torch.Tensor
    a: torch.Tensor


def uploads(*, jobs=6, n=40):
    generator = torch.Generator().manual_seed(1)
    scale = torch.logspace(-2, 2, jobs, dtype=torch.float64)
    delta = torch.randn(2, jobs, n, generator=generator, dtype=torch.float64) * scale[:, None] / math.sqrt(n)
    return Upload(delta, torch.randn(2, jobs, generator=generator, dtype=torch.float64) * scale)


def norms(tree, jobs_per_device=1):
    both = torch.cat([tree.delta, tree.a[..., None]], -1)
    return both.unflatten(1, (-1, jobs_per_device)).flatten(2).norm(dim=-1)


@pytest.mark.parametrize("jobs_per_device", [1, 2])
def test_no_device_is_longer_than_the_bound_and_directions_stay(jobs_per_device):
    bound, sent = torch.tensor([0.5, 2.0], dtype=torch.float64), uploads()
    shorter, within = clipped(sent, bound, jobs_per_device)
    before, after = norms(sent, jobs_per_device), norms(shorter, jobs_per_device)
    assert torch.equal(within, before <= bound[:, None])
    assert 0 < within.sum() < within.numel()
    assert (after <= bound[:, None] * (1 + 1e-15)).all()
    torch.testing.assert_close(after, torch.minimum(before, bound[:, None]), rtol=1e-14, atol=0)
    ratio = (after / before).repeat_interleave(jobs_per_device, 1)
    torch.testing.assert_close(shorter.delta, sent.delta * ratio[..., None], rtol=1e-12, atol=0)
    torch.testing.assert_close(shorter.a, sent.a * ratio, rtol=1e-12, atol=0)


def test_who_is_within_the_bound_stays_as_it_is_to_the_last_bit():
    sent = uploads()
    shorter, within = clipped(sent, torch.full((2,), 1e30, dtype=torch.float64))
    assert within.all()
    assert torch.equal(shorter.delta, sent.delta)
    assert torch.equal(shorter.a, sent.a)


def test_an_upload_that_is_not_finite_says_nothing_and_empty_ones_are_left_alone():
    sent = uploads()
    sent.delta[0, 1, 3], sent.delta[1, 2, 0] = math.nan, math.inf
    shorter, within = clipped(sent, torch.ones(2, dtype=torch.float64))
    assert not within[0, 1]
    assert not within[1, 2]
    assert not shorter.delta[0, 1].any()
    assert not shorter.delta[1, 2].any()
    assert shorter.delta.isfinite().all()
    assert clipped((), torch.ones(2)).within.tolist() == [[True], [True]]
    with pytest.raises(ValueError, match=r"uploads must be real numbers to be clipped, got torch\.int64"):
        clipped((torch.ones(2, 3, dtype=torch.int64),), torch.ones(2))


def test_the_noise_of_the_mean_has_the_deviation_of_theory():
    """N(0, (σ c)²) / |S| per coordinate of the mean, in 400 000 draws: mean and deviation to four standard errors."""
    n, jobs = 200_000, 8
    zeros = (torch.zeros(2, jobs, n),)
    normal, _ = draws(zeros, [7, 8])
    std = 1.3 * torch.tensor([0.5, 2.0])
    (mean,) = noisy_mean(zeros, normal, std, jobs)
    expected = std / jobs
    assert mean.shape == (2, n)
    assert (mean.mean(1).abs() < 4 * expected / math.sqrt(n)).all()
    assert ((mean.std(1) / expected - 1).abs() < 4 / math.sqrt(2 * n)).all()
    assert abs(float(torch.corrcoef(mean)[0, 1])) < 4 / math.sqrt(n)
    kurtosis = (mean / expected[:, None]).pow(4).mean(1)
    assert ((kurtosis - 3).abs() < 4 * math.sqrt(96 / n)).all()  # the variance of z⁴ is 96


def test_noise_belongs_to_a_seed_and_leaves_the_mean_where_it_is():
    sent = uploads()
    both, more = draws(sent, [3, 4])
    alone, alone_more = draws(Upload(sent.delta[:1], sent.a[:1]), [4])
    assert torch.equal(both.delta[1], alone.delta[0])
    assert torch.equal(both.a[1], alone.a[0])
    assert more[1] == alone_more[0] != more[0]
    silent = noisy_mean(sent, both, torch.zeros(2, dtype=torch.float64), 6)
    torch.testing.assert_close(silent.delta, sent.delta.mean(1))
    torch.testing.assert_close(silent.a, sent.a.mean(1))
    loud = noisy_mean(sent, both, torch.tensor([3.0, 0.0], dtype=torch.float64), 12)
    torch.testing.assert_close(loud.delta[0], (sent.delta[0].sum(0) + 3 * both.delta[0]) / 12)


def test_what_uploads_and_their_count_spend_is_the_whole():
    """Andrew et al. 2021, Theorem 1: z = (z_Δ⁻² + (2 σ_b)⁻²)^(-1/2)."""
    upload_noise = split(1.2, 5.0)
    assert (upload_noise**-2 + (2 * 5.0) ** -2) ** -0.5 == pytest.approx(1.2, rel=1e-12)
    assert upload_noise > 1.2
    assert split(1.2, math.inf) == 1.2
    assert split(0.0, 0.0) == 0
    with pytest.raises(ValueError, match=r"count_noise must be > noise / 2 = 0\.6,.*got 0\.6"):
        split(1.2, 0.6)


def test_the_bound_moves_as_andrew_et_al_print():
    """Algorithm 1: b̃ = (Σ b_i + N(0, σ_b²)) / m; C ← C exp(-η_C (b̃ - γ))."""
    bound = torch.tensor([0.5, 2.0], dtype=torch.float64)
    within = torch.tensor([[True, False, True, True], [False, False, False, True]])
    noise = torch.tensor([0.3, -0.7], dtype=torch.float64)
    new_bound = moved(bound, within, AdaptiveClip(quantile=0.6, lr=0.25), noise, 4)
    expected = [0.5 * math.exp(-0.25 * (3.3 / 4 - 0.6)), 2 * math.exp(-0.25 * (0.3 / 4 - 0.6))]
    assert new_bound.tolist() == pytest.approx(expected, rel=1e-12)
