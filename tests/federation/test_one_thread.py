"""A small model trains on one of torch's threads, unless the user has set their number."""

import logging
import os

import lightning as L
import pytest
import torch

from flstudy import FederatedRun, Population, RunSettings
from flstudy.algorithms import FedAvg
from flstudy.execution import torch_threads
from flstudy.execution.torch_threads import SMALL, one_thread, takes_one_thread, threads_for_parts

CORES = os.cpu_count() or 1
several = pytest.mark.skipif(CORES < 2, reason="needs two cores")


@pytest.fixture(autouse=True)
def torch_s_own_choice(monkeypatch):
    """As in a script that sets nothing, where torch takes all cores."""
    for name in torch_threads.SET_BY:
        monkeypatch.delenv(name, raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(CORES)
    yield
    torch.set_num_threads(before)


SEEN = []
"""Numbers of threads that modules saw; a run trains copies of its task."""


class Watched(L.LightningModule):
    def __init__(self, wide=0):
        super().__init__()
        self.net = torch.nn.Linear(6, 3)
        self.frozen = torch.nn.Linear(wide, wide).requires_grad_(False)

    def forward(self, x):
        SEEN.append(torch.get_num_threads())
        return self.net(x)

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.cross_entropy(self(batch[0]), batch[1])


def played(task, **settings):
    torch.manual_seed(0)
    x = torch.randn(160, 6)
    run = FederatedRun(task, FedAvg(lr=0.1), RunSettings(**{"executor": "sequential", "compile": False, **settings}))
    run.start(Population((x, x[:, :3].argmax(1)), clients=8, participants=4), rounds=2)
    SEEN.clear()  # what is asked of the task before the first round takes no time
    for _ in run.play():
        assert torch.get_num_threads() == CORES  # the user's own work in between has all
    return SEEN


@several
def test_a_small_model_takes_one_in_rounds_and_evaluations_and_says_so(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("lightning.pytorch"), "propagate", True)  # not where it handles by itself
    with caplog.at_level("INFO", logger="lightning.pytorch"):
        assert set(played(Watched())) == {1}
    (line,) = {record.getMessage() for record in caplog.records if "threads" in record.getMessage()}
    assert line == f"The model is small: it trains on one of {CORES} threads; OMP_NUM_THREADS={CORES} gives it all"


@several
def test_a_large_one_keeps_all_also_where_most_of_it_is_frozen():
    assert set(played(Watched(wide=400))) == {CORES}


@several
@pytest.mark.parametrize("name", torch_threads.SET_BY)
def test_what_the_environment_says_holds(name, monkeypatch):
    monkeypatch.setenv(name, str(CORES))
    assert set(played(Watched())) == {CORES}


def test_a_number_that_a_script_sets_holds():
    torch.set_num_threads(CORES + 1)
    assert not takes_one_thread(10)
    torch.set_num_threads(1)
    assert not takes_one_thread(10)


@several
def test_the_bound_is_of_parameters():
    assert (takes_one_thread(SMALL), takes_one_thread(SMALL + 1)) == (True, False)


@several
def test_parts_that_run_side_by_side_keep_all_cores():
    with one_thread():
        assert (torch.get_num_threads(), threads_for_parts()) == (1, CORES)
        with one_thread():
            assert threads_for_parts() == CORES
    assert (torch.get_num_threads(), threads_for_parts()) == (CORES, CORES)
