"""Rounds per second of every executor beside a plain PyTorch loop: `make bench`.

    mlp   60-64-10 (FLASH's Synthetic model), 10 devices x 40 steps of batch 10
    cnn   28x28, convolutions 32 and 64, dense 128, 62 classes, 10 devices x 10 steps of batch 20

The plain loop is what people write: for each client a copy of the model, torch.optim.SGD, backward, step; then the
mean. Medians of the rounds of one process.
"""

import argparse
import copy
import statistics
import time
import warnings
from collections.abc import Callable

import torch

from flstudy.algorithms import FedAvg
from flstudy.execution import ClientBank, Ground, PerJobTrainer, Programs, Sequential, Threads, Vectorized
from flstudy.population import InMemory, Population
from flstudy.tasks import Cnn, Mlp, Objective, initial_parameters

DEVICES = 10
STEPS = {"mlp": 40, "cnn": 10}
BATCH = {"mlp": 10, "cnn": 20}


def median_seconds(one_round: Callable[[int], object], rounds: int, warm: int) -> float:
    """Median time of a round after some that do not count."""
    times = []
    for index in range(warm + rounds):
        start = time.perf_counter()
        one_round(index)
        times.append(time.perf_counter() - start)
    return statistics.median(times[warm:])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", choices=["mlp", "cnn"], default="mlp")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")

    steps, batch = STEPS[options.workload], BATCH[options.workload]
    random = torch.Generator().manual_seed(0)
    if options.workload == "mlp":
        shape, classes = (60,), 10
        task: Mlp | Cnn = Mlp(shape, classes, hidden=64)
    else:
        shape, classes = (1, 28, 28), 62
        task = Cnn(shape, classes)
    count = 30 * 700
    examples = torch.randn(count, *shape, generator=random), torch.randint(classes, (count,), generator=random)
    world = Population(InMemory(examples), clients=30, participants=DEVICES, batch_size=batch, steps=steps)
    world.settle(range(options.seeds))
    objective = Objective(task)
    ground = Ground(objective, world.stack)
    algorithm = FedAvg(lr=0.05)
    x = torch.stack([initial_parameters(objective.module, objective.layout, seed) for seed in range(options.seeds)])
    servers = torch.vmap(lambda x: algorithm.server_init(x, objective.layout))(x)
    bank = ClientBank(options.seeds, 30)

    def plain(index: int) -> None:
        cohort = world.cohort(index)
        for replica in range(options.seeds):
            models = []
            for job in range(DEVICES):
                model = copy.deepcopy(task)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
                for step in range(steps):
                    rows = cohort.batches.rows[replica, job, step]
                    rows = rows[rows >= 0]
                    optimizer.zero_grad()
                    model.training_step((world.stack.x[rows], world.stack.y[rows]), 0).backward()
                    optimizer.step()
                models.append([p.detach() for p in model.parameters()])
            [torch.stack(parts).mean(0) for parts in zip(*models, strict=True)]

    def with_executor(executor) -> Callable[[int], object]:
        def one_round(index: int) -> object:
            cohort = world.cohort(index)
            clients = bank.gather(algorithm, cohort.jobs.client, x)
            return executor.fit(algorithm, servers, clients, cohort.jobs, cohort.batches)

        return one_round

    runs: dict[str, tuple[Callable[[int], object], int, int]] = {
        "plain PyTorch loop": (plain, options.rounds, 2),
        "trainer": (with_executor(PerJobTrainer(ground)), 2, 1),
        "threads": (with_executor(Threads(ground)), options.rounds, 2),
        "sequential": (with_executor(Sequential(ground)), options.rounds, 2),
        "vectorized, eager": (with_executor(Vectorized(ground)), options.rounds, 2),
        "vectorized, compiled": (with_executor(Vectorized(ground, Programs(ground, True))), options.rounds, 2),
    }
    work = f"{options.seeds} seed(s) x {DEVICES} devices x {steps} steps of {batch}"
    print(f"{options.workload}: {work}, {options.threads} thread(s), torch {torch.__version__}")
    print(f"{'':24}{'rounds/s':>10}{'fits/s':>10}{'x plain':>10}")
    base = None
    for name, (one_round, rounds, warm) in runs.items():
        seconds = median_seconds(one_round, rounds, warm)
        base = base or seconds
        print(
            f"{name:24}{1 / seconds:10.1f}{options.seeds * DEVICES / seconds:10.0f}{base / seconds:10.1f}", flush=True
        )


if __name__ == "__main__":
    main()
