"""The LSTM: equal to torch's own, alone and mapped; what its labels mean."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch.func import grad_and_value
from torch.nn import functional as F

from flstudy.algorithms import Batch
from flstudy.execution import TrainingContext
from flstudy.execution.model_evaluator import ModelEvaluator
from flstudy.population import EvaluationIndex, ExampleStore
from flstudy.tasks import Lstm, TaskFunction
from flstudy.tasks.recurrent import LstmLayers, recurrence

from ..worlds import difference, drawn_model

WORDS, LENGTH = 7, 6


def random(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def tokens(*shape, seed=0):
    return torch.randint(0, WORDS, shape, generator=torch.Generator().manual_seed(seed))


def task(layers=1):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Lstm((LENGTH,), WORDS, embedding=3, hidden=5, layers=layers).double()


@pytest.mark.parametrize("length", [1, 2, 9])
@pytest.mark.parametrize("layers", [1, 2])
def test_layers_are_torch_s(layers, length):
    torch.manual_seed(0)
    theirs = nn.LSTM(3, 5, layers, batch_first=True).double()
    ours = LstmLayers(3, 5, layers).double()
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    outcomes = []
    for module in (theirs, ours):
        x = random(4, length, 3).requires_grad_()
        output = module(x)
        h = output[0] if isinstance(output, tuple) else output
        (h * random(4, length, 5, seed=1)).sum().backward()
        outcomes.append((h, x.grad, {name: p.grad for name, p in module.named_parameters()}))
    assert difference(*outcomes) <= 1e-12
    assert list(outcomes[0][2]) == list(outcomes[1][2])


def test_reset_draws_what_torch_draws():
    ours, theirs = LstmLayers(3, 5, 2), nn.LSTM(3, 5, 2, batch_first=True)
    for module in (ours, theirs):
        torch.manual_seed(1)
        module.reset_parameters()
    assert difference(ours.state_dict(), theirs.state_dict()) == 0
    assert difference(*(drawn_model(task(), seed) for seed in (0, 1))) > 0.01


def test_gradient_of_the_recurrence():
    p, weight = random(2, 4, 12).requires_grad_(), random(12, 3, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(recurrence, (p, weight))
    (g,) = torch.autograd.grad(recurrence(p, weight).sum(), p, create_graph=True)
    with pytest.raises(NotImplementedError, match=r"cannot be differentiated again; use torch\.nn\.LSTM"):
        g.sum().backward()


def test_operators_say_the_truth_to_the_compiler():
    from flstudy.tasks.recurrent import lstm_backward, lstm_forward

    p, weight = random(2, 3, 4, 12), random(2, 12, 3, seed=1)
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(lstm_forward, (p, weight), test_utils=tests)
    hidden, *saved = lstm_forward(p, weight)
    torch.library.opcheck(lstm_backward, (torch.ones_like(hidden), hidden, *saved, weight), test_utils=tests)


@pytest.mark.parametrize("axes", [(0, 0), (1, None), (None, 2)])
def test_mapped_gradients_are_those_of_each_lane(axes):
    """Any argument mapped, along any dimension, also twice."""

    def value(p, weight):
        return recurrence(p, weight).sin().sum()

    gradients = grad_and_value(value, argnums=(0, 1))
    p, weight = random(3, 4, 12), random(12, 3, seed=1)
    p, weight = (
        torch.stack([a, 2 * a, a - 1], dim=axis) if axis is not None else a
        for a, axis in zip((p, weight), axes, strict=True)
    )
    mapped = torch.vmap(gradients, axes, randomness="different")(p, weight)
    for lane in range(3):
        lane_result = gradients(
            *(a if axis is None else a.select(axis, lane) for a, axis in zip((p, weight), axes, strict=True))
        )
        assert difference([m[lane] for m in (*mapped[0], mapped[1])], [*lane_result[0], lane_result[1]]) <= 1e-12
    outer = torch.vmap(torch.vmap(gradients, axes), (0, None))(torch.stack([p, -p]), weight)
    assert difference([m[0] for m in (*outer[0], outer[1])], [*mapped[0], mapped[1]]) <= 1e-12
    of_all = grad_and_value(lambda p, weight: torch.vmap(value, axes)(p, weight).sum())(p, weight)
    by_p = mapped[0][0].sum(0) if axes[0] is None else mapped[0][0].movedim(0, axes[0])
    assert difference(of_all, (by_p, mapped[1].sum())) <= 1e-12


@pytest.mark.parametrize("layers", [1, 2])
def test_mapped_tasks_are_each_device_s(layers):
    task_function = TaskFunction(task(layers))
    models = torch.stack([drawn_model(task(layers), seed).double() for seed in range(3)])
    x, y = tokens(3, 4, LENGTH), tokens(3, 4, LENGTH, seed=1)
    step = grad_and_value(lambda model, x, y: task_function(model, Batch(x, y)))
    mapped = torch.vmap(step, randomness="different")(models, x, y)
    single = [step(models[lane], x[lane], y[lane]) for lane in range(3)]
    assert difference(mapped, tuple(torch.stack(parts) for parts in zip(*single, strict=True))) <= 1e-12


def test_labels_of_positions_of_sequences_and_of_nobody():
    module, x, y = task(), tokens(4, LENGTH), tokens(4, LENGTH, seed=1)
    logits = module(x)
    assert logits.shape == (4, LENGTH, WORDS)
    position_losses = F.cross_entropy(logits.transpose(1, 2), y, reduction="none")
    right = (logits.argmax(-1) == y).double()
    assert difference(module.example_losses((x, y)), position_losses.mean(1)) <= 1e-14
    assert difference(module.example_correct((x, y)), right.mean(1)) <= 1e-14
    assert difference(module.example_losses((x, y[:, -1])), position_losses[:, -1]) <= 1e-14
    assert torch.equal(module.example_correct((x, y[:, -1])), right[:, -1])
    padded = y.clone()
    padded[0, 2:], padded[1, 0], padded[2] = -1, -100, -1
    losses, correct = module.example_losses((x, padded)), module.example_correct((x, padded))
    expected = torch.stack(
        [
            position_losses[0, :2].mean(),
            position_losses[1, 1:].mean(),
            position_losses[2].sum() * 0,
            position_losses[3].mean(),
        ]
    )
    assert difference(losses, expected) <= 1e-14
    expected = torch.stack([right[0, :2].mean(), right[1, 1:].mean(), right[2].sum() * 0, right[3].mean()])
    assert difference(correct, expected) <= 1e-14
    assert difference(module.training_step((x, y), 0), position_losses.mean()) <= 1e-14
    assert copy.deepcopy(module).example_losses((x, y)).equal(pickle.loads(pickle.dumps(module)).example_losses((x, y)))


def test_bad_input_is_refused():
    for arguments, message in (
        (((3, 4), 5), r"Lstm: shape must be \(sequence length ≥ 1,\), got \(3, 4\); flatten"),
        (((0,), 5), r"Lstm: shape must be .*, got \(0,\)"),
        (((4,), 0), r"classes must lie in \[1, 1e6\], got 0"),
        (((4,), 5, 0), r"embedding must lie in \[1, 1e5\], got 0"),
        (((4,), 5, 1, 0), r"hidden must lie in \[1, 1e5\], got 0"),
        (((4,), 5, 1, 1, 0), r"layers must lie in \[1, 1e3\], got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            Lstm(*arguments)
    with pytest.raises(ValueError, match=r"labels must be \[B\] or like the inputs, \[4, 6\], got \[4, 5\]"):
        task().example_losses((tokens(4, LENGTH), tokens(4, LENGTH - 1)))
    with pytest.raises(ValueError, match=r"inputs must be integer tokens \[B, T\], got torch.float64 \[4, 6\]; use"):
        task()(random(4, LENGTH))


def test_labels_of_positions_drift_and_padding_stays():
    y = tokens(5, LENGTH)
    y[0, 3:] = -1
    table = torch.stack([torch.arange(WORDS), torch.arange(WORDS).flip(0)])
    store = ExampleStore(tokens(5, LENGTH), y, table)
    rows, concept = torch.tensor([[0, 1, -1], [2, 0, 4]]), torch.tensor([0, 1])
    x, labels = store.gather(rows, concept)
    assert x.shape == labels.shape == (2, 3, LENGTH)
    assert torch.equal(labels[0], y[[0, 1, 0]])
    assert torch.equal(labels[1], torch.where(y < 0, y, WORDS - 1 - y)[[2, 0, 4]])
    assert torch.equal(torch.vmap(store.gather)(rows, concept)[1], labels)


def test_survey_of_sequences(monkeypatch):
    """Chunks are as much smaller as sequences are longer."""
    monkeypatch.setattr("flstudy.execution.model_evaluator.CHUNK", 2 * LENGTH)
    task_function = TaskFunction(task())
    models = torch.stack([drawn_model(task(), seed).double() for seed in range(2)])
    table = torch.stack([torch.arange(WORDS), torch.arange(WORDS).flip(0)])
    store = ExampleStore(tokens(7, LENGTH), tokens(7, LENGTH, seed=1), table)
    examples = EvaluationIndex(
        torch.tensor([[0, 1, 2, 3, 4], [5, 6, 2, -1, -1]]), torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, -1, -1]])
    )
    concepts = torch.tensor([[0, 1], [1, 0]])
    scores = ModelEvaluator(TrainingContext(task_function, store)).population(models, examples, concepts)
    for s, device, rows in ((0, 0, [0, 1]), (0, 1, [2, 3, 4]), (1, 0, [5]), (1, 1, [6, 2])):
        batch = Batch(*store.gather(torch.tensor(rows), concepts[s, device]))
        assert difference(scores.loss[s, device], task_function.example_losses(models[s], batch).mean()) <= 1e-12
        assert difference(scores.accuracy[s, device], task_function.example_correct(models[s], batch).mean()) <= 1e-12


@pytest.mark.slow
def test_mapped_gradients_compile_as_two_operators():
    """All of the compiler but its code generation: no loop over time is left in the graph, so that long sequences
    compile as fast as short ones."""
    names = []

    def backend(graph, inputs):
        names.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    step = torch.vmap(grad_and_value(lambda p, w: recurrence(p, w).sin().sum(), argnums=(0, 1)), randomness="different")
    p, weight = random(3, 2, 40, 12), random(3, 12, 3, seed=1)
    compiled = torch.compile(step, fullgraph=True, dynamic=False, backend=aot_autograd(fw_compiler=backend))
    assert difference(compiled(p, weight), step(p, weight)) <= 1e-14
    assert [name for name in names if "lstm" in name] == [
        "flstudy.lstm.default",  # the kernels in C++
        "flstudy.lstm_gradient.default",
    ]
    assert len(names) < 100  # an unrolled loop has hundreds
