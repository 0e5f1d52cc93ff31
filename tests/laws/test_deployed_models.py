"""Law: the model that a device uses is the model that is judged, and the server's model is judged beside it."""

import copy
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from flstudy.algorithms import Apfl, Ditto, FedAvg, HypCluster, LocalOnly
from flstudy.metrics.measure import WorstDevices
from flstudy.metrics.panel import Panel
from flstudy.metrics.registry import is_of_server, of_server

from ..worlds import CLASSES, DEVICES, FEATURES, drifting, mlp, run, shipped
from .cases import plain

OWN = ("LocalOnly", "Ditto", "Apfl", "FedBabu", "FedRep", "LgFedAvg", "Cfl")
KINDS = dict.fromkeys(OWN, "own") | dict.fromkeys(("HypCluster", "FedDrift", "FedDriftEager", "Oracle"), "chosen")


def by_hand(module, task, device, split, replica):
    """Mean loss and accuracy of a task on a device's examples in the last round, by its own forward."""
    population, round = module.run.population, len(module.records)
    rows = torch.from_numpy(population.device_data.held(replica, device, split, round))
    x, y = population.store.gather(rows, population.concepts(round)[replica, device])
    with torch.no_grad():
        outputs = task(x.double())
    return float(F.cross_entropy(outputs, y)), float((outputs.argmax(1) == y).double().mean())


def over_devices(module, task_of, split):
    """Loss, accuracy and its deviation over devices, of the task that each device is given, by replica."""
    lines = []
    for replica in range(len(module.seeds)):
        pairs = [by_hand(module, task_of(device, replica), device, split, replica) for device in range(DEVICES)]
        losses, accuracies = np.array(pairs).T
        lines.append((losses.mean(), accuracies.mean(), accuracies.std()))
    return np.array(lines).T


def judged(module, split, of=""):
    names = [f"{split}/{of}{name}" for name in ("loss", "accuracy", "accuracy_spread")]
    return np.array([module.record.metrics[name] for name in names])


def servers(module):
    """Function of device and replica: the task with the server's only model."""
    tasks = [module.load_into(copy.deepcopy(module.task), replica) for replica in range(len(module.seeds))]
    return lambda device, replica: tasks[replica]


@pytest.mark.parametrize("name", shipped())
def test_what_devices_use_is_judged_and_the_servers_model_beside_it(name):
    module = run(plain()[name], 3, population=drifting(), task=mlp().double(), seeds=(0, 44), evaluate=True)
    assert module.run.models.deployed == KINDS.get(name, "global")
    for split in ("valid", "test"):
        used = over_devices(module, module.personal, split)
        np.testing.assert_allclose(judged(module, split), used, rtol=1e-12, atol=1e-12)
        if KINDS.get(name) == "chosen":
            np.testing.assert_array_equal(judged(module, split, "global_"), judged(module, split))
        else:
            of_the_server = over_devices(module, servers(module), split)
            np.testing.assert_allclose(judged(module, split, "global_"), of_the_server, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("algorithm", [Ditto(lr=0.1), LocalOnly(lr=0.1), FedAvg(lr=0.1), HypCluster(lr=0.1)])
def test_every_metric_of_an_evaluation_has_its_twin_and_is_announced(algorithm):
    """Those of participants' local models, and times, are of no model that stays."""
    parts = {"measure": WorstDevices(), "panel": Panel(clients=4)}
    module = run(algorithm, 2, population=drifting(), evaluate=True, **parts)
    metrics = {name for name in module.record.metrics if name.startswith(("valid/", "test/"))}
    twins = {name for name in metrics if not is_of_server(name) and "personal" not in name}
    assert twins == {name for name in twins if of_server(name) in metrics}
    assert {of_server(name) for name in twins} == {name for name in metrics if is_of_server(name)}
    assert metrics <= set(module.measures(drifting(), 2))


class Logs(type(mlp())):
    """A task whose own steps log a measure."""

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("margin", self(x).gather(1, y[:, None]).mean())


@pytest.mark.parametrize("algorithm", [Ditto(lr=0.3, lam=0.01), Apfl(lr=0.3), FedAvg(lr=0.3)])
def test_a_modules_own_measures_are_of_both(algorithm):
    task = Logs((FEATURES,), CLASSES, hidden=5).double()
    module = run(algorithm, 2, population=drifting(), task=task, evaluate=True)
    values, weights = [], []
    for device in range(DEVICES):
        population = module.run.population
        rows = torch.from_numpy(population.device_data.held(0, device, "valid", 2))
        x, y = population.store.gather(rows, population.concepts(2)[0, device])
        with torch.no_grad():
            pair = [model(x.double()).gather(1, y[:, None]).mean() for model in (module.personal(device), module.task)]
        values.append([float(value) for value in pair])
        weights.append(len(rows))
    used, shared = np.average(values, axis=0, weights=weights)
    metrics = module.record.metrics
    assert metrics["margin"][0] == pytest.approx(used, abs=1e-12)
    assert metrics["global_margin"][0] == pytest.approx(shared, abs=1e-12)
    assert {"margin", "global_margin", "global_margin_spread"} <= set(module.measures(drifting(), 2))
    assert (metrics["margin"] == metrics["global_margin"]) == (type(algorithm) is FedAvg)


@pytest.mark.parametrize("name", ["Ditto", "Apfl"])
def test_lambda_and_alpha_change_what_is_tuned(name):
    """They leave the server's model as it is, by which they were judged once."""
    key, values = {"Ditto": ("lam", (0.0, 1.0, 3.0)), "Apfl": ("alpha", (0.1, 0.5, 0.9))}[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        runs = [
            run(shipped()[name](lr=0.2, **{key: value}), 4, population=drifting(), evaluate=True) for value in values
        ]
    assert len({module.record.metrics["valid/loss"][0] for module in runs}) == 3
    assert len({module.record.metrics["valid/global_loss"][0] for module in runs}) == 1
