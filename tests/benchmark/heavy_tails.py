"""What one device with heavy-tailed gradients does (FedAda², Propositions 2, 9 and 10), a table and a figure:
`python tests/benchmark/heavy_tails.py > tests/benchmark/results/heavy_tails.md`.

Ten devices minimise ½ w² with gradients w + ξ, one step a round: under FedAvg, and under FedAvg whose devices step by
AdaGrad (JointAdaptivity with a server that only averages). One replica per seed, all at once.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from workload import made_by, quiet

from flstudy import Coordinator, Population, RunSettings
from flstudy.algorithms import Algorithm, FedAvg, JointAdaptivity
from flstudy.population import HeavyTails
from flstudy.reporting.style import COLOURS, GREY, PAGE_DPI, finish, legend_above, new_figure, to_png
from flstudy.tasks import Quadratic
from tests.worlds import Records, trainer

LARGE = 1e8  # τ_s and η_g of a server that averages: η_g m / (√v + τ_s) = Δ up to one part in 10⁸
METHODS: dict[str, Algorithm] = {
    "FedAvg": FedAvg(lr=0.1, weighting="uniform"),
    "FedAvg, devices with AdaGrad": JointAdaptivity(
        lr=0.1, eps=0.1, server_lr=LARGE, tau=LARGE, beta1=0.0, v_init="zero", weighting="uniform"
    ),
}
BOUND = 2 * np.sqrt(3)  # of E |w - w*|, times 1 / (1 - ε̂)
QUANTILES = (0.5, 0.99, 1.0)


def errors(algorithm: Algorithm, tails: str, rounds: int, seeds: int) -> np.ndarray:
    """|w - w*| [rounds, seeds]."""
    population = Population(
        HeavyTails(tails=tails, examples=1000), clients=10, participants=10, batch_size=1, steps=1, valid=0.1, test=0.1
    )
    module, recorder = Coordinator(Quadratic((1,)), algorithm, RunSettings(seeds=range(seeds))), Records()
    trainer(rounds, "32-true", callbacks=[recorder], limit_val_batches=0).fit(module, datamodule=population)
    return torch.stack([server.x[:, 0].abs() for server in recorder.servers]).numpy()


def main() -> None:
    """Run, print a table, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=40)
    options = parser.parse_args()
    quiet()
    print("# One device with heavy tails\n")
    print(made_by("heavy_tails.py", "torch", "numpy") + "\n")
    print(
        f"|w - w*| of ½ w² from w = 1, ten devices, one step of 0.1 a round, {options.rounds} rounds, {options.seeds} "
        "seeds; the last half of the rounds. FedAda² bounds the mean under AdaGrad by 2√3 / (1 - ε̂), which is at least "
        f"{BOUND:.2f}; under FedAvg the mean of its square is infinite, so that a longer run shows a larger one.\n"
    )
    print("| noise of the first device | method | mean | " + " | ".join(f"{q:.0%} quantile" for q in QUANTILES) + " |")
    print("|---|---|--:|" + "--:|" * len(QUANTILES))
    figure = new_figure(3.8)
    named = [f"{method}: {what}" for method in METHODS for what in ("mean", "worst seed")]
    for place, (tails, name) in enumerate((("student", "Student's t, 2 degrees"), ("cauchy", "Cauchy")), start=1):
        axes = figure.add_subplot(1, 2, place)
        for number, (method, algorithm) in enumerate(METHODS.items()):
            distances = errors(algorithm, tails, options.rounds, options.seeds)
            late = distances[options.rounds // 2 :]
            quantiles = " | ".join(f"{np.quantile(late, q):.3g}" for q in QUANTILES)
            print(f"| {name} | {method} | {late.mean():.3g} | {quantiles} |", flush=True)
            rounds = np.arange(1, options.rounds + 1)
            axes.plot(rounds, distances.mean(1), color=COLOURS[number], label=f"{method}: mean")
            axes.plot(
                rounds, distances.max(1), color=COLOURS[number], linewidth=0.8, alpha=0.6, label=f"{method}: worst seed"
            )
        axes.axhline(BOUND, color=GREY, linestyle=(0, (3, 3)), linewidth=1.0)
        axes.set_yscale("log")
        axes.set_xlabel("Round")
        axes.set_ylabel("|w - w*|")
        axes.set_title(f"First device: {name}", fontsize=11, loc="left")
        finish(axes)
    legend_above(figure, figure.axes, named)
    path = to_png(figure, Path(__file__).parent / "results" / "heavy_tails.png", PAGE_DPI)
    print(f"\n![|w - w*| by round]({path.name})")


if __name__ == "__main__":
    main()
