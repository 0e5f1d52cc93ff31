"""Bounds of the papers' theorems, evaluated on quadratics: what a run measures never lies above them."""

import math
from itertools import pairwise

import lightning as L
import pytest
import torch
from torch import nn

from flstudy import Population
from flstudy.algorithms import FedAvg, FedOmd
from flstudy.metrics.dynamic_regret import Regret
from flstudy.population import AlternatingGroups, InMemory, LabelSwap, RepeatedDrift

from ..worlds import measured, run
from .test_theory import ByLabel

# ---- Master-FL (Ganguly & Aggarwal 2024), Theorems 1 and 2 -----------------------------------------------------------

CENTRES = torch.tensor([[0.6, -0.2], [-0.4, 0.5]], dtype=torch.float64)  # c_y
SHARES = torch.tensor([0.75, 0.25], dtype=torch.float64)  # of the labels, with every device
B = 0.1  # φ'' = 1 / √(x² + b²) ≥ 1 for |x| ≤ √(1 - b²), where all models lie


class ByCentre(L.LightningModule):
    """f(w; y) = ½ ‖w - c_y‖²: the model that minimises a round's loss is the mean of its labels' centres."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))

    def example_losses(self, batch):
        return 0.5 * ((self.w - CENTRES.to(self.w.dtype)[batch[1]]) ** 2).sum(1)


def bregman(x, mirror):
    """B_φ(x, 0)."""
    if mirror == "euclidean":
        return 0.5 * float(x @ x)
    return float((x * torch.asinh(x / B) - torch.sqrt(x**2 + B**2) + B).sum())


@pytest.mark.parametrize("mirror", ["euclidean", "hypentropy"])
@pytest.mark.parametrize("decay", ["constant", "sqrt"])
@pytest.mark.parametrize("changes", [0, 1, 4])
def test_dynamic_regret_stays_below_its_bound(mirror, decay, changes):
    """Eq. (18), FedAvg's, and eq. (28), FedOMD's, for η = 1/√T and for η_t = 1/√t, in the unit ball. With changes most
    of the bound is 2 T Δ."""
    rounds = 40
    data = InMemory((torch.zeros(16, 1), torch.tensor([0, 0, 0, 1] * 4)))
    swaps = [2 + round(rounds * nth / (changes + 1)) for nth in range(1, changes + 1)]
    drift = RepeatedDrift(rounds=swaps, change=LabelSwap(pairs=[[0, 1]])) if changes else None
    population = Population(data, clients=2, participants=2, batch_size=8, epochs=1, drift=drift)
    algorithm = FedOmd(lr=1.0 if decay == "sqrt" else rounds**-0.5, mirror=mirror, b=B, decay=decay)
    module = run(algorithm, rounds, population=population, task=ByCentre(), regret=Regret(tolerance=1e-8))
    regret = float(measured(module, "regret/dynamic")[-1, 0, 0])

    swapped = sum(rounds + 1 - first if nth % 2 == 0 else first - 1 - rounds for nth, first in enumerate(swaps))
    optima = torch.stack([SHARES @ CENTRES, SHARES.flip(0) @ CENTRES])
    static = ((rounds - swapped) * optima[0] + swapped * optima[1]) / rounds  # eq. (21)
    mu = 1 + float(optima.norm(dim=1).max())  # of the gradients
    apart = float((CENTRES[0] - CENTRES[1]).norm() + (CENTRES.square().sum(1).diff() / 2).abs())
    drifted = changes * float(SHARES[0] - SHARES[1]) * apart  # Δ, eq. (9) and (10)
    assert all(float(server.x.norm()) < 1 for server in module.servers)
    assert measured(module, "world/drift")[-1, 0, 0] <= drifted + 1e-9
    bound = math.sqrt(rounds) * (bregman(static, mirror) + mu**2 / 2) + 2 * rounds * drifted
    assert -1e-6 <= regret <= bound


# ---- device sessions (Chang et al. 2025), Theorem 1 ------------------------------------------------------------------

SESSION, SESSIONS, CURVATURE = 3, 4, 0.8
CENTRE = torch.tensor([0.0, 1.0, 2.0, -1.0, -3.0, 1.0], dtype=torch.float64)  # of each device; two groups of three


class Parabola(L.LightningModule):
    """f(w; a) = ½ h (w - a)², h = 0.8."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def example_losses(self, batch):
        return 0.5 * CURVATURE * ((self.w - batch[0]) ** 2).sum(1)


def largest_rate(steps: int, share: float) -> float:
    """The condition of Theorem 1 on η, with ζ₁ = 1 and Λ = ``share``; its second part as in eq. (14)."""
    first = (0.5 - (1 / steps - 1) ** 2) / CURVATURE
    crossed = (1 + share) * steps * (steps - 1)
    return min(first, math.sqrt(share) / (2 * CURVATURE * math.sqrt(crossed)) if crossed else math.inf)


@pytest.mark.parametrize("steps", [1, 2, 3])  # with four or more, as the paper's five, the condition leaves no rate
def test_the_mean_gradient_of_sessions_stays_below_its_bound(steps):
    """Eq. (9) with whole batches, whose terms (b) and (c) are 0; ζ₂ = h² times the largest variance of centres."""
    share, device = 0.5, torch.arange(6).repeat_interleave(4)
    data = InMemory((CENTRE[device][:, None].float(), device))
    groups = AlternatingGroups(rounds=SESSION)
    population = Population(
        data, clients=6, participants=3, partition=ByLabel(), availability=groups, batch_size=4, steps=steps
    )
    eta, rounds = 0.9 * largest_rate(steps, share), SESSION * SESSIONS
    module = run(FedAvg(lr=eta), rounds, population=population, task=Parabola())
    w = [0.0, *(float(server.x) for server in module.servers)]
    gradients, terms = [], []
    for t, (now, after) in enumerate(pairwise(w)):
        present = CENTRE.view(2, 3)[t // SESSION % 2]
        losses = [0.5 * CURVATURE * float((model - present).square().mean()) for model in (now, after)]
        spread = (CURVATURE * float(present.max() - present.min()) / 2) ** 2
        gradients.append((CURVATURE * (now - float(present.mean()))) ** 2)
        descent = 2 * (losses[0] - losses[1]) / (eta * (1 - share))
        terms.append(descent + 8 * CURVATURE**2 * eta**2 * steps * (steps - 1) * spread / (1 - share))
    assert max(gradients) > 0.1
    assert sum(gradients) <= sum(terms)
