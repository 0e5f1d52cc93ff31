"""Evaluations by compiled loops are those of the executors' other half: the same numbers, chosen by what they cost."""

import pytest
import torch

from flstudy.algorithms import Ditto, FedAvg, HypCluster
from flstudy.execution import model_evaluator as evaluator
from flstudy.execution.loops import NotCompiled

from ..worlds import drifting, run

TWICE = {"seeds": (0, 44), "initial": "seeded"}
MEASURED = ("valid/loss", "test/loss", "test/accuracy", "test/accuracy_spread", "test/personal_accuracy")


def evaluated(algorithm, **changes):
    """The metrics of the last of four evaluations, and the evaluator."""
    done = run(algorithm, 4, population=drifting(), evaluate=True, **TWICE, **changes)
    metrics = done.record.metrics
    return torch.tensor([metrics[name] for name in MEASURED], dtype=torch.float64), done.evaluation.evaluator


@pytest.mark.slow
@pytest.mark.usefixtures("without_compiler")
@pytest.mark.parametrize(
    ("algorithm", "copies"),
    [(FedAvg(lr=0.1), 1), (Ditto(lr=0.1), evaluator.COPIES), (HypCluster(lr=0.1, models=2), evaluator.COPIES)],
    ids=["one, two lanes at once", "own", "several"],
)
def test_compiled_evaluations_are_eager_ones(algorithm, copies, monkeypatch):
    monkeypatch.setattr(evaluator, "COST_S", 0.0)
    monkeypatch.setattr(evaluator, "COPIES", copies)
    if copies == 1:
        monkeypatch.setattr(evaluator, "MOST_BYTES", 0)  # lanes' rows laid out when read
    eager, never = evaluated(algorithm)
    compiled, some = evaluated(algorithm, compile=True)
    assert (never.compiled, some.compiled) == (None, True)
    torch.testing.assert_close(compiled, eager, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("without_compiler")
def test_an_evaluation_that_cannot_be_compiled_is_eager(monkeypatch):
    def refuse(*_):
        raise NotCompiled("no")

    eager, _ = evaluated(FedAvg(lr=0.1), compile=True)
    monkeypatch.setattr(evaluator, "COST_S", 0.0)
    monkeypatch.setattr(evaluator.Programs, "measured", refuse)
    refused, some = evaluated(FedAvg(lr=0.1), compile=True)
    assert some.compiled is False
    assert torch.equal(refused, eager)


@pytest.mark.slow
@pytest.mark.usefixtures("without_compiler")
def test_evaluations_are_compiled_where_it_pays_and_eager_again_where_it_does_not():
    _, model_evaluator = evaluated(FedAvg(lr=0.1), compile=True)
    assert model_evaluator.choices() == {"compile_survey": None}  # two evaluations ahead do not pay for it
    model_evaluator.weigh(seconds=evaluator.COST_S, left=10)
    assert model_evaluator.compiled is None  # the fastest counts
    model_evaluator._took[False].clear()
    model_evaluator.weigh(seconds=1.0, left=100)
    assert model_evaluator.compiled is None  # the first one of all says little
    model_evaluator.weigh(seconds=1.0, left=99)
    assert model_evaluator.choices() == {"compile_survey": True}
    for seconds in (9.0, 0.5, 2.0, 2.0):  # the first one compiles
        model_evaluator.weigh(seconds, left=90)
    assert model_evaluator.compiled
    model_evaluator._took[True].clear()
    for seconds in (9.0, 2.0, 2.0, 2.0):
        model_evaluator.weigh(seconds, left=80)
    assert model_evaluator.compiled is False
    model_evaluator.choose({"compile": True})  # of an earlier flstudy's checkpoint
    assert model_evaluator.compiled is None
