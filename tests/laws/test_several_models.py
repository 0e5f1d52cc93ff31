"""Laws of the methods with several models: what they reduce to, who comes to share a model, what devices use."""

from itertools import pairwise

import lightning as L
import numpy as np
import pytest
import torch

from flstudy import Coordinator
from flstudy.algorithms import Cfl, FedAvg, FedDrift, FedDriftEager, FedYogi, HypCluster, LocalOnly, Oracle
from flstudy.population import SuddenDrift

from ..references import problem
from ..worlds import CLASSES, DEVICES, Choices, Ragged, difference, drifting, examples, logistic, measured, run, world

LOCAL = {"lr": 0.1, "weight_decay": 0.02}
INF = float("inf")
COMPARED = ("train/loss", "valid/loss", "valid/accuracy", "test/accuracy", "test/personal_accuracy")


def plenty(**changes):
    """Devices with 60 examples each, half of which live under swapped labels from round 5 on."""
    usual = {"dataset": examples(count=60 * DEVICES), "partition": Ragged([60] * DEVICES), "batch_size": 12}
    return world(**{**usual, "drift": SuddenDrift(round=5, p_drift=0.5), **changes})


def scores(model, population, split: str, client: int, concept: int) -> tuple[float, float]:
    """Mean loss and accuracy of a flat model [n] on a device's examples, by hand."""
    rows = population.members[0][client][split]
    x, y = population.store.x.numpy()[rows], population.store.y.numpy()[rows]
    table = population.store.table.numpy()
    y = table[concept][y] if table.size else y
    model = model.detach().double().numpy()
    return problem.example_losses(model, x, y, CLASSES).mean(), problem.accuracy(model, x, y, CLASSES)


def check_evaluation(module: Coordinator, models: list[torch.Tensor], population) -> None:
    """What was measured last is the mean over all devices of the models [n] given for them."""
    index = len(module.records) - 1
    for split in ("valid", "test"):
        by_hand = [
            scores(model, population, split, k, int(population.concepts(index + 1)[0, k]))
            for k, model in enumerate(models)
        ]
        for name, values in zip(("loss", "accuracy"), zip(*by_hand, strict=True), strict=True):
            assert module.record.metrics[f"{split}/{name}"][0] == pytest.approx(np.mean(values), abs=1e-12)


def best(module: Coordinator, population) -> list[int]:
    """The model with the least training loss of every device, after the last round."""
    concept = population.concepts(len(module.records))[0].tolist()
    losses = [[scores(x, population, "train", k, concept[k])[0] for x in module.server.x[0]] for k in range(DEVICES)]
    return [int(np.argmin(line)) for line in losses]


# ---- reductions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"weighting": "uniform", "server_lr": 0.5, "momentum": 0.5}])
@pytest.mark.parametrize(
    "method",
    [
        lambda **s: HypCluster(**s, models=1),
        lambda **s: FedDriftEager(**s, delta=INF),
        lambda **s: FedDriftEager(**s, delta=INF, models=1, signal="loss", every=2),
        lambda **s: FedDriftEager(**s, delta=INF, new_model="random"),
        lambda **s: FedDrift(**s, delta=INF),
        lambda **s: FedDrift(**s, delta=INF, every=1, isolation=1, signal="loss"),
        lambda **s: Cfl(**s, eps1=0.0, first_round=1),
        lambda **s: Cfl(**s, models=1, eps1=1.0e3, eps2=0.0, first_round=1),
    ],
    ids=[
        "HypCluster, M = 1",
        "Eager, δ = ∞",
        "Eager of one model",
        "Eager with draws",
        "FedDrift, δ = ∞",
        "of losses",
        "CFL, ε₁ = 0",
        "CFL, M = 1",
    ],
)
def test_with_one_model_it_is_fedavg(method, settings):
    module, other = (
        run(algorithm, 4, population=drifting(), evaluate=True)
        for algorithm in (method(**LOCAL, **settings), FedAvg(**LOCAL, **settings))
    )
    assert difference(module.server.x[:, 0], other.server.x) <= 1e-14
    assert difference(measured(module, *COMPARED), measured(other, *COMPARED)) <= 1e-13


@pytest.mark.slow
def test_a_place_for_one_model_only_is_fedavg_whatever_drifts():
    for method in (FedDriftEager, FedDrift):
        module = run(method(lr=0.1, models=1, delta=0.0, every=1), 4, population=drifting())
        assert difference(module.server.x[:, 0], run(FedAvg(lr=0.1), 4, population=drifting()).server.x) <= 1e-14


