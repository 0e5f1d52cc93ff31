"""What a round reports equals what a reader would work out by hand."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from flstudy.algorithms import FedAdaGrad, FedAdam, FedAvg, FedYogi, Flash, HypCluster
from flstudy.controllers import DynamicInitialModel
from flstudy.execution import model_evaluator as evaluator_module
from flstudy.metrics.wireless import Wireless
from flstudy.population import AlternatingGroups, SuddenDrift

from ..worlds import CLASSES, DEVICES, difference, drifting, mlp, run, world

ROUNDS = 3


@pytest.fixture(scope="module", params=["vectorized", "sequential"])
def scene(request):
    """A run with drift, of two replicas, evaluated in every round."""
    population = drifting()
    algorithm = FedAvg(lr=0.1)
    arguments = {"population": population, "seeds": (0, 44), "initial": "seeded", "executor": request.param}
    return run(algorithm, ROUNDS, evaluate=True, **arguments), population


def by_hand(x, population, split, client, s, index):
    """(loss, accuracy) of the model x on one device's examples under its concept in round ``index``."""
    task = mlp().double()
    torch.nn.utils.vector_to_parameters(x, task.parameters())
    rows = torch.from_numpy(population.members[s][client][split])
    table = population.store.table[population.concepts(index + 1)[s, client]]
    inputs, labels = population.store.x[rows], table[population.store.y[rows]]
    with torch.no_grad():
        logits = task(inputs)
    return float(F.cross_entropy(logits, labels)), float((logits.argmax(1) == labels).double().mean())


@pytest.mark.parametrize("split", ["valid", "test"])
def test_generalised_accuracy_and_its_spread(scene, split):
    """FLASH eq. (1): the mean over devices, each counting the same; eq. (3): the deviation, dividing by N."""
    module, population = scene
    for index, (server, record) in enumerate(zip(module.servers, module.records, strict=True)):
        for s in range(2):
            per_device = [by_hand(server.x[s], population, split, k, s, index) for k in range(DEVICES)]
            loss, accuracy = np.array(per_device).T
            assert record.metrics[f"{split}/loss"][s] == pytest.approx(loss.mean(), abs=1e-12)
            assert record.metrics[f"{split}/accuracy"][s] == pytest.approx(accuracy.mean(), abs=1e-12)
            spread = np.sqrt(((accuracy - accuracy.mean()) ** 2).sum() / DEVICES)
            assert record.metrics[f"{split}/accuracy_spread"][s] == pytest.approx(spread, abs=1e-12)


def test_personalised_accuracy(scene):
    """FLASH eq. (2): local models after their round's work, each on its own device's test examples."""
    module, population = scene
    jobs, fit = module.last.cohort.jobs, module.last.fit
    before, record = module.servers[-2].x, module.records[-1]
    for s in range(2):
        accuracies = []
        for j, client in enumerate(jobs.client[s].tolist()):
            y = before[s] + fit.uploads.delta[s, j]
            accuracies.append(by_hand(y, population, "test", client, s, ROUNDS - 1)[1])
        assert record.metrics["test/personal_accuracy"][s] == pytest.approx(np.mean(accuracies), abs=1e-12)
        assert record.metrics["test/personal_accuracy_spread"][s] == pytest.approx(np.std(accuracies), abs=1e-12)


@pytest.mark.slow
def test_a_radio_cell_charges_what_travels_and_the_probe_rounds_of_a_session():
    wireless = Wireless(bandwidth=1e5, complexity=2.0)
    population = drifting(availability=AlternatingGroups(rounds=2), participants=2)
    controller = DynamicInitialModel(gradient_rounds=2, gradient_devices=1)
    seeds = (0, 44)
    module = run(HypCluster(lr=0.1), 6, population=population, controllers=[controller], wireless=wireless, seeds=seeds)
    bits = 8 * 8 * module.task_function.layout.n
    for index, record in enumerate(module.records):
        work = module.population.cohort(index + 1)
        cost = wireless.costs(
            seeds, index + 1, work.jobs.client, down=2 * bits, up=bits + 8 * 8 * 2, steps=work.batches.steps,
            batch_size=4, parameters=module.task_function.layout.n,
        )  # fmt: skip
        extra = record.metrics["wireless/initialization_s"]
        assert all((value > 0) == (index in (2, 4)) for value in extra)
        assert record.metrics["wireless/latency_s"] == pytest.approx((cost.latency + extra).tolist(), rel=1e-12)
        joules = cost.energy + record.metrics["wireless/initialization_j"]
        assert record.metrics["wireless/energy_j"] == pytest.approx(joules.tolist(), rel=1e-12)
    plain = run(HypCluster(lr=0.1), 6, population=population, controllers=[controller], seeds=seeds)
    assert difference(plain.server.x, module.server.x) == 0
    assert not any(name.startswith("wireless") for name in plain.record.metrics)


