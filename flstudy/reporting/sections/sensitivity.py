"""How much an algorithm depends on its tuning, and on which of its hyper-parameters.

A method whose median trial is as good as its best needs no search; one with a single good trial in twenty does. The
importances are PED-ANOVA's (Watanabe et al. 2023), in Optuna: how far the values of a hyper-parameter among the best
trials are from those among all trials. Every trial's curve says the same at a glance (FedAda², Lee et al. 2024, Fig. 3,
6 and 7).
"""

import dataclasses
import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from flstudy.metrics.registry import METRICS
from flstudy.reporting.ranking import Findings, recorded
from flstudy.reporting.section import Content, ReportSection, pictures, present
from flstudy.reporting.sections.search import place_in, searched_domains, varied_keys
from flstudy.reporting.style import finish, new_panels, scale_of
from flstudy.reporting.tables import NOTHING, Cells, format_value, percent_sign
from flstudy.study import Domain, Status, StudyResults, Trial
from flstudy.study.trial import OVER

LEAST_WHOLE = 4  # trials that a median and a quarter need
LEAST_TRIALS = 8  # for importances
WORST = 0.25  # quantile on the bad side that stands for a badly tuned trial
METHOD = "PED-ANOVA"
COLUMNS = 3
BY_ROUND = ("valid/accuracy", "valid/loss")  # shown where what was searched on is not measured by round
LOSSES = ("test/loss", "valid/loss")
MOST = 300  # curves of one algorithm: the first ones, as the panel then says


@dataclass(frozen=True)
class Sensitivity:
    """The trials of the search of one algorithm; values of the selection metric, NaN where too few trials are whole."""

    algorithm: str
    counts: Mapping[str, int]  # trials by status
    complete: int  # trials that did all rounds, within the constraints
    best: float
    median: float
    worst: float  # a quarter of the trials are worse
    importances: Mapping[str, float] = field(default_factory=dict)  # key -> share, the largest first; sums to 1
    note: str | None = None  # why there are no importances

    @property
    def trials(self) -> int:
        return sum(self.counts.values())

    @property
    def diverged(self) -> float:
        """Share of the trials that have ended."""
        ended = sum(self.counts.get(status, 0) for status in OVER)
        return self.counts.get(Status.DIVERGED, 0) / ended if ended else math.nan


class SensitivitySection(ReportSection):
    """How easy each algorithm is to tune."""

    order = 60

    def of_study(self, found: Findings) -> Content:
        each, metric = found.once(sensitivities), found.ranking.selection_metric
        values = [{**dataclasses.asdict(one), "diverged": one.diverged} for one in each]
        cells = sensitivity_cells(each, metric)
        notes = [one.note for one in each if one.note]
        if found.results.counts()[Status.PRUNED]:
            notes.append("Trials that were stopped early are left out; they would have been among the worse ones.")
        return Content(
            name="Sensitivity",
            title="How much does each algorithm depend on its tuning?" if any(one.complete for one in each) else "",
            lead="Median: what a configuration drawn by this search typically reached. Worst quarter: one trial in "
            "four did worse than that. An algorithm whose three values are close together is easy to tune.",
            tables=present(cells, importance_cells(each)),
            pictures=pictures(
                (
                    importance_figure(found),
                    f"What decided whether a trial was among the best of its algorithm, by {METHOD} of the trials that "
                    f"did all rounds or diverged; algorithms with fewer than {LEAST_TRIALS} such trials are left out.",
                ),
                (
                    sweep_figure(found),
                    "Every trial, the lighter the better at its end (by the final loss where all have one).",
                ),
            ),
            notes=notes,
            brief=[cells] if found.ranking.rows else [],
            values={"sensitivity": values},
        )


