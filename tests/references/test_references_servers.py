"""Self-checks of the server optimisers: torch.optim on the pseudo-gradient as twins, hand-computed steps."""

import numpy as np
import pytest
import torch

from . import fedadagrad, fedadam, fedavgm, fedyogi
from .cases import SIZE, steps


def torch_steps(optimiser, x, deltas):
    w = torch.tensor(x, requires_grad=True)
    optimiser = optimiser([w])
    for delta in deltas:
        w.grad = torch.tensor(-delta)  # the pseudo-gradient
        optimiser.step()
    return w.detach().numpy()


@pytest.mark.parametrize("nesterov", [False, True])
def test_fedavgm_is_torch_sgd_on_the_pseudo_gradient(rng, x0, nesterov):
    deltas = rng.normal(size=(6, SIZE))
    mine = steps(fedavgm, x0, deltas, {"server_lr": 0.3, "beta": 0.8, "nesterov": nesterov})["x"]
    twin = torch_steps(lambda w: torch.optim.SGD(w, lr=0.3, momentum=0.8, nesterov=nesterov), x0, deltas)
    np.testing.assert_allclose(mine, twin, rtol=1e-12)


def test_fedadagrad_is_torch_adagrad_on_the_pseudo_gradient(rng, x0):
    deltas, tau = rng.normal(size=(6, SIZE)), 0.1
    mine = steps(fedadagrad, x0, deltas, {"server_lr": 0.3, "tau": tau})["x"]
    twin = torch_steps(lambda w: torch.optim.Adagrad(w, lr=0.3, initial_accumulator_value=tau**2, eps=tau), x0, deltas)
    np.testing.assert_allclose(mine, twin, rtol=1e-12)


def test_corrected_fedadam_is_torch_adam_on_the_pseudo_gradient(rng, x0):
    deltas = rng.normal(size=(6, SIZE))
    hyper = {"server_lr": 0.3, "beta1": 0.8, "beta2": 0.95, "tau": 1e-14, "v_init": "zero", "bias_correction": True}
    twin = torch_steps(lambda w: torch.optim.Adam(w, lr=0.3, betas=(0.8, 0.95), eps=1e-14), x0, deltas)
    np.testing.assert_allclose(steps(fedadam, x0, deltas, hyper)["x"], twin, rtol=1e-9)


def test_fedadam_and_fedyogi_by_hand():
    hyper = {"beta1": 0.5, "beta2": 0.75, "tau": 0.5, "server_lr": 2.0}
    for method in (fedadam, fedyogi):  # v_init zero: both give v = (1 - b2) Delta^2 in round 1
        state = steps(method, np.zeros(1), [np.array([2.0])], {**hyper, "v_init": "zero"})
        assert (state["m"], state["v"], state["x"]) == (1.0, 1.0, 2.0 / 1.5)
    # v_0 = tau^2 = .25, Delta = .25: Adam .75*.25 + .25*.0625; Yogi .25 - .25*.0625 as .25 > .0625
    small = [np.array([0.25])]
    assert steps(fedadam, np.zeros(1), small, hyper)["v"] == 0.203125
    assert steps(fedyogi, np.zeros(1), small, hyper)["v"] == 0.234375
    grown = steps(fedyogi, np.zeros(1), [np.array([3.0])], hyper)  # .25 < 9: .25 + .25*9
    assert grown["v"] == 2.5


def test_fedyogi_keeps_v_non_negative(rng):
    state = fedyogi.init(np.zeros(50), {"v_init": "zero"})
    for size in (3.0, 0.01, 1.0, 0.0, 1e-5, 2.0) * 10:
        state = fedyogi.step(state, size * rng.normal(size=50), {"beta2": 0.01})
        assert (state["v"] >= 0).all()


def test_bias_correction_of_round_one():
    hyper = {"beta1": 0.9, "beta2": 0.99, "tau": 1e-15, "v_init": "zero", "server_lr": 0.25, "bias_correction": True}
    for method in (fedadam, fedyogi):  # sqrt(1-b2)/(1-b1) * (1-b1) D / (sqrt(1-b2)|D|) = sign(D)
        x = steps(method, np.zeros(2), [np.array([3.0, -1e-3])], hyper)["x"]
        np.testing.assert_allclose(x, [0.25, -0.25], rtol=1e-10)
