"""The laws of data sets, partitions, drifts, controllers and measures."""

import numpy as np
import torch
from torch.utils import _pytree as pytree

from flstudy.algorithms import FedAvg
from flstudy.controllers import Controller
from flstudy.federation import Coordinator
from flstudy.metrics.measure import Measure
from flstudy.population import Dataset, Drift, Partition
from flstudy.population.partition import NOBODY
from flstudy.testing.algorithms import BOUND, copied, largest_difference, play, small_world


def check_dataset(dataset: Dataset, clients: int = 3) -> None:
    """Try a data set's laws: it is as large and shaped as it says, labels and owners lie in their ranges, and loading
    is a function of the seed, which means something only where it is ``seeded``.

    Raises:
        AssertionError: which law it breaks, with numbers.
    """
    name = type(dataset).__name__
    one, again, other = (dataset.load(seed, clients) for seed in (0, 0, 44))
    assert len(one.x) == len(one.y) > 0, f"{name}: size: {len(one.x)} inputs and {len(one.y)} labels"
    shape = tuple(one.x.shape[1:])
    assert shape == tuple(dataset.shape), f"{name}: shape: it says {tuple(dataset.shape)}, examples have {shape}"
    if not one.y.is_floating_point():
        most = int(one.y.max())
        assert most < dataset.classes, f"{name}: classes: it says {dataset.classes}, there is a label {most}"
    if one.owner is not None:
        ends = int(one.owner.min()), int(one.owner.max())
        assert 0 <= ends[0] <= ends[1] < clients, f"{name}: owners: {ends} of {clients} devices"
    assert _same(one, again), f"{name}: repeatable: two loads of one seed differ"
    assert dataset.seeded or _same(one, other), f"{name}: seeds: it is not seeded, but two seeds' examples differ"


def _same(one: object, other: object) -> bool:
    parts = [[leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)] for tree in (one, other)]
    return all(torch.equal(a, b) for a, b in zip(*parts, strict=True))


def check_drift(drift: Drift, devices: int = 7, rounds: int = 60) -> None:
    """Try a drift's laws: concepts lie in their range, are a function of (seed, round) and change only where an event
    is told, and each concept has its row in the tables.

    Raises:
        AssertionError: which law it breaks, with numbers.
    """
    name = type(drift).__name__
    told = {event.round for event in drift.events()}
    before = None
    for number in range(1, rounds + 1):
        now = drift.concept(0, number, devices)
        assert now.shape == (devices,), f"{name}: shape: concepts {now.shape} of {devices} devices in round {number}"
        assert 0 <= now.min() <= now.max() < drift.concepts, f"{name}: range: {now} of {drift.concepts} concepts"
        assert np.array_equal(now, drift.concept(0, number, devices)), f"{name}: repeatable: round {number} differs"
        changed = before is not None and not np.array_equal(before, now)
        assert not changed or number in told, f"{name}: events: concepts change in round {number}, which none tells"
        before = now
    labels = drift.tables((4,), 4).labels
    rows = len(labels) if labels.numel() else drift.concepts
    assert rows == drift.concepts, f"{name}: tables: {rows} rows for {drift.concepts} concepts"


def check_controller(controller: Controller, rounds: int = 4) -> None:
    """Try a controller's laws: its state is tensors of a lasting form, ``init`` is pure, and runs with it repeat.

    Raises:
        AssertionError: which law it breaks, with numbers.
    """
    name = type(controller).__name__
    runs: list[Coordinator] = [
        play(FedAvg(lr=0.1), "sequential", small_world(), rounds, controllers=(controller,)) for _ in range(2)
    ]
    apart = largest_difference(runs[0].server, runs[1].server)
    assert apart == 0, f"{name}: repeatable: two runs' servers differ by {apart:.3g}"
    server = pytree.tree_map(lambda leaf: leaf[0], runs[0].server)
    before = copied(server)
    state = controller.init(server)
    strange = [type(leaf).__name__ for leaf in pytree.tree_leaves(state) if not isinstance(leaf, torch.Tensor)]
    assert not strange, f"{name}: state: it must be tensors, got {strange[0]}"
    untouched = all(torch.equal(a, b) for a, b in zip(before, copied(server), strict=True))
    assert untouched, f"{name}: purity: init changes the server"


def check_partition(partition: Partition, clients: int = 5) -> None:
    """Try a partition's laws: it names a device, or nobody, for every example, and its draws come from the generator
    that it is given.

    Raises:
        AssertionError: which law it breaks, with numbers.
    """
    name, labels = type(partition).__name__, np.arange(400) % 4
    kept = labels.copy()
    owner, again = (partition.assign(labels, clients, np.random.default_rng(3)) for _ in range(2))
    assert owner.shape == labels.shape, f"{name}: shape: owners {owner.shape} of {labels.shape} examples"
    assert np.issubdtype(owner.dtype, np.integer), f"{name}: devices are integers, got {owner.dtype}"
    assert NOBODY <= owner.min() <= owner.max() < clients, f"{name}: owners: {owner.min()} … {owner.max()} of {clients}"
    assert np.array_equal(owner, again), f"{name}: repeatable: two assignments by equal generators differ"
    assert np.array_equal(labels, kept), f"{name}: purity: assign changes the labels"


def check_measure(measure: Measure, devices: int = 7) -> None:
    """Try a measure's laws: it tells a number for each of the names that it gives, is pure, and the order of devices
    means nothing.

    Raises:
        AssertionError: which law it breaks, with numbers.
    """
    name, generator = type(measure).__name__, torch.Generator().manual_seed(5)
    values = {of: torch.rand(devices, dtype=torch.float64, generator=generator) for of in ("accuracy", "loss")}
    before = copied(values)
    told = measure(values)
    assert set(told) == set(measure.measures), f"{name}: names: it gives {measure.measures}, but tells {tuple(told)}"
    for of, value in told.items():
        assert value.shape == (), f"{name}: shape: {of} is {tuple(value.shape)}, not a number"
    untouched = all(torch.equal(a, b) for a, b in zip(before, copied(values), strict=True))
    assert untouched, f"{name}: purity: it changes the devices' values"
    order = torch.randperm(devices, generator=generator)
    apart = largest_difference(dict(told), dict(measure({of: one[order] for of, one in values.items()})))
    assert apart <= BOUND, f"{name}: order of devices: its values differ by {apart:.3g}"