def sensitivities(found: Findings) -> tuple[Sensitivity, ...]:
    """One per algorithm of the search, in the order of the ranking."""
    results, known = found.results, searched_domains(found.results)
    sign = 1.0 if results.objective.higher else -1.0
    each = []
    for algorithm in found.looks:
        trials = [trial for trial in results.searched if trial.algorithm == algorithm]
        values = sign * np.array([results.value_of(trial) for trial in trials if results.eligible(trial)])
        best = float(sign * values.max()) if values.size else math.nan
        enough = values.size >= LEAST_WHOLE
        median, worst = sign * np.quantile(values, [0.5, WORST]) if enough else (math.nan, math.nan)
        counts = dict(Counter(str(trial.status) for trial in trials))
        shares, note = _importances(results, trials, known)
        each.append(Sensitivity(algorithm, counts, values.size, best, float(median), float(worst), shares, note))
    return tuple(each)


def _importances(
    results: StudyResults, trials: Sequence[Trial], known: Mapping[str, Domain]
) -> tuple[dict[str, float], str | None]:
    """Importance by key, and why there are none. Diverged trials count as the worst."""
    counted = [trial for trial in trials if results.eligible(trial) or trial.status is Status.DIVERGED]
    finite = [results.value_of(trial) for trial in trials if results.eligible(trial)]
    algorithm = trials[0].algorithm
    if len(finite) < LEAST_TRIALS:
        return {}, f"{algorithm}: importances need {LEAST_TRIALS} trials that did all rounds, and it has {len(finite)}."
    keys = varied_keys(counted, known)
    if len(keys) < 2:
        return {}, f"{algorithm}: importances compare hyper-parameters, and only {len(keys)} varied."
    import optuna

    higher = results.objective.higher
    worst = min(finite) - 1.0 if higher else max(finite) + 1.0  # only ranks count
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):  # experimental parts, and regimes of few trials
            study = optuna.create_study(direction="maximize" if higher else "minimize")
            for trial in counted:
                given = {key: trial.overrides[key] for key in keys if key in trial.overrides}
                own = {key: value for key, value in given.items() if not math.isnan(place_in(known[key], value))}
                value = results.value_of(trial) if results.eligible(trial) else worst
                params = {key: Domain.parameter(value) for key, value in own.items()}
                distributions = {key: known[key].distribution() for key in own}
                study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=value))
            # Its authors want five trials among the best; the default of a tenth has that from fifty trials on.
            quantile = min(max(0.1, 5 / len(counted)), 0.5)
            evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=quantile)
            shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    finally:
        optuna.logging.set_verbosity(verbosity)
    return dict(sorted(shares.items(), key=lambda item: -item[1])), None


def sensitivity_cells(each: Sequence[Sensitivity], metric: str) -> Cells:
    """Best, median and worst quarter of each algorithm's trials, with what mattered most."""
    unit = percent_sign(metric)
    columns = {
        "Algorithm": [one.algorithm for one in each],
        "Trials": [str(one.trials) for one in each],
        "All\nrounds": [str(one.complete) for one in each],
        "Diverged\n%": [NOTHING if np.isnan(one.diverged) else f"{100 * one.diverged:.0f}" for one in each],
        f"Best{unit}": [format_value(one.best, metric) for one in each],
        f"Median{unit}": [format_value(one.median, metric) for one in each],
        f"Worst\nquarter{unit}": [format_value(one.worst, metric) for one in each],
        f"Matters most\n({METHOD})": [_most_important(one) for one in each],
    }
    title = f"How much each algorithm depends on its tuning: {metric} of its trials"
    return Cells.from_columns(title, columns, (0, 7), "sensitivity")


def _most_important(one: Sensitivity) -> str:
    if one.complete < LEAST_WHOLE:
        return "not enough full trials"
    for key, share in one.importances.items():
        return f"{key.removeprefix('algorithm.')} {100 * share:.0f} %"
    return NOTHING


def importance_cells(each: Sequence[Sensitivity]) -> Cells | None:
    """Share of every hyper-parameter; None where no algorithm has enough trials."""
    shares = [(one.algorithm, key, share) for one in each for key, share in one.importances.items()]
    columns = {
        "Algorithm": [algorithm for algorithm, _, _ in shares],
        "Hyper-parameter": [key.removeprefix("algorithm.") for _, key, _ in shares],
        "Share %": [f"{100 * share:.0f}" for *_, share in shares],
    }
    title = f"Importance of the hyper-parameters for being among the best trials ({METHOD})"
    return Cells.from_columns(title, columns, (0, 1)) if shares else None


