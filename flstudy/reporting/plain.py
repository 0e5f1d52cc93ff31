"""Findings as plain values, for `flstudy report --json`."""

import dataclasses
import math
from typing import Any

from flstudy.reporting.comparison import Comparison, Worlds
from flstudy.reporting.findings import Findings
from flstudy.reporting.ranking import Row, reason


def study_values(found: Findings) -> dict[str, Any]:
    """Of one study; numbers that are not known are None."""
    front = found.front
    return plain(
        {
            "study": found.results.name,
            "selection_metric": found.ranking.selection_metric,
            "higher_is_better": found.results.objective[1],
            "accuracy_metric": found.ranking.accuracy_metric,
            "ranking": [_row(row) for row in found.ranking.rows],
            "comparison": comparison_values(found.comparison),
            "sensitivity": [{**dataclasses.asdict(one), "diverged": one.diverged} for one in found.sensitivities],
            "pareto": None
            if front is None
            else {
                "objectives": [metric for metric, _ in front.objectives],
                "front": [{"trial": trial.trial, "values": list(trial.values)} for trial in front.best],
            },
            "bits": None
            if found.bits is None
            else {line.algorithm: {"rounds_of_fedavg": line.total} for line in found.bits.lines},
            "cost": [dataclasses.asdict(one) for one in found.costs],
            "failures": [
                {
                    "trial": trial.trial,
                    "algorithm": trial.algorithm,
                    "attempts": trial.attempts,
                    "error": reason(trial) if trial.status == "failed" else None,
                }
                for trial in found.failures
            ],
            "notes": list(found.ranking.notes),
            "citations": [one.key for one in found.citations],
        }
    )


def comparison_values(comparison: Comparison) -> dict[str, Any]:
    """Of one study's pairs."""
    return plain(
        {
            "metric": comparison.metric,
            "values": {name: {str(seed): v for seed, v in own.items()} for name, own in comparison.values.items()},
            "pairs": [dataclasses.asdict(pair) for pair in comparison.pairs],
            "notes": list(comparison.notes),
        }
    )


def worlds_values(worlds: Worlds) -> dict[str, Any]:
    """Of several studies."""
    return plain(
        {
            "studies": list(worlds.names),
            "metric": worlds.metric,
            "higher_is_better": worlds.higher,
            "standings": [dataclasses.asdict(standing) for standing in worlds.standings],
            "friedman": worlds.friedman and {"statistic": worlds.friedman[0], "p": worlds.friedman[1]},
            "comparisons": {
                name: comparison_values(one) for name, one in zip(worlds.names, worlds.comparisons, strict=True)
            },
            "notes": list(worlds.notes),
        }
    )


def _row(row: Row) -> dict[str, Any]:
    drifts = [drift._asdict() for drift in row.drifts]
    return {
        "algorithm": row.trial.algorithm,
        "trial": row.trial.trial,
        "overrides": dict(row.trial.overrides),
        "selected_on": row.selected_on,
        "confirmation": row.confirmation and row.confirmation.trial,
        "new_seeds": row.fresh,
        "gap": row.gap,
        "final": row.final,
        "epsilon": row.epsilon,
        "drifts": drifts,
    }


def plain(value: Any) -> Any:
    """Arrays as lists; NaN and infinity, which JSON has not, as None."""
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value
