"""Master-FL: its schedules, its tests, its servers."""

import itertools
import math
import re
import warnings
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from flstudy import Coordinator
from flstudy.algorithms import FedAdam, FedAvg, FedOmd, Layout
from flstudy.controllers import BlockSchedule, Instance, MasterFL, Moment, Rate, running_instance
from flstudy.federation.play_round import make_inbox, step_server
from flstudy.population import SuddenDrift
from flstudy.population.streams import random_bits

from ..references.masterfl import master
from ..worlds import DEVICES, SEEDS, difference, logistic, measured, run, trainer, world

OMD = FedOmd(lr=0.5, mirror="euclidean")
FIGURE = [Instance(k, s, s + 2**k - 1) for k, s in
          ((4, 0), (2, 4), (2, 12), (1, 2), (1, 14), (0, 1), (0, 5), (0, 6), (0, 8), (0, 13))]  # fmt: skip
RATES = [Rate(), Rate(c1=2.0), Rate(c1=0.5, c2=1.0), Rate(c1=1.0, c2=5.0)]


# ---- schedules -------------------------------------------------------------------------------------------------------


def test_figure_1():
    """One instance of 16 rounds, two of 4, two of 2, five of 1: the longest runs in round 0, pauses for eight rounds,
    goes on for three and pauses again; those of one round that follow each other are two."""
    assert [running_instance(FIGURE, offset).order for offset in range(16)] == [
        4, 0, 1, 1, 2, 0, 0, 2, 0, 4, 4, 4, 2, 0, 1, 1
    ]  # fmt: skip


class Figure(MasterFL):
    """Its first block is Fig. 1's."""

    def init(self, server):
        state = super().init(server)
        return state._replace(coming=torch.full_like(state.coming, 4))

    def present(self, state, moment):
        return Drawn(int(state.block))


class Drawn(NamedTuple):
    """Fig. 1's schedule."""

    number: int

    def covering(self, offset):
        return sorted(i for i in FIGURE if i.first <= offset <= i.last)


@pytest.mark.slow
def test_figure_1_in_a_run():
    population = world()
    module = run(OMD, 16, population=population, task=logistic(), controllers=[Figure(rounds=500)])
    assert [int(server.t) for server in module.servers] == [1, 1, 1, 2, 1, 1, 1, 2, 1, 2, 3, 4, 1, 1, 1, 2]
    orders = [running_instance(FIGURE, offset).order for offset in range(16)]
    assert [float(server.pace) for server in module.servers] == pytest.approx([2 ** (-k / 2) for k in orders])
    assert measured(module, "controller/instance_order").flatten().tolist() == orders

    def follows(offset, before):
        """Whether the server after a round came from this one by a round of FedOMD."""
        cohort = population.cohort(offset + 1)
        fit = module.executor.fit(OMD, before, (), cohort.jobs, cohort.batches)
        world_ = cohort._replace(round=cohort.round._replace(concepts=None))
        after = step_server(OMD, before, make_inbox(OMD, world_, fit), world_.round)
        return difference(after.x, module.servers[offset].x) <= 1e-13

    for offset, came_from in ((3, 2), (7, 4), (9, 0), (10, 9), (11, 10), (15, 14)):
        assert follows(offset, module.servers[came_from])
    begun = run(FedAvg(lr=1e-300), 1, task=logistic()).server.x  # the run's first model
    for offset in (0, 1, 2, 4, 5, 6, 8, 12, 13, 14):
        assert follows(offset, module.servers[offset]._replace(x=begun))


@pytest.mark.slow
@pytest.mark.parametrize("rho", RATES)
def test_schedules_cover_every_round_and_nest(rho):
    for seed, number, order in itertools.product(range(6), range(3), (0, 1, 4, 6)):
        block = BlockSchedule(seed, number, order, rho)
        instances = block.instances()
        assert instances[0] == Instance(order, 0, 2**order - 1)  # always there
        assert len(set(instances)) == len(instances)
        for instance, other in itertools.combinations(instances, 2):
            apart = instance.last < other.first or other.last < instance.first
            assert apart or (instance.first <= other.first and other.last <= instance.last) or (
                other.first <= instance.first and instance.last <= other.last
            )  # fmt: skip
        for offset in range(2**order):
            covering = [i for i in instances if i.first <= offset <= i.last]
            assert block.covering(offset) == sorted(covering)
            assert running_instance(covering, offset) == min(covering)  # the shortest
    assert BlockSchedule(0, 0, 6, rho).instances() == BlockSchedule(0, 0, 6, rho).instances()


def test_schedules_differ_between_seeds_and_blocks():
    schedules = [tuple(BlockSchedule(seed, number, 6, Rate()).instances()) for seed in range(5) for number in range(5)]
    assert len(set(schedules)) == 25


