"""Search of a study: Optuna's samplers behind Ray Tune's searcher interface.

Ray's own OptunaSearch shares one study name between all studies of a process and tells a failed trial as a complete
one. Here the samplers live in the driver; their history goes to a journal file, which Optuna's dashboard opens.

With ``allocation: equal`` every algorithm is an arm with an Optuna study of its own, and the arms take turns; with
``free`` there is one arm. When the search is over, its winners are proposed once more with new seeds.

A configuration is trained once, since it would end as before. A sampler may propose a configuration again that is under
way, finished or diverged. The arm's sampler is then told the same end, and no worker starts.

The proposals of an arm depend only on the sampler's seed, the arm, and the order of its proposals and ends. A resumed
study repeats its search from its list of trials, draw by draw. With one trial at a time it then makes the same
proposals as an undisturbed study. With several side by side they depend on the order of the trials' ends, which differs
between any two studies.
"""

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import optuna
from optuna.storages import JournalStorage
from optuna.trial import TrialState
from ray.tune.search import Searcher

from flstudy.study import Domain, Space, Status, Trial
from flstudy.study.objectives import arm_shares, objective_values, objectives_of, violations
from flstudy.study.space import key_checker
from flstudy.study.trial import configuration_of
from flstudy.tuning.optuna_classes import DriverJournal, RepeatingSampler
from flstudy.tuning.proposals import Proposal, fresh_seeds, proposal_of, trial_of
from flstudy.tuning.samplers import CONSTRAINTS, STATUS, Sequel, optuna_sampler, sampler_of

if TYPE_CHECKING:
    from flstudy.config import Config, StudySection

log = logging.getLogger(__name__)

_REPEATS = 100  # repeats in a row that end an arm: where only a budget ends the study, no new configuration may be left


class Spending(Protocol):
    """Interface of the list of trials to the search: the budget, the winners and new proposals."""

    def is_exhausted(self) -> bool:
        """Return whether the budget is spent."""
        ...

    def rounds(self, algorithm: str | None = None) -> int:
        """Return the rounds done by all trials, or by those of one algorithm."""
        ...

    def winners(self) -> Sequence[Trial]:
        """Return the trials of the search that are to be confirmed."""
        ...

    def propose(self, proposal: Proposal) -> Trial:
        """Note a trial before anybody starts it."""
        ...

    def repeat(self, number: int, repeat: dict[str, int]) -> None:
        """Note that a trial's configuration was proposed again."""
        ...


@dataclass
class Arm:
    """Search among the trials of one algorithm, or among all."""

    fixed: dict[str, Any]
    """Overrides that all trials of the arm share: {} or {'algorithm': name}."""
    study: optuna.Study
    points: list[dict[str, Any]]
    """Points that are tried first, as Optuna keeps them."""
    trials: float
    """Number of trials that the arm gets."""
    started: int = 0
    ends_told: int = 0
    """Number of trials whose ends the sampler was told."""
    repeats: int = 0
    """Number of the latest proposals in a row that were repeats."""
    share: float = float("inf")
    """Number of trials that the arm may get if more points follow."""
    sequel: Sequel | None = None
    """Function of the points' trials that returns the points after them."""

    def add_sequel(self) -> None:
        """Ask for the points that follow, once all have been started."""
        if self.sequel is None or self.started < min(self.trials, self.share):
            return
        more = self.sequel(self.study.get_trials(deepcopy=False))
        if more is None:
            return
        self.sequel, self.points = None, [*self.points, *more]
        self.trials = min(self.share, len(self.points))

    @property
    def is_open(self) -> bool:
        """True if the arm has proposals to make."""
        return self.started < self.trials and self.repeats < _REPEATS


class OpenProposal(NamedTuple):
    """A proposal that is under way; ``arm`` and ``trial`` are None for a confirmation."""

    proposal: Proposal
    arm: Arm | None
    trial: optuna.Trial | None


