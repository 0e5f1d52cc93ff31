"""Schedules of the learning rate: their formula, their sessions, and what they leave alone."""

import itertools
import re

import pytest

from flstudy.algorithms import FedAvg, Flash, Scaffold
from flstudy.controllers import Cosine, Polynomial
from flstudy.population import AlternatingGroups, ScheduledAvailability

from ..worlds import DEVICES, difference, drifting, measured, run


def test_the_formula_of_the_released_code():
    """lr(t) = (eta0 - min) (1 - t/T)^0.9 + min, t from 0 within the session."""
    schedule, eta0, least = Polynomial(rounds=150, floor=0.5), 0.1, 0.05
    for t in (0, 1, 74, 149):
        expected = (eta0 - least) * (1 - t / 150) ** 0.9 + least
        assert schedule.at(FedAvg(lr=eta0), t).lr == pytest.approx(expected, rel=1e-14)
    assert schedule.at(FedAvg(lr=eta0), 1000) == schedule.at(FedAvg(lr=eta0), 149)
    assert [Cosine(rounds=4).scale(t) for t in (0, 2)] == pytest.approx([1, 0.5])


@pytest.mark.parametrize("schedule", [Polynomial(rounds=7), Polynomial(rounds=2, floor=0.3, power=2), Cosine(rounds=5)])
def test_it_falls_and_stays_above_zero(schedule):
    scales = [schedule.scale(age) for age in range(12)]
    assert scales[0] == 1
    assert all(before >= after > 0 for before, after in itertools.pairwise(scales))
    assert min(scales) >= schedule.floor


def test_every_session_begins_anew():
    population = drifting(availability=AlternatingGroups(rounds=2))
    module = run(FedAvg(lr=0.1), 6, schedule=Polynomial(rounds=2, floor=0.5, power=1.0), population=population)
    assert [record.metrics["train/lr"] for record in module.records] == [pytest.approx([lr]) for lr in [0.1, 0.075] * 3]


@pytest.mark.parametrize("algorithm", [Scaffold(lr=0.1), Flash(lr=0.1, gamma=0.03)])
def test_a_round_is_one_of_the_algorithm_with_that_rate(algorithm):
    """The first round is the algorithm's own, the second that of another learning rate, from the same state."""
    population = drifting()
    scheduled, plain = (run(algorithm, 2, schedule=s, population=population) for s in (Polynomial(rounds=2), None))
    assert difference(scheduled.servers[0], plain.servers[0]) == 0
    slower = Polynomial(rounds=2).at(algorithm, 1)
    assert slower.lr == pytest.approx(0.1 * 0.5**0.9)
    assert difference(scheduled.servers[1], plain.servers[1]) > 1e-4
    flat = run(algorithm, 2, schedule=Polynomial(rounds=2, floor=1.0), population=population)
    assert difference(flat.servers[1], plain.servers[1]) == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Polynomial(rounds=0), "Polynomial: rounds must lie in [1, 1e6], got 0"),
        (lambda: Cosine(rounds=3, floor=1.5), "Cosine: floor must lie in [0, 1], got 1.5"),
        (lambda: Polynomial(rounds=3, power=0), "Polynomial: power must lie in (0, 1e12], got 0"),
    ],
)
def test_bad_values_are_named(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


@pytest.mark.slow
def test_its_length_is_the_session_s_or_the_run_s_where_none_is_given():
    def rates(schedule, rounds=6, **world):
        return measured(
            run(FedAvg(lr=0.1), rounds, schedule=schedule, population=drifting(**world)), "train/lr"
        ).tolist()

    sessions = {"availability": AlternatingGroups(rounds=2), "participants": 2}
    assert rates(Polynomial(), **sessions) == rates(Polynomial(rounds=2), **sessions)
    assert rates(Cosine()) == rates(Cosine(rounds=6))
    stays = {device: [(1, 0)] for device in range(DEVICES)}
    uneven = {"availability": ScheduledAvailability(schedule=stays, starts=[3])}
    assert rates(Cosine(), **uneven) == rates(Cosine(rounds=2), 2, **uneven) + rates(Cosine(rounds=4), **uneven)[2:]
