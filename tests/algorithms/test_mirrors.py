"""Mirror maps: inverses of each other, also where numbers are extreme; and the ball of EG±."""

import pytest
import torch

from flstudy.algorithms import FedOmd
from flstudy.algorithms.fedomd import eg, euclidean, hypentropy, pnorm

from ..worlds import difference, logistic, run

MAPS = {"euclidean": euclidean(), "hypentropy": hypentropy(0.2), "p-norm": pnorm(1.2), "eg": eg(30.0)}


@pytest.mark.parametrize("name", MAPS)
def test_there_and_back(name):
    phi, draw = MAPS[name], torch.Generator().manual_seed(0)
    for size in (1e-6, 1.0, 2.5):
        x = size * torch.randn(7, generator=draw, dtype=torch.float64)
        theta = torch.randn(7, generator=draw, dtype=torch.float64)
        assert difference(phi.primal(phi.dual(x)), x) <= 1e-14  # of numbers up to 30, in EG±
        assert difference(phi.dual(phi.primal(theta)), theta) <= 1e-11
    batch = torch.randn(3, 7, generator=draw, dtype=torch.float64)
    mapped = torch.vmap(phi.dual)(batch)
    assert difference(mapped, torch.stack([phi.dual(x) for x in batch])) <= 1e-13


@pytest.mark.parametrize("name", MAPS)
def test_zero_and_the_edge_are_finite(name):
    phi = MAPS[name]
    assert phi.primal(phi.dual(torch.zeros(5))).tolist() == [0.0] * 5
    assert phi.primal(phi.dual(torch.tensor([40.0, 0, 0, 0]))).isfinite().all()  # outside of EG±'s ball
    assert phi.primal(torch.full((5,), 1e-30)).isfinite().all()


def test_eg_starts_half_way_to_the_edge_and_stays_inside():
    module = run(FedOmd(lr=2.0, mirror="eg", radius=3.0), 4, task=logistic())
    initial = run(FedOmd(lr=1e-300, mirror="euclidean"), 1, task=logistic()).server.x
    start = FedOmd(mirror="eg", radius=3.0).server_init(initial[0], module.task_function.layout).x
    assert difference(start, initial[0] * 1.5 / initial.abs().sum()) <= 1e-15
    norms = [float(server.x.abs().sum()) for server in module.servers]
    assert 1.5 < max(norms) < 3.0
    inside = FedOmd(mirror="eg", radius=1e3).server_init(initial[0], module.task_function.layout).x
    assert torch.equal(inside, initial[0])


def test_hypentropy_with_a_large_b_is_fedavg():
    by_hypentropy, other = (
        run(FedOmd(lr=0.1 / b, mirror=mirror, b=b), 3, task=logistic())
        for b, mirror in ((1e4, "hypentropy"), (1.0, "euclidean"))
    )
    assert difference(by_hypentropy.server.x, other.server.x) <= 1e-6