def test_evaluation_in_chunks_is_the_same(scene, monkeypatch):
    module, population = scene
    concepts = population.concepts(ROUNDS)
    evaluation, examples = module.evaluation, module.evaluation.examples["test"]
    whole = evaluation.evaluator.population(module.server.x, examples, concepts)
    monkeypatch.setattr(evaluator_module, "CHUNK", 5)
    assert examples.rows.shape[1] > 15
    assert difference(evaluation.evaluator.population(module.server.x, examples, concepts), whole) <= 1e-14


def test_steps_epochs_and_losses(scene):
    module, population = scene
    for index, record in enumerate(module.records):
        work = population.cohort(index + 1)
        assert record.metrics["fit/steps"] == work.batches.steps.double().mean(1).tolist()
        assert record.metrics["fit/epochs"] == [2.0, 2.0]
        assert record.metrics["fit/total_epochs"] == [2.0 * work.batches.steps.shape[1]] * 2
        assert 0 < record.metrics["fit/lane_utilization"][0] <= 1
        assert record.metrics["time/round_s"][0] > 0
        assert record.round == index + 1


@pytest.mark.parametrize(
    ("cls", "more"), [(FedAdam, {}), (FedYogi, {}), (FedAdaGrad, {}), (Flash, {}), (Flash, {"clamp": 0.1})]
)
def test_server_diagnostics(cls, more):
    """FLASH Fig. 1: the mean of η_g over the divisor; Fig. 2: the norm of Δ² - v."""
    algorithm = cls(lr=0.1, server_lr=0.3, tau=0.02, beta1=0.5, gamma=None, **more)
    module = run(algorithm, ROUNDS, population=drifting(), seeds=(0, 44), initial="seeded")
    for before, after, record in zip(module.servers, module.servers[1:], module.records[1:], strict=False):
        delta = (after.m - 0.5 * before.m) / 0.5
        divisor = after.v.sqrt() + 0.02
        if cls is Flash:
            gap = after.v.sqrt() - after.d
            held = gap < 0.1 * after.v.sqrt() if more else torch.zeros_like(gap, dtype=torch.bool)
            divisor = torch.where(held, 0.1 * after.v.sqrt(), gap) + 0.02
            assert record.metrics["server/clamped"] == held.double().mean(1).tolist()
            assert record.metrics["server/reversed"] == (divisor < 0).double().mean(1).tolist()
            assert record.metrics["server/beta3"] == pytest.approx(after.beta3.mean(1).tolist(), abs=1e-12)
            assert ((after.beta3 >= 0) & (after.beta3 <= 1)).all()
            without_d = 0.3 * after.m / (after.v.sqrt() + 0.02)
            boost = (after.x - before.x).norm(dim=1) / without_d.norm(dim=1)
            assert record.metrics["server/boost"] == pytest.approx(boost.tolist(), rel=1e-12)
        metrics = record.metrics
        step = after.x - before.x
        assert metrics["server/update_norm"] == pytest.approx(step.norm(dim=1).tolist(), rel=1e-12)
        assert metrics["server/effective_lr"] == pytest.approx((0.3 / divisor).mean(1).tolist(), rel=1e-12)
        disparity = (delta**2 - after.v).norm(dim=1).tolist()
        assert metrics["server/gradient_disparity"] == pytest.approx(disparity, rel=1e-9)
        assert difference(step, 0.3 * after.m / divisor) <= 1e-12


def test_effective_lr_of_a_plain_server_is_its_own():
    module = run(FedAvg(lr=0.1, server_lr=0.7), 1)
    assert module.record.metrics["server/effective_lr"] == pytest.approx([0.7])
    assert "server/gradient_disparity" not in module.record.metrics


@pytest.mark.slow
def test_accuracy_falls_at_a_drift_and_labels_are_the_new_ones():
    """A model that has learnt the old labels is wrong on exactly the swapped ones."""
    population = drifting(participants=DEVICES, epochs=6, drift=SuddenDrift(round=8, p_drift=1.0))
    module = run(FedAvg(lr=0.3), 8, population=population, evaluate=True)
    still = run(FedAvg(lr=0.3), 8, population=world(epochs=6), evaluate=True)
    before, after = (record.metrics["test/accuracy"][0] for record in module.records[-2:])
    assert before == still.records[-2].metrics["test/accuracy"][0]
    assert before > 0.5
    assert after < before - 0.15
    assert population.concepts(8).tolist() == [[1] * DEVICES]
    assert population.store.table.tolist() == [[0, 1, 2, 3], [1, 0, 3, 2]]
    assert CLASSES == 4
