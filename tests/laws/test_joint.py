"""Laws of FedAda²'s family: what the arms reduce to, what travels, what devices keep."""

import lightning as L
import pytest
import torch
from torch import nn

from flstudy.algorithms import (
    DirectJointAdaptivity,
    FedAda2,
    FedAdaGrad,
    FedAdam,
    FedAvg,
    JointAdaptivity,
    device_memory,
)
from flstudy.execution.trees import nbytes
from flstudy.tasks import Cnn, TaskFunction

from ..worlds import CLASSES, FEATURES, difference, drifting, logistic, measured, run

LOCAL = {"lr": 0.05, "weight_decay": 0.02}


class Shifted(L.LightningModule):
    """Only vectors are trained: fixed logits, scaled and shifted."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("fixed", torch.linspace(-1, 1, FEATURES * CLASSES).reshape(FEATURES, CLASSES).double())
        self.scale, self.shift = nn.Parameter(torch.ones(CLASSES)), nn.Parameter(torch.zeros(CLASSES))

    def forward(self, x):
        return x @ self.fixed.to(x.dtype) * self.scale + self.shift

    def example_losses(self, batch):
        return nn.functional.cross_entropy(self(batch[0]), batch[1], reduction="none")


def end(algorithm, rounds=3, **more):
    return run(algorithm, rounds, population=drifting(), **more)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["adagrad", "adam"])
@pytest.mark.parametrize("delay", [1, 2])
def test_without_a_matrix_sm3_is_exact(kind, delay):
    for more in ({"sm3": "I"}, {"sm3": "II", "client_bias_correction": True}):
        ours = end(FedAda2(**LOCAL, client_optimizer=f"sm3_{kind}", delay=delay, **more), task=Shifted())
        exact = end(JointAdaptivity(**LOCAL, client_optimizer=kind, delay=delay, **more), task=Shifted())
        assert difference(ours.server, exact.server) <= 1e-14
    matrix = end(FedAda2(**LOCAL, client_optimizer=f"sm3_{kind}", delay=delay))
    exact = end(JointAdaptivity(**LOCAL, client_optimizer=kind, delay=delay))
    assert difference(matrix.server.x, exact.server.x) > 1e-3


@pytest.mark.parametrize("optimizer", ["adagrad", "adam", "sm3_adagrad", "sm3_adam"])
def test_direct_is_joint_while_the_server_s_v_is_zero(optimizer):
    settings = {**LOCAL, "client_optimizer": optimizer, "v_init": "zero"}
    for rounds, same in ((1, True), (2, False)):
        direct, joint = (end(cls(**settings), rounds) for cls in (DirectJointAdaptivity, JointAdaptivity))
        assert (difference(direct.server, joint.server) <= 1e-14) == same
    both = (end(cls(**{**settings, "v_init": "tau_sq"}), 1) for cls in (DirectJointAdaptivity, JointAdaptivity))
    assert difference(*(module.server.x for module in both)) > 1e-9  # v = τ² is sent


@pytest.mark.parametrize("unit", ["step", "epoch"])
def test_a_delay_of_one_is_none(unit):
    plain, delayed = (end(FedAda2(**LOCAL, **more)) for more in ({}, {"delay": 1, "delay_unit": unit}))
    assert difference(plain.server, delayed.server) == 0
    assert difference(plain.server.x, end(FedAda2(**LOCAL, delay=2, delay_unit=unit)).server.x) > 1e-4


def test_a_huge_eps_leaves_the_adaptive_server_over_sgd():
    """Devices step by η g / (√v + ε) → (η / ε) g."""
    big = {"lr": 0.1 * 1e12, "eps": 1e12}
    ours = end(JointAdaptivity(**big, beta1=0.0))
    assert difference(ours.server, end(FedAdaGrad(lr=0.1)).server) <= 1e-9
    ours = end(FedAda2(**big, server_optimizer="adam", beta2=0.99, bias_correction=True))
    assert difference(ours.server, end(FedAdam(lr=0.1, bias_correction=True)).server) <= 1e-9


def test_the_warm_up_scales_the_first_steps():
    def moved(steps, **more):
        module = run(JointAdaptivity(lr=1e-6, eps=1.0, **more), 1, population=drifting(steps=steps))
        return module.last.fit.uploads.delta

    whole, half = moved(1), moved(1, warmup=2)
    assert difference(half, whole / 2) <= 1e-16
    assert difference(moved(2, warmup=2) - half, moved(2) - whole) <= 1e-12  # the second step is whole


def test_epochs_are_counted_by_devices_of_different_lengths():
    """A device of one batch per epoch updates in every second step, one of several in every second epoch."""
    by_epochs, by_steps = (
        run(FedAda2(**LOCAL, delay=2, delay_unit=unit), 1, population=drifting(batch_size=64, epochs=6))
        for unit in ("epoch", "step")
    )
    assert difference(by_epochs.server, by_steps.server) == 0  # every epoch is a step
    by_epochs, by_steps = (end(FedAda2(**LOCAL, delay=2, delay_unit=unit), 1) for unit in ("epoch", "step"))
    assert difference(by_epochs.server.x, by_steps.server.x) > 1e-4


@pytest.mark.parametrize("cls", [JointAdaptivity, FedAda2, DirectJointAdaptivity])
def test_counting_epochs_sends_one_number_more(cls):
    plain, counting = (end(cls(lr=0.1, **more), 1) for more in ({}, {"delay": 2, "delay_unit": "epoch"}))
    more = measured(counting, "traffic/down_bytes") - measured(plain, "traffic/down_bytes")
    assert more.flatten().tolist() == [4 * 8.0]  # four jobs


def test_devices_with_sm3_keep_far_less_than_the_model():
    layout = TaskFunction(Cnn((1, 28, 28), 62)).layout
    model = 4 * layout.n
    assert device_memory(FedAvg(), layout) == 0
    assert device_memory(JointAdaptivity(), layout) == model
    assert device_memory(JointAdaptivity(client_optimizer="adam"), layout) == 2 * model
    assert device_memory(DirectJointAdaptivity(), layout) == model
    lengths = sum(sum(shape) if len(shape) > 1 else layout.sizes[k] for k, shape in enumerate(layout.shapes))
    assert device_memory(FedAda2(), layout) == 4 * lengths < 0.02 * model
    whole = model + device_memory(FedAda2(), layout)  # Table 2's "Memory": d of the model and the optimizer's
    assert whole < 0.51 * (model + device_memory(JointAdaptivity(), layout))
    assert device_memory(FedAda2(), layout, torch.float64) == 2 * device_memory(FedAda2(), layout)


@pytest.mark.parametrize("algorithm", [FedAda2(lr=0.1), JointAdaptivity(lr=0.1), FedAda2(lr=0.1, sm3="I", delay=2)])
def test_memory_is_that_of_a_device_in_a_run(algorithm):
    module = run(algorithm, 1, population=drifting(), task=logistic())
    layout, x = module.task_function.layout, module.server.x[0]
    local = algorithm.local_start(type(algorithm).broadcast(algorithm, module.server, None)._replace(x=x), (), layout)
    assert device_memory(algorithm, layout, torch.float64) == nbytes(local.rule, 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FedAda2(momentum=0.9), r"FedAda2: momentum must be 0, got 0.9.*client_beta1"),
        (lambda: DirectJointAdaptivity(client_bias_correction=True), "client_bias_correction must be false"),
        (lambda: JointAdaptivity(delay=0), r"JointAdaptivity: delay must lie in \[1, 1e6\], got 0"),
        (lambda: JointAdaptivity(warmup=-1), r"warmup must lie in \[0, 1e6\], got -1"),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
