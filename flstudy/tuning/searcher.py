"""Optuna's samplers behind Ray Tune's searcher interface, for conditional spaces.

Ray's own OptunaSearch shares one study name between all studies of a process and tells a failed trial as a complete
one. Here the sampler lives in the driver, in memory: Optuna's SQLite storage is not for parallel writers.
"""

import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
from optuna.trial import TrialState
from ray.tune.search import Searcher

from flstudy.tuning.folder import TrialSummary
from flstudy.tuning.samplers import first_points, make_sampler
from flstudy.tuning.space import Domain, Space

if TYPE_CHECKING:
    from flstudy.config import Config


class Search(Searcher):
    """Proposes ``{'number': n, 'overrides': {...}}`` for each trial and learns from its last report."""

    def __init__(
        self,
        space: Space,
        config: "Config",
        *,
        name: str,
        room: Callable[[], int],
        past: Sequence[TrialSummary] = (),
    ) -> None:
        """
        Args:
            space: what is searched.
            config: the study's.
            name: of the study.
            room: trials that can run side by side now; no more are proposed, so that each proposal knows as many
                results as it can.
            past: trials of a resumed study, by number: those that ended are known to the sampler, the others are
                proposed again, first and under their numbers.
        """
        super().__init__(metric="objective", mode=config.study.objective.mode)
        self._space, self._config, self._trials = space, config, config.study.trials
        self._room, self._open = room, 0
        self._made: dict[str, Config] = {}  # configs by the class names chosen
        self._asked: dict[str, optuna.Trial] = {}
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        mode = config.study.objective.mode
        self.study = optuna.create_study(
            storage=None,
            study_name=name,
            sampler=make_sampler(config.study.sampler, after=len(past)),
            pruner=optuna.pruners.NopPruner(),  # Ray's scheduler stops trials
            direction="maximize" if mode == "max" else "minimize",
        )
        points, only = first_points(space, config)
        if only:
            self._trials = len(points)
        self._ended = sum(trial.ended for trial in past)
        known = {trial.trial: trial for trial in past}
        for number in range(max(known, default=-1) + 1):  # Optuna numbers trials as they come
            self._remember(known.get(number))
        for point in points[len(self.study.trials) : self._trials]:
            self.study.enqueue_trial(point)

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        if self._ended + len(self._asked) >= self._trials:
            return Searcher.FINISHED  # type: ignore[return-value]  # a text, against Ray's own annotation
        if self._open >= self._room():
            return None  # Ray asks again
        self._open += 1
        trial = self.study.ask()
        self._asked[trial_id] = trial
        return {"number": trial.number, "overrides": self._space.suggest(trial, self._has_key)}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        trial = self._asked[trial_id]
        self._open -= 1
        if error or not result or result.get("status") == "failed":
            self.study.tell(trial, state=TrialState.FAIL)  # TPE learns nothing from it; a diverged one has its worst
        elif result["status"] == "running":
            # A scheduler stopped it. Its value is not that of a whole run: TPE ranks such trials behind the finished
            # ones, by the rounds they reached and then by their value there.
            trial.report(result["objective"], step=result["round"])
            self.study.tell(trial, state=TrialState.PRUNED)
        else:
            self.study.tell(trial, result["objective"])

    def _remember(self, past: TrialSummary | None) -> None:
        """A trial of a resumed study, under its number; None for one that was proposed and never started."""
        if past is None:
            self.study.add_trial(optuna.trial.create_trial(state=TrialState.FAIL))
            return
        point = {key: Domain.parameter(value) for key, value in past.overrides.items()}
        if not past.ended:
            self.study.enqueue_trial(point)
            return
        states = {"pruned": TrialState.PRUNED, "failed": TrialState.FAIL}
        state = states.get(past.status, TrialState.COMPLETE)
        self.study.add_trial(
            optuna.trial.create_trial(
                state=state,
                params=point,
                distributions={key: self._space.domains[key].distribution() for key in point},
                value=past.objective if state is TrialState.COMPLETE else None,
                intermediate_values={past.rounds: past.objective or 0.0} if state is TrialState.PRUNED else None,
            )
        )

    def save(self, checkpoint_path: str) -> None:
        Path(checkpoint_path).write_bytes(pickle.dumps((self.study, self._asked)))

    def restore(self, checkpoint_path: str) -> None:
        """From this study's own folder only: unpickling runs what is in the file."""
        self.study, self._asked = pickle.loads(Path(checkpoint_path).read_bytes())

    def _has_key(self, chosen: Mapping[str, Any], key: str) -> bool:
        # Composing a config costs milliseconds, and there are only as many as combinations of class names.
        text = json.dumps(chosen, sort_keys=True, default=str)
        if text not in self._made:
            self._made[text] = self._config.with_overrides(chosen) if chosen else self._config
        return self._made[text].has_key(key)
