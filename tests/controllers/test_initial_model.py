"""Laws of the models with which sessions start."""

import numpy as np
import pytest
import torch

from flstudy.algorithms import FedAdam, FedAvg, Scaffold
from flstudy.controllers import Average, DynamicInitialModel
from flstudy.federation.play_round import make_inbox, step_server
from flstudy.population import AlternatingGroups, Event

from ..worlds import SEEDS, difference, drifting, run

ROUNDS, LENGTH = 10, 2  # five sessions of two rounds
FAST = FedAvg(lr=0.1)


def sessions(**changes):
    """The ragged, drifting federation whose halves take turns."""
    return drifting(**{"availability": AlternatingGroups(rounds=LENGTH), "participants": 2, **changes})


def played(controller, algorithm=FAST, rounds=ROUNDS, **more):
    """A run of two replicas with a controller, or None."""
    controllers = () if controller is None else (controller,)
    more = {"population": sessions(), "seeds": (0, 44), "initial": "seeded", **more}
    return run(algorithm, rounds, controllers=controllers, **more)


def ends(module):
    """The models with which sessions ended, [sessions, S, n]."""
    return torch.stack([server.x for server in module.servers[LENGTH - 1 :: LENGTH]])


@pytest.mark.slow
def test_average_starts_from_the_mean_of_what_came_after_the_pilots():
    module, plain = played(Average()), played(None)
    assert difference(module.servers[3], plain.servers[3]) == 0  # the pilot session, and the one after it
    assert difference(module.servers[5], plain.servers[5]) == 0  # one model is remembered: it is the present one
    assert difference(module.servers[6], plain.servers[6]) > 1e-3
    assert [[event.round for event in record.events] for record in module.records] == [
        [], [], [], [], [5, 5], [], [7, 7], [], [9, 9], []
    ]  # fmt: skip
    assert module.records[6].events[0] == Event(7, "initial model", "restart")
    remembered = module.run.state.controllers[0]
    assert difference(remembered.models.transpose(0, 1), ends(module)[1:]) == 0


@pytest.mark.slow
def test_scale_zero_is_the_average():
    for pilot in ("mean", "ema"):
        dynamic, other = played(DynamicInitialModel(scale=0.0, pilot=pilot)), played(Average())
        assert difference(dynamic.server, other.server) <= 1e-14


@pytest.mark.slow
def test_a_large_scale_takes_the_model_of_the_nearest_session():
    module, other = played(DynamicInitialModel(scale=1e9)), played(Last())
    state = module.run.state.controllers[0]
    assert state.gradients.shape[1] == 4  # of sessions 2, 3, 4 and 5
    for s in range(2):
        distance = (state.gradients[s, :-1] - state.gradients[s, -1]).norm(dim=1)
        assert int(distance.argmin()) == 1  # session 3 has the devices of session 5
    assert difference(module.server, other.server) <= 1e-14


class Last(Average):
    """Starts a session from the model of the one before the last, which had the same devices."""

    def weights(self, state, layout):
        weights = torch.zeros(len(state.models), dtype=state.models.dtype)
        weights[-2 if len(weights) > 1 else 0] = 1
        return weights


def test_the_gradient_is_that_of_plain_rounds_from_the_pilot_model():
    """Played by hand for the second session: all devices of a group take part, so only their batches are drawn."""
    controller = DynamicInitialModel(gradient_rounds=2)
    everybody = {"population": sessions(participants=3), "seeds": (0,)}
    module = played(controller, rounds=5, **everybody)
    pilot, state = module.servers[1].x, module.run.state.controllers[0]
    server = pilot
    for number in (1, 2):
        cohort = module.population.cohort(3, number)
        assert cohort.jobs.client.tolist() == [[3, 4, 5]]
        assert not torch.equal(cohort.batches.rows, module.population.cohort(3).batches.rows)
        start = torch.vmap(lambda x: FAST.server_init(x, module.task_function.layout))(server)
        fit = module.executor.fit(FAST, start, (), cohort.jobs, cohort.batches)
        weights = FAST.weights(cohort.sizes[0].double())
        server = server + torch.tensordot(weights, fit.uploads.delta[0], 1)
    assert difference(state.gradients[:, 0], server - pilot) <= 1e-13
    ordinary = played(None, rounds=5, **everybody)  # the third session starts from the second one's model in any case
    assert difference(module.server, ordinary.server) == 0  # nothing of it is left in the federation
    sent = [record.metrics["traffic/up_bytes"][0] for record in module.records]
    assert [value / sent[0] for value in sent] == [1, 1, 3, 1, 3]  # but it is paid for


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [FAST, FedAdam(lr=0.1)])
def test_rounds_inside_a_session_are_the_algorithm_s(algorithm):
    module = played(DynamicInitialModel(), algorithm)
    for index in (3, 5, 7, 9):  # the second round of a session
        cohort = module.population.cohort(index + 1)
        before = module.servers[index - 1]
        fit = module.executor.fit(algorithm, before, (), cohort.jobs, cohort.batches)
        world = cohort._replace(round=cohort.round._replace(concepts=None))
        expected = step_server(algorithm, before, make_inbox(algorithm, world, fit), world.round)
        assert difference(expected, module.servers[index]) <= 1e-13