@pytest.mark.slow
@pytest.mark.parametrize("rho", RATES)
def test_as_many_instances_as_expected(rho):
    m, blocks = 6, 400
    schedules = [BlockSchedule(3, number, m, rho).instances() for number in range(blocks)]
    for k in range(m + 1):
        p, places = rho(2**m) / rho(2**k), blocks * 2 ** (m - k)
        count = sum(instance.order == k for instances in schedules for instance in instances)
        assert abs(count - p * places) <= 4 * math.sqrt(places * p * (1 - p)) + 1e-9
    horizon, delta = 500, 0.05  # Lemma 1: at most 6 m̂ log(T/δ) C(t') / C(1), C(t) = t ρ(t)
    bound = 6 * (math.log2(horizon) + 1) * math.log(horizon / delta) * 2**m * rho(2**m) / rho(1)
    assert max(map(len, schedules)) <= bound


def test_the_rate_is_definition_3():
    for rho in RATES:
        values = [rho(t) for t in range(1, 600)]
        assert all(value >= other for value, other in itertools.pairwise(values))
        assert all(value <= other + 1e-12 for value, other in itertools.pairwise([t * rho(t) for t in range(1, 600)]))
    hat = MasterFL(rounds=500).rho_hat
    assert hat(500) == pytest.approx(6 * (math.log2(500) + 1) * math.log(500 / 0.05) / math.sqrt(500))
    assert (round(hat(500), 1), round(3 * hat(500), 1), round(9 * hat(256))) == (24.6, 73.9, 310)


# ---- tests -----------------------------------------------------------------------------------------------------------


class Server(NamedTuple):
    x: torch.Tensor
    pace: torch.Tensor


def play(controller, loss, rounds, seed=7):
    """A replica's log when the world answers an order-k instance in round t with loss(t, k)."""
    unit = torch.ones((), dtype=torch.float64)
    server = Server(unit.expand(3), unit)
    method = SimpleNamespace(server_restarted=lambda _, x, layout: Server(x, unit), resumed=lambda server, _: server)
    state, log = controller.init(server), []
    for t in range(1, rounds + 1):
        moment = Moment(t, 0, t == 1, False, method, Layout((), (), ()), seed, lambda name: unit)
        state, server, _ = controller.before_round(state, server, moment)
        k = int(state.active)
        moment = moment._replace(weights=JOBS[1])
        state, server, event = controller.after_round(state, server, JOBS[0] * loss(t, k), moment)
        metrics = {name.split("/")[1]: float(value) for name, value in controller.metrics(state).items()}
        failed = metrics["failed"] = metrics.pop("detected")
        names = {"block_order": "m", "instance_order": "k", "loss": "F", "reachable": "optimistic", "best": "U"}
        log.append({"t": t, **{names.get(name, name): value for name, value in metrics.items()}})
        assert (event is None) == (failed == 0)
    return log


JOBS = torch.tensor([1.5, 0.5, 1.0], dtype=torch.float64), torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64)


def bounded(loss):
    """F of the jobs' losses: of two thirds and above the first one's counts as 1."""
    return 0.25 * min(1.5 * loss, 1.0) + 0.25 * min(0.5 * loss, 1.0) + 0.5 * min(loss, 1.0)


def changing(seed):
    """Losses that fall as instances and their orders grow, jump at three rounds, and are low after every other one."""
    rng = np.random.default_rng(seed)
    noise, jumps = rng.random(231), rng.integers(20, 220, 3)

    def loss(t, k):
        age = t - max([0, *jumps[jumps <= t]])
        if (jumps <= t).sum() % 2:
            return 0.02 + 0.03 * noise[t]
        return 0.3 + 0.6 * noise[t] / (1 + 0.1 * age + 0.3 * k)

    return loss


@pytest.mark.slow
@pytest.mark.parametrize(("on_detect", "tests"), [("reset", "active"), ("reset", "all"), ("increment", "active")])
@pytest.mark.parametrize(("c1", "scale", "fired"), [(1.0, 1e-3, {2}), (0.05, 4e-3, {1, 2})])
def test_master_equals_its_transcription(on_detect, tests, c1, scale, fired):
    """T = 200, of which 230 rounds are played."""
    seen = set()
    for seed in range(5):
        loss, settings = changing(seed), {"c1": c1, "c2": 0.01, "delta": 0.1, "on_detect": on_detect, "tests": tests}

        def draw(block, k, place, seed=seed):
            return float(random_bits(seed, "instances", block, k, place) >> 11) / 2**53

        ours = play(MasterFL(rounds=200, rho_hat_scale=scale, **settings), loss, 230, seed)
        theirs = master(lambda t, k, loss=loss: bounded(loss(t, k)), 200, 230, draw, scale=scale, **settings)
        for a, b in zip(ours, theirs, strict=True):
            assert a == pytest.approx(b, abs=1e-12)
        seen |= {line["failed"] for line in theirs} | {("restart", line["restarted"]) for line in theirs}
    assert fired | {0, ("restart", 0), ("restart", 1), ("restart", 2)} <= seen


