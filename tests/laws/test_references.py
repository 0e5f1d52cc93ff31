"""Law: every method equals its plain numpy transcription, over four rounds in which three of six devices take part;
those that open and merge models over more rounds, in a world whose concepts come and go."""

import importlib
from dataclasses import astuple
from fnmatch import fnmatch
from functools import partial
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch

from flstudy.algorithms import (
    AdaptiveFedAvg,
    Algorithm,
    Apfl,
    Cfl,
    Continuous,
    DirectJointAdaptivity,
    Ditto,
    FedAcg,
    FedAda2,
    FedAdaGrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedBabu,
    FedBlended,
    FedDC,
    FedDrift,
    FedDriftEager,
    FedDyn,
    FedExp,
    FedNova,
    FedOmd,
    FedOpt,
    FedProx,
    FedRep,
    FedSam,
    FedVarp,
    FedYogi,
    Flash,
    HypCluster,
    JointAdaptivity,
    LgFedAvg,
    LocalOnly,
    Mifa,
    Mime,
    MimeLite,
    Moon,
    Oracle,
    Scaffold,
    Strategy,
)
from flstudy.algorithms.fedblended import drawn
from flstudy.population import AlternatingGroups, RecurrentDrift

from ..tiers import in_tiers
from ..worlds import CLASSES, FEATURES, Choices, difference, drifting, logistic, mlp, run, shipped, taken, wide
from .cases import STEADY, steady, takes_momentum
from .sides import both_sides, covering

ROUNDS = 4
WEIGHT = FEATURES * CLASSES
LAYOUT = [(0, WEIGHT), (WEIGHT, WEIGHT + CLASSES)]  # of nn.Linear's two tensors in the flat vector

