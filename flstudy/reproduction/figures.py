"""Figures of FLASH (Panchal et al. 2023): curves by kind of method, and a server at a drift; curves of variants."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flstudy.metrics.registry import METRICS
from flstudy.reporting.looks import looks_of
from flstudy.reporting.multiples import Line, line_figure
from flstudy.reporting.ranking import rank
from flstudy.reporting.style import draw_mean, finish, legend_above, mark_events, new_panels
from flstudy.reproduction.values import Speaker
from flstudy.study import StudyResults

GROUPS = {  # of FLASH, sec. 5.1
    "Optimizers": ("FedAvg", "FedProx", "FedAdaGrad", "FedAdam", "FedYogi", "FedNova"),
    "Personalization": ("Apfl", "Ditto", "HypCluster", "LocalOnly"),
    "Drift correction": ("Scaffold", "FedDyn", "FedDC"),
    "Drift adaptation": ("AdaptiveFedAvg", "FedDriftEager", "FedDrift"),
}
EVERYWHERE = ("Flash", "Oracle")  # in the panel of each group, for comparison
WATCHED = ("FedYogi", "Flash")
ALARMS = ("server/effective_lr", "server/gradient_disparity", "fit/epochs")


def finish_accuracy(axes: Axes, title: str) -> None:
    """Set title, limits and labels of a panel of test accuracy in percent by round."""
    axes.set_title(title, fontsize=11, loc="left")
    axes.set_ylim(-2, 102)
    finish(axes, xlabel="Round", ylabel="Test accuracy (%)")


def grouped_curves(results: StudyResults, title: str) -> Figure | None:
    """Return figures 7 to 9: accuracy by round in percent, mean over seeds, of each algorithm's best trial; a panel for
    each kind of method, with Flash and Oracle in all of them. None where no trial did all its rounds."""
    rows = {row.algorithm: row for row in rank(results).rows if row.rounds.size}
    groups = {group: [name for name in names if name in rows] for group, names in GROUPS.items()}
    grouped = {name for names in (*GROUPS.values(), EVERYWHERE) for name in names}
    groups["Others"] = [name for name in rows if name not in grouped]
    groups = {group: names for group, names in groups.items() if names}
    if not groups:
        return None
    figure, panels = new_panels(len(groups), 2, 3.5, 0.3)
    for axes, (group, names) in zip(panels, groups.items(), strict=True):
        for name, look in looks_of([*names, *(name for name in EVERYWHERE if name in rows)]).items():
            width = 2.0 if name == "Flash" else 1.3
            draw_mean(axes, rows[name].rounds, 100 * rows[name].accuracy, look, name, linewidth=width)
        mark_events(axes, results.events)
        finish_accuracy(axes, group)
        axes.legend(frameon=False, fontsize=8, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    figure.suptitle(title, fontsize=12, x=0.01, ha="left")
    return figure


def alarm_figure(results: StudyResults) -> Figure | None:
    """Return figures 1, 2 and 4: metrics of FedYogi's and Flash's servers and devices at a drift, means over seeds."""
    trials = {best.trial.algorithm: best.reported_trial for best in results.best if best.trial.algorithm in WATCHED}
    if len(trials) < len(WATCHED):
        return None
    figure, panels = new_panels(len(ALARMS), len(ALARMS), 3.4)
    for axes, metric in zip(panels, ALARMS, strict=True):
        for name, look in looks_of(WATCHED).items():
            draw_mean(axes, *results.curve(trials[name], metric), look, name)
        mark_events(axes, results.events)
        axes.set_title(METRICS[metric].title, fontsize=11, loc="left")
        if metric == "server/gradient_disparity":
            axes.set_yscale("log")
        finish(axes, xlabel="Round")
    legend_above(figure, panels, WATCHED)
    return figure


def variant_curves(title: str, rows: Mapping[str, Speaker]) -> Figure | None:
    """Return the figure of test accuracy by round in percent, mean over seeds, with a line for each variant."""
    if not rows:
        return None
    lines = {name: Line(rounds, 100 * values) for name, speaker in rows.items() for rounds, values in [speaker.curve()]}
    events, label = next(iter(rows.values())).results.events, "Test accuracy (%)"
    figure = line_figure(
        lines,
        looks_of(rows),
        height=4.6,
        band=False,
        on_axes=lambda axes: mark_events(axes, events),
        title=title,
        xlabel="Round",
        ylabel=label,
    )
    figure.axes[0].set_ylim(-2, 102)
    return figure
