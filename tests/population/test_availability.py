"""Devices that come and go: who is there, who trains, who is evaluated."""

import re

import numpy as np
import pytest

from flstudy.algorithms import FedAvg, Scaffold
from flstudy.population import AlternatingGroups, Event, ScheduledAvailability

from ..worlds import DEVICES, SEEDS, difference, drifting, run, world

STAYS = {0: [(1, 0)], 1: [(1, 4)], 2: [(3, 6), (8, 0)], 5: [(4, 0)]}


def there(availability, number):
    """Devices of a round."""
    return np.flatnonzero(availability.present(number, DEVICES)).tolist()


def test_groups_take_turns():
    availability = AlternatingGroups(rounds=3, groups=2)
    assert [there(availability, n) for n in (1, 3, 4, 6, 7)] == [[0, 1, 2], [0, 1, 2], [3, 4, 5], [3, 4, 5], [0, 1, 2]]
    assert [availability.session(n) for n in range(1, 8)] == [0, 0, 0, 1, 1, 1, 2]
    assert availability.events(9) == [Event(4, "session 2"), Event(7, "session 3")]
    assert [availability.known(n, DEVICES) for n in (1, 3, 4, 9)] == [3, 3, 6, 6]


def test_a_schedule_says_who_stays_how_long():
    availability = ScheduledAvailability(schedule=STAYS)
    assert [there(availability, n) for n in (1, 2, 3, 4, 5, 6, 7, 8)] == [
        [0, 1], [0, 1], [0, 1, 2], [0, 2, 5], [0, 2, 5], [0, 5], [0, 5], [0, 2, 5]
    ]  # fmt: skip
    assert [n for n in range(1, 12) if availability.begins(n)] == [1, 3, 4, 6, 8]
    assert availability.known(3, DEVICES) == 3
    inside = ScheduledAvailability(schedule=STAYS, starts=[1, 6])  # others come and go inside a session
    assert [inside.session(n) for n in (1, 5, 6, 9)] == [0, 0, 1, 1]
    assert [inside.known(n, DEVICES) for n in (2, 3, 4)] == [2, 3, 4]
    assert there(inside, 4) == [0, 2, 5]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_schedule_may_be_a_file(suffix, tmp_path):
    import pyarrow as pa
    from pyarrow import csv, parquet

    stays = [(device, joins, leaves or None) for device, intervals in STAYS.items() for joins, leaves in intervals]
    table = pa.table(dict(zip(("device", "joins", "leaves"), map(list, zip(*stays, strict=True)), strict=True)))
    path = tmp_path / f"stays{suffix}"
    (csv.write_csv if suffix == ".csv" else parquet.write_table)(table, path)
    from_file, from_mapping = ScheduledAvailability(schedule=str(path)), ScheduledAvailability(schedule=STAYS)
    assert [there(from_file, n) for n in range(1, 10)] == [there(from_mapping, n) for n in range(1, 10)]


def test_only_who_is_there_trains_and_is_evaluated():
    population = drifting(availability=AlternatingGroups(rounds=2), participants=2).settle(SEEDS)
    for index in range(6):
        cohort, here = population.cohort(index + 1), population.present(index + 1)
        num_devices = population.availability.known(index + 1, population.clients)
        assert set(cohort.jobs.client.flatten().tolist()) <= set(np.flatnonzero(here).tolist())
        assert cohort.jobs.client.shape == (3, 2)
        assert cohort.round.session.tolist() == [population.session(index + 1)] * 3 == [index // 2] * 3
        assert cohort.round.num_devices.tolist() == [num_devices] * 3
    everybody = drifting(participants=2).settle(SEEDS)
    assert population.concepts(4).equal(everybody.concepts(4))  # drift goes on for who is away, too
    module = run(FedAvg(lr=0.1), 3, population=drifting(availability=AlternatingGroups(rounds=2)), evaluate=True)
    assert module.record.metrics["valid/accuracy_spread"][0] >= 0
    concepts, evaluator = module.population.concepts(3), module.evaluation.evaluator
    scores = evaluator.population(module.server.x, module.evaluation.examples["valid"], concepts).accuracy[0]
    assert module.record.metrics["valid/accuracy"][0] == pytest.approx(float(scores[3:].mean()), abs=1e-12)


def test_fewer_may_be_there_than_shall_take_part():
    module = run(
        Scaffold(lr=0.1), 8, population=world(availability=ScheduledAvailability(schedule=STAYS), participants=3)
    )
    assert [record.metrics["traffic/up_bytes"][0] for record in module.records] == [
        count * 2 * 8 * module.task_function.layout.n for count in (2, 2, 3, 3, 3, 2, 2, 3)
    ]
    assert (module.bank.slot[0] >= 0).nonzero().flatten().tolist() == [0, 1, 2, 5]


def test_a_world_in_which_all_are_there_is_the_world_without_presence():
    always = ScheduledAvailability(schedule={k: [(1, 0)] for k in range(DEVICES)})
    scheduled, other = (
        run(Scaffold(lr=0.1), 3, population=drifting(availability=p), evaluate=True) for p in (always, None)
    )
    assert difference(scheduled.server, other.server) == 0
    assert scheduled.record.metrics["valid/accuracy"] == other.record.metrics["valid/accuracy"]


@pytest.mark.parametrize(
    ("schedule", "sentence"),
    [
        ({0: [(4, 2)]}, "device 0, entry 1: leaves must be > joins (4), got 2: a stay cannot end before it starts"),
        ({0: [(0, 2)]}, "device 0, entry 1: joins must be ≥ 1, got 0"),
        ({0: [(1,)]}, "device 0, entry 1: an entry is [joins, leaves], got [1]"),
        ({}, "schedule must hold at least one entry"),
        ("stays.txt", "schedule must end in .csv or .parquet, got 'stays.txt'"),
        ("absent.csv", "there is no file 'absent.csv' with columns device, joins, leaves"),
    ],
)
def test_a_wrong_schedule_is_refused_with_its_row(schedule, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        ScheduledAvailability(schedule=schedule)


@pytest.mark.parametrize(
    ("schedule", "sentence"),
    [
        ({0: [(1, 0)], 9: [(2, 0)]}, "device 9, entry 1: device must lie in 0 … 5, got 9"),
        ({0: [(1, 3)], 1: [(5, 0)]}, "nobody is there in round 3, session 2: let a device join earlier or stay longer"),
        ({0: [(2, 0)]}, "nobody is there in round 1, session 1"),
        ({0: [(1, 0)], 1: [(50, 0)]}, "device 1, entry 1: joins must be ≤ rounds (20), got 50"),
    ],
)
def test_a_schedule_that_does_not_suit_its_world_is_refused(schedule, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        ScheduledAvailability(schedule=schedule).check(DEVICES, 20)


def test_groups_that_do_not_suit_their_world_are_refused():
    for availability, sentence in (
        (AlternatingGroups(rounds=5, groups=7), "7 groups need as many devices"),
        (AlternatingGroups(rounds=20), "population.availability.rounds . 1, .* must be ≤ rounds .20., got 21"),
    ):
        with pytest.raises(ValueError, match=sentence):
            availability.check(DEVICES, 20)
    for changes in ({"rounds": 0}, {"rounds": 2, "groups": 1}):
        with pytest.raises(ValueError, match="must lie in"):
            AlternatingGroups(**changes)
