"""Sensitivity of an algorithm to its tuning, and the importance of its hyper-parameters.

A method whose median trial is as good as its best needs no search; one with a single good trial in twenty does. The
importances are PED-ANOVA's (Watanabe et al. 2023), in Optuna: how far the values of a hyper-parameter among the best
trials are from those among all trials. The curves of all trials show the sensitivity at a glance (FedAda², Lee et al.
2024, Fig. 3, 6 and 7).
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

from flstudy.escaping import for_figure
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
BY_ROUND = ("valid/accuracy", "valid/loss")  # shown where the selection metric is not measured by round
LOSSES = ("test/loss", "valid/loss")
MOST_CURVES = 300  # of one algorithm: the first ones, as the panel then says


@dataclass(frozen=True)
class Sensitivity:
    """Sensitivity of one algorithm: quantiles of the selection metric over trials, NaN where too few did all rounds."""

    algorithm: str
    counts: Mapping[str, int]  # trials by status
    complete: int  # trials that did all rounds, within the constraints
    best: float
    median: float
    worst: float  # quantile that a quarter of the trials are worse than
    importances: Mapping[str, float] = field(default_factory=dict)  # key -> share, the largest first; sums to 1
    note: str | None = None  # why there are no importances

    @property
    def trials(self) -> int:
        return sum(self.counts.values())

    @property
    def diverged(self) -> float:
        """Share of diverged trials among those that have ended."""
        ended = sum(self.counts.get(status, 0) for status in OVER)
        return self.counts.get(Status.DIVERGED, 0) / ended if ended else math.nan


class SensitivitySection(ReportSection):
    """Section on how easy each algorithm is to tune."""

    order = 60

    def of_study(self, findings: Findings) -> Content:
        rows, metric = findings.once(sensitivities), findings.ranking.selection_metric
        values = [{**dataclasses.asdict(row), "diverged": row.diverged} for row in rows]
        cells = sensitivity_cells(rows, metric)
        notes = [row.note for row in rows if row.note]
        if findings.results.counts()[Status.PRUNED]:
            notes.append("Trials that were stopped early are left out; they would have been among the worse ones.")
        return Content(
            name="Sensitivity",
            title="How much does each algorithm depend on its tuning?" if any(row.complete for row in rows) else "",
            lead="Median: what a configuration drawn by this search typically reached. Worst quarter: one trial in "
            "four did worse than that. An algorithm whose three values are close together is easy to tune.",
            tables=present(cells, importance_cells(rows)),
            pictures=pictures(
                (
                    importance_figure(findings),
                    f"What decided whether a trial was among the best of its algorithm, by {METHOD} of the trials that "
                    f"did all rounds or diverged; algorithms with fewer than {LEAST_TRIALS} such trials are left out.",
                ),
                (
                    sweep_figure(findings),
                    "Every trial, the lighter the better at its end (by the final loss where all have one).",
                ),
            ),
            notes=notes,
            brief=[cells] if findings.ranking.rows else [],
            values={"sensitivity": values},
        )


def sensitivities(findings: Findings) -> tuple[Sensitivity, ...]:
    """Return the sensitivities of the search's algorithms, in the order of the ranking."""
    results, domains = findings.results, searched_domains(findings.results)
    sign = 1.0 if results.objective.higher else -1.0
    rows = []
    for algorithm in findings.looks:
        trials = [trial for trial in results.searched if trial.algorithm == algorithm]
        values = sign * np.array([results.value_of(trial) for trial in trials if results.eligible(trial)])
        best = float(sign * values.max()) if values.size else math.nan
        enough = values.size >= LEAST_WHOLE
        median, worst = sign * np.quantile(values, [0.5, WORST]) if enough else (math.nan, math.nan)
        counts = dict(Counter(str(trial.status) for trial in trials))
        shares, note = _importances(results, trials, domains)
        rows.append(Sensitivity(algorithm, counts, values.size, best, float(median), float(worst), shares, note))
    return tuple(rows)