@dataclass(eq=False)
class Search(Searcher):
    """Searcher that proposes trials and learns from their last reports.

    Args:
        space: the search space.
        config: the study's.
        name: of the study.
        max_concurrent: function that returns the number of trials that can run side by side now. No more are proposed,
            so that each proposal is based on as many results as possible.
        past: trials of a resumed study, whose search is repeated, or imported trials. The sampler is told the ends of
            those that are over. The others are proposed again, first and under their old numbers.
        spending: the list of trials; None knows no budget and confirms nothing.
        journal: file for Optuna's dashboard, written anew; None keeps the history in memory.
    """

    space: Space
    config: "Config"
    name: str
    max_concurrent: Callable[[], int]
    past: Sequence[Trial] = ()
    spending: Spending | None = None
    journal: Path | None = None
    _under_way: dict[str, OpenProposal] = field(default_factory=dict)
    _lost_proposals: dict[int, OpenProposal] = field(default_factory=dict)  # by number: their workers died
    _queued: list[OpenProposal] = field(default_factory=list)
    _confirmed: set[int] = field(default_factory=set)
    _trained: dict[str, int] = field(default_factory=dict)  # by configuration: the number of its trial
    _shared_ends: dict[int, Trial] = field(default_factory=dict)  # by number: of trials that are over
    _waiting_repeats: dict[int, list[optuna.Trial]] = field(default_factory=dict)  # by number of a trial under way

    def __post_init__(self) -> None:
        super().__init__(metric="objective", mode=self.config.study.objective.mode)
        self._has_key = key_checker(self.config)
        scheduler = self.config.study.scheduler
        # A scheduler that passes states on lets trials affect each other's ends.
        self._trials_interact = scheduler is not None and scheduler.passes_state
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.arms = self._make_arms()
        numbers = [draw.number for trial in self.past for draw in _draws(trial)]
        self._numbers = itertools.count(max(numbers, default=-1) + 1)
        for trial in self.past:
            if not _repeatable(trial):
                self._remember(trial)
        # A list, since all arms are to be repeated, whatever one of them draws.
        same = [
            self._repeat(arm, [t for t in self.past if _repeatable(t) and _belongs(t, arm.fixed)]) for arm in self.arms
        ]
        if not all(same):
            log.warning(
                "the sampler draws other values than in the study's earlier start, as another version of it may, or "
                "one without a seed: what follows may differ from an undisturbed study's"
            )
        self._queued.sort(key=lambda entry: entry.proposal["number"])

    # ---- proposing ---------------------------------------------------------------------------------------------------

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        """Return the next proposal, None for later, or Searcher.FINISHED."""
        if len(self._under_way) >= self.max_concurrent():
            return None  # Ray asks again
        open_proposal = self._queued.pop(0) if self._queued else self._next() or self._confirmation()
        if open_proposal is None:
            # Not before all are back: a trial whose worker died is proposed once more.
            waits = self._under_way or self._lost_proposals
            return None if waits else Searcher.FINISHED  # type: ignore[return-value]  # a text
        self._under_way[trial_id] = open_proposal
        return dict(open_proposal.proposal)

    def _next(self) -> OpenProposal | None:
        """Return the next proposal of the arm that has had the fewest trials, or rounds; None where none may follow.

        Where the configuration was proposed before, the proposal shares that trial's end and the search asks again,
        unless a scheduler lets trials affect each other.
        """
        while self.spending is None or not self.spending.is_exhausted():
            for arm in self.arms:
                arm.add_sequel()
            open_arms = [arm for arm in self.arms if arm.is_open]
            if not open_arms:
                return None
            arm = min(open_arms, key=self._work_of)
            ends_told, number = arm.ends_told, next(self._numbers)
            trial, overrides = self._ask(arm, number)
            proposal: Proposal = {
                "number": number,
                "overrides": overrides,
                "stage": "search",
                "confirms": None,
                "known": ends_told,
            }
            trained = self._trained.get(configuration_of(overrides))
            if trained is None or self._trials_interact:
                arm.repeats, self._trained[configuration_of(overrides)] = 0, number
                if self.spending is not None:
                    self.spending.propose(proposal)
                return OpenProposal(proposal, arm, trial)
            arm.repeats += 1
            if self.spending is not None:
                self.spending.repeat(trained, {"number": number, "known": ends_told})
            self._share(arm, trained, trial)
        return None

    def _ask(
        self, arm: Arm, number: int, repeating: RepeatingSampler | None = None
    ) -> tuple[optuna.Trial, dict[str, Any]]:
        """Return the arm's next point or, after its last one, its sampler for the values of a trial."""
        if arm.started < len(arm.points):
            point = arm.points[arm.started]
            arm.study.enqueue_trial(point if repeating is None else repeating.keep(point))
        arm.started += 1
        trial = arm.study.ask()
        trial.set_user_attr("trial", number)
        return trial, self.space.suggest(trial, self._has_key, arm.fixed)

    def _work_of(self, arm: Arm) -> float:
        """Return an arm's number of started trials or, where only a budget ends the study, of rounds.

        Trials under way count with all their rounds.
        """
        if self.config.study.trials is not None or self.spending is None or not arm.fixed:
            return arm.started
        under_way = sum(entry.arm is arm for entry in self._under_way.values())
        return self.spending.rounds(arm.fixed["algorithm"]) + under_way * self.config.rounds

    def _confirmation(self) -> OpenProposal | None:
        """Return a winner of the search with new seeds, once no trial of the search is under way any more."""
        settings = self.config.study.confirm
        of_search = [*self._under_way.values(), *self._lost_proposals.values()]
        if self.spending is None or not settings.seeds or any(entry.arm is not None for entry in of_search):
            return None
        for winner in self.spending.winners():
            if winner.number in self._confirmed:
                continue
            self._confirmed.add(winner.number)
            overrides = {**winner.overrides, "seeds": fresh_seeds(self.config.seeds, settings.seeds)}
            confirmation: Proposal = {
                "number": next(self._numbers),
                "overrides": overrides,
                "stage": "confirm",
                "confirms": winner.number,
                "known": None,
            }
            self.spending.propose(confirmation)
            return OpenProposal(confirmation, None, None)
        return None

    # ---- learning ----------------------------------------------------------------------------------------------------

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Take in that a trial is over; with ``error`` its worker died, and `settle_loss` says how it goes on."""
        open_proposal = self._under_way.pop(trial_id)
        if error:
            self._lost_proposals[open_proposal.proposal["number"]] = open_proposal
        elif open_proposal.arm is not None:
            self._end(open_proposal, trial_of(result) if result and "trial" in result else None)

    def settle_loss(self, number: int, *, restart: bool) -> None:
        """Queue a trial whose worker died for another start; without ``restart``, end it."""
        open_proposal = self._lost_proposals.pop(number)
        if restart:
            self._queued.append(open_proposal)
        elif open_proposal.arm is not None:
            self._end(open_proposal, None)

    def _end(self, open_proposal: OpenProposal, ended: Trial | None) -> None:
        """Take in how a trial of the search ended, for its repeats, too; None where its worker was lost."""
        assert open_proposal.arm is not None
        assert open_proposal.trial is not None
        if ended is not None and ended.status is Status.INTERRUPTED:
            return  # a resumed study runs it again
        number = open_proposal.proposal["number"]
        for trial in (open_proposal.trial, *self._waiting_repeats.pop(number, ())):
            self._tell(open_proposal.arm, trial, ended)
        if ended is not None and ended.status in (Status.FINISHED, Status.DIVERGED):
            self._shared_ends[number] = ended
        else:  # a failure may pass, and a scheduler may let it go on the next time
            self._trained.pop(configuration_of(open_proposal.proposal["overrides"]), None)

    def _share(self, arm: Arm, trained: int, trial: optuna.Trial) -> None:
        """Give a repeat the end of the trial of the same configuration, at once or when it comes."""
        ended = self._shared_ends.get(trained)
        if ended is None:
            self._waiting_repeats.setdefault(trained, []).append(trial)
        else:
            self._tell(arm, trial, ended)

    def _tell(self, arm: Arm, trial: optuna.Trial, ended: Trial | None) -> None:
        """Tell the arm's sampler how a trial ended; None where its worker was lost."""
        study, section = arm.study, self.config.study
        arm.ends_told += 1
        if ended is None or ended.status is Status.FAILED:
            study.tell(trial, state=TrialState.FAIL)  # TPE learns nothing from it; a diverged one has its worst
        elif ended.status in (Status.RUNNING, Status.PRUNED):
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
            storage = JournalStorage(DriverJournal(self.journal))  # a resumed study tells all of it again
        arms = []
        for name, trials in zip(names, arm_shares(study.trials, len(names)), strict=True):
            fixed = {} if name is None else {"algorithm": name}
            chosen = [point for point in points if name is None or point["algorithm"] == Domain.parameter(name)]
            chosen = [{key: value for key, value in point.items() if key not in fixed} for point in chosen]
            drawn = [t for t in self.past if not _repeatable(t) and _belongs(t, fixed)]  # also those that did not end
            optuna_study = optuna.create_study(
                storage=storage,
                study_name=self.name if name is None else f"{self.name} {name}",
                sampler=optuna_sampler(settings, len(drawn), constrained=bool(study.constraints)),
                pruner=optuna.pruners.NopPruner(),  # Ray's scheduler stops trials
                directions=["maximize" if objective.higher else "minimize" for objective in objectives_of(study)],
            )
            optuna_study.set_user_attr("objectives", [objective.metric for objective in objectives_of(study)])
            sequel = settings.sequel(self.space.of_arm(name), chosen, higher=study.objective.higher)
            arms.append(Arm(fixed, optuna_study, chosen, len(chosen) if only else trials, share=trials, sequel=sequel))
        return arms

    def _repeat(self, arm: Arm, past: Sequence[Trial]) -> bool:
        """Repeat an arm's proposals and ends of the study's earlier starts, in their order.

        The arm's sampler is then in the state in which it was. Return whether it drew the same values.
        """
        ended = sorted((trial for trial in past if trial.is_over), key=lambda trial: trial.ended or 0.0)
        open_proposals: dict[int, OpenProposal] = {}
        same = True
        for number, ends_told, trial in sorted(draw for earlier in past for draw in _draws(earlier)):
            while arm.ends_told < ends_told and ended and ended[0].number in open_proposals:
                self._end(open_proposals.pop(ended[0].number), ended.pop(0))
            arm.add_sequel()
            overrides = trial.lineage[0]["overrides"] if trial.lineage else trial.overrides  # as they were drawn
            sampler = arm.study.sampler
            repeating = RepeatingSampler(sampler, {key: Domain.parameter(value) for key, value in overrides.items()})
            arm.study.sampler = repeating
            optuna_trial, drawn = self._ask(arm, number, repeating)
            arm.study.sampler = sampler
            same = same and not repeating.differs and drawn == overrides
            if number != trial.number:
                arm.repeats += 1
                self._share(arm, trial.number, optuna_trial)
                continue
            arm.repeats = 0
            self._trained[trial.configuration] = number
            open_proposals[number] = OpenProposal(proposal_of(trial), arm, optuna_trial)
            if not trial.is_over:
                self._queued.append(open_proposals[number])
        for trial in ended:
            self._end(open_proposals.pop(trial.number), trial)
        return same

    def _remember(self, past: Trial) -> None:
        """Tell an arm, or propose again, a trial whose proposal cannot be repeated, such as an imported one."""
        if past.is_confirmation:
            assert past.confirms is not None
            self._confirmed.add(past.confirms)
            if not past.is_over:
                self._queued.append(OpenProposal(proposal_of(past), None, None))
            return
        arm = next(arm for arm in self.arms if _belongs(past, arm.fixed))
        arm.started += 1
        point = {key: Domain.parameter(value) for key, value in past.overrides.items() if key not in arm.fixed}
        if not past.is_over:
            arm.study.enqueue_trial(point)
            trial = arm.study.ask()
            trial.set_user_attr("trial", past.number)
            self.space.suggest(trial, self._has_key, arm.fixed)
            self._queued.append(OpenProposal(proposal_of(past), arm, trial))
            return
        domains = self.space.of(past.overrides.get("algorithm"))
        arm.study.add_trial(frozen_trial(past, point, domains, self.config.study))

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Ray keeps a copy for its own restore

    def save(self, checkpoint_path: str) -> None:
        """Save nothing for Ray's own restore, which flstudy does not use: a resumed study has its list of trials."""
        Path(checkpoint_path).touch()

    def restore(self, checkpoint_path: str) -> None:
        """Refuse Ray's own restore."""
        raise NotImplementedError("a study is resumed by flstudy tune --resume")


