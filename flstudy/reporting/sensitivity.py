"""How much an algorithm depends on its tuning, and on which of its hyper-parameters.

A method whose median trial is as good as its best needs no search; one with a single good trial in twenty does. The
importances are PED-ANOVA's (Watanabe et al. 2023), in Optuna: how far the values of a hyper-parameter among the best
trials are from those among all trials.
"""

import math
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from flstudy.reporting.domains import Domain, domains, keys_of, scalar
from flstudy.reporting.load import StudyResults, Trial
from flstudy.reporting.selection import comparable, value_of

LEAST_TRIALS = 8  # for importances
WORST = 0.25  # quantile on the bad side that stands for a badly tuned trial
METHOD = "PED-ANOVA"


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """The trials of the search of one algorithm; values of the selection metric, NaN where no trial is whole."""

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
        ended = sum(self.counts.get(status, 0) for status in ("finished", "pruned", "diverged", "failed"))
        return self.counts.get("diverged", 0) / ended if ended else math.nan


def sensitivities(results: StudyResults) -> tuple[Sensitivity, ...]:
    """One per algorithm of the search, in order of appearance."""
    higher, known = results.objective[1], domains(results)
    found = []
    for algorithm in dict.fromkeys(trial.algorithm for trial in results.searched):
        trials = tuple(trial for trial in results.searched if trial.algorithm == algorithm)
        values = np.array([value_of(results, trial) for trial in trials if comparable(results, trial)])
        sign = 1.0 if higher else -1.0
        quantiles = sign * np.quantile(sign * values, [1.0, 0.5, WORST]) if values.size else np.full(3, np.nan)
        shares, note = _importances(results, trials, known)
        found.append(
            Sensitivity(
                algorithm=algorithm,
                counts=Counter(trial.status for trial in trials),
                complete=int(values.size),
                best=float(quantiles[0]),
                median=float(quantiles[1]),
                worst=float(quantiles[2]),
                importances=shares,
                note=note,
            )
        )
    return tuple(found)


def _importances(
    results: StudyResults, trials: tuple[Trial, ...], known: Mapping[str, Domain]
) -> tuple[dict[str, float], str | None]:
    """Importance by key, and why there are none. Diverged trials count as the worst: they tell where not to go."""
    told = [trial for trial in trials if comparable(results, trial) or trial.status == "diverged"]
    ended = sum(comparable(results, trial) for trial in trials)
    algorithm = trials[0].algorithm
    if ended < LEAST_TRIALS:
        return {}, f"{algorithm}: importances need {LEAST_TRIALS} trials that did all rounds, and it has {ended}."
    keys = keys_of(tuple(told), known)
    if len(keys) < 2:
        return {}, f"{algorithm}: importances compare hyper-parameters, and only {len(keys)} varied."
    import optuna

    higher = results.objective[1]
    finite = [value_of(results, trial) for trial in told if comparable(results, trial)]
    worst = min(finite) - 1.0 if higher else max(finite) + 1.0  # only ranks count
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # experimental parts, and regimes of few trials
            study = optuna.create_study(direction="maximize" if higher else "minimize")
            for trial in told:
                given = [key for key in keys if key in trial.overrides]
                own = [key for key in given if not math.isnan(known[key].place(trial.overrides[key]))]
                study.add_trial(
                    optuna.trial.create_trial(
                        params={key: scalar(trial.overrides[key]) for key in own},
                        distributions={key: known[key].distribution() for key in own},
                        value=value_of(results, trial) if comparable(results, trial) else worst,
                    )
                )
            # Its authors want five trials among the best; the default of a tenth has that from fifty trials on.
            evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=_target(len(told)))
            found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    finally:
        optuna.logging.set_verbosity(verbosity)
    return dict(sorted(found.items(), key=lambda item: -item[1])), None


def _target(trials: int) -> float:
    """The share of trials that count as the best ones."""
    return min(max(0.1, 5 / trials), 0.5)
