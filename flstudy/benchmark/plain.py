"""Plain PyTorch loop of federated averaging as people write it by hand, without Lightning."""

import contextlib
import copy
import time
from typing import NamedTuple

import torch
from torch import Tensor, nn

from flstudy.algorithms import Algorithm
from flstudy.benchmark.workloads import Workload
from flstudy.population import Cohort, ExampleStore

PRECISIONS = {  # Lightning's names: (dtype of the parameters, dtype of autocast)
    "32-true": (torch.float32, None),
    "64-true": (torch.float64, None),
    "bf16-mixed": (torch.float32, torch.bfloat16),
}


class PlainRound(NamedTuple):
    """Seconds and steps of one round of the plain loop."""

    fit_s: float  # seconds of the local fits
    server_s: float  # seconds of the mean
    steps: list[int]  # [J] steps of each client


class PlainLoop:
    """Plain loop of federated averaging: for each client a deep copy of the model, ``torch.optim.SGD``, zero_grad,
    backward, step; then the mean of the parameters, weighted by examples. Batches and early stopping, and so the work,
    are the executors'.

    The model and the hyper-parameters (learning rate, momentum, weight decay, γ) are the workload's. Examples stay on
    the device, and only the row numbers of each batch are sent to it.
    """

    def __init__(
        self, workload: Workload, store: ExampleStore, device: torch.device, precision: str = "32-true"
    ) -> None:
        dtype, self.autocast = PRECISIONS[precision]
        module = (workload.plain or workload.task)()
        self.model = module.to(device, dtype)
        self.initial = copy.deepcopy(self.model.state_dict())
        self.algorithm: Algorithm = workload.algorithm()
        self.x = store.x.to(device, dtype if store.x.is_floating_point() else None)
        self.y, self.device = store.y.to(device), device

    def reset(self) -> None:
        """Restore the initial model."""
        self.model.load_state_dict(self.initial)

    def round(self, cohort: Cohort) -> PlainRound:
        """Run one round of the cohort's first replica."""
        start = time.perf_counter()
        models, steps = [], []
        for job in range(cohort.jobs.client.shape[1]):
            model = copy.deepcopy(self.model)
            steps.append(self.fit(model, cohort, job))
            models.append([parameter.detach() for parameter in model.parameters()])
        if self.device.type == "cuda":
            torch.cuda.synchronize()  # once per round: the fits' seconds are the GPU's, too
        fitted = time.perf_counter()
        weights = self.algorithm.weights(cohort.sizes[0].to(models[0][0].dtype)).to(self.device)
        with torch.no_grad():
            for parameter, parts in zip(self.model.parameters(), zip(*models, strict=True), strict=True):
                parameter.copy_(torch.tensordot(weights, torch.stack(parts), 1))
        return PlainRound(fitted - start, time.perf_counter() - fitted, steps)

    def fit(self, model: nn.Module, cohort: Cohort, job: int) -> int:
        """Train one client's model; returns the steps done."""
        algorithm, batches = self.algorithm, cohort.batches
        optimizer = torch.optim.SGD(
            model.parameters(), lr=algorithm.lr, momentum=algorithm.momentum, weight_decay=algorithm.weight_decay
        )
        ends = batches.epoch[0, job].tolist()
        total, previous = int(batches.steps[0, job]), torch.tensor(torch.inf, device=self.device)
        for step in range(total):
            optimizer.zero_grad()
            self.batch_loss(model, batches.rows[0, job, step]).backward()
            optimizer.step()
            if ends[step] and algorithm.gamma is not None:
                model.eval()
                with torch.no_grad():
                    current = self.batch_loss(model, batches.valid[0, job])
                model.train()
                if not algorithm.goes_on(torch.tensor(ends[step], device=self.device), previous, current):
                    return step + 1
                previous = current
        return total

    def batch_loss(self, model: nn.Module, rows: Tensor) -> Tensor:
        """Return the mean loss [] on the examples at rows [B], where a row < 0 is padding."""
        rows = rows[rows >= 0].to(self.device, non_blocking=True)
        mixed = torch.autocast(self.device.type, self.autocast) if self.autocast else contextlib.nullcontext()
        with mixed:
            return cross_entropy(model, self.x[rows], self.y[rows])


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the mean cross-entropy of a classifier, or over the positions of a sequence."""
    return nn.functional.cross_entropy(model(x).flatten(0, -2), y.flatten())
