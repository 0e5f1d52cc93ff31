"""Classes that appear one after another: nobody sees an example of a class before its round."""

import re

import numpy as np
import pytest
import torch

from flstudy.algorithms import Batch, FedAvg, HypCluster
from flstudy.metrics.optimum import RoundLoss, shifts
from flstudy.metrics.run_summary import RunSummary
from flstudy.population import (
    AlternatingGroups,
    ClassIntroduction,
    ComposedSwaps,
    DeviceData,
    Event,
    FreshDraws,
    InMemory,
    RepeatedDrift,
    ScheduledAvailability,
)

from ..worlds import CLASSES, DEVICES, SEEDS, Ragged, drifting, examples, logistic, run, world

ROUNDS, GROUPS = [3, 5], [[2, 0], [3], [1]]
THERE = [(0, 2), (0, 2), (0, 2, 3), (0, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3)]  # of rounds 1 … 6
SPLITS = ("train", "valid", "test")


def introducing(**changes):
    """Four classes in three stages, of examples whose labels can be told apart."""
    return world(**{"drift": ClassIntroduction(rounds=ROUNDS, groups=GROUPS), "participants": 4, **changes})


def labels(population, rows):
    return set(population.store.y[rows[rows >= 0]].flatten().tolist())


def test_the_paper_s_rounds_and_groups():
    drift = ClassIntroduction()
    numbers = (1, 64, 65, 186, 187, 233, 367, 411, 488, 489, 500)
    assert [len(drift.classes(number)) for number in numbers] == [1, 1, 2, 2, 3, 4, 5, 6, 6, 7, 7]
    assert drift.classes(1) == (0,)
    assert drift.events()[0] == Event(65, "class 1 appears")
    drift.check(20, 500)
    assert sum(part.numel() for part in drift.tables((54,), 7)) == 0  # nothing to look up: nothing to pay
    mnist = ClassIntroduction(rounds=[31, 129, 279, 310, 369, 462], groups=[[0, 1], [2, 3], [4], [5, 6], [7], [8], [9]])
    mnist.tables((780,), 10)
    assert mnist.classes(30) == (0, 1)
    assert mnist.classes(128) == (0, 1, 2, 3)
    assert mnist.classes(309) == (0, 1, 2, 3, 4, 5, 6)
    assert mnist.events()[2] == Event(279, "classes 5, 6 appear")


@pytest.mark.parametrize("data_stream", [None, FreshDraws(mean=9, deviation=4), FreshDraws(mean=4, source="device")])
def test_nobody_holds_an_example_of_a_class_before_its_round(data_stream):
    population = introducing(data_stream=data_stream).settle(SEEDS)
    seen = []
    everybody = torch.arange(DEVICES).expand(len(SEEDS), -1)
    for index, classes in enumerate(THERE):
        cohort = population.cohort(index + 1)
        seen.append(labels(population, cohort.batches.rows))
        label_sets = [seen[-1], labels(population, cohort.batches.valid)]
        for split in SPLITS:
            label_sets += [labels(population, population.device_data.evaluation_index(split, index + 1).rows)]
            label_sets += [
                labels(population, population.device_data.evaluation_index(split, index + 1, cohort.jobs.client).rows)
            ]
            label_sets += [labels(population, population.device_data.examples_of(split, everybody, index + 1))]
        assert all(label_set <= set(classes) for label_set in label_sets)
        assert set(RoundLoss(population, logistic()).batch(index + 1, 1).y.tolist()) <= set(classes)
        assert population.concepts(index + 1).unique().tolist() == [sum(index + 1 >= first for first in ROUNDS)]
        for s, line in enumerate(population.members):
            for k, device in enumerate(line):
                for split in ("valid", "test"):
                    rows = [row for row in device[split].tolist() if int(population.store.y[row]) in classes]
                    assert population.device_data.held(s, k, split, index + 1).tolist() == rows
    assert seen[-1] == set(range(CLASSES))  # all classes have come in the end


