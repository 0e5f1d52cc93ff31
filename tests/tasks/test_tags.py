"""Logistic regression of tags, beside numpy: losses, gradients, recall; and that executors agree on it."""

import numpy as np
import pytest
import torch

from flstudy import Population
from flstudy.algorithms import FedAda2, FedAvg
from flstudy.population import Iid, InMemory, LabelSwap, StackOverflowTags, SuddenDrift
from flstudy.tasks import TagLogistic, TaskFunction

from ..population.datasets import on_disk
from ..population.datasets.on_disk import TAGS, WORDS
from ..worlds import difference, drawn_model, measured, run, state, world


def parameters(task):
    return sum(p.numel() for p in task.parameters())


def test_the_published_size():
    source = StackOverflowTags()
    assert parameters(TagLogistic(source.shape, source.classes, source.tokens)) == 5_000_500


X = torch.tensor([[1, 2, 2, 4, 0], [3, 1, 0, 0, 0], [4, 0, 0, 0, 0], [1, 3, 2, 1, 2]])  # three words, 4 is unknown
Y = torch.tensor([[2, 0, -1], [5, -1, -1], [1, 3, 4], [0, -1, -1]])


def reference(weight, bias):
    """Reddi et al. 2021: dense bags [B, V], sigmoid, the mean over tags of the binary cross-entropy, recall at 2."""
    bags, targets = np.zeros((4, 3)), np.zeros((4, 6))
    for line, words in enumerate(X.tolist()):
        real = [word for word in words if word > 0]
        for word in real:
            if word <= 3:
                bags[line, word - 1] += 1 / len(real)
        targets[line, [tag for tag in Y[line].tolist() if tag >= 0]] = 1
    logits = bags @ weight + bias
    p = 1 / (1 + np.exp(-logits))
    loss = -(targets * np.log(p) + (1 - targets) * np.log(1 - p)).mean(1)
    slope = (p - targets) / 6
    top = np.argsort(-logits, axis=1)[:, :2]
    recall = np.take_along_axis(targets, top, 1).sum(1) / targets.sum(1)
    return logits, loss, bags.T @ slope / 4, slope.mean(0), recall


def test_losses_gradients_and_recall_are_the_reference_s():
    torch.manual_seed(0)
    task = TagLogistic((5,), 6, tokens=5, top=2).double()
    torch.nn.init.normal_(task.bias)
    logits, loss, of_weight, of_bias, recall = reference(*(p.detach().numpy() for p in task.parameters()))
    assert difference(task(X), torch.from_numpy(logits)) < 1e-14
    losses = task.example_losses((X, Y))
    assert difference(losses, torch.from_numpy(loss)) < 1e-14
    losses.mean().backward()
    assert difference(task.weight.grad, torch.from_numpy(of_weight)) < 1e-14
    assert difference(task.bias.grad, torch.from_numpy(of_bias)) < 1e-14
    assert difference(task.example_correct((X, Y)), torch.from_numpy(recall)) < 1e-15
    assert 0 < recall.mean() < 1


def test_softmax_is_of_the_first_tag():
    torch.manual_seed(0)
    task = TagLogistic((5,), 6, tokens=5, loss="softmax").double()
    z = task(X).detach().numpy()
    expected = np.log(np.exp(z).sum(1)) - z[np.arange(4), Y[:, 0].numpy()]
    assert difference(task.example_losses((X, Y)), torch.from_numpy(expected)) < 1e-14
    assert task.example_correct((X, Y)).tolist() == (z.argmax(1) == Y[:, 0].numpy()).astype(float).tolist()


def test_a_seed_draws_glorot_s_weights():
    task = TagLogistic((5,), 60, tokens=902)
    layout = TaskFunction(task).layout
    weight, bias = layout.split(drawn_model(task, 0)).values()
    assert float(weight.std()) == pytest.approx((2 / 960) ** 0.5, rel=0.02)
    assert not bias.any()


@pytest.mark.slow
def test_executors_agree_and_devices_learn_tags(tmp_path):
    on_disk.write_stackoverflow(tmp_path)
    source = StackOverflowTags(root=str(tmp_path), vocabulary=len(WORDS), tags=len(TAGS), length=20)

    task = TagLogistic(source.shape, source.classes, source.tokens, top=2)
    names = ("sequential", "vectorized", "trainer")
    population = Population(source, clients=5, participants=3, batch_size=4, epochs=2)
    settings = {"population": population, "task": task, "initial": "seeded", "evaluate": True}
    runs = [run(FedAda2(eps=0.1), 2, executor=name, **settings) for name in names]
    assert max(difference(state(runs[0]), state(other)) for other in runs[1:]) < 1e-12
    assert 0 < runs[1].record.metrics["valid/accuracy"][0] <= 1
    learnt = measured(run(FedAvg(lr=2.0), 12, executor="vectorized", **settings), "valid/loss")
    assert float(learnt[-1]) < float(learnt[0]) - 0.02


def test_labels_are_swapped_tag_by_tag():
    """A drift renames tags, and nobody's stay nobody's."""
    data = InMemory((X.repeat(6, 1), Y.repeat(6, 1)))
    drift = SuddenDrift(round=2, p_drift=1.0, change=LabelSwap())
    population = world(dataset=data, clients=2, participants=2, partition=Iid(), drift=drift).settle((0,))
    _, y = population.store.gather(torch.tensor([[0]]), torch.tensor([1]))
    assert y[0, 0].tolist() == [int(population.store.table[1, tag]) if tag >= 0 else -1 for tag in Y[0].tolist()]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: TagLogistic((3, 4), 3, 9),
            r"TagLogistic: inputs must be texts .* got shape \(3, 4\) and tokens 9; use",
        ),
        (lambda: TagLogistic((4,), 3, 0), r"TagLogistic: .* got shape \(4,\) and tokens 0; use Logistic"),
        (lambda: TagLogistic((4,), 3, 9, loss="mse"), "TagLogistic: loss must be one of binary, softmax, got 'mse'"),
        (lambda: TagLogistic((4,), 3, 9, top=0), r"top must lie in \[1, 1e6\], got 0"),
        (
            lambda: TagLogistic((4,), 3, 9)(torch.zeros(2, 4)),
            r"TagLogistic: inputs must be integer words \[B, T\], got",
        ),
        (
            lambda: TagLogistic((4,), 3, 9).example_losses((X, Y[:, 0])),
            r"TagLogistic: labels must be tags \[B, L\], −1 for padding, got \[4\]",
        ),
    ],
)
def test_bad_values_are_refused(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()