DECAY = {"weight_decay": 0.03, "clip_norm": 0.6, "server_lr": 0.5}
EVERYBODY: dict[str, dict[str, Any]] = {  # what all methods have: each setting once, several in one run
    "plain": {},
    "by examples, decay, clipping": {"weighting": "examples", **DECAY},
    "uniform, stops": {"weighting": "uniform", "gamma": 0.1, "first_epoch": "inf"},
    "stops from the received": {"gamma": 0.1, "first_epoch": "eval_received"},
    "stops by sums": {"gamma": 0.3, "valid_loss": "sum", "first_epoch": "eval_received"},
}
MOMENTUM = {"momentum": 0.8, "weight_decay": 0.03}
FEDOPT = {
    "v from zero": {"v_init": "zero"},
    "taus": {"tau": 0.1, "beta1": 0.5},
}
BIAS = {
    "corrected": {"bias_correction": True},
    "as the authors ran it": {"bias_correction": True, "v_init": "zero", "weighting": "examples", "beta2": 0.999},
}
JOINT = {
    **FEDOPT,
    "adam under adam": {"server_optimizer": "adam", "client_optimizer": "adam", "beta2": 0.9, "client_beta2": 0.9},
    "server corrected": {"server_optimizer": "adam", "bias_correction": True, "v_init": "zero", "beta2": 0.9},
    "sm3 adagrad": {"client_optimizer": "sm3_adagrad", "eps": 0.1},
    "sm3 adam": {"client_optimizer": "sm3_adam", "client_beta2": 0.8, "weighting": "examples"},
    "of the first kind": {"client_optimizer": "sm3_adam", "sm3": "I", "delay": 2},
    "delayed": {"client_optimizer": "sm3_adagrad", "delay": 3, "eps": 0.1},
    "delayed by epochs": {"client_optimizer": "sm3_adam", "delay": 2, "delay_unit": "epoch"},
    "warm-up": {"warmup": 4},
    "gated": {"eps_s": 2.0},
}
CORRECTED = {
    "corrected": {"client_optimizer": "sm3_adam", "client_bias_correction": True, "delay": 2},
    "corrected by epochs": {
        "client_optimizer": "sm3_adam",
        "client_bias_correction": True,
        "delay": 2,
        "delay_unit": "epoch",
    },
}
MIME = {
    "adagrad": {"base": "adagrad"},
    "adam": {"base": "adam", "beta2": 0.9, "v_init": 0.5},
    "no momentum": {"beta1": 0.0},
}
BLENDED = {
    "by steps": {"strategies": (Strategy("sm3_adam", steps=3), Strategy("sgd", scale=2.0), Strategy("adagrad"))},
    "by epochs": {"strategies": (Strategy("adagrad", epochs=2, delay=2), Strategy("sm3_adagrad", weight=0.3))},
    "scheduled": {
        "strategies": (Strategy("adam", delay=3), Strategy("sm3_adagrad", epochs=1, steps=4)),
        "resources": ((0, 1, 1, 0, 1), (1, 0, 0, 1, 0)),
        "eps": 0.1,
    },
    "delayed by epochs": {"delay": 2, "delay_unit": "epoch", "eps": 0.1},
    "cut and stopped": {"strategies": (Strategy("sgd", epochs=2), Strategy("adagrad", steps=5)), "gamma": 0.1},
    **FEDOPT,
}
LIVELY = {"every": 2, "isolation": 1, "delta": 0.02, "merge_delta": 0.4}  # FedDrift looks every tenth round by itself
PARTING = {"eps1": 1.0e3, "eps2": 0.0, "first_round": 2}  # CFL begins in round 21 by itself
GLFC = {"distillation": "glfc_rd", "classes": CLASSES}
ALWAYS: dict[type, dict[str, Any]] = {
    FedDrift: LIVELY,
    Cfl: PARTING,
    **{cls: STEADY[cls.__name__] for cls in (Flash, FedRep, LgFedAvg, FedBabu)},
}
OWN: dict[type, dict[str, dict[str, Any]]] = {
    FedAvg: {"fedper": {"personal": ("*bias",)}, "fedper, momentum": {"personal": ("*weight",), **MOMENTUM}},
    FedAvgM: {"beta": {"beta": 0.5}, "nesterov": {"beta": 0.5, "nesterov": True}},
    FedProx: {"mu": {"mu": 0.5}, "no mu": {"mu": 0.0}},
    FedAdaGrad: {**FEDOPT, "with first moment": {"beta1": 0.9}},
    FedAdam: {**FEDOPT, **BIAS},
    FedYogi: {**FEDOPT, **BIAS},
    Flash: {
        **FEDOPT,
        "clamped": {"clamp": 0.1, "tau": 1.0e-3},
        "clamped by half": {"clamp": 0.5},
        "clamped at zero": {"clamp": 0.0, "tau": 0.02},
        "yogi": {"moment": "yogi", "beta2": 0.9},
        "yogi from zero": {"moment": "yogi", "v_init": "zero"},
        "per tensor": {"beta3_granularity": "tensor"},
        "per tensor from zero": {"beta3_granularity": "tensor", "v_init": "zero", "clamp": 0.3},
        "all epochs": {"gamma": None},
    },
    Scaffold: {"option I": {"option": "I", "weight_decay": 0.03}, "option I, stops": {"option": "I", "gamma": 0.1}},
    FedNova: {
        "server momentum": {"beta": 0.6, "server_lr": 0.7},
        "pull": {"proximal": 1.0},
        "pull with momentum": {"proximal": 1.0, "momentum": 0.9},
    },
    FedOmd: {
        "euclidean": {"mirror": "euclidean"},
        "hypentropy": {"b": 0.3, "decay": "sqrt"},
        "p-norm": {"mirror": "pnorm", "p": 1.3},
        "p-norm falling": {"mirror": "pnorm", "decay": "sqrt", "server_lr": 0.7},
        "eg": {"mirror": "eg", "radius": 30.0},
        "eg in a small ball": {"mirror": "eg", "radius": 17.0, "decay": "sqrt"},
    },
    FedRep: {"two": {"head_epochs": 2, "momentum": 0.8}, "body": {"head_epochs": 0, "personal": ("*weight",)}},
    LgFedAvg: {"by weight": {"shared": ("*weight",), "momentum": 0.5}},
    FedBabu: {"tuned": {"head_from": 3, "momentum": 0.5}, "at once": {"head_from": 1, "personal": ("*weight",)}},
    FedOpt: {
        "nadam": {"optimizer": partial(torch.optim.NAdam, lr=0.01, betas=(0.8, 0.9))},
        "falling": {"lr_scheduler": partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5)},
        "nadam, falling": {
            "optimizer": partial(torch.optim.NAdam, lr=0.02),
            "lr_scheduler": partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.7),
        },
    },
    FedAcg: {"beta": {"lam": 0.5, "beta": 0.3}, "no momentum": {"lam": 0.0}, "no beta": {"beta": 0.0}},
    FedDyn: {"alpha": {"alpha": 0.3}},
    FedExp: {"no eps": {"eps": 0.0}, "by examples": {"weighting": "examples", "server_lr": 0.5}},
    FedSam: {"far": {"rho": 0.5, "momentum": 0.5}, "no rho": {"rho": 0.0}},
    FedVarp: {},
    Mifa: {},
    FedDC: {"alpha": {"alpha": 0.3}, "no alpha": {"alpha": 0.0}},
    Ditto: {"lam": {"lam": 1.0}, "no lam": {"lam": 0.0}, "own rate": {"personal_lr": 0.05}},
    Apfl: {"alone": {"alpha": 1.0}, "half": {"alpha": 0.5}, "adaptive": {"alpha": 0.5, "adaptive": True}},
    Cfl: {
        "often": {"models": 4},
        "two": {"models": 2},
        "one": {"models": 1},
        "hard to part": {"gamma_max": 0.7},
        "of small updates": {"eps1": 0.4},
        "of large updates": {"eps2": 0.5},
        "of pairs": {"participants": 2},
    },
    HypCluster: {"three": {"models": 3}, "one": {"models": 1}, "five, uniform": {"models": 5, "weighting": "uniform"}},
    FedDriftEager: {
        "of losses": {"signal": "loss", "delta": 0.2},
        "two places": {"models": 2, "delta": 0.0},
        "one place": {"models": 1, "delta": 0.0},
        "own draws": {"new_model": "random", "delta": 0.0, "models": 3},
        "every second": {"every": 2, "delta": 0.0},
        "deaf": {"delta": float("inf")},
    },
    FedDrift: {
        "of losses": {"signal": "loss", "every": 2, "isolation": 2, "merge_delta": 0.7},
        "bound of drifts": {"every": 1, "delta": 0.15, "merge_delta": None},
        "often": {"every": 1, "merge_delta": 0.3},
        "alone for long": {"every": 1, "isolation": 3, "delta": 0.0, "models": 4, "merge_delta": 0.5},
        "not alone": {"every": 1, "isolation": 0, "delta": 0.0, "models": 4, "merge_delta": 0.4},
        "two places": {"every": 1, "delta": 0.0, "models": 2, "merge_delta": 0.05},
        "three places": {"every": 1, "isolation": 2, "delta": 0.0, "models": 3, "merge_delta": 0.0},
        "own draws": {"isolation": 3, "delta": 0.0, "new_model": "random"},
        "all merge": {"every": 1, "delta": 0.0, "merge_delta": float("inf")},
        "deaf": {"every": 1, "delta": float("inf")},
    },
    LocalOnly: {},
    Oracle: {
        **FEDOPT,
        **BIAS,
        "present": {"ahead": False},
        "present, corrected": {"ahead": False, "bias_correction": True, "v_init": "zero"},
        "present, by examples": {"ahead": False, "weighting": "examples"},
    },
    Moon: {
        "strong": {"mu": 5.0, "tau": 0.2},
        "no mu": {"mu": 0.0},
        "two last models": {"buffer": 2, "mu": 5.0},
    },
    Continuous: {
        "weak": {"kappa": 0.2, "momentum": 0.5},
        "relations": GLFC,
        "relations, early": {**GLFC, "gamma": 0.1},
    },
    FedBlended: BLENDED,
    Mime: MIME,
    MimeLite: MIME,
    DirectJointAdaptivity: JOINT,
    JointAdaptivity: {**JOINT, **CORRECTED},
    FedAda2: {**{name: how for name, how in JOINT.items() if how.get("client_optimizer") != "adam"}, **CORRECTED},
    AdaptiveFedAvg: {"betas": {"beta1": 0.8, "beta2": 0.3, "beta3": 0.6}, "floor": {"floor": 0.95}},
}

