"""SCAFFOLD on 350,000 clients with rows beyond the memory bound: `python tests/benchmark/rows.py FOLDER`.

The population of `population.py`, three replicas, 500 devices a round, a network of 4,810 parameters, so that a row
takes 19 kB; a checkpoint after every round. Another process goes on from the one in the middle, and its end is held
against the first one's, bit for bit. FOLDER keeps the population and the checkpoints.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from population import SEEDS, SHAPE, Generated, generate
from workload import quiet

from flstudy import Coordinator, Population, RunSettings
from flstudy.algorithms import Scaffold
from flstudy.execution import ClientBank
from flstudy.execution.row_segments import FOLDER
from flstudy.federation.checkpoint import read_file
from flstudy.tasks import Mlp

ROUNDS, BOUND = 8, 2**26


class Timed(ModelCheckpoint):
    """Notes what a checkpoint took and wrote, and what the bank held."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, filename="{epoch}", every_n_epochs=1, save_top_k=-1, save_on_train_epoch_end=True)
        self.lines: list[dict[str, float]] = []

    def _save_checkpoint(self, trainer: L.Trainer, filepath: str) -> None:
        before, begin = written(Path(filepath).parent), time.perf_counter()
        super()._save_checkpoint(trainer, filepath)
        took, bank = time.perf_counter() - begin, trainer.lightning_module.bank
        rows = sum(leaf[: bank.used].numel() * leaf.element_size() for leaf in bank.rows)
        amounts = {"rows": bank.used, "bytes": rows, "written": written(Path(filepath).parent) - before}
        self.lines.append({**amounts, "file": Path(filepath).stat().st_size, "seconds": took})


def written(folder: Path) -> int:
    """Bytes of the segments in a folder."""
    return sum(path.stat().st_size for path in (folder / FOLDER).rglob("*.npy"))


def played(data: Path, clients: int, folder: Path, resume: Path | None) -> tuple[Coordinator, Timed]:
    """A run to its last round."""
    quiet()
    saving = Timed(folder)
    population = Population(Generated(str(data)), clients=clients, participants=500)
    how = {"seeds": SEEDS, "compile": False, "bank_memory": BOUND, "initial": "seeded"}
    coordinator = Coordinator(Mlp(SHAPE, 10, hidden=64), Scaffold(lr=0.05), RunSettings(**how))
    plain = {"enable_progress_bar": False, "enable_model_summary": False, "limit_val_batches": 0, "logger": False}
    trainer = L.Trainer(max_epochs=ROUNDS, accelerator="cpu", callbacks=[saving], **plain)
    trainer.fit(coordinator, datamodule=population, ckpt_path=resume, weights_only=True if resume else None)
    return coordinator, saving


def equal(coordinator: Coordinator, path: Path) -> dict[str, Any]:
    """Whether a run ended as a checkpoint tells."""
    saved = read_file(path)["flstudy"]
    bank = ClientBank(*coordinator.bank.slot.shape, BOUND)
    bank.load_state_dict(saved["bank"], path.parent)
    rows = all(
        torch.equal(leaf[: bank.used], other_leaf[: bank.used])
        for leaf, other_leaf in zip(bank.rows, coordinator.bank.rows, strict=True)
    )
    server = all(map(torch.equal, coordinator.server, saved["server"]))
    same = {"slots": torch.equal(bank.slot, coordinator.bank.slot), "rows": rows, "server": server}
    return {**same, "in files": bool(coordinator.bank._files)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clients", type=int, default=350_000)
    parser.add_argument("--resume", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    data, first = options.folder / f"population-{options.clients}", options.folder / "first"
    if options.resume:
        coordinator, _ = played(data, options.clients, options.folder / "second", options.resume)
        print(json.dumps(equal(coordinator, first / f"epoch={ROUNDS - 1}.ckpt")))
        return
    if not data.exists():
        data.mkdir(parents=True)
        generate(data, options.clients)
    _, saving = played(data, options.clients, first, None)
    print("| round | rows | all rows, MB | rows written, MB | checkpoint, MB | s |\n" + "|--:" * 6 + "|")
    for round, line in enumerate(saving.lines, 1):
        sizes = [f"{line[name] / 1e6:.1f}" for name in ("bytes", "written", "file")]
        print(f"| {round} | {line['rows']:,} | {' | '.join(sizes)} | {line['seconds']:.2f} |")
    middle = first / f"epoch={ROUNDS // 2 - 1}.ckpt"
    command = [
        sys.executable,
        __file__,
        str(options.folder),
        "--clients",
        str(options.clients),
        "--resume",
        str(middle),
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    print(f"\nFrom the checkpoint of round {ROUNDS // 2} to the end, the same bits: {done.stdout.splitlines()[-1]}")


if __name__ == "__main__":
    main()
