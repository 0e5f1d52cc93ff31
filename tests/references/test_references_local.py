"""Self-checks of the local work: torch.optim.SGD as a twin, early stopping by hand."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from . import local, problem
from .cases import CLASSES, FEATURES, LOCAL, data, make_device


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
@pytest.mark.parametrize("clip_norm", [None, 0.2])
@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_sgd_is_torch_sgd_over_20_steps(rng, x0, momentum, weight_decay, clip_norm, mu):
    batches = [[data(rng, 4) for _ in range(5)] for _ in range(4)]
    hyper = {**LOCAL, "momentum": momentum, "weight_decay": weight_decay, "clip_norm": clip_norm}
    fit = local.train(x0, {"batches": batches}, local.settings(hyper), lambda g, y: g + mu * (y - x0))

    net = torch.nn.Linear(FEATURES, CLASSES).double()
    torch.nn.utils.vector_to_parameters(torch.tensor(x0), net.parameters())
    start = [p.detach().clone() for p in net.parameters()]
    optimiser = torch.optim.SGD(net.parameters(), lr=0.3, momentum=momentum, weight_decay=weight_decay)
    losses = []
    for x, y in (pair for epoch in batches for pair in epoch):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(torch.tensor(x)), torch.tensor(y))
        loss.backward()
        if clip_norm is not None:
            norm = torch.nn.utils.clip_grad_norm_(net.parameters(), clip_norm)
            assert norm > clip_norm  # the limit must bite, or the test says nothing
        for p, s in zip(net.parameters(), start, strict=True):
            p.grad += mu * (p.detach() - s)
        optimiser.step()
        losses.append(loss.item())
    twin = torch.nn.utils.parameters_to_vector(net.parameters()).detach().numpy()
    np.testing.assert_allclose(fit.y, twin, rtol=1e-11, atol=1e-12)
    assert (fit.steps, fit.epochs) == (20, 4)
    assert fit.loss == pytest.approx(np.mean(losses), rel=1e-12)


def stopped_after(valid, gamma, first_epoch="inf", epochs=6, examples=1, valid_loss="mean"):
    """Epochs trained when the validation losses, in the order they are asked for, are `valid`."""
    answers = iter(valid)
    stop = local.EarlyStop(gamma, lambda y: np.full(examples, next(answers)), first_epoch, valid_loss)
    fit = local.sgd_fit(np.zeros(1), [[(0, 0)]] * epochs, lambda y, a, b: (np.ones(1), 0.0), lr=1.0, stop=stop)
    assert fit.y == -fit.epochs  # one unit step per epoch, and no roll-back
    assert fit.steps == fit.epochs
    return fit.epochs, len(list(answers))


@pytest.mark.parametrize(
    ("valid", "gamma", "first_epoch", "epochs"),
    [
        ([9.0, 9.0], 0.5, "inf", 2),  # l_0 = inf: never one epoch only
        ([1.0, 0.94, 0.91], 0.1, "inf", 3),  # .06 >= .1/2, then .03 < .1/3
        ([1.0, 0.75, 0.7], 0.5, "inf", 3),  # .25 >= .5/2: equality goes on
        ([1.0, 1.5], 0.0, "inf", 2),  # a rising loss stops
        ([1.0, 1.0, 1.0, 1.0, 1.0, 1.0], 0.0, "inf", 6),  # no loss of ground is enough at gamma = 0
        ([1.0, 0.95], 0.1, "eval_received", 1),  # .05 < .1/1: the first epoch is tested
        ([1.0, 0.5, 0.25, 0.125], 0.5, "eval_received", 3),  # .5 = .5/1, .25 = .5/2, .125 < .5/3
        ([np.nan], 0.1, "inf", 1),  # diverged
    ],
)
def test_early_stopping_by_hand(valid, gamma, first_epoch, epochs):
    assert stopped_after(valid, gamma, first_epoch) == (epochs, 0)


def test_early_stopping_of_a_sum_grows_with_the_validation_set():
    losses = [1.0, 0.9, 0.85, 0.84]  # improvements .1, .05, .01 against .3/2, .3/3, .3/4
    assert stopped_after(losses, 0.3, epochs=4, examples=10)[0] == 2
    assert stopped_after(losses, 0.3, epochs=4, examples=10, valid_loss="sum")[0] == 4


def test_early_stopping_on_the_real_problem_agrees_with_its_own_losses(rng, x0):
    device = make_device(rng, 0, n=20, epochs=8)
    h = local.settings({**LOCAL, "gamma": 0.2})
    fit = local.train(x0, device, h)
    assert 2 <= fit.epochs < 8
    whole = [local.train(x0, {**device, "batches": device["batches"][:e]}, local.settings(LOCAL)) for e in range(1, 9)]
    valid = [problem.example_losses(f.y, *device["valid"], CLASSES).mean() for f in whole]
    gains = [a - b for a, b in pairwise(valid)]  # gains[0] is l_1 - l_2, tested after epoch 2
    assert all(gain >= 0.2 / e for e, gain in enumerate(gains[: fit.epochs - 2], start=2))
    assert gains[fit.epochs - 2] < 0.2 / fit.epochs
    np.testing.assert_array_equal(fit.y, whole[fit.epochs - 1].y)