# What the worlds must bring about for the comparison to say anything; every other case of these two opens models.
NOTHING: set[str] = set()
SHOWS = {
    "Cfl one": NOTHING,
    "FedDriftEager deaf": NOTHING,
    "FedDriftEager one place": NOTHING,
    "FedDriftEager momentum": {"opened", "recycled"},
    "FedDriftEager two places": {"opened", "recycled"},
    "FedDriftEager own draws": {"opened", "recycled"},
    "FedDrift deaf": NOTHING,
    "FedDrift uniform, stops": {"opened", "merged"},
    "FedDrift of losses": {"opened", "merged"},
    "FedDrift bound of drifts": {"opened", "merged"},
    "FedDrift often": {"opened", "merged"},
    "FedDrift alone for long": {"opened", "recycled", "merged"},
    "FedDrift not alone": {"opened", "recycled", "merged"},
    "FedDrift two places": {"opened", "recycled"},
    "FedDrift three places": {"opened", "recycled"},
    "FedDrift all merge": {"opened", "merged"},
}


def cases() -> dict[str, Algorithm]:
    """Methods under settings, by readable names."""
    algorithms = {}
    for cls, variants in OWN.items():
        everybody = {**EVERYBODY, "momentum": MOMENTUM}
        if not takes_momentum(cls):
            del everybody["momentum"]
        if cls is Scaffold:  # its transcription is the paper's, uniform
            everybody["by examples, decay, clipping"] = DECAY
        for name, values in {**everybody, **variants}.items():
            values = taken(cls, {**ALWAYS.get(cls, {}), **values})
            algorithms[f"{cls.__name__} {name}"] = cls(lr=0.2, **values)
    return algorithms


