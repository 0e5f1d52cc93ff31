"""Laws of FedBlended: what it reduces to, who has which strategy, and that less work is less work."""

from pathlib import Path

import pytest
import torch

from flstudy.algorithms import FedAda2, FedAdaGrad, FedBlended, JointAdaptivity, Strategy, device_memory
from flstudy.algorithms.fedblended import drawn
from flstudy.algorithms.parts.algorithm import rule_memory
from flstudy.config import ConfigError, load
from flstudy.tasks import Cnn, TaskFunction

from ..worlds import DEVICES, SIZES, difference, drifting, measured, run, world

LOCAL = {"lr": 0.05, "weight_decay": 0.02}
EXECUTORS = ("sequential", "vectorized", "trainer")
QUICK = Path(__file__).parents[2] / "tune_configs" / "quick.yaml"


def end(algorithm, **more):
    return run(algorithm, 3, population=drifting(), **more)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adagrad", "adam", "sm3_adagrad", "sm3_adam"])
@pytest.mark.parametrize("unit", ["step", "epoch"])
def test_with_one_strategy_it_is_joint_adaptivity(optimizer, unit):
    more = {**LOCAL, "delay": 2, "delay_unit": unit, "warmup": 3}
    for strategies in ((Strategy(optimizer),), (Strategy(optimizer), Strategy(optimizer, delay=2))):
        module = end(FedBlended(**more, strategies=strategies))
        assert difference(module.server, end(JointAdaptivity(**more, client_optimizer=optimizer)).server) <= 1e-14


def test_with_sgd_alone_it_is_the_server_s_own_method():
    module = end(FedBlended(**LOCAL, strategies=(Strategy("sgd"),), beta1=0.0))
    assert difference(module.server, end(FedAdaGrad(**LOCAL)).server) <= 1e-14


def test_devices_train_as_their_schedule_says():
    """Each participant's local model is that of a run in which everybody has its strategy."""
    strategies = (Strategy("sgd"), Strategy("sm3_adam"), Strategy("adagrad", scale=0.5))
    table = ((0, 1, 2, 0, 1, 2), (2, 2, 1, 1, 0, 0))
    mixed = FedBlended(**LOCAL, strategies=strategies, resources=table)
    population = world(participants=DEVICES)

    def locals_of(algorithm, rounds):
        return run(algorithm, rounds, population=population).last.fit.personal[0]

    ours = locals_of(mixed, 1)
    alone = [locals_of(FedBlended(**LOCAL, strategies=(strategy,)), 1) for strategy in strategies]
    for client in range(DEVICES):
        assert difference(ours[client], alone[table[0][client]][client]) <= 1e-14
    assert difference(alone[0], alone[1]) > 1e-3 < difference(alone[1], alone[2])
    module = run(mixed, 4, population=population)
    for done, expected in ((0, 0), (1, 1), (2, 0), (3, 1)):  # rows repeat
        server = module.servers[done]._replace(t=torch.tensor(float(done)))
        assert mixed.chosen(server, torch.arange(DEVICES)).tolist() == list(table[expected])
    assert mixed.chosen(server, torch.tensor([7])).tolist() == [2]  # as do devices


def test_draws_are_even_and_depend_on_seed_round_and_device():
    clients, rounds = torch.arange(400), range(1, 101)
    for count in (2, 3, 5):
        draws = torch.stack([drawn(0, torch.tensor(number), clients, count) for number in rounds])
        shares = torch.bincount(draws.flatten(), minlength=count) / draws.numel()
        assert ((shares - 1 / count).abs() < 5 * (1 / count / draws.numel()) ** 0.5).all()
        for successors, other in ((draws[1:], draws[:-1]), (draws[:, 1:], draws[:, :-1])):  # neighbours say nothing
            same = (successors == other).double().mean()
            assert abs(same - 1 / count) < 5 * (1 / count / successors.numel()) ** 0.5
    again, other = (drawn(seed, torch.tensor(3), clients, 3) for seed in (0, 1))
    assert torch.equal(again, drawn(0, torch.tensor(3), clients, 3))
    assert 0.2 < (again == other).double().mean() < 0.5


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_strategy_s_steps_are_all_that_is_done(executor):
    strategies = (Strategy("sgd", steps=3), Strategy("adagrad", epochs=1), Strategy("adam", steps=99))
    table = ((0, 1, 2, 0, 1, 2),)
    module = run(
        FedBlended(**LOCAL, strategies=strategies, resources=table),
        1,
        population=world(epochs=3),
        executor=executor,
    )
    per_epoch = [-(-n // 4) for n in (5, 8, 11, 14, 17, 19)]  # training examples, see SIZES
    assert len(SIZES) == len(per_epoch)
    asked = [3, per_epoch[1], 3 * per_epoch[2], 3, per_epoch[4], 3 * per_epoch[5]]
    fit = module.last.fit
    assert fit.steps[0].tolist() == asked
    assert fit.lane_steps == sum(asked)
    assert measured(module, "fit/steps").item() == pytest.approx(sum(asked) / 6)
    epochs = sum(a / n for a, n in zip(asked, per_epoch, strict=True)) / 6
    assert measured(module, "fit/epochs").item() == pytest.approx(epochs)


def test_a_device_s_memory_is_that_of_the_dearest_strategy():
    layout = TaskFunction(Cnn((1, 28, 28), 10)).layout
    blended = FedBlended(strategies=(Strategy("sgd"), Strategy("sm3_adagrad"), Strategy("adagrad")))
    assert device_memory(blended, layout) == device_memory(JointAdaptivity(), layout)
    saving = FedBlended(strategies=(Strategy("sgd"), Strategy("sm3_adagrad")))
    assert device_memory(saving, layout) == device_memory(FedAda2(), layout)
    assert rule_memory(blended.device_rule(), layout) > device_memory(blended, layout)  # what the simulator keeps


def test_strategies_are_configured_as_mappings():
    config = load(
        QUICK,
        {
            "algorithm": {
                "class_path": "FedBlended",
                "init_args": {
                    "strategies": [{"optimizer": "sm3_adam", "steps": 3}, {"optimizer": "sgd", "scale": 2.0}],
                    "resources": [[0, 1], [1, 0]],
                },
            }
        },
    )
    algorithm = config.build()[0].algorithm
    assert algorithm.strategies == (Strategy("sm3_adam", steps=3), Strategy("sgd", scale=2.0))
    assert algorithm.resources == ((0, 1), (1, 0))
    hash(algorithm)
    wrong = {"class_path": "FedBlended", "init_args": {"strategies": [{"optimizer": "sgd", "scale": -1.0}]}}
    with pytest.raises(ConfigError, match=r"scale must lie in \(0, 1e12\], got -1.0"):
        load(QUICK, {"algorithm": wrong})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FedBlended(strategies=()), "strategies must name at least one"),
        (lambda: FedBlended(resources=((0, 3),)), "resources must name strategies from 0 to 2"),
        (lambda: FedBlended(resources=((0, 1), (2,))), "rows of one length"),
        (lambda: FedBlended(resources=()), "rows of one length"),
        (lambda: Strategy("adam", steps=0), r"Strategy: steps must lie in \[1, 1e6\], got 0"),
        (lambda: Strategy("adam", scale=0.0), r"Strategy: scale must lie in \(0, 1e12\], got 0.0"),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
