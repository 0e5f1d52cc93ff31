"""Attention where devices are mapped together: torch's fused kernel for CPUs has no rule for that."""

import lightning as L
import pytest
import torch
from torch import nn
from torch.nn import functional

from flstudy import FederatedRun, RunSettings
from flstudy.algorithms import FedAvg

from ..worlds import CLASSES, FEATURES, difference, drifting, state

FUSED = "aten::_scaled_dot_product_flash_attention_for_cpu"


class Attends(L.LightningModule):
    """Self-attention over the features as tokens of one number."""

    mean_over_examples = True

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(1, 6), nn.Linear(2 * FEATURES, CLASSES)

    def forward(self, x):
        q, k, v = self.into(x.unsqueeze(-1)).unsqueeze(1).chunk(3, -1)
        return self.out(functional.scaled_dot_product_attention(q, k, v).flatten(1))

    def training_step(self, batch, batch_idx):
        return functional.cross_entropy(self(batch[0]), batch[1])


class AttendsUndeclared(Attends):
    """The same, whose loss is whatever its step returns."""

    mean_over_examples = False


def operations_of(executor, module, compile=False):
    """The run after three rounds, and the names of torch's operations that these called."""
    federated = FederatedRun(module(), FedAvg(lr=0.1, gamma=0.05), settings(executor, compile))
    federated.start(drifting(), rounds=3, precision="64-true")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(3):
            federated.play_round(evaluated=False)
    return federated, {event.key for event in profile.key_averages()}


def settings(executor, compile):
    return RunSettings(seeds=[0, 44], initial="seeded", executor=executor, compile=compile)


@pytest.mark.parametrize("module", [Attends, AttendsUndeclared])
def test_mapped_devices_take_plain_operations_and_one_after_another_the_fused_kernel(module):
    mapped, in_lanes = operations_of("vectorized", module)
    alone, in_turn = operations_of("sequential", module)
    assert FUSED in in_turn
    assert FUSED not in in_lanes
    assert difference(state(mapped), state(alone)) <= 1e-12


@pytest.mark.slow
def test_compiled_steps_and_evaluations_agree_with_eager_ones():
    compiled, operations = operations_of("vectorized", Attends, compile=True)
    eager, _ = operations_of("vectorized", Attends)
    assert compiled.executor.programs.compiled
    assert FUSED not in operations
    assert difference(state(compiled), state(eager)) <= 1e-12
    assert compiled.evaluate()["valid/loss"] == pytest.approx(eager.evaluate()["valid/loss"], rel=1e-12)
