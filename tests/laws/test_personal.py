"""Law: what devices keep is theirs, in every executor, and nothing of it is sent."""

from functools import partial

import pytest
import torch

from flstudy.algorithms import (
    Continuous,
    FedAda2,
    FedAdam,
    FedAvg,
    FedBabu,
    FedOpt,
    FedProx,
    FedRep,
    HypCluster,
    LgFedAvg,
    LocalOnly,
    Mime,
    Moon,
    Scaffold,
)
from flstudy.metrics.registry import of_server
from flstudy.population import AlternatingGroups
from flstudy.user_error import UserError

from ..worlds import difference, drifting, measured, mlp, run, state, world
from .test_buffers import Normed, single_state

HEAD, BODY = ("network.3.*",), ("network.1.*",)  # of the laws' Mlp
METHODS = {
    "fedper": FedAvg(lr=0.2, personal=HEAD, momentum=0.5),
    "fedrep": FedRep(lr=0.2, personal=HEAD, momentum=0.5, head_epochs=2),
    "lgfedavg": LgFedAvg(lr=0.2, shared=HEAD),
    "fedbabu": FedBabu(lr=0.2, personal=HEAD, head_from=2),
    "corrected": FedProx(lr=0.2, mu=0.5, personal=HEAD),
    "adaptive": FedAdam(lr=0.2, personal=HEAD, gamma=0.05),
    "optimizer": FedOpt(lr=0.2, personal=HEAD, optimizer=partial(torch.optim.NAdam, lr=0.01)),
    "variates": Scaffold(lr=0.2, personal=HEAD),
    "axes": FedAda2(lr=0.2, personal=HEAD),
    "compared": Moon(lr=0.2, personal=HEAD),
    "taught": Continuous(lr=0.2, personal=HEAD),
    "alone": LocalOnly(lr=0.2, personal=HEAD),
}


def play(algorithm, rounds=3, executor="vectorized", **more):
    """A run with a hidden layer and a head over it."""
    world = {"population": drifting(participants=4, epochs=3, availability=AlternatingGroups(rounds=2)), "task": mlp()}
    return run(algorithm, rounds, executor=executor, **{**world, **more})


def first(module):
    """The initial model [n]."""
    return torch.cat([p.detach().reshape(-1) for p in mlp().parameters()]).to(module.server.x)


@pytest.mark.parametrize("name", METHODS)
def test_executors_agree_and_the_server_keeps_the_initial_part(name):
    module, other = (play(METHODS[name], executor=executor, evaluate=True) for executor in ("vectorized", "sequential"))
    assert difference(state(module), state(other)) <= 1e-12
    names = ["train/loss", "valid/loss", "test/accuracy", of_server("test/accuracy"), "traffic/up_bytes"]
    assert difference(measured(module, *names), measured(other, *names)) <= 1e-11
    layout = module.task_function.layout
    model, begin = (layout.split(x) for x in (module.server.x[0], first(module)))
    initial = {name for name in layout.names if torch.equal(model[name], begin[name])}
    own_part = BODY if name == "lgfedavg" else HEAD
    assert initial == {part for part in layout.names if name == "alone" or part.startswith(own_part[0].rstrip("*"))}
    parts = layout.split(torch.ones(layout.n))
    shared = sum(part.numel() for place, part in parts.items() if not place.startswith(own_part[0].rstrip("*")))
    jobs = module.last.cohort.sizes.shape[1]
    vectors = {"variates": 2, "alone": 0}.get(name, 1)
    assert module.record.metrics["traffic/up_bytes"] == [jobs * 8 * vectors * shared]  # in double precision


def test_lg_fedavg_is_fedavg_whose_devices_keep_the_body():
    module, other = (play(method) for method in (LgFedAvg(lr=0.2, shared=HEAD), FedAvg(lr=0.2, personal=BODY)))
    assert difference(state(module), state(other)) == 0


def test_batchnorm_s_own_layer_is_what_buffers_local_keeps():
    how = {"task": Normed(), "compile": False}
    module = play(FedAvg(lr=0.2, personal=("net.1.*",)), **how)
    other = play(FedAvg(lr=0.2), buffers="local", **{**how, "task": Normed()})
    assert difference(state(module), state(other)) == 0
    weights_alone = play(FedAvg(lr=0.2, personal=("net.1.weight", "net.1.bias")), **{**how, "task": Normed()})
    assert not torch.equal(weights_alone.server.buffers, other.server.buffers)  # statistics are averaged