def test_rounds_are_drifts_for_metrics_and_regret():
    population = introducing().settle((0, 44))
    assert population.count_concepts() == 3
    assert [event.round for event in population.drifts(4)] == [3]
    assert population.drifts(9) == [Event(3, "class 3 appears"), Event(5, "class 1 appears")]
    assert shifts(population, 6) == [ROUNDS, ROUNDS]
    whole = RunSummary([event.round for event in population.drifts(6)], 6)
    for number in range(1, 7):
        whole.add(number, {"valid/accuracy": [0.9 if number < 3 else 0.4 + number / 20]})
    assert whole.figures()["valid/dip"] == [0.55]


def test_who_has_nothing_of_the_present_classes_is_not_there():
    """Devices 0 … 2 hold classes 0 and 1, the others 2 and 3: the first three wait for round 4, of which device 2 has
    its only example for testing in round 6."""
    y = torch.tensor([0, 1] * 12 + [2, 3] * 12)
    x = torch.randn(48, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    class InOrder(Ragged):
        def assign(self, labels, clients, rng):
            return np.repeat(np.arange(clients), self.sizes)

    drift = ClassIntroduction(rounds=[4, 6], groups=[[2, 3], [0], [1]])
    population = world(dataset=InMemory((x, y)), partition=InOrder([8] * 6), drift=drift, participants=6).settle(
        (0, 44)
    )
    for index in range(7):
        there = population.available(index + 1)
        for s, k in np.ndindex(2, 6):
            assert there[s, k] == all(len(population.device_data.held(s, k, split, index + 1)) for split in SPLITS)
        cohort = population.cohort(index + 1)
        assert cohort.jobs.client.shape[1] == there.sum(1).min() == population.drawn(index + 1)
        assert all(there[s, k] for s, line in enumerate(cohort.jobs.client.tolist()) for k in line)
        assert (cohort.sizes > 0).all()
    assert population.available(3).tolist() == [[False] * 3 + [True] * 3] * 2
    assert population.available(6).all()
    module = run(FedAvg(lr=0.1, gamma=0.05), 4, population=population, seeds=(0, 44), evaluate=True)
    concepts, evaluator = population.concepts(4), module.evaluation.evaluator
    scores = evaluator.population(module.server.x, module.evaluation.examples["valid"], concepts)
    there = population.available(4)
    for s in range(2):
        line = scores.accuracy[s][torch.from_numpy(there[s])]
        assert module.record.metrics["valid/accuracy"][s] == pytest.approx(float(line.mean()), abs=1e-12)
        assert module.record.metrics["valid/accuracy_spread"][s] == pytest.approx(
            float(line.std(correction=0)), abs=1e-12
        )
    assert all(np.isfinite(record.metrics["test/personal_accuracy"]).all() for record in module.records)
    shared = world(
        dataset=InMemory((x, y)), partition=InOrder([8] * 6), drift=drift, data_stream=FreshDraws(mean=3)
    ).settle((0,))
    assert shared.available(0).tolist() == [[False] * 3 + [True] * 3]  # nothing of their own to be evaluated on
    assert shared.cohort(1).jobs.client.tolist() == [[3, 4, 5]]


def test_surveys_of_models_see_the_round_s_examples():
    """HypCluster asks every device for its loss on what it trains on in that round."""
    population = introducing(participants=3, data_stream=FreshDraws(mean=6, deviation=2))
    module = run(HypCluster(lr=0.1, models=2), 4, population=population, seeds=(0, 44), evaluate=True)
    server, jobs = module.servers[-1], population.cohort(5).jobs
    concepts = population.concepts(5).gather(1, jobs.client)
    survey, _ = module.evaluation.ask(server, jobs.client, concepts, 5)
    for s, j, m in np.ndindex(*survey.shape):
        rows = population.device_data.held(s, int(jobs.client[s, j]), "train", 5)
        x, y = population.store.x[rows], population.store.y[rows]
        losses = module.task_function.example_losses(server.x[s, m], Batch(x, y))
        assert float(survey[s, j, m]) == pytest.approx(float(losses.mean()), abs=1e-12)


def test_an_evaluation_index_is_collected_where_something_has_changed(monkeypatch):
    population, calls = introducing(), []
    evaluation_index = DeviceData.evaluation_index
    monkeypatch.setattr(
        DeviceData,
        "evaluation_index",
        lambda self, split, round, *a: calls.append((split, round)) or evaluation_index(self, split, round, *a),
    )
    run(FedAvg(lr=0.1), 6, population=population, evaluate=True)
    assert calls == [(split, round) for round in (1, 3, 5) for split in ("valid", "test")]


def test_it_goes_with_a_change_and_with_sessions():
    drift = ClassIntroduction(rounds=ROUNDS, groups=GROUPS, change=ComposedSwaps(sets=[[(0, 1)], [(1, 2)]]))
    population = introducing(drift=drift, availability=AlternatingGroups(rounds=2), participants=3).settle((0, 44))
    assert population.store.table.tolist() == [[0, 1, 2, 3], [1, 0, 2, 3], [2, 0, 1, 3]]
    for index in range(6):
        there = population.present(index + 1)
        assert (population.available(index + 1) <= there).all()
        assert there[population.cohort(index + 1).jobs.client.numpy()].all()
    run(FedAvg(lr=0.1), 5, population=population, seeds=(0, 44), evaluate=True)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"rounds": [5, 5], "groups": [[0], [1], [2]]}, "rounds must be one or more rising numbers, got [5, 5]"),
        ({"rounds": [5], "groups": [[0], [1], [2]]}, "one for each of 1 rounds, got 3"),
        ({"rounds": [5], "groups": [[0, 1], [1]]}, "no class twice, got [[0, 1], [1]]"),
        ({"rounds": [5], "groups": [[0, 1], []]}, "groups must hold one or more classes each"),
    ],
)  # fmt: skip
def test_invalid_class_introductions_are_refused(settings, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        ClassIntroduction(**settings)


def test_what_does_not_suit_the_world_is_refused():
    drift = ClassIntroduction(rounds=[5], groups=[[0, 1], [2, 7]])
    with pytest.raises(ValueError, match=re.escape("groups must hold classes in 0 … 3, got 7")):
        world(drift=drift).settle((0,))
    with pytest.raises(ValueError, match=re.escape("groups leave out [3], which would never appear")):
        world(drift=ClassIntroduction(rounds=[5], groups=[[0, 1], [2]])).settle((0,))
    with pytest.raises(ValueError, match=re.escape("population.drift.rounds must be ≤ rounds (4), got 5")):
        drift.check(DEVICES, 4)
    y = torch.tensor([1] * 119 + [0])
    lonely = ClassIntroduction(rounds=[5], groups=[[0], [1]])
    world_ = world(dataset=InMemory((examples().examples.x, y)), drift=lonely)
    with pytest.raises(ValueError, match=r"in round 1 no device of seed 0 holds .* that there are \(0\): introduce"):
        world_.settle((0,))
    several = InMemory((examples().examples.x, torch.arange(240).view(120, 2) % 2))
    with pytest.raises(ValueError, match="ClassIntroduction needs one label for each example"):
        world(dataset=several, drift=ClassIntroduction(rounds=[5], groups=[[0], [1]])).settle((0,))


def test_nobody_in_a_session_is_refused():
    """The only device that is there in round 2 has nothing of what there is then."""
    y = torch.where(torch.arange(120) < 9, 1, 0)  # device 0 holds nothing of class 0
    partition = type("InOrder", (Ragged,), {"assign": lambda self, *_: np.repeat(np.arange(6), self.sizes)})()
    stays = ScheduledAvailability(schedule={0: [(1, 0)], 1: [(1, 2), (3, 0)]})
    drift = ClassIntroduction(rounds=[4], groups=[[0], [1]])
    population = world(
        dataset=InMemory((examples().examples.x, y)), partition=partition, availability=stays, drift=drift
    )
    with pytest.raises(ValueError, match="in round 2 no device of seed 0 holds"):
        population.settle((0,))


def test_other_drifts_leave_all_classes_there():
    for population in (drifting(), world(drift=RepeatedDrift(rounds=[3]))):
        population.settle((0,))
        assert population.available(5).all()
        for split in SPLITS:
            assert population.device_data.moment(split, 1) == population.device_data.moment(split, 6)
            assert population.device_data.held(0, 3, split, 5).tolist() == population.members[0][3][split].tolist()
