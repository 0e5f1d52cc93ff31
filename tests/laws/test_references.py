"""Law: every method equals its plain numpy transcription, over four rounds in which three of six devices take part."""

import importlib
from typing import Any

import numpy as np
import pytest
import torch

from flstudy.algorithms import (
    AdaptiveFedAvg,
    Apfl,
    Ditto,
    FedAdaGrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedDC,
    FedDyn,
    FedNova,
    FedProx,
    FedYogi,
    Flash,
    Scaffold,
)

from ..bench import CLASSES, DEVICES, FEATURES, difference, drifting, logistic, run, shipped

ROUNDS = 4
WEIGHT = FEATURES * CLASSES
LAYOUT = [(0, WEIGHT), (WEIGHT, WEIGHT + CLASSES)]  # of nn.Linear's two tensors in the flat vector

EVERYBODY: dict[str, dict[str, Any]] = {
    "plain": {},
    "decay, clipping, server_lr": {"weight_decay": 0.03, "clip_norm": 0.6, "server_lr": 0.5},
    "by examples": {"weighting": "examples"},
    "uniform": {"weighting": "uniform"},
    "stops": {"gamma": 0.1, "first_epoch": "inf"},
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
OWN: dict[type, dict[str, dict[str, Any]]] = {
    FedAvg: {},
    FedAvgM: {"beta": {"beta": 0.5}, "nesterov": {"beta": 0.5, "nesterov": True}},
    FedProx: {"mu": {"mu": 0.5}, "no mu": {"mu": 0.0}},
    FedAdaGrad: {**FEDOPT, "with first moment": {"beta1": 0.9}},
    FedAdam: {**FEDOPT, **BIAS},
    FedYogi: {**FEDOPT, **BIAS},
    Flash: {
        **FEDOPT,
        "kappa": {"kappa": 0.5},
        "clamped at zero": {"kappa": 0.0, "tau": 0.02},
        "as printed": {"denominator": "paper", "tau": 0.5},
        "as printed from zero": {"denominator": "paper", "tau": 0.5, "v_init": "zero"},
        "per tensor": {"beta3_granularity": "tensor"},
        "per tensor from zero": {"beta3_granularity": "tensor", "v_init": "zero", "kappa": 0.3},
        "all epochs": {"gamma": None},
    },
    Scaffold: {},
    FedNova: {},
    FedDyn: {"alpha": {"alpha": 0.3}},
    FedDC: {"alpha": {"alpha": 0.3}, "no alpha": {"alpha": 0.0}},
    Ditto: {"lam": {"lam": 1.0}, "no lam": {"lam": 0.0}, "own rate": {"personal_lr": 0.05}},
    Apfl: {"alone": {"alpha": 1.0}, "half": {"alpha": 0.5}, "adaptive": {"alpha": 0.5, "adaptive": True}},
    AdaptiveFedAvg: {"betas": {"beta1": 0.8, "beta2": 0.3, "beta3": 0.6}, "floor": {"floor": 0.95}},
}


def cases():
    """(method, settings) with readable names."""
    for cls, own in OWN.items():
        everybody = {**EVERYBODY, "momentum": MOMENTUM}
        if cls in (Scaffold, FedDC):  # refuse momentum
            del everybody["momentum"]
        if cls is Scaffold:  # its transcription is the paper's, uniform
            del everybody["by examples"]
        for name, values in {**everybody, **own}.items():
            yield pytest.param(cls(lr=0.2, **values), id=f"{cls.__name__} {name}")


def hyper(algorithm) -> dict[str, Any]:
    """The reference's settings for the engine's."""
    module = reference(algorithm)
    local = ("lr", "momentum", "weight_decay", "clip_norm", "gamma", "first_epoch", "valid_loss")
    values = {name: getattr(algorithm, name) for name in (*local, *module.OWN) if hasattr(algorithm, name)}
    if isinstance(algorithm, Flash):
        values["layout"] = LAYOUT
        if algorithm.denominator == "clamp":  # the transcription's plain "clamp" is κ = 0
            values["denominator"] = "clamp_relative" if algorithm.kappa else "clamp"
    if "population" in module.OWN:
        values["population"] = DEVICES
    return {**values, "classes": CLASSES}


def reference(algorithm):
    """The transcription of a method."""
    return importlib.import_module(f"..references.{type(algorithm).__name__.lower()}", __package__)


def cohort(population, index: int) -> list[dict[str, Any]]:
    """The devices of a round as the transcription wants them: epochs of minibatches, read off the batch plan."""
    work = population.cohort(index)
    x, y = (part.numpy() for part in population.stack[:2])
    table = population.stack.table.numpy()
    devices = []
    for j, client in enumerate(work.jobs.client[0].tolist()):
        rows, ends, valid = (part[0, j].numpy() for part in (work.batches.rows, work.batches.epoch, work.batches.valid))
        concept = int(work.batches.concept[0, j])

        def read(line, concept=concept):
            line = line[line >= 0]
            return x[line], table[concept][y[line]]

        epochs, epoch = [], []
        for step in range(int(work.batches.steps[0, j])):
            epoch.append(read(rows[step]))
            if ends[step]:
                epochs, epoch = [*epochs, epoch], []
        assert not epoch
        devices.append({"client": client, "size": int(work.sizes[0, j]), "batches": epochs, "valid": read(valid)})
    return devices


@pytest.mark.parametrize("algorithm", cases())
def test_method_equals_its_transcription(algorithm):
    population = drifting(participants=3, epochs=3)
    module = run(algorithm, ROUNDS, population=population, task=logistic())
    method, settings = reference(algorithm), hyper(algorithm)
    start = torch.cat([p.detach().reshape(-1) for p in logistic().parameters()]).double().numpy()
    state = method.init(start, settings)
    seen = set()
    for index in range(ROUNDS):
        devices = cohort(population, index)
        seen |= {device["client"] for device in devices}
        state = method.round(state, devices, settings)
        server, metrics = module.servers[index], module.records[index].metrics
        for field in set(server._fields) & {"x", "m", "v", "d", "c", "h", "mu", "s", "gamma", "scale"}:
            theirs = -state[field] if field == "v" and isinstance(algorithm, FedAvgM) else state[field]  # its v is -Δ's
            assert difference(getattr(server, field)[0], torch.as_tensor(theirs, dtype=torch.float64)) <= 1e-12, (
                field,
                index,
            )
        assert metrics["train/loss"][0] == pytest.approx(np.mean([fit.loss for fit in state["stats"]]), abs=1e-12)
        assert metrics["fit/steps"] == [np.mean([fit.steps for fit in state["stats"]])]
        assert metrics["fit/epochs"][0] == pytest.approx(np.mean([fit.epochs for fit in state["stats"]]), abs=1e-12)
    if isinstance(algorithm, Scaffold):
        rows = module.bank.rows[0]
        for client, c in state["c_i"].items():
            assert difference(rows[module.bank.slot[0, client]], torch.from_numpy(c)) <= 1e-12
        assert int((module.bank.slot >= 0).sum()) == len(state["c_i"]) == len(seen)
    for client, row in state.get("rows", {}).items():
        slot = module.bank.slot[0, client]
        for ours, theirs in zip(module.bank.rows, row, strict=True):
            assert difference(ours[slot], torch.as_tensor(theirs, dtype=torch.float64)) <= 1e-12


def test_every_method_of_the_package_has_a_transcription():
    assert {cls.__name__ for cls in OWN} == set(shipped())


def test_the_cases_stop_early_clamp_and_drift():
    """The comparisons above would be empty if their switches never mattered."""
    population = drifting(participants=3, epochs=3)
    stopping = run(
        Flash(lr=0.2, **EVERYBODY["stops from the received"]), ROUNDS, population=population, task=logistic()
    )
    epochs = [record.metrics["fit/epochs"][0] for record in stopping.records]
    assert min(epochs) < 2 < max(epochs) < 3.01
    assert max(record.metrics["server/clamped"][0] for record in stopping.records) > 0
    concepts = [population.cohort(index).batches.concept for index in range(ROUNDS)]
    assert [bool(concept.any()) for concept in concepts] == [False, True, True, True]
