"""Controllers replace server state around rounds, whatever the algorithm."""

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch

from flstudy.algorithms import FedAdam, FedAvg, FedAvgM, Scaffold
from flstudy.controllers import Controller, Restart
from flstudy.population import Event

from ..worlds import difference, drifting, run


def test_restart_begins_anew_and_says_so():
    algorithm = FedAdam(lr=0.1)
    population = drifting()
    module = run(
        algorithm, 4, controllers=[Restart(rounds=[3])], population=population, seeds=(0, 44), initial="seeded"
    )
    plain = run(algorithm, 4, population=population, seeds=(0, 44), initial="seeded")
    for before in range(2):
        assert difference(module.servers[before], plain.servers[before]) == 0
    assert difference(module.servers[2], plain.servers[2]) > 1e-3
    start = torch.vmap(lambda x: algorithm.server_init(x, module.task_function.layout))(
        torch.stack([run(FedAvg(lr=1e-300), 1, seeds=(s,), initial="seeded").server.x[0] for s in (0, 44)])
    )
    work = population.cohort(3)
    fit = module.executor.fit(algorithm, start, (), work.jobs, work.batches)
    mean = fit.uploads.delta.mean(1)
    assert difference(module.servers[2].m, 0.1 * mean) <= 1e-14  # m started at 0 again
    assert module.servers[2].t.tolist() == [1, 1]
    assert [[event.round for event in record.events] for record in module.records] == [[], [], [3, 3], []]
    assert module.records[2].events[0] == Event(3, "restart", "restart")


def test_restart_may_keep_the_model():
    module = run(FedAvgM(lr=0.1), 3, controllers=[Restart(rounds=[3], keep_model=True)], population=drifting())
    before, after = module.servers[1:]
    assert before.v.abs().max() > 1e-2
    assert difference(after.v, after.x - before.x) <= 1e-14  # v = 0 before the round, so it is Δ after it; η_g = 1


def test_restart_in_round_one_changes_nothing():
    module, plain = (
        run(Scaffold(lr=0.1), 2, controllers=c, population=drifting()) for c in ([Restart(rounds=[1])], [])
    )
    assert difference(module.server, plain.server) == 0


class Count(NamedTuple):
    rounds: torch.Tensor
    losses: torch.Tensor


class Shift(Controller):
    """Moves the model by 1 before each round, and remembers what it saw."""

    def init(self, server):
        return Count(torch.zeros(()), torch.zeros((), dtype=server.x.dtype))

    def before_round(self, state, server, moment):
        assert int(state.rounds) == moment.number - 1
        first = moment.number == 1
        return state, server._replace(x=server.x + 1), Event(1, "shift") if first else None

    def after_round(self, state, server, losses, moment):
        assert losses.shape == (4,)
        return Count(state.rounds + 1, losses.mean()), server._replace(x=server.x - 1), None


def test_controllers_keep_their_state_and_replace_the_server_s():
    module = run(FedAvg(lr=1e-300), 3, controllers=[Shift(), Shift()], population=drifting(), seeds=(0, 44))
    plain = run(FedAvg(lr=1e-300), 3, population=drifting(), seeds=(0, 44))
    assert difference(module.server.x, plain.server.x) <= 1e-14
    for state in module.run.state.controllers:
        assert state.rounds.tolist() == [3, 3]
        assert difference(list(state.losses), module.record.metrics["train/loss"]) <= 1e-12
    assert difference(module.run.state.controllers[0].losses, torch.tensor(plain.record.metrics["train/loss"])) > 1e-3
    assert len(module.records[0].events) == 4


def test_restart_needs_rounds():
    for rounds in ([], [0], [3, -1]):
        with pytest.raises(ValueError, match="rounds must"):
            Restart(rounds=rounds)


SEEN: list = []


@dataclass(frozen=True, kw_only=True)
class Curious(FedAvg):
    """Looks at what the world says about the round."""

    def server_step(self, server, inbox, round):
        SEEN.append(round)
        return super().server_step(server, inbox, round)


@dataclass(frozen=True, kw_only=True)
class Knowing(Curious):
    """The same, as an oracle."""

    oracle = True


def test_true_concepts_are_told_to_oracles_only():
    SEEN.clear()
    run(Curious(lr=0.1), 2, population=drifting())
    assert [round.concepts for round in SEEN] == [None] * 3  # the first is tried beforehand
    SEEN.clear()
    run(Knowing(lr=0.1), 2, population=drifting())
    assert [tuple(round.concepts.shape) for round in SEEN[1:]] == [(4,), (4,)]
