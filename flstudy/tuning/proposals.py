"""What a search proposes, a worker gets, and a worker reports: the words between driver and workers."""

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from flstudy.study import Trial

if TYPE_CHECKING:
    from flstudy.config import Config

FRESH_SEED = 1_000  # the first seed of a confirmation


class Proposal(TypedDict):
    """A trial to be trained; Ray knows it as the trial's config."""

    number: int
    overrides: dict[str, Any]
    stage: Literal["search", "confirm"]
    confirms: int | None
    known: int | None


def proposal_of(trial: Trial) -> Proposal:
    """The proposal from which a trial came."""
    return {
        "number": trial.number,
        "overrides": dict(trial.overrides),
        "stage": trial.stage,
        "confirms": trial.confirms,
        "known": trial.known,
    }


def result_of(trial: Trial) -> dict[str, Any]:
    """What a worker reports to Ray. Ray flattens nested results and cuts names at '/': the trial travels as text, and
    beside it what schedulers read."""
    return {
        "objective": trial.objective,
        "round": trial.rounds,
        "status": str(trial.status),
        "trial": json.dumps(trial.to_json(), default=str),
    }


def reported(result: Mapping[str, Any]) -> Trial:
    """The trial of a worker's report."""
    return Trial.from_json(json.loads(result["trial"]))


def algorithm_of(config: "Config", overrides: Mapping[str, Any]) -> str:
    """Short class name of a trial's algorithm."""
    chosen = overrides.get("algorithm") or config.tags().get("algorithm", "")
    chosen = chosen.get("class_path", "") if isinstance(chosen, Mapping) else chosen
    return str(chosen).rsplit(".", 1)[-1]


def fresh_seeds(used: Sequence[int], count: int) -> list[int]:
    """The first seeds from 1,000 on that a study has not used: the same for all of its algorithms."""
    return list(itertools.islice((seed for seed in itertools.count(FRESH_SEED) if seed not in used), count))
