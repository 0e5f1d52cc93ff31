"""Rounds in a radio cell: `python tests/benchmark/wireless.py > tests/benchmark/results/wireless.md`.

Latency and energy of a round of device sessions' networks (Table I), beside what the paper reports per round (Table
VII), under both readings of the band and as the four figures can be fitted; what Table I's complexities count; and how
long a round's costs take to work out.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import torchvision
from torch.utils.flop_counter import FlopCounterMode
from workload import made_by, quiet

from flstudy.metrics.wireless import Costs, Wireless

DEVICES, BATCH, STEPS = 100, 128, 5


class Network(NamedTuple):
    """Of Table I, and what Table VII says of 150 and 70 rounds with it, per round."""

    parameters: int
    complexity: float
    latency_s: float
    energy_kj: float


NETWORKS = {
    "SVHN": Network(667_178, 91.04, 482.1 / 70, 5.44 / 70),
    "TinyImageNet": Network(21_730_056, 27.69, 17_037.7 / 150, 214.33 / 150),
}


def round_costs(network: Network, number: int, cell: Wireless) -> Costs:
    """The costs of one replica's round; every replica and round has its own cell."""
    bits, everybody = 32 * network.parameters, [list(range(DEVICES))]
    work = {"steps": STEPS, "batch_size": BATCH, "parameters": network.parameters}
    return cell.costs([number], number, everybody, down=bits, up=bits, **work)


def spread(values: list[float], digits: int) -> str:
    """Mean and, over rounds, standard deviation."""
    return f"{np.mean(values):.{digits}f} ± {np.std(values, ddof=1):.{digits}f}"


READINGS: dict[str, dict[str, Any]] = {
    "W / 100, shadowing 4 dB": {},
    "W, shadowing 4 dB": {"share": "each"},
    "fitted: 1.37 MHz, no shadowing": {"bandwidth": 137e6, "shadowing": 0},
}


def line(name: str, network: Network, rounds: int, reading: str) -> str:
    """One row of the first table."""
    cell = Wireless(complexity=network.complexity, **READINGS[reading])
    costs = [round_costs(network, number, cell) for number in range(rounds)]
    exchange = [cost.down_s + cost.up_s for cost in costs]
    cells = (
        spread([float(cost.down_s.mean()) for cost in costs], 2),
        spread([float(cost.up_s.mean()) for cost in costs], 2),
        f"{np.mean([exchange_s.max() / exchange_s.mean() for exchange_s in exchange]):.2f}",
        f"{float(costs[0].computation_s[0]):.2f}",
        spread([float(cost.latency[0]) for cost in costs], 2),
        f"{network.latency_s:.2f}",
        spread([float(cost.communication_j.sum()) / 1000 for cost in costs], 4),
        spread([float(cost.energy[0]) / 1000 for cost in costs], 4),
        f"{network.energy_kj:.4f}",
    )
    return f"| {name} | {reading} | " + " | ".join(cells) + " |"


def flops(name: str, classes: int, side: int) -> tuple[int, int]:
    """FLOPs of a forward pass, and of a forward and backward pass, of one of torchvision's ResNets on an image."""
    with torch.device("meta"):
        network, image = torchvision.models.get_model(name, num_classes=classes).eval(), torch.empty(1, 3, side, side)
        with FlopCounterMode(display=False) as forward:
            network(image)
        with FlopCounterMode(display=False) as both:
            network(image).sum().backward()
    return forward.get_total_flops(), both.get_total_flops()


def fastest(work: Callable[[], Costs], repeats: int) -> float:
    """Milliseconds of processor time, which other work on the machine lengthens less than the clock's."""
    taken = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        taken.append(1000 * (time.process_time() - start))
    return min(taken)


def main() -> None:
    """Work out and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    quiet()
    print("# Latency and energy of a round in a radio cell\n")
    print(made_by("wireless.py", "numpy", "torch") + "\n")
    print(
        f"Device sessions' Table I: {DEVICES} devices, {STEPS} steps of {BATCH} examples, models of 32 bits per "
        "parameter down and up, 100 MHz at 3.5 GHz, 10 to 250 m, 10 m/s, slots of 0.5 ms, 1 GHz, 8 FLOPs per cycle. "
        f"Mean ± standard deviation over {rounds} cells of 100 devices each, one round in each. Latency is the slowest "
        "device's, energy all devices' together. The paper's are Table VII's longest rows divided by their rounds (70 "
        "and 150); the rounds of an initial model are in neither.\n"
    )
    columns = (
        *("network", "a device's band", "mean down, s", "mean up, s", "slowest / mean down + up", "computation, s"),
        *("**latency**, s", "paper, s", "communication, kJ", "**energy**, kJ", "paper, kJ"),
    )
    print("| " + " | ".join(columns) + " |")
    print("|---|---|" + "---:|" * (len(columns) - 2))
    for name, network in NETWORKS.items():
        for reading in READINGS:
            print(line(name, network, rounds, reading), flush=True)
    print(
        "\nThe paper's figures lie between the two readings of W and near the split. Less eq. (28)'s energy, its "
        "communication takes about three quarters of the split's joules for both networks, and its latency leaves the "
        "slowest device about a tenth beyond the mean one, where shadowing of 4 dB makes it three tenths. A band of "
        "1.37 MHz and no shadowing, which Table I does not say, give all four figures within 1 %: two values fitted "
        "to four, so no more than a hint at what its authors ran.\n"
    )
    print(
        "What Table I's complexities count, in millions of FLOPs per example (torch's counter, torchvision's "
        "networks without MOON's heads): a forward pass alone, though eq. (27)'s φ is to hold forward and backward.\n\n"
        "| network | φ N_p, paper | forward | forward and backward |\n|---|---:|---:|---:|"
    )
    for name, (named, classes, side), paper in (
        ("CIFAR-10, ResNet-18", ("resnet18", 10, 32), 6.50 * 11_573_066),
        ("TinyImageNet, ResNet-34", ("resnet34", 200, 64), 27.69 * 21_730_056),
    ):
        forward, both = flops(named, classes, side)
        print(f"| {name} | {paper / 1e6:.1f} | {forward / 1e6:.1f} | {both / 1e6:.1f} |")
    print(
        "\nWhat the model costs the platform, one replica of a round, one thread, least processor time:\n\n"
        "| network | slots of the slowest device | slots of all devices | ms |\n|---|---:|---:|---:|"
    )
    for name, network in NETWORKS.items():
        cell = Wireless(complexity=network.complexity)
        slots = np.rint(round_costs(network, 0, cell).up_s / cell.slot)
        taken = fastest(lambda network=network, cell=cell: round_costs(network, 0, cell), 10 if name == "SVHN" else 3)
        print(f"| {name} | {slots.max():,.0f} | {slots.sum():,.0f} | {taken:.0f} |")


if __name__ == "__main__":
    main()
