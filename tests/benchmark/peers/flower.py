"""Flower's simulation on a workload: FedAvg, Ray backend, one actor of one thread per core.

The start of Ray is not counted: a round lasts from one `configure_train` to the next. Waiting is part of it: Flower's
engine looks for messages, and its in-memory grid for replies, every 0.1 s, which no setting of the simulation changes.
"""

import logging
import os
import time
from collections.abc import Iterable

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}  # read when flwr and ray are imported

from flower_client import app as client_app
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from workloads import CLIENTS, COHORT, LR, WORKLOADS, account, arguments


class TimedFedAvg(FedAvg):
    """FedAvg that notes when each round begins and lets no client fail."""

    def __init__(self) -> None:
        sample = {"fraction_train": COHORT / CLIENTS, "min_train_nodes": COHORT, "min_available_nodes": CLIENTS}
        super().__init__(fraction_evaluate=0.0, **sample)
        self.stamps: list[float] = []

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Note the time, then sample the clients."""
        self.stamps.append(time.perf_counter())
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """A round in which a client failed would be a faster one: refuse it."""
        replies = list(replies)
        failed = [reply.error.reason for reply in replies if reply.has_error()]
        if failed or len(replies) != COHORT:
            raise RuntimeError(f"round {server_round}: {len(replies)} replies of {COHORT}, failures {failed}")
        return super().aggregate_train(server_round, replies)


def main() -> None:
    """Simulate and print."""
    parser = arguments(__doc__)
    parser.add_argument("--actors", type=int, default=len(os.sched_getaffinity(0)), help="actors, of one core each")
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    workload, strategy, server_app = WORKLOADS[options.workload], TimedFedAvg(), ServerApp()
    model = workload.model()
    before = workload.loss(model)

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        config = ConfigRecord({"lr": LR, "workload": options.workload})
        rounds = options.warm + options.rounds + 1  # the beginning of the last one ends the one before
        result = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=rounds, train_config=config)
        model.load_state_dict(result.arrays.to_torch_state_dict())

    ray = {"address": "local", "num_cpus": options.actors}
    resources = {"num_cpus": 1, "num_gpus": 0.0}
    backend = {"init_args": ray, "client_resources": resources}
    run_simulation(server_app, client_app, CLIENTS, backend_config=backend)
    account(options, ["flwr", "ray", "torch"], strategy.stamps, before, workload.loss(model))


if __name__ == "__main__":
    main()
