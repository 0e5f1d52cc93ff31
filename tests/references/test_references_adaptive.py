"""Self-checks of the adaptive devices' transcriptions: SM3 and delays by hand, torch.optim as twins, reductions."""

import numpy as np
import pytest
import torch

from . import directjointadaptivity, jointadaptivity, mime, mimelite
from .adaptive import Optimizer, cover
from .cases import CLASSES, FEATURES, SIZE

SHAPES = [(CLASSES, FEATURES), (CLASSES,)]
SQUARE = [[0, 1], [2, 3], [0, 2], [1, 3]]  # rows and columns of a 2 x 2 matrix


def test_covers_are_rows_columns_and_single_entries():
    assert cover([(2, 2), (2,), ()]) == [*SQUARE, [4], [5], [6]]
    assert sorted(j for s in cover([(2, 3, 2)]) for j in s) == sorted([*range(12)] * 3)


def test_sm3_by_hand():
    """g = (1, 2; 0, 3), then (2, 0; 0, 1)."""
    first, second, x = np.array([1.0, 2.0, 0.0, 3.0]), np.array([2.0, 0.0, 0.0, 1.0]), np.zeros(4)
    version_i = Optimizer(1.0, SQUARE, eps=1.0, version="I")
    version_i.step(first, x)  # mu = rows (4, 9), columns (1, 9)
    assert version_i.v.tolist() == [1.0, 4.0, 1.0, 9.0]
    version_i.step(second, x)  # mu = rows (8, 10), columns (5, 10)
    assert version_i.v.tolist() == [5.0, 8.0, 5.0, 10.0]
    version_ii = Optimizer(1.0, SQUARE, eps=1.0, version="II")
    assert version_ii.step(first, x).tolist() == [0.5, 2 / 3, 0.0, 0.75]  # v = g^2
    version_ii.step(second, x)  # mu = rows (4, 9), columns (1, 9): v = (1 + 4, 4; 1, 9 + 1)
    assert version_ii.v.tolist() == [5.0, 4.0, 1.0, 10.0]
    assert version_ii.mu == [5.0, 10.0, 5.0, 10.0]


def test_a_skipped_step_keeps_v_and_mu():
    late = Optimizer(1.0, SQUARE, version="II", delay=2)
    for g in ([1.0, 2.0, 0.0, 3.0], [100.0] * 4, [2.0, 0.0, 0.0, 1.0]):
        late.step(np.array(g), np.zeros(4))
    assert late.v.tolist() == [5.0, 4.0, 1.0, 10.0]


@pytest.mark.parametrize("adam", [False, True])
def test_exact_optimizers_are_torch_s(rng, x0, adam):
    grads = rng.normal(size=(9, SIZE))
    w = torch.tensor(x0, requires_grad=True)
    if adam:
        mine = Optimizer(0.1, beta1=0.8, beta2=0.95, eps=1e-6, bias_correction=True, weight_decay=0.1)
        twin = torch.optim.Adam([w], lr=0.1, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)
    else:
        mine, twin = Optimizer(0.1, eps=1e-6), torch.optim.Adagrad([w], lr=0.1, eps=1e-6)
    x = x0
    for g in grads:
        x = x - mine.step(g, x)
        w.grad = torch.tensor(g)
        twin.step()
    np.testing.assert_allclose(x, w.detach().numpy(), rtol=1e-10)


def test_the_exponent_of_the_delayed_correction():
    """ADMU: a constant gradient has v-hat = g^2 at every step, whatever z, and Adam's step is eta."""
    for z in (1, 2, 5):
        late = Optimizer(0.5, beta1=0.9, beta2=0.7, eps=1e-12, bias_correction=True, delay=z)
        for _ in range(11):
            np.testing.assert_allclose(late.step(np.array([3.0, -2.0]), np.zeros(2)), [0.5, -0.5], rtol=1e-9)


def test_rounds_do_not_change_the_state_they_are_given(x0, cohort):
    for method in (jointadaptivity, directjointadaptivity, mimelite, mime):
        hyper = {"classes": CLASSES, "lr": 0.1}
        state = method.round(method.init(x0, hyper), cohort, hyper)
        copies = {name: np.copy(value) for name, value in state.items() if isinstance(value, np.ndarray)}
        after = method.round(state, cohort, hyper)
        assert all(np.array_equal(state[name], value) for name, value in copies.items())
        assert not np.array_equal(after["x"], state["x"])
