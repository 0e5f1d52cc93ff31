"""The models of the papers, by their published numbers of parameters: Reddi et al. 2021 (App. C), Chang et al. 2025
(Table I), and ResNet-18."""

import pytest
import torch
from torch import nn
from torch.func import grad_and_value

from flstudy.algorithms import FedAvg
from flstudy.population import (
    AgNews,
    BalancedDirichlet,
    Cifar10,
    Cifar100,
    Emnist,
    FashionMnist,
    Mnist,
    Shakespeare,
    StackOverflow,
    Svhn,
    TinyImageNet,
)
from flstudy.tasks import Cnn, FastText, Logistic, Lstm, Mlp, ResNet18, ResNet34, TaskFunction, Vgg

from ..worlds import CLASSES, difference, drawn_model, examples, run, state, world

IMAGE = (3, 32, 32)
TINY = (3, 8, 8)


def parameters(task):
    return sum(p.numel() for p in task.parameters())


def test_emnist_cnn():
    data = Emnist()
    assert parameters(Cnn(data.shape, data.classes)) == 1_206_590
    assert parameters(Cnn(data.shape, data.classes, dropout=(0.25, 0.5))) == 1_206_590


def test_shakespeare_lstm():
    data = Shakespeare()
    keras = Lstm(data.shape, data.classes, embedding=8, hidden=256, layers=2, biases=1)
    assert parameters(keras) == 820_522
    assert parameters(Lstm(data.shape, data.classes, embedding=8, hidden=256, layers=2)) == 820_522 + 2 * 4 * 256


def test_stack_overflow_lstm():
    data = StackOverflow()
    assert parameters(Lstm(data.shape, data.classes, embedding=96, hidden=670, projection=96, biases=1)) == 4_050_748


def operations(task, shape):
    """Of one example's forward pass, as ptflops 0.7 counts: two for each multiplication and bias of a convolution or a
    dense layer, for both coefficients of a normalised value, and for each value that goes into ReLU (twice, as a module
    and as the function that it calls), max pooling (likewise) or average pooling."""
    counted = []

    def count(module, inputs, output):
        x, result = inputs[0], output.numel()
        if isinstance(module, nn.Conv2d | nn.Linear):
            counted.append(result * (module.weight[0].numel() + (module.bias is not None)))
        elif isinstance(module, nn.GroupNorm | nn.ReLU):
            counted.append(2 * result)
        elif isinstance(module, nn.MaxPool2d):
            counted.append(2 * x.numel())
        elif isinstance(module, nn.AdaptiveAvgPool2d):
            counted.append(x.numel())

    for module in task.modules():
        module.register_forward_hook(count)
    task(torch.zeros(1, *shape))
    return 2 * sum(counted)