@pytest.mark.slow
def test_the_paper_s_constants_never_fire_and_the_run_says_so():
    controller = MasterFL(rounds=500)
    rng = np.random.default_rng(0)
    for loss in (lambda t, k: float(t > 250), lambda t, k: float(t < 250), lambda t, k: float(rng.random() > 0.5)):
        log = play(controller, loss, 500)
        assert not any(line["failed"] for line in log)
        begun = [line["t"] for line in log if line["restarted"]]
        assert begun == [2**m for m in range(1, 9)]  # the ends of blocks
    module = Coordinator(logistic(), OMD, controllers=[controller])
    with pytest.warns(UserWarning, match=re.escape("within 500 rounds no test can fail, since 3 ρ̂(500) = 73.9 > 1")):
        trainer(1, limit_val_batches=0).fit(module, datamodule=world())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MasterFL(rounds=500, rho_hat_scale=0.01).check(1)


@pytest.mark.slow
@pytest.mark.parametrize("on_detect", ["increment", "reset"])
def test_a_label_swap_is_detected(on_detect):
    population = world(drift=SuddenDrift(round=40), batch_size=33, epochs=1)
    controller = MasterFL(rounds=60, rho_hat_scale=1.6e-3, loss_max=1.4, on_detect=on_detect)
    module = run(FedOmd(lr=4.0, mirror="euclidean"), 60, population=population, task=logistic(), seeds=SEEDS,
                 controllers=[controller])  # fmt: skip
    detected = measured(module, "detector/detected")[:, 0]
    first = [int(rounds.nonzero()[0]) + 1 for rounds in (detected > 0).T]
    assert all(40 <= number < 50 for number in first)  # and no false alarm
    labels = {event.label for record in module.records for event in record.events}
    assert {"drift detected by test 2", "restart after test 2", "restart into a block of 4 rounds"} <= labels
    restarted, order = (measured(module, name)[:, 0] for name in ("detector/restarted", "controller/block_order"))
    for s, number in enumerate(first):
        assert restarted[number, s] == 2  # the round after
        assert order[number, s] == (order[number - 1, s] + 1 if on_detect == "increment" else 0)


# ---- runs ------------------------------------------------------------------------------------------------------------


def played(controller, algorithm=OMD, rounds=14, **more):
    more = {"population": world(participants=DEVICES), "task": logistic(), "seeds": SEEDS, "initial": "seeded", **more}
    return run(algorithm, rounds, controllers=[controller], **more)


@pytest.mark.slow
def test_replicas_have_schedules_of_their_own_and_equal_separate_runs():
    together = played(MasterFL(rounds=14, rho_hat_scale=1e-3))
    orders = measured(together, "controller/instance_order")[:, 0].T.tolist()
    assert len({tuple(line) for line in orders}) == 3
    for s, seed in enumerate(SEEDS):
        alone = played(MasterFL(rounds=14, rho_hat_scale=1e-3), seeds=(seed,))
        assert difference(together.server.x[s], alone.server.x[0]) <= 1e-12
        names = [name for name in together.record.metrics if name.startswith(("controller/", "detector/"))]
        assert difference(measured(together, *names)[..., s], measured(alone, *names)[..., 0]) <= 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("restart", ["last", "longest", "random"])
def test_a_resumed_run_is_the_run_bit_for_bit(restart, tmp_path):
    def go(rounds, **more):
        saving = ModelCheckpoint(tmp_path, every_n_epochs=1, save_top_k=-1, filename="{epoch}")
        fit = {"enable_checkpointing": True, "default_root_dir": tmp_path}
        controller = MasterFL(rounds=14, rho_hat_scale=1e-3, instance_init=restart)
        return played(controller, FedOmd(lr=0.5, decay="sqrt"), rounds, callbacks=[saving], fit=fit, **more)

    whole = go(14)
    resumed = go(14, ckpt_path=str(tmp_path / "epoch=9.ckpt"))  # in the middle of a block, with paused instances
    assert float(measured(whole, "controller/block_order")[9].min()) >= 0
    assert torch.equal(whole.server.x, resumed.server.x)
    for part, other in zip(whole.run.state.controllers[0], resumed.run.state.controllers[0], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(flat(part), flat(other), strict=True))
    names = [name for name in whole.record.metrics if not name.startswith("time/")]
    assert torch.equal(measured(whole, *names)[10:], measured(resumed, *names))
    assert [record.events for record in whole.records[10:]] == [record.events for record in resumed.records]