@pytest.mark.parametrize("mode", ["average", "local"])
def test_newcomers_begin_with_the_mean_of_the_last_participants_parts(mode):
    def go(newcomers, **more):
        how = {"task": Normed(), "compile": False, "buffers": mode, **more}
        return play(FedAvg(lr=0.2, personal=("net.3.*",), newcomers=newcomers), 1, **how)

    module, usual = go("mean"), go("initial")
    algorithm, layout = module.algorithm, module.task_function.layout
    parts = (part for part in layout.names if part.startswith(("net.3", "net.1") if mode == "local" else "net.3"))
    work, (model, other) = module.last.cohort, (layout.split(run.server.x[0]) for run in (module, usual))
    p = algorithm.weights(work.sizes[0].double())
    models = [dict(module.personal(client).double().state_dict()) for client in work.jobs.client[0].tolist()]
    for name in parts:
        mean = sum(weight * tensors[name] for weight, tensors in zip(p, models, strict=True))
        assert difference(model.pop(name), mean) <= 1e-6  # a task is in single precision
        assert torch.equal(other.pop(name), dict(Normed().named_parameters())[name].double())
    assert all(torch.equal(model[name], other[name]) for name in model)
    newcomer = next(client for client in range(6) if client not in work.jobs.client[0].tolist())
    exact = algorithm.global_models(module.server)[0]
    shown = torch.cat([part.detach().reshape(-1) for part in module.personal(newcomer).parameters()])
    assert difference(shown.double(), exact[: layout.n]) <= 1e-6
    assert module.record.metrics["traffic/down_bytes"] > usual.record.metrics["traffic/down_bytes"]


@pytest.mark.parametrize("parts", [HEAD, BODY])
def test_a_single_device_makes_no_difference(parts):
    alone = {"population": world(clients=1, participants=1, partition=None)}
    single, average = (play(FedAvg(lr=0.2, personal=names), **alone) for names in (parts, ()))
    assert difference(single.algorithm.deployed(*single_state(single)), average.server.x[0]) <= 1e-12


def test_fedbabu_trains_the_body_and_at_the_end_heads():
    def rows(module):
        """The heads of the devices that were seen."""
        return module.bank.rows[-1][module.bank.slot[0][module.bank.slot[0] >= 0]]

    method = FedBabu(lr=0.2, personal=HEAD, head_from=3)
    module, longer = (play(method, rounds) for rounds in (2, 4))
    head = first(module)[-rows(module).shape[-1] :]
    assert torch.equal(rows(module), head.expand_as(rows(module)))
    assert difference(module.server.x[0], first(module)) > 1e-3
    assert torch.equal(longer.server.x, module.server.x)
    assert difference(rows(longer), head.expand_as(rows(longer))) > 1e-3


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (FedAvg(personal=("body.*",)), r"algorithm.personal must match .*network.1.weight.* got 'body.\*': write one"),
        (FedAvg(personal=("*",)), "algorithm.personal must leave something to average"),
        (LgFedAvg(shared=("*",)), "algorithm.shared must leave something for devices to keep"),
        (FedRep(), r"algorithm.personal must name parts of the model for FedRep.* network.3.\*"),
        (LgFedAvg(), "algorithm.shared must name parts of the model for LgFedAvg"),
        (FedAvg(newcomers="mean"), "algorithm.newcomers: mean is of parts that devices keep, but they keep none"),
        (HypCluster(personal=HEAD), "algorithm.personal makes no sense for HypCluster, .* several models"),
        (Mime(personal=HEAD), "algorithm.personal makes no sense for Mime, .* tell gradients"),
    ],
)
def test_parts_that_divide_nothing_are_refused(method, sentence):
    with pytest.raises(UserError, match=sentence):
        play(method)


def test_a_method_that_calls_its_local_model_by_the_key_is_refused():
    with pytest.raises(UserError, match=r"Earlier.personal is called local_model now"):
        type("Earlier", (FedAvg,), {"personal": lambda self, local, client: local.y})