@pytest.mark.slow
def test_what_surrounds_the_model_starts_anew_or_stays():
    anew, retained = (
        played(DynamicInitialModel(state=state), FedAdam(lr=0.1), rounds=5) for state in ("method", "keep")
    )
    assert anew.server.t.tolist() == [1, 1]
    assert retained.server.t.tolist() == [5, 5]


def test_one_session_is_the_algorithm_alone():
    class Unchecked(DynamicInitialModel):
        def check(self, sessions):
            """Accepts one session."""

    controller = Unchecked()
    controlled, other = (
        played(c, Scaffold(lr=0.1), rounds=3, population=drifting(participants=3)) for c in (controller, None)
    )
    assert difference(controlled.server, other.server) == 0


@pytest.mark.slow
def test_history_is_bounded_by_the_latest_or_the_most_different():
    module = played(DynamicInitialModel(history=2))
    assert module.run.state.controllers[0].models.shape[1] == module.run.state.controllers[0].gradients.shape[1] == 2
    assert difference(module.run.state.controllers[0].models.transpose(0, 1), ends(module)[3:]) == 0
    diverse = played(DynamicInitialModel(history=2, retention="diverse"))
    apart = diverse.run.state.controllers[0].gradients[0]
    assert float((apart[0] - apart[1]).norm()) > 0
    layout = diverse.task_function.layout
    controller, state = DynamicInitialModel(history=2, retention="diverse"), diverse.run.state.controllers[0]
    line = torch.tensor([0.0, 1.0, 10.0], dtype=torch.float64)[:, None].expand(3, layout.n)
    bounded = controller.forget(state._replace(models=line, gradients=line), layout)
    assert bounded.gradients[:, 0].tolist() == [1.0, 10.0]


def test_similarities():
    module = played(None, rounds=1)
    layout, rng = module.task_function.layout, np.random.default_rng(0)
    gradients, to = torch.from_numpy(rng.normal(size=(3, layout.n))), torch.from_numpy(rng.normal(size=layout.n))
    by = {name: DynamicInitialModel(similarity=name).distances(gradients, to, layout).numpy() for name in
          ("l2", "cosine", "per_tensor_normalised")}  # fmt: skip
    for z in range(3):
        g, t = gradients[z].numpy(), to.numpy()
        assert by["l2"][z] == pytest.approx(np.sqrt(((g - t) ** 2).sum()))
        assert by["cosine"][z] == pytest.approx(1 - g @ t / np.sqrt((g @ g) * (t @ t)))
        distances, start = [], 0
        for name, size in zip(layout.names, layout.sizes, strict=True):
            a, b = g[start : start + size], t[start : start + size]
            start += size
            if not name.endswith("bias"):
                distances.append(np.linalg.norm(a / np.linalg.norm(a) - b / np.linalg.norm(b)))
        assert len(distances) == 2
        assert by["per_tensor_normalised"][z] == pytest.approx(np.mean(distances))
    nothing = DynamicInitialModel(similarity="per_tensor_normalised").distances(gradients * 0, to * 0, layout)
    assert nothing.tolist() == [0, 0, 0]  # no 0/0


def test_an_ema_pilot_weighs_by_age():
    controller = DynamicInitialModel(pilots=3, pilot="ema", decay=0.8)
    state = controller.init(played(None, rounds=1).server)._replace(pilots=torch.eye(3, dtype=torch.float64))
    assert controller.pilot_model(state).tolist() == pytest.approx([0.64, 0.16, 0.2])
    assert DynamicInitialModel(pilots=3).pilot_model(state).tolist() == pytest.approx([1 / 3] * 3)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_replicas_equal_separate_runs(executor):
    controller = DynamicInitialModel(similarity="cosine", gradient_devices=1)
    together = played(controller, rounds=8, seeds=SEEDS, executor=executor)
    for s, seed in enumerate(SEEDS):
        alone = played(controller, rounds=8, seeds=(seed,), executor=executor)
        assert difference(together.server.x[s], alone.server.x[0]) <= 1e-12


def test_bad_input():
    for make, sentence in (
        (lambda: DynamicInitialModel(scale=-1.0), r"scale must lie in \[0, 1e12\]"),
        (lambda: DynamicInitialModel(pilots=0), "pilots must lie in"),
        (lambda: DynamicInitialModel(gradient_rounds=0), "gradient_rounds must lie in"),
        (lambda: DynamicInitialModel(decay=1.0), "decay must lie in"),
        (lambda: DynamicInitialModel(similarity="dot"), "similarity must be one of l2, per_tensor_normalised, cosine"),
        (lambda: Average(history=0), "history must lie in"),
        (lambda: played(DynamicInitialModel(pilots=4)), "pilots \\+ 2 = 6 sessions or more, got 5"),
        (lambda: played(Average(), population=drifting()), "3 sessions or more, got 1"),
    ):
        with pytest.raises(ValueError, match=sentence):
            make()
