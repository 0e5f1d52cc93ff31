"""Methods that a user writes by docs/own.md, of every kind: other local steps and weights, rows, surveys, what devices
send, personal parts, random numbers. Each equals its paper's formulas in plain numpy, in every executor, and obeys the
laws."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from flstudy.algorithms import FedAvg, Upload, fold_in, normal, uniform
from flstudy.algorithms.parts.signatures import Local
from flstudy.execution import programs
from flstudy.hyper import hyper
from flstudy.testing import check_algorithm

from ..references import local as reference
from ..references import problem
from ..worlds import CLASSES, difference, drifting, logistic, run
from .test_references import Kept, cohort

ROUNDS = 4
TINY = 1e-12


# ---- methods -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FedSam(FedAvg):
    """FedSAM (Qu et al. 2022, Alg. 1): the gradient at the worst point near y, on the same minibatch."""

    rho: float = hyper(0.3, "(0, 1]")
    """ρ, radius of the neighbourhood."""

    def towards(self, g, y):
        """The step to the worst point."""
        return self.rho * g / (g.norm() + TINY)

    def local_step(self, local, batch, grad, msg, client):
        g, loss = grad(local.y, batch)
        g, _ = grad(local.y + self.towards(g, local.y), batch)
        step, rule = self.device_rule().update(g, local.rule, local.y)
        return Local(local.y - step, rule, local.steps + 1), loss


@dataclass(frozen=True, kw_only=True)
class FedAsam(FedSam):
    """FedASAM (Caldarola et al. 2022; Kwon et al. 2021, eq. 8): the neighbourhood grows with the weights."""

    eta: float = hyper(0.2, "[0, 1]")
    """η, size of a weight that is zero."""

    def towards(self, g, y):
        size = y.abs() + self.eta
        return self.rho * size**2 * g / ((size * g).norm() + TINY)


class FairClient(NamedTuple):
    """Loss of the received model on all of a device's training examples."""

    loss: Any


class FairUpload(NamedTuple):
    """Δ_k and h_k."""

    delta: Any
    h: Any


@dataclass(frozen=True, kw_only=True)
class QFedAvg(FedAvg):
    """q-FedAvg (Li et al. 2020, Alg. 2): devices with larger losses count for more."""

    q: float = hyper(2.0, "[0, 10]")
    """q, fairness; 0 is uniform FedAvg."""
    prepares_rows = True

    @property
    def asks(self):
        return "loss"

    def client_init(self, x):
        return FairClient(x.new_zeros(()))

    def prepare(self, server, clients, survey, jobs, round):
        return server, FairClient(survey[:, 0]), jobs.model

    def local_end(self, local, msg, client):
        delta, f = (msg.x - local.y) / self.lr, client.loss
        h = self.q * f ** (self.q - 1) * delta.square().sum() + f**self.q / self.lr
        return FairUpload(f**self.q * delta, h), client

    def server_step(self, server, inbox, round):
        total = inbox.sum()
        return server._replace(x=server.x - self.server_lr * total.delta / total.h)


class AngleServer(NamedTuple):
    """The model, and by device its smoothed angle and how often it was seen."""

    x: Any
    angle: Any
    seen: Any


class AngleMessage(NamedTuple):
    """The model, and who gets it."""

    x: Any
    device: Any


class AngleUpload(NamedTuple):
    """The update, and whose it is."""

    delta: Any
    device: Any


@dataclass(frozen=True, kw_only=True)
class FedAdp(FedAvg):
    """FedAdp (Wu and Wang 2021, eq. 8 to 11): weights by the angle between an update and the mean of all."""

    alpha: float = hyper(5.0, "(0, 100]")
    """α of the Gompertz function."""
    devices: int = hyper(6, "[1, 1e6]")
    """N, devices of the population."""
    reads_each = True

    def server_init(self, x, layout):
        return AngleServer(x, x.new_zeros(self.devices), x.new_zeros(self.devices))

    def broadcast(self, server, job):
        return AngleMessage(server.x, job.client)

    def local_end(self, local, msg, client):
        return AngleUpload(local.y - msg.x, msg.device), client

    def server_step(self, server, inbox, round):
        delta, device = inbox.uploads
        mean = inbox.weights @ delta
        cosine = (delta @ mean) / (delta.norm(dim=1) * mean.norm() + TINY)
        seen = server.seen[device] + 1
        angle = ((seen - 1) * server.angle[device] + cosine.clamp(-1, 1).arccos()) / seen
        contribution = self.alpha * (1 - torch.exp(-torch.exp(-self.alpha * (angle - 1))))
        weights = inbox.weights * contribution.exp()
        x = server.x + self.server_lr * (weights / weights.sum()) @ delta
        return AngleServer(x, server.angle.index_copy(0, device, angle), server.seen.index_copy(0, device, seen))


