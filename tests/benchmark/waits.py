"""How often the host waits for an accelerator: `python -m tests.benchmark.waits > tests/benchmark/results/waits.md`.

Counted on the pretended device of ``tests/accelerator``, or on a GPU with ``--cuda``; nothing is timed. A wait is what
CUDA makes one: a number that the host reads, a shape that depends on numbers, a blocking copy in either direction.
"""

import argparse
import platform
from collections import Counter
from dataclasses import replace
from typing import Any

import torch

from flstudy.algorithms import Algorithm

from ..accelerator.devices import GPU, PHASES, PRETENDED, Device, WaitsByRound, of_phase
from ..accelerator.waits import Wait, watching
from ..laws.cases import plain
from ..worlds import DEVICES, drifting, run

ROUNDS, EPOCHS = 3, 3
COLUMNS = {"fit": "fit", "survey": "survey", "rows": "rows", "server": "server, record", "evaluation": "evaluation"}


def waits_of(device: Device, algorithm: Algorithm) -> list[list[Wait]]:
    """Of every round."""
    with watching(PHASES) as waits:
        by_round = WaitsByRound(waits)
        world = drifting(participants=DEVICES, epochs=EPOCHS, batch_size=8)
        more: dict[str, Any] = {"population": world, "seeds": (0, 44), "evaluate": True, "fit": device.trainer()}
        run(algorithm, ROUNDS, callbacks=[by_round], **more)
    return by_round.rounds


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuda", action="store_true", help="on a GPU")
    device = GPU if parser.parse_args().cuda else PRETENDED
    rows, sites = [], Counter[tuple[str, str]]()
    with device.there():
        for name, algorithm in plain().items():
            last = waits_of(device, replace(algorithm, gamma=None))[-1]
            stopping = waits_of(device, replace(algorithm, gamma=1e-9, lr=0.01))
            most = max(len(of_phase(round, "fit")) for round in stopping)
            counts = [len(of_phase(last, phase)) for phase in COLUMNS]
            rows.append([name, counts[0], most, *counts[1:]])
            sites.update({(wait.phase, wait.site.split(":")[0]) for wait in last if wait.phase})
    print("# Waits for the device\n")
    command = "python -m tests.benchmark.waits" + (" --cuda" if device is GPU else "")
    print(f"`{command}`; on the {device.name} device, Python {platform.python_version()}, torch {torch.__version__}.\n")
    print(
        f"Moments in which the host waits for the device in round {ROUNDS} of {ROUNDS}: two replicas of {DEVICES} "
        f"ragged devices, {EPOCHS} local epochs, evaluated in every round. *stopping early*: the most in the fit of a "
        f"round in which devices may stop after each epoch but the last.\n"
    )
    heads = ["method", "fit", "fit, stopping early", *list(COLUMNS.values())[1:]]
    print("| " + " | ".join(heads) + " |")
    print("|---|" + "--:|" * (len(heads) - 1))
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")
    print("\nFiles that wait, by part of the round, and in how many methods:\n")
    for (phase, path), count in sorted(sites.items()):
        print(f"- {COLUMNS[phase]}: `{path}` ({count})")


if __name__ == "__main__":
    main()
