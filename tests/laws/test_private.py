"""Law: a method that does not say that its server reads single uploads needs no more than their mean.

Private runs show it the mean in every upload's place, so a method that reads more would silently do something else.
"""

import dataclasses

import pytest
from torch.utils import _pytree as pytree

from flstudy.federation.private_aggregator import PrivateAggregator

from ..worlds import difference, drifting, run, shipped

METHODS = {name: method(weighting="uniform") for name, method in shipped().items()}
ADMITTED = {name: one for name, one in METHODS.items() if not (one.asks or one.oracle or one.reads_each)}


def averaged(aggregator, inbox, round):
    """What an aggregator without noise and bound would show."""
    mean = pytree.tree_map(lambda leaf: leaf.mean(1), inbox.uploads)
    return aggregator._told(inbox, mean, inbox.weights.shape[1])


@pytest.mark.parametrize("name", ADMITTED)
def test_servers_need_the_mean_only(name, monkeypatch):
    algorithm = dataclasses.replace(ADMITTED[name], lr=0.1)
    plain = run(algorithm, 2, population=drifting(), executor="sequential")
    monkeypatch.setattr(PrivateAggregator, "__call__", averaged)
    shown = run(algorithm, 2, population=drifting(), executor="sequential")
    assert difference(plain.server, shown.server) < 1e-10
    assert all(
        plain.record.metrics[key] == pytest.approx(values, rel=1e-8, abs=1e-10)
        for key, values in shown.record.metrics.items()
        if key.startswith("server/")
    )