class Head(NamedTuple):
    """A device's own last parameters."""

    head: Any


@dataclass(frozen=True, kw_only=True)
class FedRep(FedAvg):
    """FedRep (Collins et al. 2021, Alg. 1): devices first train heads of their own, then the shared representation."""

    head: int = hyper(4, "[1, 1e9]")
    """Numbers of the head, which come last."""
    head_steps: int = hyper(3, "[0, 1e6]")
    """τ, steps of the head before those of the representation."""
    personalized = True

    def joined(self, x, client):
        """The shared representation with the device's own head."""
        return torch.cat([x[: -self.head], client.head])

    def client_init(self, x):
        return Head(x[-self.head :])

    def local_start(self, msg, client, layout):
        return super().local_start(msg, client, layout)._replace(y=self.joined(msg.x, client))

    def local_step(self, local, batch, grad, msg, client):
        g, loss = grad(local.y, batch)
        of_head = torch.arange(len(g)) >= len(g) - self.head
        g = torch.where(of_head == (local.steps < self.head_steps), g, 0.0)
        step, rule = self.device_rule().update(g, local.rule, local.y)
        return Local(local.y - step, rule, local.steps + 1), loss

    def local_end(self, local, msg, client):
        delta = torch.cat([(local.y - msg.x)[: -self.head], torch.zeros_like(client.head)])
        return Upload(delta), Head(local.y[-self.head :])

    def deployed(self, server, client):
        return self.joined(server.x, client)


class Curved(NamedTuple):
    """Sums of last round's diagonal Fisher matrices u, and of their products with the models v; the round's number."""

    x: Any
    u: Any
    v: Any
    t: Any


class CurvedClient(NamedTuple):
    """A device's own part of them, and the round in which it sent that."""

    u: Any
    v: Any
    t: Any


class CurvedLocal(NamedTuple):
    """A device that adds up squares of its gradients."""

    y: Any
    rule: Any
    steps: Any
    squares: Any


class CurvedUpload(NamedTuple):
    """The update, and the device's part of the sums."""

    delta: Any
    u: Any
    v: Any


@dataclass(frozen=True, kw_only=True)
class FedCurv(FedAvg):
    """FedCurv (Shoham et al. 2019, eq. 5): devices are held where others are sure, by squared minibatch gradients."""

    lam: float = hyper(0.5, "[0, 100]")
    """λ, strength of the penalty."""

    def server_init(self, x, layout):
        return Curved(x, torch.zeros_like(x), torch.zeros_like(x), x.new_zeros(()))

    def client_init(self, x):
        return CurvedClient(torch.zeros_like(x), torch.zeros_like(x), x.new_full((), -1.0))

    def broadcast(self, server, job):
        return server

    def correct(self, g, y, msg, client):
        mine = (client.t == msg.t).to(y.dtype)
        return g + 2 * self.lam * ((msg.u - mine * client.u) * y - (msg.v - mine * client.v))

    def local_start(self, msg, client, layout):
        return CurvedLocal(*super().local_start(msg, client, layout), torch.zeros_like(msg.x))

    def local_step(self, local, batch, grad, msg, client):
        g, loss = grad(local.y, batch)
        step, rule = self.device_rule().update(self.correct(g, local.y, msg, client), local.rule, local.y)
        return CurvedLocal(local.y - step, rule, local.steps + 1, local.squares + g.square()), loss

    def local_end(self, local, msg, client):
        u = local.squares / local.steps
        return CurvedUpload(local.y - msg.x, u, u * local.y), CurvedClient(u, u * local.y, msg.t + 1)

    def server_step(self, server, inbox, round):
        total = inbox.sum()
        return Curved(server.x + self.server_lr * inbox.mean().delta, total.u, total.v, server.t + 1)


class KeyedMessage(NamedTuple):
    """The model, and the key of the job's random numbers."""

    x: Any
    key: Any


