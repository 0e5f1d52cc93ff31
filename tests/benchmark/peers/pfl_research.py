"""pfl-research's SimulatedBackend on a workload: FedAvg with `FederatedAveraging`, clients in memory, batches cached.

One process, or several under torchrun, which is pfl's own way to use all cores:
`python -m torch.distributed.run --standalone --nproc-per-node 2 pfl_research.py --workload mlp`.
(Not named pfl.py: a script's folder comes first on the path, and would hide the package.)
"""

import functools
import time

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops.selector import get_framework_module
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from workloads import CLIENTS, COHORT, LR, WORKLOADS, account, arguments


class Classifier(torch.nn.Module):
    """A model with the two methods that pfl calls."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Mean loss of a batch."""
        return torch.nn.functional.cross_entropy(self.model(x), y)

    @torch.no_grad()
    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Weighted]:
        """pfl evaluates in round 0, which is not timed, and never again."""
        return {"loss": Weighted(self.loss(x, y).item() * len(x), len(x))}


class Clock(TrainingProcessCallback):
    """Notes when each round ends."""

    def __init__(self) -> None:
        self.stamps: list[float] = []

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        """The first round begins."""
        self.stamps.append(time.perf_counter())
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """The server has its new model."""
        self.stamps.append(time.perf_counter())
        return False, Metrics()


def main() -> None:
    """Simulate and print."""
    parser = arguments(__doc__)
    parser.add_argument("--threads", type=int, default=1, help="torch threads of each process")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    np.random.seed(0)  # noqa: NPY002 (pfl draws from it; the processes of one run must agree)
    workload, clock = WORKLOADS[options.workload], Clock()
    model = workload.model()
    before = workload.loss(model)

    @functools.cache
    def user(index: int) -> PyTorchTensorDataset:
        return PyTorchTensorDataset(workload.client(index), user_id=str(index))

    users = FederatedDataset(user, get_user_sampler("minimize_reuse", list(range(CLIENTS))))
    rounds = options.warm + options.rounds
    FederatedAveraging().run(
        NNAlgorithmParams(rounds, evaluation_frequency=rounds + 1, train_cohort_size=COHORT, val_cohort_size=None),
        SimulatedBackend(training_data=users, val_data=users, postprocessors=[WeightByUser()]),
        PyTorchModel(Classifier(model), torch.optim.SGD, torch.optim.SGD(model.parameters(), lr=1.0)),
        NNTrainHyperParams(local_batch_size=workload.batch, local_num_epochs=1, local_learning_rate=LR),
        NNEvalHyperParams(local_batch_size=None),
        [clock],
        send_metrics_to_platform=False,  # it would print every metric of every round
    )
    if get_framework_module().distributed.global_rank == 0:
        account(options, ["pfl", "torch"], clock.stamps, before, workload.loss(model))


if __name__ == "__main__":
    main()
