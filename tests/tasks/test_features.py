"""What tasks say of inputs before they classify them, and what a method is told that a task says nothing."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flstudy import Coordinator
from flstudy.algorithms import Batch, FedAvg, Moon
from flstudy.config import ConfigError, load
from flstudy.execution.local_objective import gradient
from flstudy.tasks import Cnn, FastText, Logistic, Lstm, Mlp, ResNet18, ResNet34, TaskFunction, Vgg

from ..config.test_config import QUICK
from ..laws.test_executors import sequences, texts
from ..tiers import in_tiers
from ..worlds import CLASSES, FEATURES, Ragged, difference, drifting, examples, flat_parameters, run, state, world
from .test_own_modules import OnlyTrainingStep
from .test_task_function import some

TASKS = {
    "Mlp": lambda **more: Mlp((3, 4), CLASSES, hidden=5, layers=2, **more),
    "Cnn": lambda **more: Cnn((2, 6, 6), CLASSES, channels=(3, 4), dense=6, **more),
    "Lstm": lambda **more: Lstm((5,), CLASSES, embedding=3, hidden=4, **more),
    "FastText": lambda **more: FastText((5,), CLASSES, tokens=40, embedding=4, **more),
    "ResNet18": lambda **more: ResNet18((3, 4, 4), CLASSES, **more),
    "ResNet34": lambda **more: ResNet34((3, 4, 4), CLASSES, **more),
    "Vgg": lambda **more: Vgg((3, 5, 4), CLASSES, blocks=((2, 4), (4,)), dense=5, **more),
}
WIDTHS = {"Mlp": 5, "Cnn": 6, "Lstm": 4, "FastText": 4, "ResNet18": 512, "ResNet34": 512, "Vgg": 5}


@pytest.mark.parametrize("projection", [None, 3])
@pytest.mark.parametrize("name", in_tiers(TASKS, [name for name in TASKS if "ResNet" not in name]))
def test_features_are_what_the_last_layer_classifies(name, projection):
    torch.manual_seed(1)
    task, (x, _) = TASKS[name](projection=projection).double(), some(name)
    *_, last = (module for module in task.modules() if isinstance(module, nn.Linear))
    task_function = TaskFunction(task)
    y = flat_parameters(task, task_function.layout)
    for fixed in (False, True):
        z = task_function.features(y, x, fixed=fixed)
        assert z.shape == (len(x), projection or WIDTHS[name])
        logits = task(x)[:, -1] if name == "Lstm" else task(x)
        assert difference(last(z), logits) <= 1e-14
    assert difference(z, task_function.features(task_function.layout.split(y), x)) == 0


def test_logistic_regression_is_compared_by_its_logits():
    task, x = Logistic((FEATURES,), CLASSES), torch.randn(5, FEATURES)
    assert difference(task.features(x), task(x)) == 0
    assert task.features(x).shape == (5, CLASSES)


def test_fixed_models_drop_nothing_out_and_those_that_train_do():
    torch.manual_seed(0)
    plain, dropping = (Cnn((2, 6, 6), CLASSES, (3, 4), 6, dropout).double() for dropout in ((0.0, 0.0), (0.5, 0.5)))
    x, task_function = some("Cnn")[0], TaskFunction(dropping)
    y = flat_parameters(plain, TaskFunction(plain).layout)
    expected = TaskFunction(plain).features(y, x)
    assert difference(task_function.features(y, x, fixed=True), expected) == 0
    assert difference(task_function.features(y, x), expected) > 0.1
    assert task_function.module.training


def moon_loss(task, received, last, x, y, algorithm):
    """The loss of MOON's authors: torch's own cosine similarity and cross-entropy, with a class for each model."""
    z, *others = (model.features(x) for model in (task, received, *last))
    logits = torch.stack([nn.CosineSimilarity(dim=-1)(z, other.detach()) for other in others], 1) / algorithm.tau
    contrast = F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.int64))
    return F.cross_entropy(task(x), y) + algorithm.mu * contrast


FAST = ["Mlp", "Cnn", "FastText", "Vgg"]


@pytest.mark.parametrize("last_count", [0, 1, 2])
@pytest.mark.parametrize("name", in_tiers([*FAST, "ResNet18"], FAST))
def test_moon_s_gradient_is_autograd_s(name, last_count):
    torch.manual_seed(2)
    task, received, *last = (TASKS[name](projection=3).double() for _ in range(4))
    task_function, (x, y) = TaskFunction(task), some(name)
    flat, sent, *stored = (flat_parameters(model, task_function.layout) for model in (task, received, *last))
    algorithm = Moon(mu=3.0, tau=0.2, buffer=2)
    client, msg = (
        algorithm.client_init(sent),
        algorithm.broadcast(algorithm.server_init(sent, task_function.layout), None),
    )
    client = client._replace(participations=client.participations + last_count)
    client.v[:last_count] = torch.stack(stored)[:last_count]
    g, loss = gradient(algorithm, task_function, msg, client)(flat, Batch(x, y))
    expected = moon_loss(task, received, last[:last_count], x, y, algorithm)
    expected.backward()
    assert difference(loss, expected) <= 1e-13
    assert difference(g, torch.cat([p.grad.reshape(-1) for p in task.parameters()])) <= 1e-12
    assert all(p.grad is None for model in (received, *last) for p in model.parameters())
    more = torch.cat([x, 5 * x[:2]]), torch.cat([y, y[:2]]), torch.arange(len(y) + 2) < len(y)
    masked, mean = gradient(algorithm, task_function, msg, client)(flat, Batch(*more))
    assert difference((masked, mean), (g, loss)) <= 1e-12
    if not last_count:
        plain = gradient(FedAvg(), task_function, None, None)(flat, Batch(x, y))
        assert difference((g, loss), plain) == 0


def test_where_nothing_is_felt_no_gradient_is_lost():
    """Inputs of a dead network: representations of zero, whose angle to others is nobody's."""
    torch.manual_seed(0)
    task_function = TaskFunction(Mlp((3, 4), CLASSES, hidden=5))
    x, y = (part.float() if part.is_floating_point() else part for part in some("Mlp"))
    flat = torch.zeros(task_function.layout.n)
    algorithm = Moon(mu=3.0)
    client = algorithm.client_init(flat)._replace(participations=torch.ones(()))
    g, loss = gradient(algorithm, task_function, algorithm.broadcast(algorithm.server_init(flat, None), None), client)(
        flat, Batch(x, y)
    )
    assert torch.isfinite(g).all()
    assert float(loss) == pytest.approx(float(torch.log(torch.tensor(4.0)) + 3 * torch.log(torch.tensor(2.0))))