def _importances(
    results: StudyResults, trials: Sequence[Trial], domains: Mapping[str, Domain]
) -> tuple[dict[str, float], str | None]:
    """Return the importance by key, and the reason where there are none. Diverged trials count as the worst."""
    counted = [trial for trial in trials if results.eligible(trial) or trial.status is Status.DIVERGED]
    finite = [results.value_of(trial) for trial in trials if results.eligible(trial)]
    algorithm = trials[0].algorithm
    if len(finite) < LEAST_TRIALS:
        return {}, f"{algorithm}: importances need {LEAST_TRIALS} trials that did all rounds, and it has {len(finite)}."
    keys = varied_keys(counted, domains)
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
                chosen = {key: trial.overrides[key] for key in keys if key in trial.overrides}
                inside = {key: value for key, value in chosen.items() if not math.isnan(place_in(domains[key], value))}
                value = results.value_of(trial) if results.eligible(trial) else worst
                params = {key: Domain.parameter(value) for key, value in inside.items()}
                distributions = {key: domains[key].distribution() for key in inside}
                study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=value))
            # Its authors want five trials among the best; the default of a tenth has that from fifty trials on.
            quantile = min(max(0.1, 5 / len(counted)), 0.5)
            evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=quantile)
            shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    finally:
        optuna.logging.set_verbosity(verbosity)
    return dict(sorted(shares.items(), key=lambda item: -item[1])), None


def sensitivity_cells(rows: Sequence[Sensitivity], metric: str) -> Cells:
    """Return the table of best, median and worst quarter of each algorithm's trials, with the most important
    hyper-parameter."""
    unit = percent_sign(metric)
    columns = {
        "Algorithm": [row.algorithm for row in rows],
        "Trials": [str(row.trials) for row in rows],
        "All\nrounds": [str(row.complete) for row in rows],
        "Diverged\n%": [NOTHING if np.isnan(row.diverged) else f"{100 * row.diverged:.0f}" for row in rows],
        f"Best{unit}": [format_value(row.best, metric) for row in rows],
        f"Median{unit}": [format_value(row.median, metric) for row in rows],
        f"Worst\nquarter{unit}": [format_value(row.worst, metric) for row in rows],
        f"Matters most\n({METHOD})": [_most_important(row) for row in rows],
    }
    title = f"How much each algorithm depends on its tuning: {metric} of its trials"
    return Cells.from_columns(title, columns, (0, 7), "sensitivity")


def _most_important(row: Sensitivity) -> str:
    if row.complete < LEAST_WHOLE:
        return "not enough full trials"
    for key, share in row.importances.items():
        return f"{key.removeprefix('algorithm.')} {100 * share:.0f} %"
    return NOTHING


def importance_cells(rows: Sequence[Sensitivity]) -> Cells | None:
    """Return the table of every hyper-parameter's share of the importance; None where no algorithm has enough
    trials."""
    shares = [(row.algorithm, key, share) for row in rows for key, share in row.importances.items()]
    columns = {
        "Algorithm": [algorithm for algorithm, _, _ in shares],
        "Hyper-parameter": [key.removeprefix("algorithm.") for _, key, _ in shares],
        "Share %": [f"{100 * share:.0f}" for *_, share in shares],
    }
    title = f"Importance of the hyper-parameters for being among the best trials ({METHOD})"
    return Cells.from_columns(title, columns, (0, 1), names=2) if shares else None


