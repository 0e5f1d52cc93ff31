"""Classes that flstudy adds to Optuna's: draws that all algorithms share, a sampler that repeats a study's earlier
starts, and a journal with one writer.

Their bases are Optuna's, so this module is imported where a study runs.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.storages.journal import BaseJournalBackend
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

log = logging.getLogger(__name__)


class PairedDraws(RandomSampler):
    """Sampler of independent draws that are the same in every arm.

    A draw depends only on the seed, the trial's place in its arm and the key. Arms thus draw the same values for shared
    keys, whatever other keys they have and in whatever order trials end.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._seed = seed

    def sample_independent(self, study: Study, trial: FrozenTrial, name: str, distribution: BaseDistribution) -> Any:
        key = hashlib.sha256(f"{self._seed}/{trial.number}/{name}".encode()).digest()
        drawn = RandomSampler(int.from_bytes(key[:4], "big"))  # the widest seed that its generator takes
        return drawn.sample_independent(study, trial, name, distribution)


class RepeatingSampler(BaseSampler):
    """Sampler that repeats a trial's proposal of an earlier start of the study.

    It lets the study's own sampler draw as it did then, so that this one comes into the state that it had after the
    draw.

    Args:
        sampler: the study's own.
        params: recorded values of the trial by key; they replace drawn values that differ.
    """

    def __init__(self, sampler: BaseSampler, params: Mapping[str, Any]) -> None:
        self.sampler, self._params = sampler, params
        self.differs = False

    def keep(self, drawn: Mapping[str, Any]) -> dict[str, Any]:
        """Return the drawn values, replaced by the recorded ones where these differ."""
        return {name: self._keep_recorded(name, value) for name, value in drawn.items()}

    def _keep_recorded(self, name: str, drawn: Any) -> Any:
        wanted = self._params.get(name, drawn)
        recorded = drawn
        if isinstance(drawn, float):  # an integer is cut, and steps of a quniform are rounded
            recorded = int(drawn) if isinstance(wanted, int) else round(drawn, 12)
        if wanted in (drawn, recorded):
            return drawn
        self.differs = True
        return wanted

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self.sampler.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self.keep(self.sampler.sample_relative(study, trial, search_space))

    def sample_independent(self, study: Study, trial: FrozenTrial, name: str, distribution: BaseDistribution) -> Any:
        return self._keep_recorded(name, self.sampler.sample_independent(study, trial, name, distribution))

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self.sampler.before_trial(study, trial)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        self.sampler.after_trial(study, trial, state, values)


class DriverJournal(BaseJournalBackend):
    """Optuna's journal file for a single writer, begun anew and without a lock.

    Optuna's own backend locks the file and waits for the disk at every entry. The lock of a killed driver would delay
    the next one by 30 s, and a resumed study writes all of its history. The journal is for the dashboard only: on a
    full disk later entries are not written, and the study goes on.
    """

    def __init__(self, path: Path) -> None:
        self._entries: list[dict[str, Any]] = []
        self._path: Path | None = path
        path.write_bytes(b"")

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        lines = [json.dumps(entry, separators=(",", ":")) for entry in logs]
        self._entries += map(json.loads, lines)
        if self._path is None:
            return
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in lines)
        except OSError as error:
            log.warning("%s is not written any more: %s", self._path, error.strerror)
            self._path = None

    def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
        return self._entries[log_number_from:]