@pytest.mark.parametrize(
    ("source", "task", "count", "operations_per_parameter"),
    [
        (Mnist, Logistic, 7_850, 2.00),
        (FashionMnist, Logistic, 7_850, 2.00),
        (Svhn, Vgg, 667_178, 91.04),
        (Cifar10, lambda *of: ResNet18(*of, projection=256), 11_573_066, 6.50),
        (Cifar100, lambda *of: ResNet18(*of, projection=256), 11_596_196, 6.50),
        (TinyImageNet, lambda *of: ResNet34(*of, projection=256), 21_730_056, 27.69),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_device_sessions_image_models(source, task, count, operations_per_parameter):
    """Chang et al. 2025, Table I: parameters, and operations for each of them."""
    data = source()
    model = task(data.shape, data.classes)
    assert parameters(model) == count
    assert round(operations(model, data.shape) / count, 2) == operations_per_parameter


def test_device_sessions_text_model():
    """Chang et al. 2025, Table I: 9,157,804 parameters, and 2.63e-4 operations for each, which are the classifier's."""
    data = AgNews()
    model = FastText(data.shape, data.classes, data.tokens)
    assert parameters(model) == 9_157_804 == 30_522 * 300 + 300 * 4 + 4
    assert round(2 * parameters(model.head) / parameters(model), 6) == 2.63e-4


def test_a_text_is_the_mean_of_its_words():
    torch.manual_seed(0)
    task = FastText((4,), 3, tokens=9, embedding=5).double()
    x = torch.tensor([[2, 7, 7, 8], [3, 5, 0, 0], [0, 0, 0, 0], [5, 0, 3, 0]])
    e = task.embedding.weight
    expected = torch.stack([(e[2] + 2 * e[7] + e[8]) / 4, (e[3] + e[5]) / 2, torch.zeros(5), (e[3] + e[5]) / 2])
    assert difference(task.features(x), expected) <= 1e-15
    assert difference(task(x), nn.functional.linear(expected, task.head[0].weight, task.head[0].bias)) <= 1e-15
    task(x).square().sum().backward()
    assert (e.grad.abs().sum(1) > 0).tolist() == [i in (2, 3, 5, 7, 8) for i in range(9)]  # nothing for padding


@pytest.mark.parametrize(
    ("make", "random"),
    [
        (lambda: FastText((4,), 3, tokens=900, embedding=5), {"embedding.weight": 1.0}),
        (lambda: Vgg(IMAGE, 10), {"backbone.3.weight": (3 * 9 * 32) ** -0.5}),  # U(−a, a) of a = 1/√fan_in
    ],
    ids=["FastText", "Vgg"],
)
def test_seeds_draw_initial_parameters_from_torch_s_distributions(make, random):
    task = make()
    layout = TaskFunction(task).layout
    first, again, other = (layout.split(drawn_model(task, seed)) for seed in (0, 0, 1))
    for name, deviation in random.items():
        assert float(first[name].std()) == pytest.approx(deviation, rel=0.05)
        assert difference(first[name], again[name]) == 0
        assert difference(first[name], other[name]) > 0.01


def test_a_vgg_drops_out_in_training_only():
    torch.manual_seed(0)
    task, x = Vgg(TINY, 3, blocks=((4,),), dense=50, dropout=0.4), torch.randn(2, *TINY)
    assert difference(task(x), task(x)) > 0.01
    task.eval()
    assert difference(task(x), task(x)) == 0


@pytest.mark.parametrize(("classes", "count"), [(10, 11_181_642), (100, 11_227_812)])
def test_resnet_18(classes, count):
    assert parameters(ResNet18(IMAGE, classes)) == count
    # A stem of 3×3 instead of 7×7 weights for each of 3 channels and 64 maps.
    assert parameters(ResNet18(IMAGE, classes, stem="cifar")) == count - 3 * 64 * (49 - 9)
    grey = parameters(ResNet18((1, 32, 32), classes))
    assert grey == count - 2 * 64 * 49


@pytest.mark.parametrize(
    ("make", "width", "without"),
    [
        (lambda **more: ResNet18(IMAGE, 10, **more), 512, 11_181_642),
        (lambda **more: Cnn((1, 28, 28), 62, **more), 128, 1_206_590),
        (lambda **more: Mlp((1, 28, 28), 10, hidden=512, **more), 512, 784 * 512 + 512 + 512 * 10 + 10),
    ],
    ids=["ResNet18", "Cnn", "Mlp"],
)
def test_a_projection_head_has_two_dense_layers(make, width, without):
    """MOON's: d, d, 256, and a classifier of 256 inputs (Li et al. 2021, sec. 3.2 and 4.1)."""
    task = make()
    classes = list(task.parameters())[-1].numel()
    assert parameters(task) == without
    head = (width * width + width) + (width * 256 + 256)
    assert parameters(make(projection=256)) == without + head + (256 - width) * classes
    if width == 512:
        assert head == 393_984


@pytest.mark.parametrize("biases", [1, 2])
def test_a_single_bias_is_the_sum_of_two(biases):
    torch.manual_seed(0)
    two, module = Lstm((4,), 7, hidden=5, layers=2), Lstm((4,), 7, hidden=5, layers=2, biases=biases)
    values = {name: value.clone() for name, value in two.state_dict().items()}
    if biases == 1:
        for layer in range(2):
            values[f"lstm.bias_ih_l{layer}"] += values.pop(f"lstm.bias_hh_l{layer}")
    module.load_state_dict(values)
    x = torch.randint(0, 7, (3, 4))
    reference = nn.LSTM(8, 5, 2, batch_first=True)
    reference.load_state_dict({name.removeprefix("lstm."): p for name, p in two.state_dict().items() if "lstm" in name})
    expected = two.head(reference(two.embedding(x))[0])
    assert difference(module(x), expected) < 1e-6


def test_a_projection_is_a_dense_layer():
    torch.manual_seed(0)
    task, x = Lstm((4,), 7, hidden=5, projection=3), torch.randint(0, 7, (3, 4))
    assert task(x).shape == (3, 4, 7)
    assert difference(task(x), task.head[1](task.head[0](task.lstm(task.embedding(x))))) == 0
    assert [tuple(layer.weight.shape) for layer in task.head] == [(3, 5), (7, 3)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [ResNet18, ResNet34])
def test_mapped_gradients_of_a_resnet_are_those_of_each_lane(kind):
    torch.manual_seed(0)
    task = kind(TINY, CLASSES, stem="cifar").double()
    task_function = TaskFunction(task)
    x, y = torch.randn(2, 2, *TINY, dtype=torch.float64), torch.tensor([[0, 1], [2, 3]])
    models = torch.stack([drawn_model(task, seed).double() for seed in (0, 1)])

    def loss(model, x, y):
        return task_function.example_losses(
            task_function.layout.split(model), type("Batch", (), {"x": x, "y": y})
        ).mean()

    mapped = torch.vmap(grad_and_value(loss))(models, x, y)
    for lane in range(2):
        parts = task_function.layout.split(models[lane])
        task.load_state_dict(parts)
        task.zero_grad()
        value = nn.functional.cross_entropy(task(x[lane]), y[lane])
        value.backward()
        g = torch.cat([p.grad.flatten() for p in task.parameters()])
        assert difference((mapped[0][lane], mapped[1][lane]), (g, value)) < 1e-10


@pytest.mark.slow
@pytest.mark.usefixtures("let_go")
def test_executors_agree_on_a_resnet():
    """Two devices, one round: its eleven million parameters make more slow."""

    def images():
        data = examples(TINY, count=16)
        return world(dataset=data, clients=2, participants=2, partition=BalancedDirichlet(alpha=10.0), epochs=1)

    task = ResNet18(TINY, CLASSES)
    names = ("sequential", "vectorized", "trainer")
    states = [
        state(run(FedAvg(lr=0.1), 1, population=images(), task=task, initial="seeded", executor=e)) for e in names
    ]
    assert max(difference(states[0], other) for other in states[1:]) < 1e-10


@pytest.mark.slow
def test_a_resnet_starts_from_he_s_distribution_whatever_the_seed():
    task = ResNet18(IMAGE, 10)
    layout = TaskFunction(task).layout
    first, other = (layout.split(drawn_model(task, seed)) for seed in (0, 1))
    for name in ("network.layer1.0.conv1.weight", "network.layer4.1.conv2.weight"):
        expected = (2 / (first[name].shape[0] * 9)) ** 0.5
        for weight in (first[name], other[name], dict(task.named_parameters())[name].detach()):
            assert float(weight.std()) == pytest.approx(expected, rel=0.02)
        assert difference(first[name], other[name]) > 0.01
    assert float(first["network.bn1.weight"].min()) == float(first["network.bn1.weight"].max()) == 1


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_dropout_drops_in_training_only(executor):
    def images():
        return world(dataset=examples((1, 6, 6)), participants=3, epochs=1)

    torch.manual_seed(0)
    plain, dropping = (Cnn((1, 6, 6), CLASSES, (2, 3), 4, dropout) for dropout in ((0.0, 0.0), (0.25, 0.5)))
    flat = torch.nn.utils.parameters_to_vector(plain.parameters()).detach()
    torch.nn.utils.vector_to_parameters(flat, dropping.parameters())
    settings = {"rounds": 1, "evaluate": True, "executor": executor}
    algorithm = FedAvg(lr=1e-9)  # too small a step to see after training
    first, second = (run(algorithm, population=images(), task=task, **settings) for task in (plain, dropping))
    assert first.record.metrics["valid/loss"] == pytest.approx(second.record.metrics["valid/loss"], abs=1e-6)
    assert abs(first.record.metrics["train/loss"][0] - second.record.metrics["train/loss"][0]) > 1e-3


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: Cnn((1, 6, 6), 3, dropout=(0.25, 1.0)),
            r"dropout must lie in \[0, 1\), got \(0\.25, 1\.0\)",
        ),
        (lambda: Lstm((4,), 3, projection=0), r"projection must lie in \[1, 1e5\], got 0"),
        (lambda: Mlp((4,), 3, projection=0), r"projection must lie in \[1, 1e5\], got 0"),
        (lambda: ResNet18(IMAGE, 3, projection=0), r"projection must lie in \[1, 1e5\], got 0"),
        (lambda: Lstm((4,), 3, biases=3), "biases must be one of 1, 2, got 3"),
        (lambda: ResNet18((12,), 3), r"ResNet18: shape must be \(channels, height, width\), got \(12,\)"),
        (lambda: ResNet34((12,), 3), r"ResNet34: shape must be \(channels, height, width\), got \(12,\)"),
        (lambda: Vgg((3, 7, 9), 3), r"Vgg: shape must be .*height ≥ 8, width ≥ 8\) for 3 blocks, got \(3, 7, 9\)"),
        (lambda: Vgg(IMAGE, 3, blocks=((4,), (6, 0))), r"blocks must lie in \[1, 1e4\], got \(\(4,\), \(6, 0\)\)"),
        (lambda: Vgg(IMAGE, 3, blocks=((4,), ())), r"blocks must hold one or more blocks of one or more .*, got \(\(4"),
        (lambda: Vgg(IMAGE, 3, blocks=((4, 6),), groups=4), r"groups must divide .*, got 4 for blocks\[0\]\[1\] 6"),
        (lambda: Vgg(IMAGE, 3, dropout=1.0), r"Vgg: dropout must lie in \[0, 1\), got 1.0"),
        (lambda: FastText((3, 4), 3, 9), r"FastText: inputs must be texts .* got shape \(3, 4\) and tokens 9; use Mlp"),
        (lambda: FastText((4,), 3, 0), r"FastText: .* got shape \(4,\) and tokens 0; use Mlp or Cnn"),
        (lambda: FastText((4,), 3, 9)(torch.zeros(2, 4)), r"FastText: inputs must be integer tokens \[B, T\], got"),
        (lambda: FastText((4,), 3, 9, projection=0), r"projection must lie in \[1, 1e5\], got 0"),
        (lambda: ResNet18(IMAGE, 3, groups=5), "ResNet18: groups must divide 64, got 5"),
        (lambda: ResNet18(IMAGE, 3, stem="none"), "stem must be one of imagenet, cifar, got 'none'"),
    ],
)
def test_bad_values_are_refused(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()
