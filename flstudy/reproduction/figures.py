"""Figures like those of FLASH (Panchal et al. 2023): curves by kind of method, and what a drift does to a server."""

from matplotlib.figure import Figure

from flstudy.reporting.figures.style import COLOURS, GREY, new_figure, plain
from flstudy.reporting.load import StudyResults
from flstudy.reporting.ranking import rank

KINDS = {  # the groups of sec. 5.1
    "Optimizers": ("FedAvg", "FedProx", "FedAdaGrad", "FedAdam", "FedYogi", "FedNova"),
    "Personalization": ("Apfl", "Ditto", "HypCluster", "LocalOnly"),
    "Drift correction": ("Scaffold", "FedDyn", "FedDC"),
    "Drift adaptation": ("AdaptiveFedAvg", "FedDriftEager", "FedDrift"),
}
EVERYWHERE = {"Flash": "black", "Oracle": GREY}  # beside each of them, for comparison
ALARM = {  # metric -> heading
    "server/effective_lr": "Effective learning rate",
    "server/gradient_disparity": "Gradient disparity",
    "fit/epochs": "Local epochs per device",
}
WATCHED = ("FedYogi", "Flash")


def curves(results: StudyResults, title: str) -> Figure | None:
    """Fig. 7 to 9: accuracy by round in percent, mean over seeds, of each algorithm's best trial; a panel for each kind
    of method, with Flash and Oracle in all of them. None where no trial did all its rounds."""
    rows = {row.trial.algorithm: row for row in rank(results).rows if row.rounds.size}
    kinds = {kind: [name for name in names if name in rows] for kind, names in KINDS.items()}
    others = [name for name in rows if name not in EVERYWHERE and all(name not in names for names in KINDS.values())]
    kinds = {kind: names for kind, names in {**kinds, "Others": others}.items() if names}
    if not kinds:
        return None
    lines = -(-len(kinds) // 2)
    figure = new_figure(3.5 * lines + 0.3)
    for place, (kind, names) in enumerate(kinds.items(), start=1):
        axes = figure.add_subplot(lines, 2, place)
        colours = {**dict(zip(names, COLOURS, strict=False)), **EVERYWHERE}
        for name in [*names, *(name for name in EVERYWHERE if name in rows)]:
            dashes = (0, (1, 1)) if name == "Oracle" else "-"
            width = 2.0 if name == "Flash" else 1.3
            axes.plot(
                rows[name].rounds,
                100 * rows[name].accuracy.mean(0),
                color=colours[name],
                linestyle=dashes,
                linewidth=width,
                label=name,
            )
        for event in results.events:
            axes.axvline(event.round, color=GREY, linestyle=(0, (3, 3)), linewidth=1.0)
        axes.set_title(kind, fontsize=11, loc="left")
        axes.set_ylim(-2, 102)
        axes.set_xlabel("Round")
        axes.set_ylabel("Test accuracy (%)")
        axes.legend(frameon=False, fontsize=8, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.16))
        plain(axes)
    figure.suptitle(title, fontsize=12, x=0.01, ha="left")
    return figure


def alarm(results: StudyResults) -> Figure | None:
    """Fig. 1, 2 and 4: what FedYogi's and Flash's servers, and their devices, do at a drift; means over seeds."""
    trials = {trial.algorithm: trial for trial in results.searched if trial.algorithm in WATCHED}
    if len(trials) < len(WATCHED):
        return None
    figure = new_figure(3.4)
    for place, (metric, heading) in enumerate(ALARM.items(), start=1):
        axes = figure.add_subplot(1, len(ALARM), place)
        for number, name in enumerate(WATCHED):
            rounds, measured = results.curve(trials[name], metric)
            axes.plot(rounds, measured.mean(0), color=COLOURS[number], linewidth=1.2, label=name)
        for event in results.events:
            axes.axvline(event.round, color=GREY, linestyle=(0, (3, 3)), linewidth=1.0)
        axes.set_title(heading, fontsize=11, loc="left")
        axes.set_xlabel("Round")
        if metric == "server/gradient_disparity":
            axes.set_yscale("log")
        plain(axes)
    figure.axes[0].legend(frameon=False)
    return figure