@dataclass(frozen=True, kw_only=True)
class Keyed(FedAvg):
    """FedAvg whose devices draw random numbers."""

    def broadcast(self, server, job):
        return KeyedMessage(server.x, job.key)


@dataclass(frozen=True, kw_only=True)
class FedPaq(Keyed):
    """FedPAQ (Reisizadeh et al. 2020) with the quantizer of QSGD (Alistarh et al. 2017): updates in few levels."""

    levels: int = hyper(3, "[1, 255]")
    """s, levels of an entry's size."""

    def local_end(self, local, msg, client):
        delta = local.y - msg.x
        norm = delta.norm() + TINY
        level = torch.floor(self.levels * delta.abs() / norm + uniform(msg.key, delta))
        return Upload(norm * delta.sign() * level / self.levels), client


@dataclass(frozen=True, kw_only=True)
class Langevin(Keyed):
    """Stochastic gradient Langevin dynamics (Welling and Teh 2011) on devices: noise in every local step."""

    temperature: float = hyper(1e-2, "[0, 1]")
    """Variance of the noise by 2 η_ℓ."""

    def local_step(self, local, batch, grad, msg, client):
        g, loss = grad(local.y, batch)
        noise = (2 * self.lr * self.temperature) ** 0.5 * normal(fold_in(msg.key, local.steps), g)
        return Local(local.y - self.lr * g + noise, local.rule, local.steps + 1), loss


# ---- the same in numpy -------------------------------------------------------------------------------------------


def gradient(y, x, labels):
    """∇f(y) on a minibatch, and f(y)."""
    return problem.mean_gradient(y, x, labels, CLASSES)


def by_mean(fits, x, devices):
    """FedAvg's server."""
    return x + reference.mean_update(x, devices, fits, "examples")


def sam(algorithm, x, devices, memory):
    """A round of FedSAM, or FedASAM."""

    def at_the_worst(y, inputs, labels):
        g, loss = gradient(y, inputs, labels)
        size = np.abs(y) + algorithm.eta if isinstance(algorithm, FedAsam) else np.ones_like(y)
        worst = y + algorithm.rho * size**2 * g / (np.sqrt(((size * g) ** 2).sum()) + TINY)
        return gradient(worst, inputs, labels)[0], loss

    return by_mean([reference.sgd_fit(x, d["batches"], at_the_worst, algorithm.lr) for d in devices], x, devices)


def q_fedavg(algorithm, x, devices, memory):
    """A round of q-FedAvg."""
    q, lipschitz, deltas, hs = algorithm.q, 1 / algorithm.lr, [], []
    for device in devices:
        fit = reference.sgd_fit(x, device["batches"], gradient, algorithm.lr)
        f = problem.example_losses(x, *device["train"], CLASSES).mean()
        moved = lipschitz * (x - fit.y)
        deltas.append(f**q * moved)
        hs.append(q * f ** (q - 1) * (moved**2).sum() + lipschitz * f**q)
    return x - sum(deltas) / sum(hs)


def fedadp(algorithm, x, devices, memory):
    """A round of FedAdp; angles and counts are kept by device."""
    deltas = [reference.sgd_fit(x, d["batches"], gradient, algorithm.lr).y - x for d in devices]
    p = reference.weights(devices, "examples")
    mean, contributions = sum(w * delta for w, delta in zip(p, deltas, strict=True)), []
    for device, delta in zip(devices, deltas, strict=True):
        angle = np.arccos(np.clip(delta @ mean / (np.linalg.norm(delta) * np.linalg.norm(mean) + TINY), -1, 1))
        before, count = memory.get(device["client"], (0.0, 0))
        smooth = (count * before + angle) / (count + 1)
        memory[device["client"]] = smooth, count + 1
        contributions.append(algorithm.alpha * (1 - np.exp(-np.exp(-algorithm.alpha * (smooth - 1)))))
    psi = p * np.exp(contributions)
    return x + sum(w * delta for w, delta in zip(psi / psi.sum(), deltas, strict=True))


def fedrep(algorithm, x, devices, memory):
    """A round of FedRep; heads are kept by device."""
    h, fits = algorithm.head, []
    for device in devices:
        y, steps = np.concatenate([x[:-h], memory.get(device["client"], x[-h:])]), 0
        for inputs, labels in (pair for epoch in device["batches"] for pair in epoch):
            g, _ = gradient(y, inputs, labels)
            here = slice(-h, None) if steps < algorithm.head_steps else slice(None, -h)
            y[here] -= algorithm.lr * g[here]
            steps += 1
        memory[device["client"]] = y[-h:].copy()
        fits.append(reference.Fit(np.concatenate([y[:-h], x[-h:]]), steps, 0, 0.0))
    return by_mean(fits, x, devices)


