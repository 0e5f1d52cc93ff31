"""A task seen as functions of its parameters: gradients, masks, frozen parts."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flstudy.algorithms import Batch, FedAvg
from flstudy.execution.local_objective import gradient, validation_loss
from flstudy.registry import named
from flstudy.tasks import (
    Cnn,
    FastText,
    Logistic,
    Lstm,
    Mlp,
    ResNet18,
    ResNet34,
    Task,
    TaskFunction,
    Vgg,
    Vit,
)

from ..tiers import in_tiers
from ..worlds import CLASSES, FEATURES, difference, drawn_model, flat_parameters, measured, mlp, run, world

TASKS = {
    "Logistic": lambda: Logistic((FEATURES,), CLASSES),
    "Mlp": lambda: Mlp((3, 4), CLASSES, hidden=5, layers=2),
    "Cnn": lambda: Cnn((2, 6, 6), CLASSES, channels=(3, 4), dense=6),
    "Lstm": lambda: Lstm((5,), CLASSES, embedding=3, hidden=4),
    "FastText": lambda: FastText((5,), CLASSES, tokens=40, embedding=4),
    "ResNet18": lambda: ResNet18((3, 4, 4), CLASSES),
    "ResNet34": lambda: ResNet34((3, 4, 4), CLASSES),
    "Vgg": lambda: Vgg((3, 5, 4), CLASSES, blocks=((2, 4), (4,)), dense=5),
    "Vit": lambda: Vit((3, 4, 4), CLASSES, patch=2, dim=6, heads=2),
}
SHAPES = {
    "Logistic": (FEATURES,),
    "Mlp": (3, 4),
    "Cnn": (2, 6, 6),
    "Vgg": (3, 5, 4),
    **dict.fromkeys(("Lstm", "FastText"), (5,)),
    **dict.fromkeys(("ResNet18", "ResNet34", "Vit"), (3, 4, 4)),
}
SMALL = [name for name in TASKS if "ResNet" not in name]


def some(name, count=9):
    torch.manual_seed(0)
    x = torch.randn(count, *SHAPES[name], dtype=torch.float64)
    return x.abs().long() if name in ("Lstm", "FastText") else x, torch.randint(0, CLASSES, (count,))


def logits_of(task, x):
    """Of the label: an LSTM's are those of the last position."""
    return task(x)[:, -1] if isinstance(task, Lstm) else task(x)


def test_every_shipped_task_is_tried():
    # No classifier: tests/population/test_heavy_tails.py; of several labels: tests/tasks/test_tags.py.
    shipped = {name for name, cls in named(Task).items() if cls.__module__.startswith("flstudy.")}
    assert shipped == set(TASKS) | {"Quadratic", "TagLogistic"}


@pytest.mark.parametrize("name", in_tiers(TASKS, SMALL))
def test_gradient_is_autograd_s(name):
    task = TASKS[name]().double()
    task_function, (x, y) = TaskFunction(task), some(name)
    flat = flat_parameters(task, task_function.layout)
    g, loss = gradient(FedAvg(), task_function, None, None)(flat, Batch(x, y))
    expected = F.cross_entropy(logits_of(task, x), y)
    expected.backward()
    assert difference(loss, expected) <= 1e-14
    assert difference(g, torch.cat([p.grad.reshape(-1) for p in task.parameters()])) <= 1e-14
    assert task_function.layout.n == sum(p.numel() for p in task.parameters()) == len(flat)


@pytest.mark.parametrize("name", in_tiers(TASKS, SMALL))
def test_losses_are_per_example_and_masks_leave_out_padding(name):
    task = TASKS[name]().double()
    task_function, (x, y) = TaskFunction(task), some(name)
    flat = flat_parameters(task, task_function.layout)
    losses = task_function.example_losses(flat, Batch(x, y))
    expected = torch.stack([F.cross_entropy(logits_of(task, x[i : i + 1]), y[i : i + 1]) for i in range(len(y))])
    assert difference(losses, expected) <= 1e-14
    mask = torch.arange(len(y)) < 4
    masked = task_function(flat, Batch(x, y, mask))
    assert difference(masked, expected[:4].mean()) <= 1e-14
    g, _ = gradient(FedAvg(), task_function, None, None)(flat, Batch(x, y, mask))
    real, _ = gradient(FedAvg(), task_function, None, None)(flat, Batch(x[:4], y[:4]))
    assert difference(g, real) <= 1e-14
    assert float(task_function(flat, Batch(x, y, torch.zeros(len(y))))) == 0  # nothing to learn from, and no NaN
    correct = task_function.example_correct(flat, Batch(x, y))
    assert correct.tolist() == (logits_of(task, x).argmax(1) == y).double().tolist()