CASES = cases()


def hyper(algorithm, population) -> dict[str, Any]:
    """The reference's settings for the engine's."""
    module = reference(algorithm)
    local = ("lr", "momentum", "weight_decay", "clip_norm", "gamma", "first_epoch", "valid_loss")
    values = {name: getattr(algorithm, name) for name in (*local, *module.OWN) if hasattr(algorithm, name)}
    if isinstance(algorithm, Flash):
        values["layout"] = LAYOUT
    if "kept" in module.OWN:
        named = [any(fnmatch(name, pattern) for pattern in algorithm.parts_named()) for name in ("weight", "bias")]
        values["kept"] = np.repeat([algorithm.keeps(part) for part in named], [WEIGHT, CLASSES])
    if "shapes" in module.OWN:
        values["shapes"] = [(CLASSES, FEATURES), (CLASSES,)]
    if isinstance(algorithm, FedOpt):
        values |= {"server_opt": algorithm.optimizer.func.__name__, "eta": algorithm.optimizer.keywords["lr"]}
        values["betas"] = algorithm.optimizer.keywords.get("betas", module.OWN["betas"])
        values["decay"] = algorithm.lr_scheduler.keywords["gamma"] if algorithm.lr_scheduler else 1.0
    if isinstance(algorithm, FedBlended):
        values["strategies"] = [astuple(strategy) for strategy in algorithm.strategies]
        count, clients = len(algorithm.strategies), torch.arange(population.clients)
        rounds = [drawn(algorithm.seed, torch.tensor(number), clients, count).tolist() for number in range(ROUNDS)]
        values["resources"] = algorithm.resources or rounds
    if "population" in module.OWN:
        values["population"] = population.clients
    if "session_rounds" in module.OWN and population.availability is not None:
        values["session_rounds"] = population.availability.rounds
    return {**values, "classes": CLASSES}


def reference(algorithm):
    """The transcription of a method."""
    name = "fedper" if type(algorithm) is FedAvg and algorithm.personal else type(algorithm).__name__.lower()
    return importlib.import_module(f"..references.{name}", __package__)


