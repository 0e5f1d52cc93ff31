"""``flstudy costs``: what methods send, what their devices' optimizers keep, and how many gradients they take.

FedAda² (Lee et al. 2024), Table 2, measured: one round of every method is played, its messages are weighed and the
states of its devices' optimizers are counted.
"""

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from flstudy.config.errors import ConfigError, nearest

if TYPE_CHECKING:
    from flstudy.config import Config
    from flstudy.federation import Record
    from flstudy.reporting.tables import Cells


class RoundCost(NamedTuple):
    """The cost of one round per device that takes part."""

    down: float  # numbers that it receives, in units of the model's n
    up: float  # that it sends
    memory: int  # bytes of its optimizer's state, single precision
    n: int
    gradients: float  # minibatch gradients, those of a survey included


def main(arguments: Sequence[str]) -> int:
    """Parse, play a round of every method, print a table."""
    parser = ArgumentParser(prog="flstudy costs", description=__doc__.split("\n\n")[0].split(": ")[1])
    parser.add_argument("config", type=Path, help="Whose world and task are taken, such as tune_configs/quick.yaml.")
    parser.add_argument("--algorithms", nargs="+", default=[], help="Only these; default: those that are searched.")
    given = parser.parse_args(list(arguments))
    # Seconds of imports, which neither --help nor a mistake waits for.
    from flstudy.algorithms import Algorithm
    from flstudy.config import load
    from flstudy.registry import named
    from flstudy.reporting.report import terminal

    config = load(given.config, command="tune")
    searched = (config.study.search.get("algorithm") or {}).get("choice") or [config.flat()["algorithm"]]
    names = given.algorithms or searched
    for name in names:
        if name not in named(Algorithm):
            raise ConfigError(f"unknown algorithm {name!r}{nearest(name, list(named(Algorithm)))}")
    terminal().print(costs_table({name: round_cost(config, name) for name in names}).rich())
    return 0


def round_cost(config: "Config", name: str) -> RoundCost:
    """What a round of a method costs in a config's world, with the values that the config's presets give it."""
    from flstudy.algorithms.parts.algorithm import device_memory
    from flstudy.config import StopRun

    records: list[Record] = []

    def once(record: "Record") -> None:
        records.append(record)
        raise StopRun

    made = config.with_overrides({"algorithm": name, "seeds": config.seeds[:1], "compile": False})
    coordinator = made.run(once)
    algorithm, layout = coordinator.algorithm, coordinator.task_function.layout
    assert coordinator.last is not None
    jobs = coordinator.last.cohort.jobs
    devices = len(set(jobs.client[0].tolist()))
    metrics, size = records[0].metrics, devices * layout.n * coordinator.server.x.element_size()
    gradients = metrics["fit/steps"][0] * algorithm.jobs_per_device
    if algorithm.asks == "gradient":
        gradients += float(jobs.per_epoch[0].double().mean())
    down, up = (metrics[f"traffic/{way}_bytes"][0] / size for way in ("down", "up"))
    return RoundCost(down, up, device_memory(algorithm, layout), layout.n, gradients)


def costs_table(found: dict[str, RoundCost]) -> "Cells":
    """A line per method; communication beside FedAvg's two models."""
    from flstudy.reporting.tables import NOTHING, Cells

    costs = list(found.values())
    columns = {
        "Algorithm": list(found),
        "Down / n": [f"{one.down:.3g}" for one in costs],
        "Up / n": [f"{one.up:.3g}" for one in costs],
        "Bits /\nFedAvg's": [f"{(one.down + one.up) / 2:.3g}" for one in costs],
        "Optimizer\nbytes": [f"{one.memory:,}" if one.memory else NOTHING for one in costs],
        "Model +\noptimizer / n": [f"{1 + one.memory / (4 * one.n):.4g}" for one in costs],
        "Gradients": [f"{one.gradients:.4g}" for one in costs],
    }
    return Cells.from_columns(f"A round of a device, n = {costs[0].n:,} parameters", columns)