def test_hypcluster_without_its_draws_would_be_fedavg():
    """Why they are drawn: from equal models all devices choose the first, for ever."""

    class Equal(L.Callback):
        def on_train_start(self, trainer, pl_module):
            x = pl_module.server.x
            pl_module.run.state.server = pl_module.server._replace(x=x[:, :1].expand_as(x).clone())

    once = run(HypCluster(lr=0.1, models=3), 1, population=drifting(), callbacks=[Equal()])
    assert difference(once.server.x[:, 0], run(FedAvg(lr=0.1), 1, population=drifting()).server.x) <= 1e-14
    assert difference(once.server.x[:, 1], once.server.x[:, 2]) == 0


# ---- CFL ---


@pytest.mark.slow
def test_devices_of_two_tasks_part_at_the_first_split_and_who_was_away_finds_its_side():
    """Labels are swapped for half of the devices: the model of all stands still between the two tasks, where each
    side's updates point away from the other's."""
    population = plenty(drift=SuddenDrift(round=2, p_drift=0.5), participants=DEVICES - 2)
    module = run(Cfl(lr=0.2, models=2, eps1=0.25, eps2=0.05, first_round=10), 40, population=population, evaluate=True)
    concepts = population.concepts(40)[0].bool()
    places = [module.run.algorithm.placed(*state_of(module, k)) for k in range(DEVICES)]
    clusters = torch.tensor([int(place.cluster) for place in places])
    assert module.record.metrics["server/models"] == [2.0]
    assert (clusters == 1).tolist() in (concepts.tolist(), (~concepts).tolist())
    assert set(clusters.tolist()) == {0, 1}
    assert module.record.metrics["valid/accuracy"][0] > module.record.metrics["valid/global_accuracy"][0] + 0.1


def test_training_goes_on_from_a_cluster_that_lives_and_no_device_stays_in_a_tree_that_is_gone():
    population = drifting(participants=DEVICES)
    method = Cfl(lr=0.2, models=3, eps1=1.0e3, eps2=0.0, first_round=2)
    module = run(method, 4, population=population)
    server, row = state_of(module, next(k for k in range(DEVICES) if int(state_of(module, k)[1].cluster)))
    layout = module.task_function.layout
    assert int(server.splits) == 2
    assert difference(server.x[0], module.servers[2].x[0, 0]) > 1e-4  # it moved in the last round
    for started in (method.server_init(server.x[0], layout), method.server_restarted(server, server.x, layout)):
        assert difference(started.x[0], server.x[0]) == 0
        assert int(method.placed(started, row).cluster) == 0
        assert int(method.model(started, method.placed(started, row))) == 0
    assert int(method.server_restarted(server, server.x, layout).tree) == 1


def test_the_norm_of_an_update_is_not_that_of_a_cluster_s_birth():
    module = run(Cfl(lr=0.2, eps1=1.0e3, eps2=0.0, first_round=4), 4, population=drifting(participants=DEVICES))
    norms = [record.metrics["server/update_norm"][0] for record in module.records]
    assert module.record.metrics["server/models"] == [2.0]
    assert norms[-1] < 3 * norms[-2]


def state_of(module: Coordinator, client: int):
    """The server's state and a device's row."""
    row = type(module.run.algorithm.client_init(module.server.x[0, 0]))(
        *(leaf[module.bank.slot[0, client]] for leaf in module.bank.rows)
    )
    return type(module.server)(*(leaf[0] for leaf in module.server)), row


# ---- LocalOnly -------------------------------------------------------------------------------------------------------


def row(module: Coordinator, client: int) -> torch.Tensor:
    slot = module.bank.slot[0, client]
    assert slot >= 0
    return module.bank.rows[0][slot]


def test_who_trains_alone_does_not_notice_the_others():
    few, all_of_them = (run(LocalOnly(**LOCAL), 1, population=world(participants=count)) for count in (3, DEVICES))
    clients = (few.bank.slot[0] >= 0).nonzero().flatten().tolist()
    assert len(clients) == 3
    for client in clients:
        assert difference(row(few, client), row(all_of_them, client)) <= 1e-14
    # Over several rounds: half of the devices live in another world, the other half remain what they are.
    moved = drifting(participants=DEVICES)
    here, there = (run(LocalOnly(**LOCAL), 4, population=population) for population in (world(), moved))
    drifted = moved.concepts(3)[0].bool()
    assert 0 < int(drifted.sum()) < DEVICES
    for client in range(DEVICES):
        apart = difference(row(here, client), row(there, client))
        assert apart > 1e-3 if drifted[client] else apart <= 1e-14


def test_who_trains_alone_sends_nothing_and_nothing_becomes_of_it():
    module = run(LocalOnly(**LOCAL), 3, population=drifting())
    assert not measured(module, "traffic/down_bytes", "traffic/up_bytes", "server/update_norm").any()
    assert all(difference(server, module.servers[0]) == 0 for server in module.servers)