class OwnFeatures(OnlyTrainingStep):
    """A user's module with a mean loss and representations."""

    def features(self, x):
        return torch.tanh(self.net(x)).unflatten(1, (-1, 2))


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["sequential", "vectorized", "trainer"])
def test_a_module_of_one_s_own_needs_features_alone(executor):
    even = {"population": world(partition=Ragged([20] * 6))}
    mine = run(Moon(lr=0.1), task=OwnFeatures(), executor=executor, **even)
    same = run(Moon(lr=0.1), task=OwnFeatures(), executor="sequential", **even)
    assert difference(state(mine), state(same)) <= 1e-12
    without = run(FedAvg(lr=0.1), task=OwnFeatures(), executor=executor, **even)
    assert difference(mine.server.x, without.server.x) > 1e-4


def test_a_task_without_features_is_refused_before_anything_runs():
    sentence = r"task: OnlyTrainingStep defines no features\(x\), which Moon compares; add `def features\(self, x\)`"
    with pytest.raises(ValueError, match=sentence):
        Coordinator(OnlyTrainingStep(), Moon())
    with pytest.raises(ConfigError, match=sentence):
        load(QUICK, {"task": "tests.tasks.test_own_modules.OnlyTrainingStep", "algorithm": "Moon"})
    Coordinator(OnlyTrainingStep(), FedAvg())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["features", "images", "normalised", "sequences", "texts"])
def test_executors_agree_on_moon_of(kind):
    torch.manual_seed(0)
    task, population = {
        "features": (Logistic((FEATURES,), CLASSES), drifting),
        "images": (
            Cnn((1, 6, 6), CLASSES, (2, 3), dense=4, projection=3),
            lambda: drifting(dataset=examples((1, 6, 6))),
        ),
        "normalised": (
            Vgg((1, 6, 6), CLASSES, ((2, 2), (4,)), dense=4, projection=3),
            lambda: drifting(dataset=examples((1, 6, 6))),
        ),
        "texts": (FastText((6,), CLASSES, tokens=9, embedding=4, projection=3), texts),
        "sequences": (Lstm((5,), CLASSES, embedding=3, hidden=4, projection=3), sequences),
    }[kind]
    names, more = ("sequential", "vectorized", "threads", "trainer"), {"task": task, "initial": "seeded"}
    runs = [state(run(Moon(lr=0.1, mu=5.0), executor=name, population=population(), **more)) for name in names]
    assert max(difference(runs[0], other) for other in runs[1:]) <= 1e-12
    without = run(FedAvg(lr=0.1), population=population(), **more)
    assert difference(runs[0][0].x, without.server.x) > 1e-4
