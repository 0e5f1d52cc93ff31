"""The two workloads that the peers run, needing torch alone: data, models and the account of a run.

30 clients hold random examples labelled by one random linear map, so that the loss must fall where training happens.
A round is FedAvg over 10 of them: one epoch of SGD each, in equal batches. Both peers start from the same model and
see the same clients; which 10 take part is the peer's own choice.
"""

import argparse
import functools
import itertools
import json
import math
import statistics
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor, nn

CLIENTS, COHORT, LR = 30, 10, 0.05


@dataclass(frozen=True)
class Workload:
    """Sizes of one workload; `examples // batch` is the number of local steps."""

    shape: tuple[int, ...]
    classes: int
    examples: int
    batch: int

    def model(self) -> nn.Module:
        """The initial model, the same in every process."""
        torch.manual_seed(0)
        if len(self.shape) == 1:
            return nn.Sequential(nn.Linear(*self.shape, 64), nn.ReLU(), nn.Linear(64, self.classes))
        convolutions = nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
        return nn.Sequential(*convolutions, nn.Linear(64 * 12 * 12, 128), nn.ReLU(), nn.Linear(128, self.classes))

    @functools.cache  # noqa: B019 (workloads live as long as the process)
    def client(self, index: int) -> tuple[Tensor, Tensor]:
        """Inputs [examples, *shape] and labels [examples] of one client, kept in memory."""
        teacher = torch.randn(math.prod(self.shape), self.classes, generator=torch.Generator().manual_seed(0))
        x = torch.randn(self.examples, *self.shape, generator=torch.Generator().manual_seed(1 + index))
        return x, (x.flatten(1) @ teacher).argmax(1)

    @torch.no_grad()
    def loss(self, model: nn.Module) -> float:
        """Mean loss over all clients, outside the timed part: it shows that a peer really trains."""
        losses = [nn.functional.cross_entropy(model(x), y) for x, y in map(self.client, range(CLIENTS))]
        return torch.stack(losses).mean().item()


WORKLOADS = {"mlp": Workload((60,), 10, examples=400, batch=10), "cnn": Workload((1, 28, 28), 62, 200, batch=20)}


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The options that both peers share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--workload", choices=WORKLOADS, default="mlp")
    parser.add_argument("--rounds", type=int, default=30, help="rounds that count")
    parser.add_argument("--warm", type=int, default=5, help="rounds before them that do not")
    parser.add_argument("--json", type=Path, help="write the result here too")
    return parser


def account(options: argparse.Namespace, packages: list[str], stamps: list[float], before: float, after: float) -> None:
    """Print, and write, a run from the times at which its rounds began; the last of them ends the last round."""
    seconds = [end - start for start, end in itertools.pairwise(stamps)][options.warm :]
    assert len(seconds) == options.rounds, f"{len(seconds)} rounds timed, {options.rounds} asked for"
    rate = 1 / statistics.median(seconds)
    versions = {name: version(name).partition("+")[0] for name in packages}
    print(f"{options.workload}: {rate:.2f} rounds/s, {COHORT * rate:.1f} client fits/s, ", end="")
    print(f"loss {before:.4f} -> {after:.4f}, {versions}", flush=True)
    if options.json:
        result = {"rounds_per_second": rate, "fits_per_second": COHORT * rate, "seconds": seconds}
        result |= {"loss_before": before, "loss_after": after, "versions": versions}
        options.json.write_text(json.dumps(result))
