"""Self-checks of the references: the problem's gradient, identities between methods, state handling."""

import numpy as np
import pytest

from . import fedadagrad, fedadam, fedavg, fedavgm, fedprox, fedyogi, flash, local, problem, scaffold
from .cases import CLASSES, LOCAL, SIZE, data, play


def test_gradient_is_the_derivative_of_the_loss(rng, x0):
    x, y = data(rng, 6)
    g, loss = problem.mean_gradient(x0, x, y, CLASSES)
    assert loss == pytest.approx(problem.example_losses(x0, x, y, CLASSES).mean(), rel=1e-15)
    h = 1e-6 * np.eye(SIZE)
    up = [problem.example_losses(x0 + e, x, y, CLASSES).mean() for e in h]
    down = [problem.example_losses(x0 - e, x, y, CLASSES).mean() for e in h]
    np.testing.assert_allclose(g, (np.array(up) - down) / 2e-6, atol=1e-9)


def test_loss_at_zero_is_log_classes_and_large_logits_stay_finite(rng):
    x, y = data(rng, 6)
    np.testing.assert_allclose(problem.example_losses(np.zeros(SIZE), x, y, CLASSES), np.log(CLASSES))
    assert np.isfinite(problem.example_losses(np.full(SIZE, 1e4) * np.arange(SIZE), x, y, CLASSES)).all()


def test_fedavg_is_the_weighted_mean_of_the_local_models(x0, cohort):
    fits = [local.train(x0, device, local.settings(LOCAL)) for device in cohort]
    models = np.stack([fit.y for fit in fits])
    assert [fit.steps for fit in fits] == [4, 6, 6]
    by_size = play(fedavg, x0, cohort, {}, rounds=1)["x"]
    np.testing.assert_allclose(by_size, np.average(models, axis=0, weights=[5, 12, 9]), rtol=1e-13)
    uniform = play(fedavg, x0, cohort, {"weighting": "uniform", "server_lr": 0.5}, rounds=1)["x"]
    np.testing.assert_allclose(uniform, (x0 + models.mean(axis=0)) / 2, rtol=1e-12)


def test_fedprox_pulls_towards_the_server_model(x0, cohort):
    moved = [np.linalg.norm(play(fedprox, x0, cohort, {"mu": mu}, rounds=1)["x"] - x0) for mu in (0.0, 0.5, 2.0)]
    assert moved[0] > moved[1] > moved[2] > 0
    one_step = [{**device, "batches": [device["batches"][0][:1]]} for device in cohort]  # y = x: no pull yet
    np.testing.assert_array_equal(
        play(fedprox, x0, one_step, {"mu": 2.0}, rounds=1)["x"], play(fedavg, x0, one_step, {}, rounds=1)["x"]
    )


def test_unknown_setting_is_refused(x0, cohort):
    with pytest.raises(KeyError, match="sever_lr"):
        fedavg.round(fedavg.init(x0), cohort, {**LOCAL, "sever_lr": 1.0})


def test_rounds_do_not_change_the_state_they_are_given(x0, cohort):
    for method in (fedavg, fedavgm, fedprox, fedadagrad, fedadam, fedyogi, flash, scaffold):
        hyper = {**LOCAL, **({"population": 3} if method is scaffold else {})}
        state = method.round(method.init(x0, hyper), cohort, hyper)
        copies = {k: np.copy(v) for k, v in state.items() if isinstance(v, np.ndarray)}
        after = method.round(state, cohort, hyper)
        assert after["t"] == 2
        assert all(np.array_equal(state[k], v) for k, v in copies.items())
        assert not np.array_equal(after["x"], state["x"])
