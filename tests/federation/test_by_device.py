"""Results of single devices: what an evaluation's means are means of."""

import numpy as np
import pytest

from flstudy.algorithms import Ditto, FedAvg, HypCluster
from flstudy.metrics.panel import Panel
from flstudy.population import AlternatingGroups

from ..worlds import CLASSES, DEVICES, FEATURES, SEEDS, drifting, mlp, run

WORLDS = {
    "all": ({}, {}),
    "some are away": ({"availability": AlternatingGroups(rounds=2), "participants": 2}, {}),
    "a panel": ({}, {"panel": Panel(clients=3)}),
    "by examples": ({}, {"panel": Panel(clients=None, weighting="examples")}),
}


@pytest.mark.parametrize("method", [FedAvg(lr=0.1), Ditto(lr=0.3, lam=0.01), HypCluster(lr=0.1)])
@pytest.mark.parametrize("world", WORLDS)
def test_means_over_devices_are_those_of_the_evaluation(method, world):
    changes, parts = WORLDS[world]
    population = drifting(**changes)
    module = run(method, 3, population=population, seeds=SEEDS, evaluate=True, **parts)
    columns = module.run.by_device()
    assert set(columns["round"]) == {3}
    assert ("test/global_accuracy" in columns) == isinstance(method, Ditto)
    for replica, seed in enumerate(SEEDS):
        rows = columns["seed"] == seed
        devices = columns["device"][rows]
        assert len(devices) == (3 if world in ("a panel", "some are away") else DEVICES)
        np.testing.assert_array_equal(columns["concept"][rows], population.concepts(3)[replica].numpy()[devices])
        sizes = [len(population.members[replica][k]["train"]) for k in devices]
        assert columns["examples"][rows].tolist() == sizes
        for name in (name for name in columns if name.startswith(("valid/", "test/"))):
            weights = np.ones(len(devices))
            if world == "by examples":
                split = name.split("/")[0]
                weights = [len(population.members[replica][k][split]) for k in devices]
            mean = np.average(columns[name][rows], weights=weights)
            assert mean == pytest.approx(module.record.metrics[name][replica], abs=1e-12)


class Judged(type(mlp())):
    """A task that is measured by its own step, which leaves a device out."""

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("margin", self(x).gather(1, y[:, None]).mean() if len(y) > 4 else float("nan"))


@pytest.mark.filterwarnings("ignore:.*undefined")
@pytest.mark.parametrize("method", [FedAvg(lr=0.1), Ditto(lr=0.3, lam=0.01)])
def test_what_a_module_measures_by_its_own_step_is_there_too(method):
    population, task = drifting(), Judged((FEATURES,), CLASSES, hidden=5).double()
    module = run(method, 2, population=population, task=task, seeds=SEEDS, evaluate=True)
    columns = module.run.by_device()
    assert ("global_margin" in columns) == isinstance(method, Ditto)
    for replica, seed in enumerate(SEEDS):
        values = columns["margin"][columns["seed"] == seed]
        sizes = np.array([len(population.members[replica][k]["valid"]) for k in range(DEVICES)])
        assert (np.isnan(values) == (sizes <= 4)).all()
        counts = sizes > 4
        mean = np.average(values[counts], weights=sizes[counts])
        assert mean == pytest.approx(module.record.metrics["margin"][replica], abs=1e-12)


def test_before_an_evaluation_there_are_none():
    module = run(FedAvg(lr=0.1), 1, population=drifting())
    assert not module.run.has_measured_devices
    with pytest.raises(ValueError, match="nothing has been measured of single devices yet: evaluate first"):
        module.run.by_device()
