"""A penalty on a model's size: part of what is trained on, and of nothing that is measured."""

import math
from functools import partial

import lightning as L
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flstudy.algorithms import Batch, FedAvg, Mime
from flstudy.execution.context import TrainingContext
from flstudy.execution.local_objective import gradient, validation_loss
from flstudy.execution.model_evaluator import ModelEvaluator
from flstudy.tasks import Cnn, Logistic, Mlp, Penalty, TaskFunction

from ..worlds import CLASSES, FEATURES, difference, drifting, flat_parameters, measured, run, state, world

MAKE = {
    "Logistic": lambda **penalties: Logistic((FEATURES,), CLASSES, **penalties),
    "Mlp": lambda **penalties: Mlp((FEATURES,), CLASSES, hidden=5, **penalties),
    "Cnn": lambda **penalties: Cnn((1, 6, 6), CLASSES, channels=(2, 3), dense=4, **penalties),
}
L1, L2 = 0.03, 0.2


def some(name):
    torch.manual_seed(0)
    shape = (1, 6, 6) if name == "Cnn" else (FEATURES,)
    return Batch(torch.randn(9, *shape, dtype=torch.float64), torch.randint(0, CLASSES, (9,)))


@pytest.mark.parametrize("name", MAKE)
def test_loss_and_gradient_hold_the_penalty_and_measurements_do_not(name):
    batch = some(name)
    plain, both = (TaskFunction(MAKE[name](**penalties).double()) for penalties in ({}, {"l1": L1, "l2": L2}))
    x = torch.randn(plain.layout.n, dtype=torch.float64)
    x[::4] = 0
    penalty = L1 * x.abs().sum() + L2 / 2 * x @ x
    for y in (x, plain.layout.split(x)):
        assert difference(both(y, batch) - plain(y, batch), penalty) <= 1e-12
        assert torch.equal(both.fit(y, batch), plain(y, batch))
        assert torch.equal(both.example_losses(y, batch), plain.example_losses(y, batch))
        assert torch.equal(both.example_correct(y, batch), plain.example_correct(y, batch))
    slopes = [gradient(FedAvg(lr=0.1), task_function, None, None)(x, batch)[0] for task_function in (plain, both)]
    assert difference(slopes[1], slopes[0] + L1 * x.sign() + L2 * x) <= 1e-12  # 0 is a subgradient at 0
    for rule in ("mean", "sum"):
        stopping = [
            validation_loss(FedAvg(lr=0.1, valid_loss=rule), task_function, x, batch) for task_function in (plain, both)
        ]
        assert torch.equal(*stopping)
    task = MAKE[name](l1=L1, l2=L2).double()
    at = flat_parameters(task, both.layout)
    assert torch.allclose(task.training_step((batch.x, batch.y), 0), both(at, batch), atol=1e-12)


def test_nothing_is_computed_where_nothing_is_asked():
    calls = []

    class Watched(Penalty):
        def __call__(self, parameters):
            calls.append(1)
            return super().__call__(parameters)

    for penalties, count in (({}, 0), ({"l1": 0.1}, 1)):
        task = Logistic((FEATURES,), CLASSES)
        task.regulariser = Watched(**penalties)
        TaskFunction(task)(torch.randn(52), Batch(torch.randn(3, FEATURES), torch.tensor([0, 1, 2])))
        assert len(calls) == count
    assert not Penalty()
    unpenalised = run(FedAvg(lr=0.1), 2, task=Logistic((FEATURES,), CLASSES), initial="seeded")
    other = run(FedAvg(lr=0.1), 2, task=Logistic((FEATURES,), CLASSES, l1=0.0, l2=0.0), initial="seeded")
    assert difference(state(unpenalised), state(other)) == 0


def test_l2_is_weight_decay():
    """λ/2 ‖x‖² adds λ x to a step's gradient, which is what SGD's weight decay does."""
    task, plain = (Logistic((FEATURES,), CLASSES, l2=value) for value in (0.05, 0.0))
    penalised = run(FedAvg(lr=0.1), population=drifting(), task=task, initial="seeded")
    decayed = run(FedAvg(lr=0.1, weight_decay=0.05), population=drifting(), task=plain, initial="seeded")
    assert difference(penalised.server.x, decayed.server.x) <= 1e-12
    assert (measured(penalised, "train/loss") > measured(decayed, "train/loss")).all()


def test_evaluation_reports_losses_without_the_penalty():
    module = run(FedAvg(lr=0.1), 2, population=world(), task=MAKE["Logistic"](l2=0.5), initial="seeded", evaluate=True)
    population, evaluator = (
        module.population,
        ModelEvaluator(TrainingContext(TaskFunction(MAKE["Logistic"]()), module.population.store)),
    )
    scores = evaluator.population(
        module.server.x, population.device_data.evaluation_index("valid", 2), population.concepts(2)
    )
    assert module.record.metrics["valid/loss"][0] == pytest.approx(float(scores.loss.mean()), abs=1e-6)


def test_gradients_over_all_examples_hold_it():
    """Mime's server asks for the gradient of the local objective."""
    run(Mime(lr=0.1), 1, population=world(), task=MAKE["Logistic"](l1=0.1), initial="seeded")
    store, rows = world().settle((0,)).store, torch.arange(7)[None, None]
    task, x = MAKE["Logistic"](l1=L1, l2=L2).double(), torch.randn(1, 52, dtype=torch.float64)
    (of_survey,) = ModelEvaluator(TrainingContext(TaskFunction(task), store)).gradients(
        x, rows, torch.zeros(1, 1, dtype=torch.int64)
    )
    batch = Batch(store.x[:7], store.y[:7])
    (slope, _) = gradient(FedAvg(lr=0.1), TaskFunction(task), None, None)(x[0], batch)
    assert difference(of_survey[0], slope) <= 1e-12


class Own(L.LightningModule):
    """A user's module, with a layer of the name that the package's tasks give a number."""

    def __init__(self, regulariser=None):
        super().__init__()
        self.l1 = nn.Linear(FEATURES, CLASSES)
        if regulariser is not None:
            self.regulariser = regulariser

    def forward(self, x):
        return self.l1(x)

    def example_losses(self, batch):
        return F.cross_entropy(self(batch[0]), batch[1], reduction="none")


@pytest.mark.slow
def test_a_user_s_own_module_may_have_one():
    penalised = partial(Own, Penalty(l2=0.05))
    plain, regularised = (run(FedAvg(lr=0.1), task=task, initial="seeded") for task in (Own, penalised))
    decayed = run(FedAvg(lr=0.1, weight_decay=0.05), task=Own, initial="seeded")
    assert (
        difference(regularised.server.x, decayed.server.x) <= 1e-12 < difference(regularised.server.x, plain.server.x)
    )
    trained = run(FedAvg(lr=0.1), task=penalised, initial="seeded", executor="trainer")
    assert difference(regularised.server.x, trained.server.x) <= 1e-12


def test_what_is_no_penalty_is_refused():
    for name, make in MAKE.items():
        for penalties in ({"l1": -0.1}, {"l2": math.inf}, {"l2": math.nan}):
            key = next(iter(penalties))
            with pytest.raises(ValueError, match=rf"{name}: {key} must lie in \[0, 1e12\], got {penalties[key]}"):
                make(**penalties)
