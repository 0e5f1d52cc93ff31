"""When to compile, without a clock: runs of made-up rounds beside what they would have taken, had they known."""

import math
import random

import pytest

from flstudy.execution.compile_policy import PROBATION, CompilePolicy

COST = 15.0


def played(rounds, saved, truly=None, cost=COST):
    """Seconds that a run of such eager rounds takes, and the best that it could."""
    truly, policy, took, compiled = saved if truly is None else truly, CompilePolicy(), 0.0, None
    for number, seconds in enumerate(rounds):
        left, steps = len(rounds) - number - 1, seconds  # longer rounds have more steps
        if compiled:
            faster = seconds * (1 - truly)
            took += faster
            compiled = not policy.lost(faster, steps)
        else:
            took += seconds
            if compiled is None and policy.pays(seconds, steps, left, saved, cost):
                took, compiled = took + cost, True
    return took, min(sum(rounds), cost + (1 - truly) * sum(rounds))


def worlds():
    """Rounds as they come, and as somebody would make them who knows the rule."""
    draws = random.Random(0)
    for count in (1, 3, 30, 300):
        for round_s in (1e-3, 0.05, 0.2, 1.0, 20.0):
            yield [round_s] * count
            yield [round_s * (number + 1) / count for number in range(count)]  # devices stop early only at first
            yield [round_s * (count - number) / count for number in range(count)]
            yield [round_s] * (count // 2) + [20 * round_s] * (count - count // 2)
            yield [round_s * draws.lognormvariate(0, 1) for _ in range(count)]
        yield [COST / (0.81 * (count - number)) for number in range(count)]  # never quite worth it


@pytest.mark.parametrize("saved", [0.1, 0.4, 0.8, 0.95])
def test_no_run_takes_more_than_twice_the_time_of_one_that_knew(saved):
    for rounds in worlds():
        took, best = played(rounds, saved)
        assert took <= 2 * best + max(rounds), rounds[:3]


def test_rounds_that_are_alike_are_decided_upon_in_the_first():
    for round_s in (0.01, 0.05, 0.1):
        for count in (10, 200, 1000):
            took, best = played([round_s] * count, 0.8)
            assert took <= best * 1.25 + round_s


def test_what_never_quite_pays_for_itself_does_not_go_on_for_ever():
    """The last seconds of such rounds were once the longest of all."""
    rounds = [COST / (0.81 * (3000 - number)) for number in range(3000)]
    took, best = played(rounds, 0.8)
    assert sum(rounds) > 2 * best
    assert took < 2 * best


def test_compiled_rounds_that_are_slower_are_given_up():
    took, _ = played([1.0] * 1000, 0.8, truly=-1.0)
    assert took == pytest.approx(1000 + COST + PROBATION + 1)


def test_the_first_compiled_round_does_not_count_and_one_faster_round_is_enough():
    policy = CompilePolicy()
    assert policy.pays(30.0, 300, 100, 0.8, COST)
    assert policy.open
    assert not policy.lost(60.0, 300)
    assert policy.open
    assert not policy.lost(9.0, 100)  # a shorter round, but a faster step
    assert not policy.open
    assert not policy.lost(math.inf, 1)  # settled


def test_nothing_is_compiled_for_no_rounds():
    assert not CompilePolicy().pays(100.0, 1, 0, 0.8, COST)