def cohort(population, index: int) -> list[dict[str, Any]]:
    """The devices of a round as the transcription wants them: epochs of minibatches, read off the batch plan."""
    work = population.cohort(index + 1)
    x, y = (part.numpy() for part in population.store[:2])
    table = population.store.table.numpy()

    def under(concept, j):
        """The j-th device with its labels as they are under a concept."""

        def read(line):
            line = line[line >= 0]
            return x[line], table[concept][y[line]]

        client = int(work.jobs.client[0, j])
        rows, ends, valid = (part[0, j].numpy() for part in (work.batches.rows, work.batches.epoch, work.batches.valid))
        epochs, epoch = [], []
        for step in range(int(work.batches.steps[0, j])):
            epoch.append(read(rows[step]))
            if ends[step]:
                epochs, epoch = [*epochs, epoch], []
        assert not epoch
        train = read(population.members[0][client]["train"])
        size = int(work.sizes[0, j])
        key = work.jobs.key[0, j]
        return {"client": client, "size": size, "key": key, "batches": epochs, "valid": read(valid), "train": train}

    devices = []
    for j in range(work.sizes.shape[1]):
        concept = int(work.batches.concept[0, j])
        every = [under(k, j) for k in range(len(table))]
        devices.append({**every[concept], "concept": concept, "under": every})
    return devices


class Kept(L.Callback):
    """Keeps the model, or models, that a run starts from, and the devices' rows after every round."""

    def on_train_start(self, trainer, pl_module):
        self.x = pl_module.server.x[0].clone().numpy()
        self.rows = []

    def on_train_epoch_end(self, trainer, pl_module):
        slot = pl_module.bank.slot[0].tolist()
        place_of = {client: place for client, place in enumerate(slot) if place >= 0}
        rows = pl_module.bank.rows
        self.rows.append({k: tuple(leaf[place].clone() for leaf in rows) for k, place in place_of.items()})


def scene(algorithm) -> tuple[Any, int]:
    """The world in which a method is compared, and for how many rounds."""
    if isinstance(algorithm, Continuous):
        return drifting(participants=3, epochs=3, availability=AlternatingGroups(rounds=2)), 6
    if isinstance(algorithm, Cfl):
        return drifting(participants=5, epochs=3), 8
    if not isinstance(algorithm, FedDriftEager):
        return drifting(participants=3, epochs=3), ROUNDS
    return drifting(participants=5, epochs=3, drift=RecurrentDrift(round=3, back=7, p_drift=0.5)), 12


def places(server) -> dict[str, Any]:
    """What FedDrift knows of its places for models, without what is left over of free ones."""
    used, count, owner, until = (part[0].numpy() for part in (server.used, server.rounds, server.owner, server.until))
    free, alone = used < 0, owner >= 0
    return {"used": used, "count": np.where(free, 0, count), "owner": owner, "until": np.where(alone, until, 0)}


def kept_places(state) -> dict[str, Any]:
    """The same of the transcription's, after its round: who is alone in the next."""
    alone = (state["owner"] >= 0) & (state["until"] > state["t"] + 1)
    owner, until = np.where(alone, state["owner"], -1), np.where(alone, state["until"], 0)
    return {"used": state["used"], "count": state["count"], "owner": owner, "until": until}


@pytest.mark.parametrize("name", in_tiers(CASES, covering(CASES, both_sides)))
def test_method_equals_its_transcription(name):
    algorithm = CASES[name]
    population, rounds = scene(algorithm)
    happened = follow(algorithm, population, rounds)
    if isinstance(algorithm, (FedDriftEager, Cfl)):
        shows = SHOWS.get(name, {"opened"} if isinstance(algorithm, FedDriftEager) else {"split", "came late"})
        assert happened >= shows if shows else not happened


@pytest.mark.parametrize("name", in_tiers(shipped(), ["FedAvg", "Scaffold", "HypCluster"]))
def test_method_equals_its_transcription_where_ten_of_thirty_take_part(name):
    follow(steady(name, lr=0.2), wide(), 3)


