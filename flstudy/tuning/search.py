"""What is tried next: Optuna's samplers behind Ray Tune's searcher interface.

Ray's own OptunaSearch shares one study name between all studies of a process and tells a failed trial as a complete
one. Here the samplers live in the driver; their history goes to a journal file, which Optuna's dashboard opens.

With ``allocation: equal`` every algorithm is an arm with an Optuna study of its own, and the arms take turns; with
``free`` there is one arm. When the search is over, its winners are proposed once more with new seeds.
"""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from ray.tune.search import Searcher

from flstudy.study import Domain, Space, Status, Trial
from flstudy.study.objectives import arm_shares, objective_values, objectives_of, violations
from flstudy.tuning.proposals import Proposal, fresh_seeds, proposal_of, reported
from flstudy.tuning.samplers import CONSTRAINTS, STATUS, Sequel, optuna_sampler, sampler_of

if TYPE_CHECKING:
    from flstudy.config import Config


class Spending(Protocol):
    """What the search asks of the study's trials."""

    def exhausted(self) -> bool:
        """Whether the budget is spent."""
        ...

    def rounds(self, algorithm: str | None = None) -> int:
        """Done by all trials, or by those of one algorithm."""
        ...

    def winners(self) -> Sequence[Trial]:
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
    sequel: Sequel | None = None
    """What follows the points, by how they went."""

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


class OpenProposal(NamedTuple):
    """A proposal that is under way; ``arm`` and ``trial`` are None for a confirmation."""

    proposal: Proposal
    arm: Arm | None
    trial: optuna.Trial | None


