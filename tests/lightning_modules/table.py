"""Table of the zoo: where each module trains and why, seconds a round, and the largest difference from Lightning.

python -m tests.lightning_modules.table
"""

import copy
import time
import warnings

import torch

from flstudy import FederatedRun, RunSettings
from flstudy.algorithms import FedAvg

from . import test_lightning_reference as law

REPEATS = 5


def row_of(module):
    """A module's name, executor, reason, median seconds of a round, and largest difference of a model's number."""
    torch.manual_seed(0)
    epochs, kind = 1 if module in law.ONE_EPOCH else 2, law.ROWS.get(module, "classes")
    task, population = module().double(), law.settled(epochs, kind)
    expected = law.by_lightning(task, population)
    executor = law.TAKEN_BY.get(module, ("vectorized",))[0]
    state = law.by_flstudy(task, population, executor)
    difference = law.largest_difference(state, expected)
    local_optimizer = "module" if type(task) in law.OWN_OPTIMIZERS and task.automatic_optimization else "rule"
    settings = RunSettings(executor=executor, compile=False, local_optimizer=local_optimizer)
    federated = FederatedRun(copy.deepcopy(task), FedAvg(lr=law.LR), settings)
    federated.start(population, rounds=REPEATS + 1, precision="64-true")
    seconds = []
    for _ in range(REPEATS + 1):
        began = time.perf_counter()
        federated.play_round()
        seconds.append(time.perf_counter() - began)
    executor, why = type(federated.executor).__name__, federated.task_function.findings.why
    return module.__name__, executor, why, sorted(seconds[1:])[REPEATS // 2], difference


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print("| module | executor | why | seconds a round | largest difference |\n|---|---|---|---|---|")
    for each_module in law.ZOO:
        name, executor, why, seconds, difference = row_of(each_module)
        print(f"| {name} | {executor} | {why} | {seconds:.3f} | {difference:.1e} |", flush=True)
