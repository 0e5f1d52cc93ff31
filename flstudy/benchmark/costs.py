"""``flstudy costs``: what methods send, what their devices' optimizers keep, and how many gradients they take.

This measures FedAda² (Lee et al. 2024), Table 2: one round of every method is run, its messages are weighed and the
states of its devices' optimizers are counted.
"""

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from flstudy.config.errors import ConfigError, nearest

if TYPE_CHECKING:
    from flstudy.algorithms import Algorithm, Job, Layout
    from flstudy.config import Config
    from flstudy.federation import Record
    from flstudy.reporting.tables import Cells


class RoundCost(NamedTuple):
    """Cost of one round per participating device."""

    down: float  # numbers that it receives, in units of the number of parameters n
    up: float  # numbers that it sends, in the same unit
    memory: int  # bytes of its optimizer's state, in single precision
    n: int
    gradients: float  # minibatch gradients, including those of a survey and those that only correct others


def main(arguments: Sequence[str]) -> int:
    """Parse the options, run one round of every method and print a table."""
    parser = ArgumentParser(prog="flstudy costs", description=__doc__.split("\n\n")[0].split(": ")[1])
    parser.add_argument("config", type=Path, help="Config with the world and task, such as tune_configs/quick.yaml.")
    parser.add_argument("--algorithms", nargs="+", default=[], help="Algorithms to run; default: those of the search.")
    parser.add_argument("--trust", action="store_true", help="Agree to the code that somebody else's study names.")
    options = parser.parse_args(list(arguments))
    # Seconds of imports, which neither --help nor a mistake waits for.
    from flstudy.algorithms import Algorithm
    from flstudy.config import load
    from flstudy.registry import named
    from flstudy.reporting.report import terminal
    from flstudy.study.consent import require_consent_to_config

    require_consent_to_config(options.config, trust=options.trust)
    config = load(options.config, command="tune")
    names = options.algorithms or list(config.study.arms) or [config.method]
    for name in names:
        if name not in named(Algorithm) and name not in config.study.arms:
            raise ConfigError(f"unknown algorithm {name!r}{nearest(name, list(named(Algorithm)))}")
    terminal().print(costs_table({name: round_cost(config, name) for name in names}))
    return 0


def round_cost(config: "Config", name: str) -> RoundCost:
    """Return the cost of one round of a method in a config's world, with the values that the config's presets give
    it."""
    from flstudy import pytree
    from flstudy.algorithms.parts.algorithm import device_memory
    from flstudy.config import StopRun

    records: list[Record] = []

    def once(record: "Record") -> None:
        records.append(record)
        raise StopRun

    overridden = config.with_overrides({"algorithm": name, "seeds": config.seeds[:1], "compile": False})
    coordinator = overridden.run(once)
    algorithm, layout = coordinator.algorithm, coordinator.task_function.layout
    assert coordinator.last is not None
    jobs = coordinator.last.cohort.jobs
    devices = len(set(jobs.client[0].tolist()))
    server = pytree.tree_map(lambda replicas: replicas[0], coordinator.server)
    job = pytree.tree_map(lambda replicas: replicas[0, 0], jobs)
    metrics, size = records[0].metrics, devices * layout.n * coordinator.server.x.element_size()
    client = algorithm.client_init(server.x.reshape(-1, layout.n)[0])
    steps = metrics["fit/steps"][0] * algorithm.jobs_per_device
    gradients = steps * gradients_per_step(algorithm, server, client, job, layout)
    if algorithm.asks == "gradient":
        gradients += float(jobs.per_epoch[0].double().mean())
    down, up = (metrics[f"traffic/{way}_bytes"][0] / size for way in ("down", "up"))
    return RoundCost(down, up, device_memory(algorithm, layout), layout.n, gradients)


def gradients_per_step(algorithm: "Algorithm", server: Any, client: Any, job: "Job", layout: "Layout") -> int:
    """Return how many minibatch gradients a local step takes: two where it corrects one by another, as Mime's."""
    import torch

    from flstudy.algorithms import Batch

    calls = 0

    def gradient(y: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        nonlocal calls
        calls += 1
        return torch.zeros_like(y), y.new_zeros(())

    msg = algorithm.broadcast(server, job)
    batch = Batch(torch.zeros(1), torch.zeros(1))
    algorithm.local_step(algorithm.local_start(msg, client, layout), batch, gradient, msg, client)
    return calls


def costs_table(round_costs: dict[str, RoundCost]) -> "Cells":
    """Return the table with a row per method; its communication is relative to the two models that FedAvg sends."""
    from flstudy.reporting.tables import NOTHING, Cells

    costs = list(round_costs.values())
    columns = {
        "Algorithm": list(round_costs),
        "Down / n": [f"{cost.down:.3g}" for cost in costs],
        "Up / n": [f"{cost.up:.3g}" for cost in costs],
        "Bits /\nFedAvg's": [f"{(cost.down + cost.up) / 2:.3g}" for cost in costs],
        "Optimizer\nbytes": [f"{cost.memory:,}" if cost.memory else NOTHING for cost in costs],
        "Model +\noptimizer / n": [f"{1 + cost.memory / (4 * cost.n):.4g}" for cost in costs],
        "Gradients": [f"{cost.gradients:.4g}" for cost in costs],
    }
    return Cells.from_columns(f"A round of a device, n = {costs[0].n:,} parameters", columns)