def fedcurv(algorithm, x, devices, memory):
    """A round of FedCurv; the last round's u and v are kept by device."""
    last, now, fits = memory.get("last", {}), {}, []
    for device in devices:
        others = [part for client, part in last.items() if client != device["client"]]
        y, squares = x.copy(), []
        for inputs, labels in (pair for epoch in device["batches"] for pair in epoch):
            g, _ = gradient(y, inputs, labels)
            squares.append(g**2)
            y = y - algorithm.lr * (g + 2 * algorithm.lam * sum(u * y - v for u, v in others))
        u = np.mean(squares, axis=0)
        now[device["client"]] = u, u * y
        fits.append(reference.Fit(y, len(squares), 0, 0.0))
    memory["last"] = now
    return by_mean(fits, x, devices)


def fedpaq(algorithm, x, devices, memory):
    """A round of FedPAQ."""
    fits = []
    for device in devices:
        fit = reference.sgd_fit(x, device["batches"], gradient, algorithm.lr)
        delta, draws = fit.y - x, uniform(device["key"], torch.from_numpy(x)).numpy()
        norm = np.sqrt((delta**2).sum()) + TINY
        share = algorithm.levels * np.abs(delta) / norm
        level = np.where(draws >= 1 - share % 1, np.ceil(share), np.floor(share))
        fits.append(fit._replace(y=x + norm * np.sign(delta) * level / algorithm.levels))
    return by_mean(fits, x, devices)


def langevin(algorithm, x, devices, memory):
    """A round of Langevin dynamics."""
    fits = []
    for device in devices:
        y, steps = x.copy(), 0
        for inputs, labels in (pair for epoch in device["batches"] for pair in epoch):
            noise = normal(fold_in(device["key"], steps), torch.from_numpy(x)).numpy()
            g, _ = gradient(y, inputs, labels)
            y = y - algorithm.lr * g + np.sqrt(2 * algorithm.lr * algorithm.temperature) * noise
            steps += 1
        fits.append(reference.Fit(y, steps, 0, 0.0))
    return by_mean(fits, x, devices)


METHODS: dict[str, tuple[FedAvg, Callable[..., Any]]] = {
    "FedSAM": (FedSam(lr=0.2), sam),
    "ASAM": (FedAsam(lr=0.2), sam),
    "q-FedAvg": (QFedAvg(lr=0.2), q_fedavg),
    "FedAdp": (FedAdp(lr=0.2), fedadp),
    "FedRep": (FedRep(lr=0.2), fedrep),
    "FedCurv": (FedCurv(lr=0.2), fedcurv),
    "FedPAQ": (FedPaq(lr=0.2), fedpaq),
    "Langevin": (Langevin(lr=0.2), langevin),
}
EXECUTORS = ("sequential", "vectorized", "threads", "trainer", "loops", "unrolled")


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", METHODS)
def test_a_method_of_one_s_own_is_its_paper_s_formulas(name, executor, request, monkeypatch):
    algorithm, transcription = METHODS[name]
    how = {"executor": executor}
    if executor in ("loops", "unrolled"):
        request.getfixturevalue("without_compiler")
        monkeypatch.setattr(programs.Programs, "looped", executor == "loops")
        how = {"compile": True}
    population, recorder = drifting(participants=3, epochs=2), Kept()
    module = run(algorithm, ROUNDS, population=population, task=logistic(), callbacks=[recorder], **how)
    assert executor not in ("loops", "unrolled") or module.executor.programs.compiled
    x, memory, fedavg = recorder.x, {}, FedAvg(lr=0.2)
    plain = run(fedavg, ROUNDS, population=drifting(participants=3, epochs=2), task=logistic())
    for index, server in enumerate(module.servers):
        x = transcription(algorithm, x, cohort(population, index), memory)
        assert difference(server.x[0], x) <= 1e-12, index
    assert difference(module.server.x, plain.server.x) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_method_of_one_s_own_obeys_the_laws(name):
    algorithm, _ = METHODS[name]
    check_algorithm(algorithm)