def importance_figure(found: Findings) -> Figure | None:
    """A panel of bars per algorithm that has enough trials, the most important on top."""
    drawn = [one for one in found.once(sensitivities) if one.importances]
    if not drawn:
        return None
    height = 1.1 + 0.28 * max(len(one.importances) for one in drawn)
    figure, panels = new_panels(len(drawn), min(COLUMNS, len(drawn)), height, sharex=True)
    for axes, one in zip(panels, drawn, strict=True):
        names = [key.removeprefix("algorithm.") for key in one.importances][::-1]
        shares = [100 * share for share in one.importances.values()][::-1]
        bars = axes.barh(names, shares, color=found.looks[one.algorithm].colour, height=0.62)
        axes.bar_label(bars, fmt="%.0f", padding=3, fontsize=9)
        axes.set_title(one.algorithm, fontsize=12, loc="left")
        axes.set_xlim(0, 112)
        axes.set_xticks([0, 50, 100])
        finish(axes)
        axes.grid(visible=False, axis="y")
    figure.supxlabel(f"Share of the importance ({METHOD}, %)", fontsize=11)
    return figure


def sweep_figure(found: Findings) -> Figure | None:
    """A panel for each algorithm with a curve for each of its trials, mean over seeds, light for the best and dark for
    the worst by the final loss, or by the last value where not all have one; trials that were stopped end where they
    were stopped."""
    results = found.results
    metrics = dict.fromkeys((results.selection_metric, *BY_ROUND))
    metric, panels = next(((metric, panels) for metric in metrics if (panels := _sweeps(found, metric))), ("", {}))
    if not panels:
        return None
    scale, label = scale_of(metric)
    higher = results.objective.higher if metric == results.objective.metric else METRICS[metric].better == "max"
    losses = _final_losses(results)
    of = Counter(trial.algorithm for trial in results.searched)
    figure, each = new_panels(len(panels), COLUMNS, 2.5, 0.2, sharey=True)
    for axes, (algorithm, curves) in zip(each, panels.items(), strict=True):
        ends = [-losses[trial] if losses else (values[-1] if higher else -values[-1]) for trial, _, values in curves]
        ranks = np.argsort(np.argsort(np.where(np.isnan(ends), -np.inf, ends)))  # 0 is the worst
        for (_, rounds, values), rank in sorted(zip(curves, ranks, strict=True), key=lambda pair: pair[1]):
            shade = colormaps["viridis"](0.1 + 0.8 * rank / max(len(curves) - 1, 1))
            axes.plot(rounds, scale * values, color=shade, linewidth=1.0)
        some = len(curves) == MOST < of[algorithm]
        count = f"first {MOST} of {of[algorithm]} trials" if some else f"{len(curves)} trials"
        axes.set_title(f"{algorithm}, {count}", fontsize=10, loc="left")
        axes.tick_params(labelleft=True)
        finish(axes, xlabel="Round")
    figure.supylabel(label, fontsize=11)
    return figure


def _sweeps(found: Findings, metric: str) -> dict[str, list[tuple[int, np.ndarray, np.ndarray]]]:
    """(trial, rounds, means over seeds) of each trial by algorithm; empty where no curve has two rounds."""
    panels: dict[str, list[tuple[int, np.ndarray, np.ndarray]]] = {}
    for algorithm in found.looks:
        for trial in [trial for trial in found.results.searched if trial.algorithm == algorithm][:MOST]:
            for rounds, values in recorded(found.results, trial, metric):
                if rounds.size:
                    panels.setdefault(algorithm, []).append((trial.number, rounds, values.mean(0)))
    return panels if any(rounds.size > 1 for curves in panels.values() for _, rounds, _ in curves) else {}


def _final_losses(results: StudyResults) -> dict[int, float]:
    """The final loss of every trial of the search, NaN for one that has none, on test data where they have it; {} where
    it cannot rank them, since trials did all rounds without one."""
    whole = [trial for trial in results.searched if results.eligible(trial)]
    for metric in LOSSES:
        if whole and all(metric in trial.metrics for trial in whole):
            return {trial.number: trial.metrics.get(metric, np.nan) for trial in results.searched}
    return {}