@dataclass(eq=False)
class Search(Searcher):
    """Proposes trials and learns from their last reports.

    Args:
        space: what is searched.
        config: the study's.
        name: of the study.
        room: trials that can run side by side now; no more are proposed, so that each proposal knows as many results
            as it can.
        past: trials of a resumed study: those that ended are known to the samplers, the others are proposed again,
            first and under their numbers.
        spending: the list of trials; None knows no budget and confirms nothing.
        journal: file for Optuna's dashboard, written anew; None keeps the history in memory.
    """

    space: Space
    config: "Config"
    name: str
    room: Callable[[], int]
    past: Sequence[Trial] = ()
    spending: Spending | None = None
    journal: Path | None = None
    _asked: dict[str, OpenProposal] = field(default_factory=dict)
    _lost: dict[int, OpenProposal] = field(default_factory=dict)  # by number: their workers died
    _again: list[OpenProposal] = field(default_factory=list)
    _confirmed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__(metric="objective", mode=self.config.study.objective.mode)
        self._made: dict[str, Config] = {}  # configs by the class names chosen
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.arms = self._make_arms()
        self._numbers = itertools.count(max((trial.number for trial in self.past), default=-1) + 1)
        for trial in self.past:
            self._remember(trial)
        for arm in self.arms:
            for point in arm.points[arm.started :]:
                arm.study.enqueue_trial(point)

    # ---- proposing ---------------------------------------------------------------------------------------------------

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        """The next proposal, None for later, or Searcher.FINISHED."""
        if len(self._asked) >= self.room():
            return None  # Ray asks again
        asked = self._again.pop(0) if self._again else self._next() or self._confirmation()
        if asked is None:
            # Not before all are back: a trial whose worker died is proposed once more.
            return None if self._asked or self._lost else Searcher.FINISHED  # type: ignore[return-value]  # a text
        self._asked[trial_id] = asked
        return dict(asked.proposal)

    def _next(self) -> OpenProposal | None:
        """A new trial of the arm that has had least so far."""
        if self.spending is not None and self.spending.exhausted():
            return None
        for arm in self.arms:
            arm.go_on()
        open_arms = [arm for arm in self.arms if arm.started < arm.trials]
        if not open_arms:
            return None
        arm = min(open_arms, key=self._had)
        arm.started += 1
        trial = arm.study.ask()
        number = next(self._numbers)
        trial.set_user_attr("trial", number)
        overrides = self.space.suggest(trial, self._has_key, arm.fixed)
        return OpenProposal({"number": number, "overrides": overrides, "stage": "search", "confirms": None}, arm, trial)

    def _had(self, arm: Arm) -> float:
        """Trials started; or rounds, those under way counted as whole trials, where only a budget ends the study."""
        if self.config.study.trials is not None or self.spending is None or not arm.fixed:
            return arm.started
        under_way = sum(asked.arm is arm for asked in self._asked.values())
        return self.spending.rounds(arm.fixed["algorithm"]) + under_way * self.config.rounds

    def _confirmation(self) -> OpenProposal | None:
        """A winner of the search with new seeds, once no trial of the search is under way any more."""
        settings = self.config.study.confirm
        searching = [*self._asked.values(), *self._lost.values()]
        if self.spending is None or not settings.seeds or any(asked.arm is not None for asked in searching):
            return None
        for winner in self.spending.winners():
            if winner.number in self._confirmed:
                continue
            self._confirmed.add(winner.number)
            overrides = {**winner.overrides, "seeds": fresh_seeds(self.config.seeds, settings.seeds)}
            again: Proposal = {
                "number": next(self._numbers),
                "overrides": overrides,
                "stage": "confirm",
                "confirms": winner.number,
            }
            return OpenProposal(again, None, None)
        return None

    # ---- learning ----------------------------------------------------------------------------------------------------

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """A trial is over; with ``error`` its worker died, and `lost` says what becomes of it."""
        asked = self._asked.pop(trial_id)
        if error:
            self._lost[asked.proposal["number"]] = asked
        elif asked.arm is not None:
            self._tell(asked, result)

    def lost(self, number: int, *, again: bool) -> None:
        """Propose a trial whose worker died once more, or give it up."""
        asked = self._lost.pop(number)
        if again:
            self._again.append(asked)
        elif asked.arm is not None:
            self._tell(asked, None)

    def _tell(self, asked: OpenProposal, result: Mapping[str, Any] | None) -> None:
        assert asked.arm is not None
        assert asked.trial is not None
        study, trial, section = asked.arm.study, asked.trial, self.config.study
        ended = reported(result) if result else None
        if ended is None or ended.status is Status.FAILED:
            study.tell(trial, state=TrialState.FAIL)  # TPE learns nothing from it; a diverged one has its worst
        elif ended.status is Status.RUNNING:
            # A scheduler stopped it. Its value is not that of a whole run: TPE ranks such trials behind the finished
            # ones, by the rounds they reached and then by their value there.
            if len(objectives_of(section)) == 1:
                trial.report(ended.objective, step=ended.rounds)
            study.tell(trial, state=TrialState.PRUNED)
        else:
            trial.set_user_attr(CONSTRAINTS, violations(section, ended.metrics))
            trial.set_user_attr(STATUS, str(ended.status))
            study.tell(trial, objective_values(section, ended.objective, ended.metrics, broken=ended.is_broken))

    # ---- beginning ---------------------------------------------------------------------------------------------------

    def _make_arms(self) -> list[Arm]:
        study, search = self.config.study, self.space.domains
        settings = sampler_of(self.config)
        points, only = settings.first_points(self.space, self.config)
        names: list[Any] = [None]
        if study.allocation == "equal" and "algorithm" in search:
            names = list(search["algorithm"].extremes())
        storage = None
        if self.journal is not None:
            self.journal.unlink(missing_ok=True)  # a resumed study tells all of it again
            storage = JournalStorage(JournalFileBackend(str(self.journal)))
        arms = []
        for name, trials in zip(names, arm_shares(study.trials, len(names)), strict=True):
            fixed = {} if name is None else {"algorithm": name}
            own = [point for point in points if name is None or point["algorithm"] == Domain.parameter(name)]
            own = [{key: value for key, value in point.items() if key not in fixed} for point in own]
            drawn = [trial for trial in self.past if self._belongs(trial, fixed)]  # those that did not end, too
            optuna_study = optuna.create_study(
                storage=storage,
                study_name=self.name if name is None else f"{self.name} {_arm_name(name)}",
                sampler=optuna_sampler(settings, len(drawn), constrained=bool(study.constraints)),
                pruner=optuna.pruners.NopPruner(),  # Ray's scheduler stops trials
                directions=["maximize" if one.higher else "minimize" for one in objectives_of(study)],
            )
            optuna_study.set_user_attr("objectives", [one.metric for one in objectives_of(study)])
            sequel = settings.sequel(self.space, own, higher=study.objective.higher)
            arms.append(Arm(fixed, optuna_study, own, len(own) if only else trials, share=trials, sequel=sequel))
        return arms

    def _remember(self, past: Trial) -> None:
        """A trial of a resumed study: told to its arm, or proposed again."""
        if past.is_confirmation:
            assert past.confirms is not None
            self._confirmed.add(past.confirms)
            if not past.is_over:
                self._again.append(OpenProposal(proposal_of(past), None, None))
            return
        arm = next(arm for arm in self.arms if self._belongs(past, arm.fixed))
        arm.started += 1
        point = {key: Domain.parameter(value) for key, value in past.overrides.items() if key not in arm.fixed}
        if not past.is_over:
            arm.study.enqueue_trial(point)
            trial = arm.study.ask()
            trial.set_user_attr("trial", past.number)
            self.space.suggest(trial, self._has_key, arm.fixed)
            self._again.append(OpenProposal(proposal_of(past), arm, trial))
            return
        states = {Status.PRUNED: TrialState.PRUNED, Status.FAILED: TrialState.FAIL}
        state = states.get(past.status, TrialState.COMPLETE)
        single = len(objectives_of(self.config.study)) == 1
        values = past.values or (past.objective,)
        limits = violations(self.config.study, past.metrics)
        arm.study.add_trial(
            optuna.trial.create_trial(
                state=state,
                params=point,
                distributions={key: self.space.domains[key].distribution() for key in point},
                values=values if state is TrialState.COMPLETE else None,
                intermediate_values={past.rounds: values[0]} if state is TrialState.PRUNED and single else None,
                user_attrs={"trial": past.number, CONSTRAINTS: limits, STATUS: str(past.status)},
                system_attrs={"constraints": limits} if limits else None,
            )
        )

    @staticmethod
    def _belongs(trial: Trial, fixed: Mapping[str, Any]) -> bool:
        return trial.stage == "search" and all(trial.overrides.get(key) == value for key, value in fixed.items())

    def _has_key(self, chosen: Mapping[str, Any], key: str) -> bool:
        # Composing a config costs milliseconds, and there are only as many as combinations of class names.
        text = json.dumps(chosen, sort_keys=True, default=str)
        if text not in self._made:
            self._made[text] = self.config.with_overrides(chosen) if chosen else self.config
        return self._made[text].has_key(key)

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Ray keeps a copy for its own restore

    def save(self, checkpoint_path: str) -> None:
        """For Ray's own restore, which flstudy does not use: a resumed study is told from its list of trials."""
        Path(checkpoint_path).touch()

    def restore(self, checkpoint_path: str) -> None:
        """As for `save`."""
        raise NotImplementedError("a study is resumed by flstudy tune --resume")


def _arm_name(name: Any) -> str:
    return str(name.get("class_path") if isinstance(name, Mapping) else name).rpartition(".")[2]
