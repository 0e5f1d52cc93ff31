"""Partitions: every example has one owner, and α says how unequal the owners are."""

import numpy as np
import pytest

from flstudy.population import BalancedDirichlet, Dirichlet, Iid, Shards

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 300))
CLIENTS = 15


def assign(partition, labels=LABELS, clients=CLIENTS, seed=0):
    owner = partition.assign(labels, clients, np.random.default_rng(seed))
    assert owner.shape == labels.shape
    assert owner.min() >= 0
    assert owner.max() < clients
    return owner


def counts(owner, labels=LABELS, clients=CLIENTS):
    """[clients, classes]"""
    return np.stack([np.bincount(labels[owner == k], minlength=10) for k in range(clients)])


def imbalance(owner):
    """Mean total variation between a device's labels and everybody's: 0 is iid, near 1 is one label each."""
    share = counts(owner) / np.maximum(counts(owner).sum(1, keepdims=True), 1)
    return np.abs(share - np.bincount(LABELS) / len(LABELS)).sum(1).mean() / 2


@pytest.mark.parametrize(
    "partition",
    [
        Iid(),
        Dirichlet(alpha=0.3),
        Dirichlet(alpha=100.0),
        BalancedDirichlet(alpha=0.3),
        Shards(per_client=2),
        Shards(per_client=5),
    ],
)
def test_every_example_has_one_owner_and_every_device_some(partition):
    owner = assign(partition)
    assert np.bincount(owner, minlength=CLIENTS).min() >= 1
    assert counts(owner).sum() == len(LABELS)
    assert np.array_equal(owner, assign(partition))
    assert not np.array_equal(owner, assign(partition, seed=1))


def test_iid_shares_are_equal():
    sizes = np.bincount(assign(Iid(), clients=7), minlength=7)
    assert sizes.max() - sizes.min() <= 1
    assert imbalance(assign(Iid())) < 0.15


def test_heterogeneity_falls_with_alpha():
    mean = [np.mean([imbalance(assign(Dirichlet(alpha=a), seed=s)) for s in range(5)]) for a in (0.1, 0.3, 1, 10, 1000)]
    assert mean == sorted(mean, reverse=True)
    assert mean[0] > 0.6
    assert mean[-1] < 0.1


def test_dirichlet_shares_of_a_label_have_the_right_mean_and_variance():
    """A share is Beta(α, (N-1) α): mean 1/N, variance (N-1) / (N² (N α + 1)); min_size 1 hardly conditions it."""
    clients, alpha, draws = 5, 0.8, 400
    owners = [assign(Dirichlet(alpha=alpha, min_size=1), clients=clients, seed=s) for s in range(draws)]
    share = np.stack([counts(owner, clients=clients) / 300 for owner in owners])  # [draws, clients, classes]
    assert np.allclose(share.mean((0, 2)), 1 / clients, atol=0.02)
    expected = (clients - 1) / (clients**2 * (clients * alpha + 1))
    assert share.var() == pytest.approx(expected, rel=0.06)


@pytest.mark.slow
def test_min_size_is_kept_or_refused():
    assert np.bincount(assign(Dirichlet(alpha=0.05, min_size=40)), minlength=CLIENTS).min() >= 40
    with pytest.raises(ValueError, match=r"min_size 50 of 200 examples at alpha 0\.3; lower min_size"):
        assign(Dirichlet(alpha=0.3, min_size=50), labels=LABELS[:200])


@pytest.mark.parametrize("alpha", [1e-3, 0.1, 0.6, 100.0])
def test_balanced_shares_are_equal_whatever_alpha(alpha):
    assert np.bincount(assign(BalancedDirichlet(alpha=alpha))).tolist() == [200] * CLIENTS
    assert sorted(np.bincount(assign(BalancedDirichlet(alpha=alpha), clients=7))) == [428] * 3 + [429] * 4
    assert np.bincount(assign(BalancedDirichlet(alpha=alpha), LABELS[:15])).tolist() == [1] * CLIENTS
    with pytest.raises(ValueError, match="15 clients need as many examples, got 14"):
        assign(BalancedDirichlet(alpha=alpha), LABELS[:14])


def test_balanced_heterogeneity_falls_with_alpha():
    alphas = (0.01, 0.1, 0.6, 10, 1000)
    mean = [np.mean([imbalance(assign(BalancedDirichlet(alpha=a), seed=s)) for s in range(5)]) for a in alphas]
    assert mean == sorted(mean, reverse=True)
    assert mean[0] > 0.7
    assert mean[-1] < 0.15


