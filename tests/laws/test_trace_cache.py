"""Law: a run whose server steps, evaluations and metrics are repeated from recordings is, bit for bit, one that calls
the methods themselves; what cannot be recorded is called."""

from types import SimpleNamespace

import pytest
import torch

from flstudy.algorithms import HypCluster, Scaffold
from flstudy.execution import trace_cache as trace_cache_module
from flstudy.execution.trace_cache import TraceCache
from flstudy.execution.trees import leaves
from flstudy.tasks import Task

from ..worlds import drifting, mlp, run


def clockless(module):
    """What every round measured, but for its seconds."""
    return [
        {name: values for name, values in record.metrics.items() if not name.startswith("time/")}
        for record in module.records
    ]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [Scaffold(lr=0.1), HypCluster(lr=0.1)], ids=["Scaffold", "HypCluster"])
def test_a_run_from_recordings_is_the_run(algorithm, monkeypatch):
    settings = {"population": drifting(participants=3), "seeds": (0, 44), "evaluate": True, "precision": "32-true"}
    called = run(algorithm, 5, **settings)
    monkeypatch.setattr(trace_cache_module, "PATIENCE", 1)
    recorded = run(algorithm, 5, **settings)
    traces = recorded.evaluation.trace_cache._traces
    assert {name for name, *_ in traces} >= {"plan", "close", "add", "own", "over devices"}
    assert all(trace.graph is not None for trace in traces.values())
    assert clockless(called) == clockless(recorded)
    ours, theirs = leaves(called.servers), leaves(recorded.servers)
    assert all(torch.equal(tensor, other) for tensor, other in zip(ours, theirs, strict=True))


def many(trace_cache: TraceCache, function, *arguments):
    """The last of many calls."""
    for _ in range(trace_cache_module.PATIENCE + 2):
        result = trace_cache("f", None, function, *arguments)
    return result


def test_other_shapes_and_other_objects_are_other_recordings():
    trace_cache, calls = TraceCache(), []

    def twice(x):
        calls.append(len(x))
        return {"y": 2 * x, "rest": (x.sum(), None)}

    for size in (3, 4):
        result = many(trace_cache, twice, torch.arange(size))
        assert result["y"].tolist() == [2 * k for k in range(size)]
        assert result["rest"][1] is None
        assert calls.count(size) == trace_cache_module.PATIENCE + 1  # once more to be recorded
    scale = SimpleNamespace(by=3)
    assert trace_cache("f", scale, lambda x: scale.by * x, torch.arange(3)).tolist() == [0, 3, 6]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 2 if float(x.sum()) > 0 else x,  # decides by a number
        lambda x: x + torch.rand(3),  # draws
        lambda x: x + next(COUNT),  # is not pure
    ],
)
def test_what_cannot_be_recorded_is_called(function):
    trace_cache = TraceCache()
    before = torch.get_rng_state()
    many(trace_cache, function, torch.ones(3))
    drawn = torch.get_rng_state()
    assert all(trace.graph is None for trace in trace_cache._traces.values())
    torch.set_rng_state(before)
    for _ in range(trace_cache_module.PATIENCE + 2):
        function(torch.ones(3))
    assert torch.equal(torch.get_rng_state(), drawn)


COUNT = iter(range(10**6))


def test_recordings_leave_out_what_nobody_uses_but_draw_as_often(monkeypatch):
    monkeypatch.setattr(trace_cache_module, "PATIENCE", 1)

    def function(x):
        torch.rand(2)  # drawn, and not used
        x.exp()
        return x.permute(0, 1).view(2, 3).expand(2, 3) + 1, x.view(3, 2)

    x, trace_cache = torch.arange(6.0).view(2, 3), TraceCache()
    first = trace_cache("some", None, function, x)
    (trace,) = trace_cache._traces.values()
    names = [node.target.__name__ for node in trace.graph.__self__.graph.nodes if node.op == "call_function"]
    assert names == ["rand.default", "add.Tensor", "view.default"]
    state = torch.random.get_rng_state()
    again = trace_cache("some", None, function, x)
    drawn = torch.rand(1)
    torch.random.set_rng_state(state)
    function(x)
    assert torch.equal(drawn, torch.rand(1))
    assert all(torch.equal(tensor, other) for tensor, other in zip(first, again, strict=True))


def test_parameters_and_other_kinds_of_tensors_are_left_alone():
    trace_cache = TraceCache()
    many(trace_cache, lambda x: 2 * x, torch.nn.Parameter(torch.ones(2)))
    assert not trace_cache._traces


def test_recordings_are_few(monkeypatch):
    monkeypatch.setattr(trace_cache_module, "KEPT", 4)
    trace_cache = TraceCache()
    for size in range(20):
        trace_cache("f", None, torch.neg, torch.ones(size))
    assert len(trace_cache._traces) == 4


class Changing(Task):
    """Changes what its forward returned, so that it must not be used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.network = mlp().network

    def forward(self, x):
        return self.network(x)

    def example_losses(self, batch):
        logits = self(batch[0])
        losses = torch.nn.functional.cross_entropy(logits, batch[1], reduction="none")
        logits.mul_(-1)
        return losses


def test_a_task_of_another_manner_computes_losses_and_correctness_by_itself():
    plain, changing = (run(Scaffold(lr=0.1), 2, task=task, evaluate=True) for task in (mlp(), Changing()))
    assert clockless(plain) == clockless(changing)
