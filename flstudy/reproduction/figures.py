"""Figures of FLASH (Panchal et al. 2023): curves by kind of method, and a server at a drift; curves of variants, and of
what an ablation varies; dynamic regret beside its bound (Ganguly & Aggarwal 2024)."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flstudy.metrics.registry import METRICS, is_fraction
from flstudy.reporting.looks import looks_of
from flstudy.reporting.multiples import Line, line_figure
from flstudy.reporting.ranking import rank
from flstudy.reporting.style import GREY, draw_mean, finish, legend_above, mark_events, new_panels
from flstudy.reproduction.plan import MEASURES
from flstudy.reproduction.values import Speaker, row_name
from flstudy.study import StudyResults

GROUPS = {  # of FLASH, sec. 5.1
    "Optimizers": ("FedAvg", "FedProx", "FedAdaGrad", "FedAdam", "FedYogi", "FedNova"),
    "Personalization": ("Apfl", "Ditto", "HypCluster", "LocalOnly"),
    "Drift correction": ("Scaffold", "FedDyn", "FedDC"),
    "Drift adaptation": ("AdaptiveFedAvg", "FedDriftEager", "FedDrift"),
}
EVERYWHERE = ("Flash", "Flash-clamped", "Oracle")  # in the panel of each group, for comparison
WATCHED = ("FedYogi", "Flash", "Flash-clamped")
ALARMS = ("server/effective_lr", "server/gradient_disparity", "fit/epochs")
LEAST_NUMBERS = 3  # of a key that an ablation's figure has along its axis
LOGARITHMIC = 20  # ratio of its largest number to its smallest above which the axis is logarithmic


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
    """Return figures 1, 2 and 4: metrics of FedYogi's and Flash's servers and devices at a drift, means over seeds.
    None where neither of them did all its rounds."""
    best = {row.trial.algorithm: row.reported_trial for row in results.best}
    trials = {name: best[name] for name in WATCHED if name in best}
    if not trials:
        return None
    figure, panels = new_panels(len(ALARMS), len(ALARMS), 3.4)
    for axes, metric in zip(panels, ALARMS, strict=True):
        for name, look in looks_of(trials).items():
            draw_mean(axes, *results.curve(trials[name], metric), look, name)
        mark_events(axes, results.events)
        axes.set_title(METRICS[metric].title, fontsize=11, loc="left")
        if metric == "server/gradient_disparity":
            axes.set_yscale("log")
        finish(axes, xlabel="Round")
    legend_above(figure, panels, list(trials))
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


def ablation_figure(speakers: Sequence[Speaker], measures: Sequence[str]) -> Figure | None:
    """Return the figure of each share among the measures, in percent, by the key with the most numbers; a line for each
    combination of the other keys, and a level one for a trial without a number. None where no key has three."""
    keys = dict.fromkeys(key for speaker in speakers for key in speaker.trial.overrides)
    numbers = {key: sorted({n for s in speakers if (n := _number(s, key)) is not None}) for key in keys}
    varied = max(keys, key=lambda key: len(numbers[key]), default="")
    shares = [MEASURES[measure] for measure in measures if is_fraction(MEASURES[measure])]
    if not shares or len(numbers.get(varied, ())) < LEAST_NUMBERS:
        return None
    lines: dict[str, list[Speaker]] = {}
    for speaker in speakers:
        others = {key: value for key, value in speaker.trial.overrides.items() if key != varied}
        lines.setdefault(row_name(others), []).append(speaker)
    looks = looks_of(lines)
    figure, panels = new_panels(len(shares), 2, 3.4, 0.4)
    for axes, metric in zip(panels, shares, strict=True):
        for name, row in lines.items():
            points = {number: s.last(metric) for s in row if (number := _number(s, varied)) is not None}
            x = np.array(sorted(points))
            draw_mean(axes, x, 100 * np.stack([points[n] for n in x], axis=1), looks[name], name, band=True, marker="o")
            for speaker in [speaker for speaker in row if _number(speaker, varied) is None]:
                level = row_name({varied: speaker.trial.overrides[varied]})
                label, mean = ", ".join(filter(None, (name, level))), 100 * float(speaker.last(metric).mean())
                axes.axhline(mean, color=looks[name].colour, linestyle=(0, (1, 2)), linewidth=1.2, label=label)
        first = next(number for number in numbers[varied] if number > 0)
        if numbers[varied][-1] > LOGARITHMIC * first:
            axes.set_xscale("symlog", linthresh=first)
            axes.set_xlim(left=numbers[varied][0] - first / 5)  # not the mirrored decades below 0
        axes.set_ylim(-2, 102)
        axes.set_title(METRICS[metric].title, fontsize=11, loc="left")
        finish(axes, xlabel=varied.rpartition(".")[2], ylabel="%")
    labels = dict.fromkeys(label for axes in panels for label in axes.get_legend_handles_labels()[1])
    legend_above(figure, panels, labels, below=True)
    return figure


def regret_figure(rows: Mapping[str, Speaker]) -> Figure | None:
    """Return the figure of dynamic regret by the rate of its bound, means over seeds, both logarithmic; a colour for
    each method, whose rows are called "METHOD, SETTING". None without rows."""
    points: dict[str, list[tuple[float, float]]] = {}
    for name, speaker in rows.items():
        rate, regret = regret_rate(speaker), speaker.last("regret/dynamic")
        points.setdefault(name.partition(", ")[0], []).append((float(rate.mean()), float(regret.mean())))
    if not points:
        return None
    figure, (axes,) = new_panels(1, 1, 4.2)
    for method, look in looks_of(points).items():
        x, y = np.array(sorted(points[method])).T
        axes.scatter(x, y, color=look.colour, s=28, label=method)
    rates = [rate for of_method in points.values() for rate, _ in of_method]
    ends = [min(rates), max(rates)]
    axes.plot(ends, ends, color=GREY, linestyle=(0, (3, 3)), linewidth=1.0, label="the rate itself")
    axes.set_xscale("log")
    axes.set_yscale("log")
    finish(axes, xlabel="min(√(L T), Δ^⅓ T^⅔ + √T)", ylabel="Dynamic regret")
    legend_above(figure, [axes], [*points, "the rate itself"])
    return figure


def regret_rate(speaker: Speaker) -> np.ndarray:
    """Return the rate [S] of Theorem 3's bound, eq. (38) without constants and logarithms: L is at least 1, and Δ the
    lower bound that was measured."""
    _, variation = speaker.curve("world/variation")
    changes, drift = np.maximum((variation > 0).sum(1), 1), speaker.last("world/drift")
    rounds = speaker.trial.rounds
    return np.minimum(np.sqrt(changes * rounds), np.cbrt(drift) * rounds ** (2 / 3) + np.sqrt(rounds))


def _number(speaker: Speaker, key: str) -> float | None:
    """Return the number that a trial has for a key; None where it has another value."""
    value = speaker.trial.overrides.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
