"""Evaluations by compiled loops are those of the executors' other half: the same numbers, chosen by what they cost."""

import pytest
import torch

from flstudy.algorithms import Ditto, FedAvg, HypCluster
from flstudy.execution import survey
from flstudy.execution.loops import NotCompiled

from ..worlds import drifting, run

TWICE = {"seeds": (0, 44), "initial": "seeded"}
MEASURED = ("valid/loss", "test/loss", "test/accuracy", "test/accuracy_spread", "test/personal_accuracy")


def surveyed(algorithm, **changes):
    """The metrics of the last of four evaluations, and the survey."""
    done = run(algorithm, 4, population=drifting(), evaluate=True, **TWICE, **changes)
    metrics = done.record.metrics
    return torch.tensor([metrics[name] for name in MEASURED], dtype=torch.float64), done.evaluation.survey


@pytest.mark.usefixtures("without_compiler")
@pytest.mark.parametrize(
    ("algorithm", "copies"),
    [(FedAvg(lr=0.1), 1), (Ditto(lr=0.1), survey.COPIES), (HypCluster(lr=0.1, models=2), survey.COPIES)],
    ids=["one, two lanes at once", "own", "several"],
)
def test_compiled_evaluations_are_eager_ones(algorithm, copies, monkeypatch):
    monkeypatch.setattr(survey, "COST_S", 0.0)
    monkeypatch.setattr(survey, "COPIES", copies)
    monkeypatch.setattr(survey, "MOST", 0 if copies == 1 else survey.MOST)  # rows of lanes laid out as they are read
    eager, never = surveyed(algorithm)
    compiled, some = surveyed(algorithm, compile=True)
    assert (never.compiled, some.compiled) == (None, True)
    torch.testing.assert_close(compiled, eager, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("without_compiler")
def test_an_evaluation_that_cannot_be_compiled_is_eager(monkeypatch):
    def refuse(*_):
        raise NotCompiled("no")

    eager, _ = surveyed(FedAvg(lr=0.1), compile=True)
    monkeypatch.setattr(survey, "COST_S", 0.0)
    monkeypatch.setattr(survey.Programs, "measured", refuse)
    refused, some = surveyed(FedAvg(lr=0.1), compile=True)
    assert some.compiled is False
    assert torch.equal(refused, eager)


@pytest.mark.usefixtures("without_compiler")
def test_evaluations_are_compiled_where_it_pays_and_eager_again_where_it_does_not():
    _, one = surveyed(FedAvg(lr=0.1), compile=True)
    assert one.choices() == {"compile_survey": None}  # two evaluations ahead do not pay for it
    one.weigh(seconds=survey.COST_S, left=10)
    assert one.compiled is None  # the fastest counts
    one._took[False].clear()
    one.weigh(seconds=1.0, left=100)
    assert one.compiled is None  # the first one of all says little
    one.weigh(seconds=1.0, left=99)
    assert one.choices() == {"compile_survey": True}
    for seconds in (9.0, 0.5, 2.0, 2.0):  # the first one compiles
        one.weigh(seconds, left=90)
    assert one.compiled
    one._took[True].clear()
    for seconds in (9.0, 2.0, 2.0, 2.0):
        one.weigh(seconds, left=80)
    assert one.compiled is False
    one.choose({"compile": True})  # of an earlier flstudy's checkpoint
    assert one.compiled is None
