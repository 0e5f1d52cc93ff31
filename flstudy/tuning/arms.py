"""The parts of a search: its arms, what they propose, and what they ask of the list of trials."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypedDict

import optuna

from flstudy.tuning.folder import TrialSummary

FRESH_SEED = 1_000  # the first seed of a confirmation


class Proposal(TypedDict):
    """What a worker gets."""

    number: int
    overrides: dict[str, Any]
    stage: str
    of: int | None


def proposal_of(trial: TrialSummary) -> Proposal:
    """What the worker of a trial on the list got, or gets once more."""
    return {"number": trial.trial, "overrides": dict(trial.overrides), "stage": trial.stage, "of": trial.of}


class Spending(Protocol):
    """What the search asks of the list of trials."""

    def exhausted(self) -> bool:
        """Whether the budget is spent."""
        ...

    def rounds(self, algorithm: str | None = None) -> int:
        """Done by all trials, or by those of one algorithm."""
        ...

    def winners(self) -> Sequence[TrialSummary]:
        """The trials of the search that are to be confirmed."""
        ...


@dataclass
class Arm:
    """The search among trials that have something in common."""

    fixed: dict[str, Any]
    """{} or {'algorithm': name}."""
    study: optuna.Study
    points: list[dict[str, Any]]
    """Tried first, as Optuna keeps them."""
    trials: float
    """How many it gets."""
    started: int = 0
    share: float = float("inf")
    """How many it may get if more points follow."""
    sequel: Callable[[list[optuna.trial.FrozenTrial]], list[dict[str, Any]] | None] | None = None
    """What follows the points, by how they went: None as long as that is not known; None instead of a function where
    nothing follows."""

    def go_on(self) -> None:
        """When all points have been started, ask for those that follow."""
        if self.sequel is None or self.started < min(self.trials, self.share):
            return
        more = self.sequel(self.study.get_trials(deepcopy=False))
        if more is None:
            return
        self.sequel, self.points = None, [*self.points, *more]
        self.trials = min(self.share, len(self.points))
        for point in self.points[self.started :]:
            self.study.enqueue_trial(point)


class Asked(NamedTuple):
    """A proposal that is under way; ``arm`` and ``trial`` are None for a confirmation."""

    proposal: Proposal
    arm: Arm | None
    trial: optuna.Trial | None


def fresh_seeds(used: Sequence[int], count: int) -> list[int]:
    """The first seeds from 1,000 on that a study has not used: the same for all of its algorithms."""
    return list(itertools.islice((seed for seed in itertools.count(FRESH_SEED) if seed not in used), count))