def frozen_trial(
    ended: Trial,
    point: Mapping[str, Any],
    domains: Mapping[str, Domain],
    study: "StudySection",
    curve: Mapping[int, float] | None = None,
) -> optuna.trial.FrozenTrial:
    """Return Optuna's form of a trial that is over.

    Args:
        ended: the trial.
        point: its values, as Optuna keeps them.
        domains: of the searched keys.
        study: the section.
        curve: the objective by round, where there is one objective; by default where a scheduler stopped it.
    """
    states = {Status.PRUNED: TrialState.PRUNED, Status.FAILED: TrialState.FAIL}
    state = states.get(ended.status, TrialState.COMPLETE)
    values = ended.values or (ended.objective,)
    limits = violations(study, ended.metrics)
    if len(objectives_of(study)) > 1:
        curve = {}
    elif curve is None:
        curve = {ended.rounds: values[0]} if state is TrialState.PRUNED else {}
    return optuna.trial.create_trial(
        state=state,
        params=dict(point),
        distributions={key: domains[key].distribution() for key in point},
        values=values if state is TrialState.COMPLETE else None,
        intermediate_values=dict(curve) or None,
        user_attrs={"trial": ended.number, CONSTRAINTS: limits, STATUS: str(ended.status)},
        system_attrs={"constraints": limits} if limits else None,
    )


class Draw(NamedTuple):
    """Proposal by an arm's sampler: a trial's own, or a repeat of its configuration."""

    number: int
    ends_told: int
    """Number of the arm's ends that the sampler had been told."""
    trial: Trial


def _draws(trial: Trial) -> list[Draw]:
    """Return all proposals of a trial's configuration, its own first."""
    repeats = [Draw(repeat["number"], repeat["known"], trial) for repeat in trial.repeats]
    return [Draw(trial.number, trial.known or 0, trial), *repeats]


def _belongs(trial: Trial, fixed: Mapping[str, Any]) -> bool:
    """Return whether a trial is one of an arm's search."""
    return trial.stage == "search" and all(trial.overrides.get(key) == value for key, value in fixed.items())


def _repeatable(trial: Trial) -> bool:
    """Return whether a trial was proposed by this study's search, which noted what it knew then."""
    return trial.stage == "search" and trial.known is not None and trial.source is None
