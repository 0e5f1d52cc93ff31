"""Proposals of a search and reports of workers: the messages between driver and workers."""

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from flstudy.config.values import class_label
from flstudy.study import Trial

if TYPE_CHECKING:
    from flstudy.config import Config

FRESH_SEED = 1_000  # the first seed of a confirmation


class Proposal(TypedDict):
    """Proposal of a trial to be trained; for Ray it is the trial's config."""

    number: int
    overrides: dict[str, Any]
    stage: Literal["search", "confirm"]
    confirms: int | None
    known: int | None


def proposal_of(trial: Trial) -> Proposal:
    """Return the proposal from which a trial came."""
    return {
        "number": trial.number,
        "overrides": dict(trial.overrides),
        "stage": trial.stage,
        "confirms": trial.confirms,
        "known": trial.known,
    }


def result_of(trial: Trial) -> dict[str, Any]:
    """Return the result that a worker reports to Ray, from which `trial_of` gets the trial back.

    Ray flattens nested results and cuts names at '/'. The trial therefore travels as text, and beside it the values
    that schedulers read.
    """
    return {
        "objective": trial.objective,
        "round": trial.rounds,
        "status": str(trial.status),
        "trial": json.dumps(trial.to_json(), default=str),
    }


def trial_of(result: Mapping[str, Any]) -> Trial:
    """Return the trial of a worker's report, which `result_of` made."""
    return Trial.from_json(json.loads(result["trial"]))


def algorithm_of(config: "Config", overrides: Mapping[str, Any]) -> str:
    """Return the name of a trial's arm, or of its algorithm's class."""
    chosen = overrides.get("algorithm")
    if chosen is None:
        return config.method
    return chosen if isinstance(chosen, str) and chosen in config.study.arms else class_label("algorithm", chosen)


def fresh_seeds(used: Sequence[int], count: int) -> list[int]:
    """Return the first seeds from 1,000 on that a study has not used: the same for all of its algorithms."""
    return list(itertools.islice((seed for seed in itertools.count(FRESH_SEED) if seed not in used), count))