def importance_figure(findings: Findings) -> Figure | None:
    """Return the figure with a panel of bars per algorithm that has enough trials, the most important hyper-parameter
    on top."""
    drawn = [row for row in findings.once(sensitivities) if row.importances]
    if not drawn:
        return None
    height = 1.1 + 0.28 * max(len(row.importances) for row in drawn)
    figure, panels = new_panels(len(drawn), min(COLUMNS, len(drawn)), height, sharex=True)
    for axes, row in zip(panels, drawn, strict=True):
        names = [key.removeprefix("algorithm.") for key in row.importances][::-1]
        shares = [100 * share for share in row.importances.values()][::-1]
        bars = axes.barh(names, shares, color=findings.looks[row.algorithm].colour, height=0.62)
        axes.bar_label(bars, fmt="%.0f", padding=3, fontsize=9)
        axes.set_title(row.algorithm, fontsize=12, loc="left")
        axes.set_xlim(0, 112)
        axes.set_xticks([0, 50, 100])
        finish(axes)
        axes.grid(visible=False, axis="y")
    figure.supxlabel(f"Share of the importance ({METHOD}, %)", fontsize=11)
    return figure


def sweep_figure(findings: Findings) -> Figure | None:
    """Return the figure with a panel per algorithm and a curve per trial, mean over seeds, light for the best and dark
    for the worst by the final loss, or by the last value where not all have one; stopped trials end early."""
    results = findings.results
    metrics = dict.fromkeys((results.selection_metric, *BY_ROUND))
    metric, panels = next(((metric, panels) for metric in metrics if (panels := _sweeps(findings, metric))), ("", {}))
    if not panels:
        return None
    scale, label = scale_of(metric)
    higher = results.objective.higher if metric == results.objective.metric else METRICS[metric].better == "max"
    losses = _final_losses(results)
    of = Counter(trial.algorithm for trial in results.searched)
    figure, axes_list = new_panels(len(panels), COLUMNS, 2.5, 0.2, sharey=True)
    for axes, (algorithm, curves) in zip(axes_list, panels.items(), strict=True):
        ends = [-losses[trial] if losses else (values[-1] if higher else -values[-1]) for trial, _, values in curves]
        ranks = np.argsort(np.argsort(np.where(np.isnan(ends), -np.inf, ends)))  # 0 is the worst
        for (_, rounds, values), rank in sorted(zip(curves, ranks, strict=True), key=lambda pair: pair[1]):
            shade = colormaps["viridis"](0.1 + 0.8 * rank / max(len(curves) - 1, 1))
            axes.plot(rounds, scale * values, color=shade, linewidth=1.0)
        some = len(curves) == MOST_CURVES < of[algorithm]
        count = f"first {MOST_CURVES} of {of[algorithm]} trials" if some else f"{len(curves)} trials"
        axes.set_title(f"{algorithm}, {count}", fontsize=10, loc="left")
        axes.tick_params(labelleft=True)
        finish(axes, xlabel="Round")
    figure.supylabel(for_figure(label), fontsize=11)
    return figure


def _sweeps(findings: Findings, metric: str) -> dict[str, list[tuple[int, np.ndarray, np.ndarray]]]:
    """Return the curves by algorithm as (trial, rounds, means over seeds); empty where no curve has two rounds."""
    panels: dict[str, list[tuple[int, np.ndarray, np.ndarray]]] = {}
    for algorithm in findings.looks:
        for trial in [trial for trial in findings.results.searched if trial.algorithm == algorithm][:MOST_CURVES]:
            for rounds, values in recorded(findings.results, trial, metric):
                if rounds.size:
                    panels.setdefault(algorithm, []).append((trial.number, rounds, values.mean(0)))
    return panels if any(rounds.size > 1 for curves in panels.values() for _, rounds, _ in curves) else {}


def _final_losses(results: StudyResults) -> dict[int, float]:
    """Return the final loss of every trial of the search, NaN for one that has none, on test data where they have it;
    {} where it cannot rank them, since trials did all rounds without one."""
    whole = [trial for trial in results.searched if results.eligible(trial)]
    for metric in LOSSES:
        if whole and all(metric in trial.metrics for trial in whole):
            return {trial.number: trial.metrics.get(metric, np.nan) for trial in results.searched}
    return {}
