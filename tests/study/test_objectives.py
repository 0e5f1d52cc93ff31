"""Objectives, constraints and budgets: what counts, and what is refused before any trial."""

import math
import re

import pytest

from flstudy.config import Budget, ConfigError, Objective
from flstudy.study.objectives import WORST, check_objectives, objective_values, violations
from flstudy.tuning import Asha, CmaEs
from tests.tuning.stand_in import StandIn, study

BITS = Objective(metric="traffic/bits", mode="min")
RECOVERY = Objective(metric="valid/recovery", mode="min")


def test_values_are_in_order_and_finite():
    section, metrics = study(objectives=[BITS, RECOVERY]), {"traffic/bits": 5.0, "valid/recovery": math.nan}
    assert objective_values(section, 0.8, metrics, broken=False) == (0.8, 5.0, WORST)
    assert objective_values(section, 0.0, {"traffic/bits": 5.0}, broken=True) == (0.0, WORST, WORST)


def test_violations_are_positive_outside_a_bound():
    bounds = {"traffic/bits": {"max": 10.0}, "valid/dip": {"min": 0.5, "max": 0.9}}
    assert violations(study(constraints=bounds), {"traffic/bits": 12.0, "valid/dip": 0.4}) == [
        2.0,
        pytest.approx(0.1),
        pytest.approx(-0.5),
    ]
    assert violations(study(constraints=bounds), {"valid/dip": math.nan}) == [WORST, WORST, WORST]


CHOICE = {"algorithm": {"choice": ["FedAvg", "Flash"]}}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"objectives": [BITS, BITS]}, "study.objectives must name different metrics, got 'traffic/bits' twice"),
        (
            {"objectives": [BITS], "scheduler": Asha(grace_rounds=2)},
            "study.scheduler must be null with several objectives",
        ),
        (
            {"objective": RECOVERY, "scheduler": Asha(grace_rounds=2)},
            "study.scheduler must be null for the objective 'valid/recovery'",
        ),
        (
            {"objectives": [BITS], "sampler": CmaEs()},
            "study.sampler must be Tpe, GaussianProcess, Nsga2 or RandomSearch",
        ),
        ({"constraints": {"traffic/bits": {"max": 1.0, "min": 2.0}}}, "must have min <= max, got 2 > 1: swap them"),
        ({"trials": None}, "study.trials may be null only with study.budget.rounds or study.budget.hours"),
        ({"budget": Budget(rounds=5)}, "study.budget.rounds must be >= 6, the rounds of one trial, got 5"),
        ({"trials": 1, "search": CHOICE}, "study.trials must be >= 2, the number of algorithms, got 1"),
    ],
)
def test_what_cannot_work_is_refused(changed, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_objectives(StandIn(study=study(**changed)))  # type: ignore[arg-type]


def test_what_can_work_is_taken():
    check_objectives(StandIn(study=study(trials=None, budget=Budget(rounds=6))))  # type: ignore[arg-type]
    check_objectives(StandIn(study=study(trials=1, allocation="free", search=CHOICE)))  # type: ignore[arg-type]
    check_objectives(StandIn(study=study(objectives=[BITS, RECOVERY], constraints={"a": {"min": 0}})))  # type: ignore[arg-type]
