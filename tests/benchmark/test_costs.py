"""`flstudy costs`: FedAda², Table 2, from messages and states."""

from pathlib import Path

import pytest
import torch

from flstudy.algorithms import FedAda2, JointAdaptivity, Layout
from flstudy.algorithms.parts.algorithm import device_memory
from flstudy.benchmark.costs import costs_table, main, round_cost
from flstudy.config.config import load
from flstudy.tasks import Cnn

from ..laws.cases import STEADY
from ..worlds import shipped

QUICK = Path(__file__).parents[2] / "tune_configs" / "quick.yaml"
TABLE_2 = {  # communication in units of d, and memory of the device's optimizer where it is exact
    "FedAvg": (2, 0),
    "FedAdam": (2, 0),
    "DirectJointAdaptivity": (3, 1),
    "JointAdaptivity": (2, 1),
    "FedAda2": (2, None),
    "MimeLite": (4, 0),
    "Mime": (5, 0),
}


@pytest.mark.parametrize("name", TABLE_2)
def test_costs_are_those_of_table_2(name):
    cost = round_cost(load(QUICK, command="tune"), name)
    sent, memory = TABLE_2[name]
    assert cost.down + cost.up == pytest.approx(sent, rel=1e-3)  # a message may have a few single numbers
    if memory is not None:
        assert cost.memory == memory * 4 * cost.n
    else:
        assert 0 < cost.memory < 0.1 * 4 * cost.n  # the lengths of the axes, and vectors in full
    steps = round_cost(load(QUICK, command="tune"), "FedAvg").gradients
    survey = round_cost(load(QUICK, command="tune"), "MimeLite").gradients - steps
    assert survey > 0
    assert cost.gradients == {"Mime": 2 * steps + survey, "MimeLite": steps + survey}.get(name, steps)


@pytest.mark.parametrize("name", shipped())
def test_every_method_has_costs(name):
    """None needs more than a config with the world and the task."""
    parts = {f"algorithm.{key}": value for key, value in STEADY.get(name, {}).items() if type(value) is tuple}
    config = load(QUICK, {"algorithm": name, **parts} if parts else {}, command="tune")  # what devices keep, if need be
    cost = round_cost(config, name)
    assert cost.down > 0 or name == "LocalOnly"
    assert cost.gradients > 0


@pytest.mark.slow
def test_the_command(capsys):
    assert main([str(QUICK), "--algorithms", "FedAvg", "Mime"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:5] for line in lines if "Mime" in line] == [["Mime", "3", "2", "2.5", "–"]]
    with pytest.raises(ValueError, match=r"unknown algorithm 'Mim': did you mean 'Mime'\?"):
        main([str(QUICK), "--algorithms", "Mim"])
    assert costs_table({"FedAvg": round_cost(load(QUICK, command="tune"), "FedAvg")}).rows[0][3] == "1"


def test_sm3_keeps_the_lengths_of_the_axes_of_a_convolution_and_vectors_in_full():
    shapes = {name: tuple(value.shape) for name, value in Cnn(shape=(1, 8, 8), classes=10).named_parameters()}
    assert max(map(len, shapes.values())) == 4
    layout = Layout.of((name, torch.empty(shape)) for name, shape in shapes.items())
    assert device_memory(FedAda2(), layout) == 4 * sum(map(sum, shapes.values()))
    assert device_memory(JointAdaptivity(), layout) == 4 * layout.n
    assert device_memory(FedAda2(), layout) < 0.05 * device_memory(JointAdaptivity(), layout)
