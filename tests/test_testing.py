"""`flstudy.testing` on classes outside the package, fifteen lines each: right ones pass, wrong ones fail for their
reason."""

import logging
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from flstudy.algorithms import FedAvg
from flstudy.controllers import Controller, Restart
from flstudy.population import Change, Dataset, Drift, Event, Examples, LabelSwap
from flstudy.privacy import Privacy
from flstudy.testing import check_algorithm, check_controller, check_dataset, check_drift


@dataclass(frozen=True, kw_only=True)
class FedExP(FedAvg):
    """The server's step size from the norms of single uploads (Jhunjhunwala et al. 2023)."""

    eps: float = 1e-3
    reads_each = True

    def server_step(self, server, inbox, round):
        mean = inbox.mean().delta
        norms = (inbox.weights * inbox.uploads.delta.square().sum(1)).sum()
        step = torch.clamp(norms / (2 * (mean.square().sum() + self.eps)), min=1.0)
        return server._replace(x=server.x + step * mean)


class WrongMean(FedExP):
    def server_step(self, server, inbox, round):
        return super().server_step(server, inbox._replace(weights=torch.full_like(inbox.weights, 0.25)), round)


class Silent(FedExP):
    reads_each = False


class Forgetful(FedAvg):
    def server_step(self, server, inbox, round):
        server.x.add_(inbox.mean().delta)
        return server


class Ordered(FedAvg):
    def server_step(self, server, inbox, round):
        return server._replace(x=server.x + inbox.uploads.delta[0])


@pytest.mark.slow
def test_an_algorithm_of_one_s_own():
    check_algorithm(FedExP)
    for wrong, message in [
        (WrongMean, "weighted mean: an upload of weight 0 moves the model by"),
        (Silent, "single uploads: the server differs by .* set reads_each = True"),
        (Forgetful, "purity: server_step changes its arguments"),
        (Ordered, "order of jobs: servers differ by"),
    ]:
        with pytest.raises(AssertionError, match=message):
            check_algorithm(wrong)


def test_privacy_refuses_a_server_that_reads_single_uploads_whether_it_says_so_or_not():
    privacy = Privacy(clip=1.0, noise=1.0)
    for method in (FedExP, Silent):
        with pytest.raises(ValueError, match=r"only the noisy mean|reads inbox\.uploads"):
            privacy.admits(method(weighting="uniform"))
    privacy.admits(FedAvg(weighting="uniform"))


class Hospitals(Dataset):
    """Two numbers of each patient, and whether the first is larger."""

    shape, classes = (2,), 2

    def load(self, seed, clients):
        x = torch.randn(30 * clients, 2, generator=torch.Generator().manual_seed(1))
        return Examples(x, (x[:, 0] > x[:, 1]).long(), torch.arange(clients).repeat(30))


class Untold(Hospitals):
    def load(self, seed, clients):
        data = super().load(seed, clients)
        return data._replace(x=data.x + seed)


class Strange(Hospitals):
    def load(self, seed, clients):
        return super().load(seed, clients + 1)


def test_a_dataset_of_one_s_own():
    check_dataset(Hospitals())
    for wrong, message in [(Untold, "seeds: it is not seeded"), (Strange, r"owners: \(0, 3\) of 3 devices")]:
        with pytest.raises(AssertionError, match=message):
            check_dataset(wrong())


@dataclass(frozen=True, kw_only=True)
class Blink(Drift):
    """Every second device, in rounds 10 to 19."""

    def concept(self, seed, number, devices):
        return ((np.arange(devices) % 2 == 0) & (10 <= number < 20)).astype(np.int64)

    def events(self):
        return [Event(10, "on"), Event(20, "off")]


class Quiet(Blink):
    def events(self):
        return [Event(10, "on")]


@dataclass(frozen=True, kw_only=True)
class Swapped(Change):
    """Labels in pairs."""

    def tables(self, concepts, shape, classes):
        return LabelSwap().tables(concepts, shape, classes)


def test_a_drift_and_a_change_of_one_s_own():
    check_drift(Blink())
    check_drift(Blink(change=Swapped()))
    with pytest.raises(AssertionError, match="events: concepts change in round 20"):
        check_drift(Quiet())


@dataclass(frozen=True, kw_only=True)
class Shrink(Controller):
    """Pulls the model towards zero after every round."""

    def init(self, server):
        return torch.zeros((), dtype=server.x.dtype, device=server.x.device)

    def after_round(self, state, server, losses, moment):
        return state + 1, server._replace(x=0.9 * server.x), None


class Counter(Shrink):
    def init(self, server):
        server.x.zero_()
        return super().init(server)


@pytest.mark.slow
def test_a_controller_of_one_s_own():
    check_controller(Shrink())
    with pytest.raises(AssertionError, match="purity: init changes the server"):
        check_controller(Counter())


@pytest.mark.slow
def test_laws_need_no_pytest():
    code = "import sys, flstudy.testing; sys.exit(bool({'pytest', 'ray', 'mlflow', 'optuna'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_laws_that_hold_are_silent():
    lines, logger = [], logging.getLogger("lightning.pytorch")
    handler = logging.Handler()
    handler.emit = lines.append
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        check_algorithm(FedAvg, compiled=False)
        check_controller(Restart(rounds=[2]))
        assert lines == []
        assert logger.level == logging.INFO
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