def flat(part):
    """The tensors of a part of a state."""
    return [part] if isinstance(part, torch.Tensor) else list(part)


@pytest.mark.parametrize("restart", ["last", "first", "random"])
def test_where_a_block_begins(restart):
    """Nothing is learnt: every round ends with the model that its instance began with."""
    still = FedOmd(lr=1e-300, mirror="euclidean")
    module = played(MasterFL(rounds=14, instance_init=restart), still, rounds=7)
    first = module.servers[0].x
    if restart == "random":
        again = played(MasterFL(rounds=14, instance_init=restart), still, rounds=7)
        assert torch.equal(module.server.x, again.server.x)
        assert len({float(server.x[0, 0]) for server in module.servers}) > 3  # every instance has its own
        return
    assert difference(module.servers[6].x, first) == 0
    moving = played(MasterFL(rounds=14, instance_init=restart), rounds=7)
    begun = moving.run.state.controllers[0].start
    assert difference(begun, moving.servers[2].x) == 0 if restart == "last" else difference(begun, first) == 0


@pytest.mark.slow
def test_an_instance_may_begin_at_the_longest_one_s_model_or_at_the_server_s():
    """The model of the longest instance moves only in its own rounds; the others pause it."""
    modules = {init: played(MasterFL(rounds=14, instance_init=init), rounds=7) for init in ("longest", "current")}
    orders = measured(modules["longest"], "controller/instance_order")[:, 0]
    blocks = measured(modules["longest"], "controller/block_order")[:, 0]
    begun, seen = modules["longest"].run.state.controllers[0].start, []  # of the block of rounds 4 to 7
    for s in range(len(SEEDS)):
        ran = [t for t in (1, 2) if orders[t, s] == blocks[t, s] == 1]  # rounds 2 and 3
        at = ran[-1] if ran else 0  # shorter ones may leave it no round: then where it would have begun
        assert difference(begun[s], modules["longest"].servers[at].x[s]) == 0
        seen.append(at)
    assert len(set(seen)) > 1
    moving = modules["current"]
    still = played(MasterFL(rounds=14, instance_init="current"), FedOmd(lr=1e-300, mirror="euclidean"), rounds=7)
    assert difference(still.servers[6].x, still.servers[0].x) == 0
    steps = [difference(server.x, other.x) for server, other in itertools.pairwise(moving.servers)]
    assert max(steps) < 3 * float(np.median(steps))  # it never falls back


def test_no_more_servers_than_orders_are_kept():
    module = played(MasterFL(rounds=14), rounds=3)
    state = module.run.state.controllers[0]
    assert state.paused.x.shape == (3, 5, module.task_function.layout.n)  # orders 0 … ⌈log₂ 14⌉


def test_any_algorithm_runs_with_its_own_rate():
    module = played(MasterFL(rounds=14, lr="algorithm"), FedAdam(lr=0.1))
    assert module.server.t.max() < 14  # instances count their own rounds
    for algorithm in (FedAvg(lr=0.1), FedAdam(lr=0.1)):
        with pytest.raises(ValueError, match="whose server sends a learning rate: take FedOmd"):
            played(MasterFL(rounds=14), algorithm)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rounds": 1}, "rounds must lie in [2, 1e6], got 1"),
        ({"rho_hat_scale": 0.0}, "rho_hat_scale must lie in (0, 1e12]"),
        ({"c1": math.inf}, "c1 must lie in [1e-12, 1e12]"),
        ({"c2": -1.0}, "c2 must lie in [0, 1e12]"),
        ({"delta": 1.0}, "delta must lie in (0, 1), got 1.0"),
        ({"loss_max": -1.0}, "loss_max must lie in (0, 1e12]"),
        ({"on_detect": "stop"}, "on_detect must be one of increment, reset, got 'stop'"),
        ({"instance_init": "cold"}, "instance_init must be one of last, longest, current, first, random"),
        ({"tests": "none"}, "tests must be one of active, all"),
        ({"lr": "mine"}, "lr must be one of instance, algorithm"),
    ],
)
def test_bad_values_are_named(values, message):
    with pytest.raises(ValueError, match=re.escape(f"MasterFL: {message}")):
        MasterFL(**{"rounds": 10, **values})


@pytest.mark.slow
def test_the_horizon_is_the_run_s_where_none_is_given():
    runs = [played(MasterFL(rounds=horizon, rho_hat_scale=1e-3), rounds=14) for horizon in (14, None)]
    assert difference(runs[0].server, runs[1].server) == 0
    assert runs[0].record.metrics["detector/detected"] == runs[1].record.metrics["detector/detected"]
    with pytest.raises(ValueError, match="MasterFL: rounds must be given, since the run has no end"):
        MasterFL().planned(None)