@pytest.mark.slow
def test_balanced_draws_have_the_distribution_of_drawing_one_by_one():
    """Two devices and few examples, so that labels are used up: the counts of a plain transcription."""
    labels, draws, alpha = np.repeat([0, 1, 2], [2, 3, 5]), 6000, 0.7

    def plain(rng):
        left, first = np.bincount(labels), np.zeros(3, dtype=int)
        prior = rng.dirichlet(np.full(3, alpha))
        for _ in range(5):
            weight = np.where(left > 0, prior, 0)
            label = rng.choice(3, p=weight / weight.sum())
            first[label] += 1
            left[label] -= 1
        return first

    def ours(rng):
        return BalancedDirichlet(alpha=alpha)._counts(5, np.bincount(labels), rng, 3)

    rng = np.random.default_rng(0)
    seen = [np.zeros((3, 4, 6)) for _ in range(2)]
    for counts, draw in zip(seen, (plain, ours), strict=True):
        for _ in range(draws):
            counts[tuple(draw(rng))] += 1 / draws
    assert abs(seen[0] - seen[1]).max() < 0.03  # four standard errors of a share near a fifth


def test_balanced_is_balanced_in_the_papers_worlds():
    labels = np.repeat(np.arange(100), 600)
    owner = assign(BalancedDirichlet(alpha=0.1), labels, 500)
    assert np.bincount(owner).tolist() == [120] * 500


def test_shards_give_few_labels_to_each():
    owner = assign(Shards(per_client=2))
    assert ((counts(owner) > 0).sum(1) <= 4).all()  # two shards of 100 examples, each touching two labels at most
    assert np.bincount(owner).tolist() == [200] * CLIENTS
    with pytest.raises(ValueError, match="30 shards need as many examples, got 20; lower per_client"):
        assign(Shards(per_client=2), labels=LABELS[:20])


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Dirichlet(alpha=-1.0), r"Dirichlet: alpha must lie in \(0, 1e12\], got -1\.0"),
        (lambda: Dirichlet(alpha=0.0), r"Dirichlet: alpha must lie in \(0, 1e12\], got 0\.0"),
        (lambda: Dirichlet(alpha=float("nan")), r"alpha must lie in \(0, 1e12\], got nan"),
        (lambda: Dirichlet(min_size=0), r"Dirichlet: min_size must lie in \[1, 1e6\], got 0"),
        (lambda: BalancedDirichlet(alpha=0.0), r"BalancedDirichlet: alpha must lie in \(0, 1e12\], got 0\.0"),
        (lambda: BalancedDirichlet(alpha=float("nan")), r"BalancedDirichlet: alpha must lie in \(0, 1e12\], got nan"),
        (lambda: Shards(per_client=0), r"Shards: per_client must lie in \[1, 1e6\], got 0"),
    ],
)
def test_bad_values_are_refused(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_a_thousand_devices_of_almost_one_label_each():
    """FedAda² (Lee et al. 2024, App. G.3): CIFAR-100 over 1,000 devices with α = 0.001, of equal sizes."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(100), 500))
    owner = assign(BalancedDirichlet(alpha=0.001), labels, 1000)
    assert np.bincount(owner).tolist() == [50] * 1000
    held = np.zeros((1000, 100), dtype=np.int64)
    np.add.at(held, (owner, labels), 1)
    assert (held.max(1) / 50).mean() > 0.85
    assert (held > 0).sum(1).mean() < 2  # a prior of one label, and what is left where that is used up


def test_balance_is_niid_bench_s_code():
    """Its loop over labels: a device that holds N/n examples gets nothing more."""
    labels, clients, alpha = np.repeat(np.arange(10), 600), 20, 0.3
    owner = Dirichlet(alpha=alpha, min_size=1, balance=True).assign(labels, clients, np.random.default_rng(4))
    rng, batches = np.random.default_rng(4), [[] for _ in range(clients)]
    for label in range(10):
        rows = rng.permutation(np.flatnonzero(labels == label))
        proportions = rng.dirichlet(np.repeat(alpha, clients))
        proportions = np.array(
            [p * (len(batch) < len(labels) / clients) for p, batch in zip(proportions, batches, strict=True)]
        )
        cuts = (np.cumsum(proportions / proportions.sum()) * len(rows)).astype(int)[:-1]
        batches = [batch + part.tolist() for batch, part in zip(batches, np.split(rows, cuts), strict=True)]
    assert [sorted(batch) for batch in batches] == [np.flatnonzero(owner == device).tolist() for device in range(20)]


def test_balance_evens_sizes_and_empties_cells():
    """As measured with NIID-Bench's code at α = .3 and 100 devices: variation of sizes .43 against .56."""
    labels = np.repeat(np.arange(10), 6000)
    variation, empty = {}, {}
    for balance in (False, True):
        owner = Dirichlet(min_size=1, balance=balance).assign(labels, 100, np.random.default_rng(0))
        cells = np.stack([np.bincount(labels[owner == device], minlength=10) for device in range(100)])
        variation[balance], empty[balance] = cells.sum(1).std() / cells.sum(1).mean(), (cells == 0).mean()
    assert variation[True] < variation[False] - 0.05
    assert empty[True] > empty[False] + 0.05
