"""Law: on FedOpt's server an optimizer of torch takes torch's own steps, in every replica, and on from a checkpoint."""

import copy
import inspect
from functools import partial

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, ReduceLROnPlateau, StepLR

from flstudy import Coordinator
from flstudy.algorithms import FedAvg, FedOpt, Inbox, Layout, Upload
from flstudy.user_error import UserError

from ..worlds import difference, drifting, logistic, run

STEPS = 20
REFUSED = {"LBFGS": "algorithm.optimizer: LBFGS needs a closure", "SparseAdam": "dense gradients"}
EVERY = {
    name: cls
    for name, cls in vars(torch.optim).items()
    if inspect.isclass(cls) and issubclass(cls, torch.optim.Optimizer) and cls is not torch.optim.Optimizer
}
SCHEDULES = {
    "constant": None,
    "cosine": partial(CosineAnnealingLR, T_max=STEPS),
    "steps": partial(StepLR, step_size=3, gamma=0.5),
}
LAYOUT = Layout.of([("wide", torch.empty(3, 4)), ("narrow", torch.empty(4, 2))])  # matrices, as Muon asks for


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", sorted(EVERY))
def test_twenty_steps_of_two_replicas_are_torch_s(name, schedule):
    if name in REFUSED:
        with pytest.raises(UserError, match=REFUSED[name]):
            FedOpt(optimizer=EVERY[name])
        return
    method = FedOpt(optimizer=EVERY[name], lr_scheduler=SCHEDULES[schedule])
    draws = torch.Generator().manual_seed(3)
    x = torch.randn(2, LAYOUT.n, dtype=torch.float64, generator=draws)
    server = torch.vmap(lambda x: method.server_init(x, LAYOUT))(x)
    models = [[part.clone().requires_grad_() for part in LAYOUT.split(start).values()] for start in x]
    optimizers = [EVERY[name](model) for model in models]
    schedulers = [SCHEDULES[schedule](optimizer) for optimizer in optimizers if SCHEDULES[schedule]]
    weights, model = torch.tensor([[0.2, 0.8], [0.5, 0.5]], dtype=torch.float64), torch.zeros(2, 2)
    for _ in range(STEPS):
        deltas = torch.randn(2, 2, LAYOUT.n, dtype=torch.float64, generator=draws)
        before = copy.deepcopy(server)
        server = torch.vmap(lambda s, i: method.server_step(s, i, None))(server, Inbox(Upload(deltas), weights, model))
        for replica, parameters in enumerate(models):
            mean = LAYOUT.split(weights[replica] @ deltas[replica])
            for part, delta in zip(parameters, mean.values(), strict=True):
                part.grad = -delta
            optimizers[replica].step()
        for scheduler in schedulers:
            scheduler.step()
        assert not torch.equal(server.x, before.x)
    exact = torch.stack([torch.cat([part.detach().reshape(-1) for part in model]) for model in models])
    assert difference(server.x, exact) <= 1e-14


def test_sgd_at_one_is_fedavg():
    module, other = (run(method, 3, population=drifting()) for method in (FedOpt(lr=0.1), FedAvg(lr=0.1)))
    assert difference(module.server.x, other.server.x) <= 1e-14
    assert module.record.metrics["server/effective_lr"] == pytest.approx([1.0], rel=1e-12)


def test_a_run_goes_on_from_a_checkpoint_which_says_how_it_was_made(tmp_path):
    method = FedOpt(
        lr=0.1,
        optimizer=partial(torch.optim.NAdam, lr=0.02),
        lr_scheduler=partial(OneCycleLR, max_lr=0.1, total_steps=9),
    )

    def go(rounds, folder, **more):
        saving = ModelCheckpoint(folder, save_last=True)
        return run(
            method,
            rounds,
            population=drifting(),
            callbacks=[saving],
            fit={"enable_checkpointing": True, "default_root_dir": folder},
            task=logistic(),
            **more,
        )

    whole = go(6, tmp_path / "whole")
    go(3, tmp_path / "half")
    resumed = go(6, tmp_path / "half", ckpt_path=str(tmp_path / "half" / "last.ckpt"))
    assert torch.equal(whole.server.x, resumed.server.x)
    assert difference(whole.servers[5].x, whole.servers[2].x) > 1e-3
    again = Coordinator.load_from_checkpoint(tmp_path / "half" / "last.ckpt", task=logistic()).algorithm
    assert again.optimizer.func is torch.optim.NAdam
    assert again.optimizer.keywords == {"lr": 0.02}
    assert again.lr_scheduler.keywords == {"max_lr": 0.1, "total_steps": 9}


class WithHistory(torch.optim.SGD):
    """SGD that notes its steps in a list."""

    def step(self, closure=None):
        for group in self.param_groups:
            for part in group["params"]:
                self.state[part]["steps"] = [1]
        super().step(closure)


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({"optimizer": partial(torch.optim.Adam, lr=-1)}, "algorithm.optimizer cannot be made: Invalid learning rate"),
        ({"optimizer": partial(torch.optim.Adam, rate=1)}, "algorithm.optimizer cannot be made: .*'rate'"),
        ({"optimizer": WithHistory}, "algorithm.optimizer: WithHistory keeps other things than tensors"),
        ({"lr_scheduler": ReduceLROnPlateau}, "algorithm.lr_scheduler must be a function of rounds"),
        ({"lr_scheduler": StepLR}, "algorithm.lr_scheduler cannot be made: .*step_size"),
    ],
)
def test_what_takes_no_step_from_a_gradient_is_refused(parts, sentence):
    with pytest.raises(UserError, match=sentence):
        FedOpt(**parts)


def test_an_optimizer_of_matrices_is_refused_by_a_model_with_vectors():
    with pytest.raises(UserError, match=r"algorithm.optimizer cannot be made: Muon only supports 2D"):
        run(FedOpt(optimizer=torch.optim.Muon), 1, population=drifting(), task=logistic())
