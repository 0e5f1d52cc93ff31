"""Memory of rounds of 10, 50 and 500 devices with a model of 12 million parameters:
`python tests/benchmark/cohorts.py [--algorithm FedAvg]`.

A process for each size plays some rounds and tells the most memory that it had, read while it works: its own, and with
mapped files. Beside the default `cohort_memory` a cohort that trains at once, as far as memory goes.
"""

import argparse
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

WIDTH, HIDDEN, CLASSES, EACH = 768, 15_000, 32, 5  # 12.0 million parameters; examples of a device


class Watch(threading.Thread):
    """The most memory that this process has, in MiB."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.own, self.whole = 0.0, 0.0

    def run(self) -> None:
        """Read it until the process ends."""
        while True:
            fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
            anonymous, files = (int(fields[name].split()[0]) / 1024 for name in ("RssAnon", "RssFile"))
            self.own, self.whole = max(self.own, anonymous), max(self.whole, anonymous + files)
            time.sleep(0.01)


def played(algorithm: str, participants: int, memory: int, bank: int, rounds: int) -> dict[str, float]:
    """What rounds of so many devices take."""
    import lightning as L
    import torch

    import flstudy.algorithms
    from flstudy import Coordinator, Population, RunSettings
    from flstudy.population import InMemory
    from flstudy.tasks import Mlp

    torch.manual_seed(0)
    x = torch.randn(500 * EACH, WIDTH)
    clients = [list(range(device * EACH, device * EACH + EACH)) for device in range(500)]
    population = Population(
        InMemory((x, x[:, :CLASSES].argmax(1))),
        clients=500,
        participants=participants,
        partition=clients,
        batch_size=EACH,
    )
    task = Mlp((WIDTH,), CLASSES, hidden=HIDDEN)
    method = getattr(flstudy.algorithms, algorithm)(lr=0.1)
    coordinator = Coordinator(task, method, RunSettings(compile=False, cohort_memory=memory, bank_memory=bank))
    watch = Watch()
    watch.start()
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = L.Trainer(max_epochs=rounds, accelerator="cpu", devices=1, logger=False, limit_val_batches=0, **quiet)
    begin = time.process_time()
    trainer.fit(coordinator, datamodule=population)
    seconds = (time.process_time() - begin) / rounds / participants
    measured = {"own": watch.own, "whole": watch.whole, "n": coordinator.task_function.layout.n}
    return {**measured, "seconds": seconds}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", default="FedAvg")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 50, 500])
    parser.add_argument("--memory", type=int, nargs="+", default=[2**30, 2**32], help="Values of cohort_memory.")
    parser.add_argument("--at-once", type=int, nargs="*", default=[10, 20], help="Sizes that also train at once.")
    parser.add_argument("--bank", type=int, default=0, help="bank_memory.")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--one", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(played(options.algorithm, *options.one, options.bank, options.rounds)))
        return
    print("| devices | cohort_memory, GiB | processor s a device | own memory, MiB | with mapped files, MiB |")
    print("|--:|--:|--:|--:|--:|")
    wanted = [(size, memory) for memory in options.memory for size in options.sizes]
    for size, memory in [*wanted, *((size, 10**15) for size in options.at_once)]:
        command = [sys.executable, __file__, "--algorithm", options.algorithm, "--bank", str(options.bank)]
        command += ["--rounds", str(options.rounds)]
        done = subprocess.run([*command, "--one", str(size), str(memory)], capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr[-2000:])
        measured = json.loads(done.stdout.splitlines()[-1])
        bound = f"{memory / 2**30:g}" if memory < 10**15 else "all at once"
        row = size, bound, f"{measured['seconds']:.2f}", f"{measured['own']:.0f}", f"{measured['whole']:.0f}"
        print(f"| {' | '.join(map(str, row))} |", flush=True)


if __name__ == "__main__":
    main()