def follow(algorithm, population, rounds: int) -> set[str]:
    """Compare a run with its transcription round by round; what happened to the models of a FedDrift or Cfl."""
    recorder = Kept()
    task = mlp() if "features" in algorithm.needs else logistic()
    start = torch.cat([p.detach().reshape(-1) for p in task.parameters()]).double().numpy()
    module = run(algorithm, rounds, population=population, task=task, callbacks=[recorder])
    method, settings = reference(algorithm), hyper(algorithm, population)
    assert np.array_equal(recorder.x.reshape(-1, len(start))[0], start)
    state = method.init(
        start if algorithm.starts == 1 and not isinstance(algorithm, HypCluster) else recorder.x, settings
    )
    seen, happened = set(), set()
    for index in range(rounds):
        devices = cohort(population, index)
        seen |= {device["client"] for device in devices}
        state = method.round(state, devices, settings)
        server, metrics = module.servers[index], module.records[index].metrics
        for field in set(server._fields) & {"x", "m", "v", "d", "c", "h", "g", "mu", "s", "gamma", "scale"}:
            theirs = -state[field] if field == "v" and isinstance(algorithm, FedAvgM) else state[field]  # its v is -Δ's
            if isinstance(getattr(server, field), tuple):  # Mime's m or v where the base has none
                continue
            ours, theirs = getattr(server, field)[0], torch.as_tensor(theirs, dtype=torch.float64)
            if isinstance(algorithm, FedDriftEager):  # what lies in free places is nobody's
                ours, theirs = ours[server.used[0] >= 0], theirs[server.used[0] >= 0]
            assert difference(ours, theirs) <= 1e-12, (field, index)
        if isinstance(algorithm, FedDriftEager):
            happened |= {event for event in ("opened", "recycled", "merged") if state[event]}
            for field, theirs in kept_places(state).items():
                assert np.array_equal(places(server)[field], theirs), (field, index)
        if isinstance(algorithm, Cfl):
            happened |= {"split"} if state["splits"] else set()
            parents = [split[0] for split in state["splits"]]
            assert server.parent[0].tolist() == parents + [-1] * (algorithm.models - len(parents))
            happened |= {"came late"} if state["came late"] else set()
        if isinstance(algorithm, Oracle):
            assert server.t[0, :, 0].tolist() == state["t"].tolist()
        for client, row in state.get("rows", {}).items():
            for ours, theirs in zip(recorder.rows[index][client], row, strict=True):
                assert difference(ours, theirs) <= 1e-12, (client, index)
        assert difference(metrics["train/loss"][0], np.mean([fit.loss for fit in state["stats"]])) <= 1e-12
        assert metrics["fit/steps"] == [np.mean([fit.steps for fit in state["stats"]])]
        assert metrics["fit/epochs"][0] == pytest.approx(np.mean([fit.epochs for fit in state["stats"]]), abs=1e-12)
    if isinstance(algorithm, Scaffold):
        rows = module.bank.rows[0]
        for client, c in state["c_i"].items():
            assert difference(rows[module.bank.slot[0, client]], c) <= 1e-12
        assert int((module.bank.slot >= 0).sum()) == len(state["c_i"]) == len(seen)
    return happened


def test_every_method_of_the_package_has_a_transcription():
    assert {cls.__name__ for cls in OWN} == set(shipped())


def test_the_cases_stop_early_clamp_and_drift():
    """The comparisons above would be empty if their switches never mattered."""
    population = drifting(participants=3, epochs=3)
    stopping = run(
        Flash(lr=0.2, clamp=0.1, **EVERYBODY["stops from the received"]), ROUNDS, population=population, task=logistic()
    )
    epochs = [record.metrics["fit/epochs"][0] for record in stopping.records]
    assert min(epochs) < 2 < max(epochs) < 3.01
    assert max(record.metrics["server/clamped"][0] for record in stopping.records) > 0
    concepts = [population.cohort(index + 1).batches.concept for index in range(ROUNDS)]
    assert [bool(concept.any()) for concept in concepts] == [False, True, True, True]
    chosen = run(HypCluster(lr=0.2), ROUNDS, population=population, task=logistic(), callbacks=[choices := Choices()])
    assert chosen.server.x.shape[1] == 2
    assert {model for chosen in choices.rounds for model in chosen.values()} == {0, 1}
    assert any(len(set(chosen.values())) == 2 for chosen in choices.rounds)  # in the same round