# ---- Oracle ----------------------------------------------------------------------------------------------------------

YOGI = {"lr": 0.1, "server_lr": 0.05, "bias_correction": True, "v_init": "zero"}


def test_the_oracle_s_first_model_is_fedyogi_s_where_nothing_drifts():
    oracle = run(Oracle(**YOGI), 5, population=drifting())
    yogi = run(FedYogi(**YOGI), 5, population=world(participants=4))
    for field in ("x", "m", "v"):
        assert difference(getattr(oracle.server, field)[:, 0], getattr(yogi.server, field)) <= 1e-13
    assert difference(oracle.server.x[:, 0], oracle.server.x[:, 1]) > 1e-3
    assert torch.equal(
        measured(oracle, "traffic/down_bytes", "traffic/up_bytes"),
        2 * measured(yogi, "traffic/down_bytes", "traffic/up_bytes"),
    )


def test_the_oracle_of_the_present_trains_one_model_before_the_drift_and_the_other_after():
    population = drifting(drift=SuddenDrift(round=4))
    module = run(Oracle(**YOGI, ahead=False), 6, population=population)
    yogi = run(FedYogi(**YOGI), 3, population=world(participants=4))
    assert difference(module.servers[2].x[:, 0], yogi.server.x) <= 1e-13
    for (before, after), trained in zip(pairwise(module.servers), [0, 0, 1, 1, 1], strict=True):
        assert difference(before.x[:, trained], after.x[:, trained]) > 1e-3
        for field in ("x", "m", "v", "t"):  # the other keeps all of its state
            assert difference(getattr(before, field)[:, 1 - trained], getattr(after, field)[:, 1 - trained]) == 0
    assert module.server.t[0].flatten().tolist() == [3, 3]


@pytest.mark.parametrize("models", [2, 3])
@pytest.mark.parametrize("ahead", [True, False])
def test_the_oracle_refuses_a_world_of_other_concepts(ahead, models):
    oracle = Oracle(lr=0.1, models=models, ahead=ahead)
    with pytest.raises(ValueError, match="give the population a drift"):
        run(oracle, 1, population=world())
    if ahead and models == 3:  # nobody has data under a third concept
        with pytest.raises(ValueError, match=r"must have 3 concepts .*, got 2"):
            run(oracle, 1, population=drifting())
    else:
        run(oracle, 2, population=drifting(), evaluate=True)


# ---- who comes to share a model --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_devices_of_one_concept_come_to_share_a_model_under_hypcluster():
    population, choices = plenty(), Choices()
    run(HypCluster(lr=0.1), 12, population=population, task=logistic(), callbacks=[choices])
    concept = population.concepts(12)[0].tolist()
    assert sorted(concept) == [0, 0, 0, 1, 1, 1]
    for chosen in choices.rounds[-4:]:
        models = [{chosen[k] for k in range(DEVICES) if concept[k] == c} for c in (0, 1)]
        assert len(models[0]) == len(models[1]) == 1
        assert models[0] != models[1]


@pytest.mark.parametrize("method", [HypCluster, FedDriftEager])
def test_a_model_that_is_no_number_is_nobody_s_best(method):
    class Diverged(L.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            server = pl_module.server
            if trainer.current_epoch == 2:
                fields = {"x": server.x.clone()}
                if method is FedDriftEager:
                    fields |= {"used": torch.where(server.used < 0, 1, server.used)}
                fields["x"][:, 0] = torch.nan
                pl_module.run.state.server = server._replace(**fields)

    settings = {"signal": "loss", "delta": INF} if method is FedDriftEager else {}
    choices = Choices()
    run(method(lr=0.1, models=2, **settings), 5, population=drifting(), callbacks=[choices, Diverged()])
    assert all(set(chosen.values()) == {1} for chosen in choices.rounds[3:])


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [FedDriftEager(lr=0.1, delta=0.2), FedDrift(lr=0.1, delta=0.2, every=1, isolation=2)],
    ids=["FedDriftEager", "FedDrift"],
)
def test_swapped_labels_open_a_model_that_suits_them_better(method):
    population, choices = plenty(), Choices()
    module = run(method, 12, population=population, task=logistic(), callbacks=[choices])
    concept = population.concepts(12)[0].tolist()
    assert all(set(chosen.values()) == {0} for chosen in choices.rounds[:4])
    drifted = [k for k in range(DEVICES) if concept[k]]
    opened = [choices.rounds[4][k] for k in drifted]
    assert 0 not in opened
    assert len(set(opened)) == (len(drifted) if isinstance(method, FedDrift) else 1)
    assert all(choices.rounds[4][k] == 0 for k in range(DEVICES) if not concept[k])
    average = run(FedAvg(lr=0.1), 12, population=plenty(), task=logistic())
    ours = [scores(module.server.x[0, choices.rounds[-1][k]], population, "test", k, 1)[1] for k in drifted]
    theirs = [scores(average.server.x[0], population, "test", k, 1)[1] for k in drifted]
    assert np.mean(ours) > np.mean(theirs) + 0.2


