"""Laws of data sets, partitions, drifts, controllers and measures."""

import numpy as np
import torch

from flstudy import pytree
from flstudy.algorithms import FedAvg
from flstudy.controllers import Controller
from flstudy.metrics.measure import Measure
from flstudy.population import Dataset, Drift, Partition
from flstudy.population.partition import NOBODY
from flstudy.testing.algorithms import BOUND, copied, largest_difference, play, small_world


def check_dataset(dataset: Dataset, clients: int = 3) -> None:
    """Check a data set's laws: it has the size and shape that it declares, labels and owners lie in their ranges, and
    loading is a function of the seed, and depends on it only where the data set is ``seeded``.

    Raises:
        AssertionError: which law it breaks, with numbers.
    """
    name = type(dataset).__name__
    first, again, other = (dataset.load(seed, clients) for seed in (0, 0, 44))
    assert len(first.x) == len(first.y) > 0, f"{name}: size: {len(first.x)} inputs and {len(first.y)} labels"
    shape = tuple(first.x.shape[1:])
    assert shape == tuple(dataset.shape), f"{name}: shape: it says {tuple(dataset.shape)}, examples have {shape}"
    if not first.y.is_floating_point():
        most = int(first.y.max())
        assert most < dataset.classes, f"{name}: classes: it says {dataset.classes}, there is a label {most}"
    if first.owner is not None:
        ends = int(first.owner.min()), int(first.owner.max())
        assert 0 <= ends[0] <= ends[1] < clients, f"{name}: owners: {ends} of {clients} devices"
    assert _same(first, again), f"{name}: repeatable: two loads of one seed differ"
    assert dataset.seeded or _same(first, other), f"{name}: seeds: it is not seeded, but two seeds' examples differ"


def _same(first: object, other: object) -> bool:
    parts = [[leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)] for tree in (first, other)]
    return all(torch.equal(a, b) for a, b in zip(*parts, strict=True))


def check_drift(drift: Drift, devices: int = 7, rounds: int = 60) -> None:
    """Check a drift's laws: concepts lie in their range, are a function of (seed, round) and change only at its events,
    and each concept has its row in the tables.

    Raises:
        AssertionError: which law it breaks, with numbers.
    """
    name = type(drift).__name__
    declared = {event.round for event in drift.events()}
    before = None
    for number in range(1, rounds + 1):
        now = drift.concept(0, number, devices)
        assert now.shape == (devices,), f"{name}: shape: concepts {now.shape} of {devices} devices in round {number}"
        assert 0 <= now.min() <= now.max() < drift.concepts, f"{name}: range: {now} of {drift.concepts} concepts"
        assert np.array_equal(now, drift.concept(0, number, devices)), f"{name}: repeatable: round {number} differs"
        changed = before is not None and not np.array_equal(before, now)
        assert not changed or number in declared, f"{name}: events: concepts change in round {number}, which none tells"
        before = now
    labels = drift.tables((4,), 4).labels
    rows = len(labels) if labels.numel() else drift.concepts
    assert rows == drift.concepts, f"{name}: tables: {rows} rows for {drift.concepts} concepts"


def check_controller(controller: Controller, rounds: int = 4) -> None:
    """Check a controller's laws: its state consists of tensors, ``init`` is pure, and runs with it repeat.

    Raises:
        AssertionError: which law it breaks, with numbers.
    """
    name = type(controller).__name__
    runs = [play(FedAvg(lr=0.1), "sequential", small_world(), rounds, controllers=(controller,)) for _ in range(2)]
    apart = largest_difference(runs[0].state.server, runs[1].state.server)
    assert apart == 0, f"{name}: repeatable: two runs' servers differ by {apart:.3g}"
    server = pytree.tree_map(lambda leaf: leaf[0], runs[0].state.server)
    before = copied(server)
    state = controller.init(server)
    strange = [type(leaf).__name__ for leaf in pytree.tree_leaves(state) if not isinstance(leaf, torch.Tensor)]
    assert not strange, f"{name}: state: it must be tensors, got {strange[0]}"
    untouched = all(torch.equal(a, b) for a, b in zip(before, copied(server), strict=True))
    assert untouched, f"{name}: purity: init changes the server"


def check_partition(partition: Partition, clients: int = 5) -> None:
    """Check a partition's laws: it assigns every example to a device or to nobody, draws from the given generator
    alone, and leaves the labels as they are.

    Raises:
        AssertionError: which law it breaks, with numbers.
    """
    name, labels = type(partition).__name__, np.arange(400) % 4
    original = labels.copy()
    owner, again = (partition.assign(labels, clients, np.random.default_rng(3)) for _ in range(2))
    assert owner.shape == labels.shape, f"{name}: shape: owners {owner.shape} of {labels.shape} examples"
    assert np.issubdtype(owner.dtype, np.integer), f"{name}: devices are integers, got {owner.dtype}"
    assert NOBODY <= owner.min() <= owner.max() < clients, f"{name}: owners: {owner.min()} … {owner.max()} of {clients}"
    assert np.array_equal(owner, again), f"{name}: repeatable: two assignments by equal generators differ"
    assert np.array_equal(labels, original), f"{name}: purity: assign changes the labels"


def check_measure(measure: Measure, devices: int = 7) -> None:
    """Check a measure's laws: it returns one number for each of its ``measures``, is pure, and does not depend on the
    order of devices.

    Raises:
        AssertionError: which law it breaks, with numbers.
    """
    name, generator = type(measure).__name__, torch.Generator().manual_seed(5)
    values = {of: torch.rand(devices, dtype=torch.float64, generator=generator) for of in ("accuracy", "loss")}
    before = copied(values)
    stats = measure(values)
    assert set(stats) == set(measure.measures), f"{name}: names: it gives {measure.measures}, but tells {tuple(stats)}"
    for of, value in stats.items():
        assert value.shape == (), f"{name}: shape: {of} is {tuple(value.shape)}, not a number"
    untouched = all(torch.equal(a, b) for a, b in zip(before, copied(values), strict=True))
    assert untouched, f"{name}: purity: it changes the devices' values"
    order = torch.randperm(devices, generator=generator)
    apart = largest_difference(dict(stats), dict(measure({of: by_device[order] for of, by_device in values.items()})))
    assert apart <= BOUND, f"{name}: order of devices: its values differ by {apart:.3g}"
