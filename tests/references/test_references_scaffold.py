"""Self-checks of SCAFFOLD."""

import numpy as np
import pytest

from . import fedavg, problem, scaffold
from .cases import CLASSES, LOCAL, play


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_round_one_is_uniform_fedavg_and_c_is_the_mean_variate(x0, cohort, option):
    hyper = {"option": option, "population": len(cohort), "server_lr": 0.7}
    first = play(scaffold, x0, cohort, hyper, rounds=1)
    uniform = play(fedavg, x0, cohort, {"weighting": "uniform", "server_lr": 0.7}, rounds=1)
    np.testing.assert_allclose(first["x"], uniform["x"], rtol=1e-13)
    third = play(scaffold, x0, cohort, hyper)
    for state in (first, third):
        np.testing.assert_allclose(state["c"], np.mean(list(state["c_i"].values()), axis=0), rtol=1e-10)
    assert not np.allclose(third["x"], play(fedavg, x0, cohort, {"weighting": "uniform", "server_lr": 0.7})["x"])


def test_scaffold_option_two_is_the_mean_gradient_along_the_path(x0, cohort):
    hyper = {**LOCAL, "population": 3}
    state = scaffold.round(scaffold.init(x0), cohort, hyper)
    after = scaffold.round(state, cohort, hyper)
    device, y, seen = cohort[0], state["x"], []
    for x, labels in (pair for epoch in device["batches"] for pair in epoch):
        seen.append(problem.mean_gradient(y, x, labels, CLASSES)[0])
        y = y - 0.3 * (seen[-1] + state["c"] - state["c_i"][0])
    assert len(seen) == after["stats"][0].steps == 4
    np.testing.assert_allclose(after["c_i"][0], np.mean(seen, axis=0), rtol=1e-9, atol=1e-12)


def test_scaffold_with_exact_variates_sends_every_device_along_the_mean_gradient(x0, cohort):
    full = [{**device, "batches": [[device["train"]]]} for device in cohort]
    hyper = {**LOCAL, "option": "I", "population": 3}
    state = {**scaffold.round(scaffold.init(x0), full, hyper), "x": x0}  # c_i = grad f_i(x0) exactly
    ends = [fit.y for fit in scaffold.round(state, full, hyper)["stats"]]
    for end in ends:
        np.testing.assert_allclose(end, x0 - 0.3 * state["c"], rtol=1e-12)
