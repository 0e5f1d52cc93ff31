"""Continuous: who teaches, and what is refused."""

import re

import pytest
import torch

from flstudy.algorithms import Continuous
from flstudy.population import AlternatingGroups

from ..worlds import CLASSES, difference, drifting, run


@pytest.mark.parametrize("how", [{}, {"distillation": "glfc_rd", "classes": CLASSES}])
def test_the_teacher_is_the_model_with_which_the_last_session_ended(how):
    population = drifting(availability=AlternatingGroups(rounds=2), participants=3)
    module = run(Continuous(lr=0.1, **how), 6, population=population, seeds=(0, 44))
    ends = [module.servers[1].x, module.servers[3].x]
    for index, server in enumerate(module.servers):
        if index >= 2:
            assert difference(server.teacher, ends[index // 2 - 1]) == 0
            assert torch.equal(server.old, module.servers[2 * (index // 2) - 1].seen)
        assert server.session.tolist() == [index // 2] * 2
    assert module.servers[1].old.sum() == 0


def test_it_stays_nearer_to_the_teacher():
    """More distillation, less way from the model that the session began with."""
    population = drifting(availability=AlternatingGroups(rounds=3), participants=3)
    free, held = (run(Continuous(lr=0.1, kappa=kappa), 6, population=population) for kappa in (0.0, 5.0))
    ways = [(module.servers[5].x - module.servers[2].x).norm() for module in (free, held)]
    assert ways[1] < ways[0]


def test_bad_classes_are_named():
    with pytest.raises(
        ValueError, match="Continuous: glfc_rd needs classes, the number of the task's labels, got null"
    ):
        Continuous(distillation="glfc_rd")
    message = re.escape(f"Continuous: classes must be those of the task, {CLASSES}, got 7")
    with pytest.raises(ValueError, match=message):
        run(Continuous(lr=0.1, distillation="glfc_rd", classes=7), 1, population=drifting())
