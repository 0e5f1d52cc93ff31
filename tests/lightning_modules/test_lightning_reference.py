"""Lightning is the reference: a round of FedAvg is the weighted average of `lightning.Trainer.fit` on each device."""

import copy
import warnings

import pytest
import torch
from torch.utils.data import DataLoader

from flstudy import Coordinator, Population, RunSettings
from flstudy.algorithms import FedAvg
from flstudy.tasks.module_steps import as_pair
from tests.tiers import in_tiers

from ..worlds import Ragged, trainer
from . import modules as m
from . import zoo as z
from .test_modules import SIZES, world

LR = 0.1
CLOSE = 1e-10  # relative to the largest parameter, in double precision


class Epochs(torch.utils.data.IterableDataset):
    """Batches of a device, those of the epoch in which a Trainer is."""

    def __init__(self, epochs, trainer):
        self.epochs, self.trainer = epochs, trainer

    def __len__(self):
        return len(self.epochs[0])

    def __iter__(self):
        return iter(self.epochs[self.trainer.current_epoch])


def batches_by_epoch(population, device):
    """The batches that a device reads in the first round, by epoch, in the form of the data set's rows."""
    plan, store, epochs = population.cohort(1).batches, population.store, [[]]
    form = population.dataset.form or as_pair
    for step in range(int(plan.steps[0, device])):
        rows = plan.rows[0, device, step]
        epochs[-1].append(form(store.x[rows[rows >= 0]].double(), store.y[rows[rows >= 0]]))
        if plan.epoch[0, device, step] > 0:
            epochs.append([])
    return [batches for batches in epochs if batches]


def by_lightning(task, population):
    """State of the average of models, by training examples, that Lightning trains on each device from the task, by its
    own optimizers where devices are to step by these."""
    states, examples = [], []
    for device in range(len(SIZES)):
        module = copy.deepcopy(task)
        if type(task) not in OWN_OPTIMIZERS:
            module.configure_optimizers = lambda module=module: torch.optim.SGD(
                [p for p in module.parameters() if p.requires_grad], lr=LR
            )
        epochs = batches_by_epoch(population, device)
        alone = trainer(len(epochs), limit_val_batches=0)
        loader = DataLoader(Epochs(epochs, alone), batch_size=None)
        torch.manual_seed(1)  # of layers that hooks make
        alone.fit(module, loader)
        states.append(module.state_dict())
        examples.append(len(population.device_data.held(0, device, "train", 1)))
    return {name: sum(n * state[name].double() for n, state in zip(examples, states, strict=True)) / sum(examples)
            for name in states[0]}  # fmt: skip


def by_flstudy(task, population, executor):
    """State of the task after a round of FedAvg."""
    local_optimizer = "module" if type(task) in OWN_OPTIMIZERS and task.automatic_optimization else "rule"
    settings = RunSettings(executor=executor, initial="given", compile=False, local_optimizer=local_optimizer)
    torch.manual_seed(1)
    coordinator = Coordinator(copy.deepcopy(task), FedAvg(lr=LR), settings)
    trainer(1, limit_val_batches=0).fit(coordinator, datamodule=population)
    return coordinator.task.state_dict()


def largest_difference(state, expected):
    """The largest difference of a tensor's values from what is expected, relative to 1 + the largest of these."""
    differences = []
    for name, value in expected.items():
        value = value if state[name].is_floating_point() else value.round()  # a number of batches
        differences.append(float((state[name] - value).abs().max()) / (1 + float(value.abs().max())))
    return max(differences)


def settled(epochs, kind="classes"):
    """The ragged federation, its examples divided."""
    arguments = {"clients": len(SIZES), "participants": len(SIZES), "partition": Ragged(SIZES), "batch_size": 4}
    return Population(world(kind).dataset, epochs=epochs, **arguments).settle((0,))


