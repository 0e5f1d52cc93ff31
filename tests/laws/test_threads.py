"""Fits side by side: the same numbers, whatever the number of threads."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flstudy.algorithms import Flash, Scaffold
from flstudy.execution import Threads, select
from flstudy.execution.trees import leaves
from flstudy.tasks import Cnn, Mlp

from ..worlds import CLASSES, FEATURES, drifting, examples, run, state


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [Scaffold(lr=0.1, clip_norm=1.0), Flash(lr=0.1)], ids=["Scaffold", "Flash"])
def test_three_threads_are_one_after_another_bit_for_bit(algorithm, monkeypatch):
    executors = []

    def three(context):
        executors.append(Threads(context, workers=3))
        return executors[-1]

    monkeypatch.setattr(select, "Threads", three)
    torch.set_num_threads(1)  # as each of the three has: a convolution's gradients are summed by thread
    image = {"seeds": (0, 44), "initial": "seeded", "precision": "32-true"}

    def go(executor):
        small = Cnn((1, 6, 6), CLASSES, channels=(3, 4), dense=8)
        return run(algorithm, task=small, population=drifting(dataset=floats((1, 6, 6))), executor=executor, **image)

    side_by_side, in_turn = go("threads"), go("sequential")
    assert executors[0].workers == 3
    pairs = list(zip(leaves(state(side_by_side)), leaves(state(in_turn)), strict=True))
    assert all(torch.equal(tensor, other) for tensor, other in pairs)


def floats(shape):
    """Images of single precision."""
    dataset = examples(shape)
    dataset.examples = dataset.examples._replace(x=dataset.examples.x.float())
    return dataset


class Forgetful(Mlp):
    """Dropout by a layer."""

    def __init__(self, p=0.5):
        super().__init__((FEATURES,), CLASSES, hidden=5)
        self.network.append(nn.Dropout(p))


class ForgetfulByFunction(Mlp):
    """Dropout by a function."""

    def forward(self, x):
        return F.dropout(super().forward(x), 0.5, training=self.training)


@pytest.mark.parametrize("task", [Forgetful, ForgetfulByFunction])
def test_dropout_is_refused(task):
    with pytest.raises(ValueError, match=r"threads draw random numbers, .* in no fixed order; use sequential or vec"):
        run(Flash(lr=0.1), 1, task=task() if task is Forgetful else task((FEATURES,), CLASSES), executor="threads")


def test_dropout_of_nothing_is_taken():
    run(Flash(lr=0.1), 1, task=Forgetful(0.0), executor="threads")


def test_an_unknown_executor_is_named():
    with pytest.raises(ValueError, match="one of vectorized, threads, sequential, trainer, auto, got 'gpu'"):
        run(Flash(lr=0.1), 1, executor="gpu")
