"""Synthetic(α, β) has the statistics of its definition."""

import numpy as np
import pytest
import torch

from flstudy.config.schema import class_names
from flstudy.population import Dataset, Synthetic
from flstudy.registry import named

from ...references import synthetic as reference
from ...worlds import world


def devices(data, seed, clients):
    """(x, y) of each device."""
    examples = data.load(seed, clients)
    assert examples.x.shape == (len(examples.y), *data.shape)
    assert int(examples.y.max()) < data.classes
    return [(examples.x[examples.owner == k].numpy(), examples.y[examples.owner == k].numpy()) for k in range(clients)]


def test_sizes_are_log_normal_plus_fifty():
    sizes = np.array([len(x) for x, _ in devices(Synthetic(features=2, log_std=1.0), 0, 400)])
    assert sizes.min() >= 50
    logs = np.log(sizes - 50 + 0.5)
    assert logs.mean() == pytest.approx(4.0, abs=0.2)
    assert logs.std() == pytest.approx(1.0, abs=0.12)
    assert reference.sizes([0.0])[0] == int(np.exp(4)) + 50 == np.floor(np.exp(4.0)) + 50
    capped = [len(x) for x, _ in devices(Synthetic(features=2, largest=70), 0, 50)]
    assert max(capped) == 70
    assert min(capped) >= 50


def test_inputs_have_the_definition_s_means_and_covariance():
    """v_kj ~ N(B_k, 1), B_k ~ N(0, β): device means have variance 1 + β² in all, β² of it shared by coordinates."""
    beta, clients, features = 2.0, 300, 20
    data = Synthetic(beta=beta, features=features, log_std=0.0, extra=150)
    device_inputs = [x for x, _ in devices(data, 1, clients)]
    means = np.stack([x.mean(0) for x in device_inputs])
    assert means.mean(1).std() == pytest.approx(np.sqrt(beta**2 + 1 / features), rel=0.12)
    assert (means - means.mean(1, keepdims=True)).std() == pytest.approx(1.0, rel=0.05)
    variance = np.mean([x.var(0) for x in device_inputs], 0)
    np.testing.assert_allclose(variance, np.arange(1, features + 1) ** -1.2, rtol=0.05)
    noise = reference.inputs(0.0, np.zeros(features), np.random.default_rng(0).normal(size=(60_000, features)), beta)
    np.testing.assert_allclose(variance, noise.var(0), rtol=0.06)
    x = np.concatenate([x - x.mean(0) for x in device_inputs])
    correlation = np.corrcoef(x.T) - np.eye(features)
    assert np.abs(correlation).max() < 0.03  # Σ is diagonal


def test_labels_are_the_argmax_of_a_linear_model():
    """Labels are exactly separable: logistic regression without noise fits a device perfectly."""
    x, y = devices(Synthetic(features=5, labels=3, log_std=0.0, extra=50), 3, 1)[0]
    design = torch.tensor(np.concatenate([x, np.ones((len(x), 1))], 1), dtype=torch.float64)
    weight = torch.zeros(6, 3, dtype=torch.float64, requires_grad=True)
    fit = torch.optim.LBFGS([weight], max_iter=500, line_search_fn="strong_wolfe")

    def closure():
        fit.zero_grad()
        loss = torch.nn.functional.cross_entropy(design @ weight, torch.from_numpy(y))
        loss.backward()
        return loss

    fit.step(closure)
    assert ((design @ weight).argmax(1).numpy() == y).all()


def test_u_k_shifts_all_logits_alike_but_for_the_inputs():
    """α changes W_k by the same u_k everywhere, so that only labels, not inputs, can depend on it."""
    low, high = (Synthetic(alpha=alpha, features=6, log_std=0.0).load(0, 4) for alpha in (0.0, 3.0))
    assert torch.equal(low.x, high.x)
    assert torch.equal(low.y, high.y)  # u_k adds the same number to every logit: softmax does not see it


def test_every_seed_has_its_own_data_and_every_run_of_it_the_same():
    data = Synthetic(features=4, log_std=0.0)
    a, b, c = (data.load(seed, 3) for seed in (0, 0, 1))
    assert torch.equal(a.x, b.x)
    assert torch.equal(a.y, b.y)
    assert not torch.equal(a.x, c.x)
    population = world(dataset=data, clients=3, participants=2, partition=None).settle((0, 1))
    assert torch.equal(population.store.x, torch.cat([a.x, c.x]))
    for s, examples in enumerate((a, c)):
        for k in range(3):
            rows = np.concatenate(list(population.members[s][k].values())) - s * len(a.x)
            assert sorted(rows) == np.flatnonzero(examples.owner.numpy() == k).tolist()


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"alpha": -0.5}, r"Synthetic: alpha must lie in \[0, 1e12\], got -0\.5"),
        ({"beta": -1}, r"Synthetic: beta must lie in \[0, 1e12\], got -1"),
        ({"features": 0}, r"Synthetic: features must lie in \[1, 1e5\], got 0"),
        ({"largest": 0}, r"Synthetic: largest must lie in \[1, 1e6\], got 0"),
    ],
)
def test_bad_values_are_refused(values, sentence):
    with pytest.raises(ValueError, match=sentence):
        Synthetic(**values)


def test_digits_are_images_in_the_unit_interval():
    data = named(Dataset)["Digits"]()
    examples = data.load(0, 5)
    assert examples.x.shape == (1797, *data.shape)
    assert float(examples.x.min()) == 0
    assert float(examples.x.max()) == 1
    assert examples.y.bincount().min() > 170


def test_every_data_set_has_a_name():
    expected = {
        *(
            "AgNews",
            "Cifar10",
            "Cifar100",
            "Digits",
            "Emnist",
            "EmnistImages",
            "FashionMnist",
            "HeavyTails",
            "LibSvm",
            "Mnist",
        ),
        *(
            "FederatedParquet",
            "Landmarks",
            "LeafFemnist",
            "LeafShakespeare",
            "Shakespeare",
            "StackOverflow",
            "StackOverflowTags",
            "Svhn",
            "Synthetic",
            "TableFile",
            "TinyImageNet",
        ),
    }
    assert {name for name, cls in named(Dataset).items() if cls.__module__.startswith("flstudy.")} == expected | {
        "InMemory"
    }
    assert set(class_names("population.dataset")) == expected