ZOO = [
    m.LitAutoEncoder, m.LitClassifier, m.LitFrozen, m.LitTied, m.LitDictReturn, m.LitNested, m.LitItem,
    z.LitClassWeights, z.LitIgnoreIndex, z.LitSum, z.LitContrastive, z.LitTriplet, z.LitMixup, z.LitAuc, z.LitFocal,
    z.LitCentred, z.LitDecorrelated, z.LitMultiTask, z.LitBare, z.LitDataDependent,
    z.LitAnnealed, z.LitWarmUp, z.LitEveryOther, z.LitPassesOn, z.LitAsksTrainer, z.LitMetricInLoss,
    z.LitAssignedBuffer, z.LitBufferInPlace, z.LitAssignedAfter, z.LitCounts, z.LitSetUp,
    z.LitMaskedGradient, z.LitClips, z.LitBeforeStep, z.LitBackward, z.LitOptimizerStep, z.LitFreezesAtStart,
    z.LitBoundWeights, z.LitBoundAtEnd, z.LitStartsElsewhere, z.LitAverages, z.LitSkips,
    z.LitTransforms, z.LitTransformsAlone, z.LitTagger, z.LitForecaster, z.LitPacked,
    z.LitTransformer, z.LitUNet, z.LitVae, z.LitFixedGan, z.LitWeightNorm, z.LitSpectralNorm, z.LitGroupNorm,
    m.LitBatchNorm, z.LitCheckpointing, z.LitLora, z.LitFreezesBackbone, z.LitTwoOptimizers, z.LitSteppedRate,
    z.LitFallingRate, m.LitScheduler, m.LitDictBatch, m.LitTorchMetrics, z.LitNoDropout, z.LitSameMask,
    z.LitNestedBatch, z.LitTuples, z.LitBatchStatistics,
]  # fmt: skip


OWN_OPTIMIZERS = {z.LitFixedGan, z.LitTwoOptimizers, z.LitSteppedRate, z.LitFallingRate, m.LitScheduler}
ONE_EPOCH = {z.LitAnnealed, z.LitVae}
"""Modules that read the epoch: Lightning counts local ones, and a federation rounds."""
EXECUTORS = ("vectorized", "threads", "sequential", "trainer")
ROWS = {m.LitDictBatch: "rows", z.LitNestedBatch: "nested", z.LitTuples: "tuples"}
"""The data sets whose rows are no pairs, by the modules that take them."""
TAKEN_BY = {z.LitSameMask: ("sequential", "trainer")}
"""Modules whose random numbers only these can know."""


@pytest.mark.parametrize("module", in_tiers(ZOO, ZOO[::3]))
def test_a_round_is_the_average_of_lightning_s_fits(module):
    torch.manual_seed(0)
    kind = ROWS.get(module, "classes")
    task, population = module().double(), settled(1 if module in ONE_EPOCH else 2, kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = by_lightning(task, population)
        for executor in TAKEN_BY.get(module, EXECUTORS):
            state = by_flstudy(task, population, executor)
            assert {*state} == {*expected}
            assert largest_difference(state, expected) <= CLOSE, executor


@pytest.mark.parametrize("module", [z.LitClassWeights, z.LitIgnoreIndex, z.LitSum, z.LitAuc])
def test_no_few_examples_decide_what_a_loss_is(module):
    """The first and last examples, and those between them at equal distances, are of one class."""
    torch.manual_seed(0)
    task, x = module().double(), torch.randn(sum(SIZES), m.FEATURES)
    y = (torch.arange(len(x)) % 5 == 2).long()
    x[:, 0] = 4.0 * y - 1
    y[[round(k * (len(y) - 1) / 5) for k in range(6)]] = 0
    population = Population((x, y), clients=4, participants=4, partition=Ragged(SIZES), batch_size=4).settle((0,))
    expected = by_lightning(task, population)
    state = by_flstudy(task, population, "vectorized")
    assert all(float((state[name] - value).abs().max()) <= CLOSE for name, value in expected.items())