def test_validation_loss_is_a_mean_or_a_sum():
    task_function, (x, y) = TaskFunction(TASKS["Logistic"]().double()), some("Logistic")
    flat = torch.zeros(task_function.layout.n, dtype=torch.float64)
    mask = torch.arange(len(y)) < 4
    for kind, batch, expected in (
        ("mean", Batch(x, y, mask), 1.0),
        ("sum", Batch(x, y, mask), 4.0),
        ("sum", Batch(x, y), 9.0),
    ):
        loss = validation_loss(FedAvg(valid_loss=kind), task_function, flat, batch)
        assert float(loss) == pytest.approx(expected * float(torch.log(torch.tensor(float(CLASSES)))))


class Dropping(Logistic):
    """Dropout, and a note of the mode it was called in."""

    def forward(self, x):
        return super().forward(F.dropout(x, 0.5, self.training))


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["sequential", "vectorized", "trainer"])
def test_validation_losses_are_taken_without_dropout(executor):
    """With steps too small to matter, γ = 0 stops only if the validation loss is noisy."""
    still = {"algorithm": FedAvg(lr=1e-300, gamma=0.0), "rounds": 2, "population": world(epochs=5)}
    tasks = [cls((FEATURES,), CLASSES) for cls in (Dropping, Logistic)]
    tasks[0].load_state_dict(tasks[1].state_dict())
    module, plain = (run(**still, task=task, executor=executor) for task in tasks)
    assert [record.metrics["fit/epochs"] for record in module.records] == [[5.0], [5.0]]
    assert difference(measured(module, "train/loss"), measured(plain, "train/loss")) > 1e-3  # training does drop out
    assert module.task_function.module.training


def test_layout_follows_named_parameters():
    task = mlp()
    layout = TaskFunction(task).layout
    flat = torch.arange(layout.n, dtype=torch.float32)
    parts = layout.split(flat)
    assert list(parts) == [name for name, _ in task.named_parameters()]
    assert all(parts[name].shape == p.shape for name, p in task.named_parameters())
    assert torch.equal(layout.flat(parts), flat)
    assert layout.segments().bincount().tolist() == [p.numel() for p in task.parameters()]


def test_seeded_parameters_are_their_seed_s_and_touch_no_global_stream():
    task, layout = mlp(), TaskFunction(mlp()).layout
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    a, b, c = (drawn_model(task, seed) for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(a, b)
    assert difference(a, c) > 0.01
    task_parameters = torch.cat([p.detach().reshape(-1) for p in task.parameters()])
    assert torch.equal(flat_parameters(task, layout), task_parameters)


class HalfFrozen(Mlp):
    """Trains its last layer only, and carries a buffer."""

    def __init__(self):
        super().__init__((FEATURES,), CLASSES, hidden=5)
        self.network[1].requires_grad_(False)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x):
        return self.scale * super().forward(x)


@pytest.mark.parametrize("executor", ["sequential", "vectorized", "trainer"])
def test_frozen_parameters_stay(executor):
    torch.manual_seed(0)
    task = HalfFrozen()
    before = {name: value.clone() for name, value in task.state_dict().items()}
    module = run(FedAvg(lr=0.1), 2, task=task, executor=executor)
    assert module.task_function.layout.names == ("network.3.weight", "network.3.bias")
    assert module.server.x.shape == (1, 5 * CLASSES + CLASSES)
    for name, value in task.state_dict().items():
        assert torch.equal(value, before[name]) == (not name.startswith("network.3")), name


def test_gradient_sees_the_frozen_parts():
    torch.manual_seed(0)
    task, (x, y) = HalfFrozen().double(), some("Logistic")
    task_function = TaskFunction(task)
    g, _ = gradient(FedAvg(), task_function, None, None)(flat_parameters(task, task_function.layout), Batch(x, y))
    F.cross_entropy(task(x), y).backward()
    assert difference(g, torch.cat([task.network[3].weight.grad.reshape(-1), task.network[3].bias.grad])) <= 1e-14
    assert isinstance(task.network[3], nn.Linear)