def test_models_of_one_concept_merge_again():
    population, choices = plenty(), Choices()
    method = FedDrift(lr=0.1, delta=0.2, every=1, isolation=3, merge_delta=0.6)
    run(method, 12, population=population, task=logistic(), callbacks=[choices])
    concept = population.concepts(12)[0].tolist()
    alone, together = choices.rounds[6], choices.rounds[7]  # rounds 5 to 7 are the new models' isolation
    drifted = [k for k in range(DEVICES) if concept[k]]
    assert len({alone[k] for k in drifted}) == 3
    assert len({together[k] for k in drifted}) == 1
    assert together[drifted[0]] == min(alone[k] for k in drifted)  # the lowest number stays
    assert {together[k] for k in range(DEVICES) if not concept[k]} == {0}


def test_without_a_bound_on_merging_everybody_who_is_not_alone_shares_a_model():
    choices, every_device = Choices(), range(DEVICES)
    method = FedDrift(lr=0.2, delta=0.05, every=1, isolation=2, merge_delta=INF)
    module = run(method, 12, population=plenty(), task=logistic(), callbacks=[choices])
    owners = [{-1}, *(set(server.owner[0].tolist()) for server in module.servers)]
    alone = [before | after for before, after in pairwise(owners)]  # who opened a model in this round, or has one yet
    assert sum(len(devices) > 1 for devices in alone) > 1
    for chosen, apart in zip(choices.rounds, alone, strict=True):
        assert len({chosen[k] for k in every_device if k not in apart}) <= 1
        lone_models = [chosen[k] for k in every_device if k in apart]
        assert len(set(lone_models)) == len(lone_models)
    joined = [index for index in range(1, 12) if len(alone[index]) < len(alone[index - 1])]
    assert joined  # isolation ended, and all were one again


# ---- what devices use ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("models", [2, 3])
def test_evaluation_of_hypcluster_is_of_the_model_that_fits_best(models):
    population = drifting()
    module = run(HypCluster(lr=0.2, models=models), 4, population=population, task=logistic(), evaluate=True)
    chosen = best(module, population)
    assert len(set(chosen)) > 1
    check_evaluation(module, [module.server.x[0, m] for m in chosen], population)


def test_evaluation_of_those_alone_is_of_their_rows():
    population = drifting(participants=2)
    module = run(LocalOnly(lr=0.2), 2, population=population, task=logistic(), evaluate=True)
    slot = module.bank.slot[0]
    assert 0 < int((slot < 0).sum()) < DEVICES  # who was never there uses the initial model
    models = [module.bank.rows[0][slot[k]] if slot[k] >= 0 else module.server.x[0] for k in range(DEVICES)]
    check_evaluation(module, models, population)


@pytest.mark.parametrize("ahead", [True, False])
def test_evaluation_of_the_oracle_is_of_the_true_concept_s_model(ahead):
    population = drifting()
    module = run(Oracle(lr=0.2, ahead=ahead), 4, population=population, task=logistic(), evaluate=True)
    concept = population.concepts(4)[0].tolist()
    assert set(concept) == {0, 1}
    check_evaluation(module, [module.server.x[0, k] for k in concept], population)


@pytest.mark.parametrize("rounds", [6, 9])
def test_evaluation_of_feddrift_is_of_the_own_model_while_one_is_alone(rounds):
    population, choices = plenty(), Choices()
    method = FedDrift(lr=0.1, delta=0.2, every=1, isolation=3, models=DEVICES)
    module = run(method, rounds, population=population, task=logistic(), callbacks=[choices], evaluate=True)
    owner = module.server.owner[0].tolist()
    assert any(client >= 0 for client in owner) == (rounds == 6)
    concept, models = population.concepts(rounds)[0].tolist(), []
    for k in range(DEVICES):
        common = [m for m in range(DEVICES) if module.server.used[0, m] >= 0 and owner[m] < 0]
        accuracies = [scores(module.server.x[0, m], population, "train", k, concept[k])[1] for m in common]
        models.append(module.server.x[0, owner.index(k) if k in owner else common[int(np.argmax(accuracies))]])
    check_evaluation(module, models, population)
