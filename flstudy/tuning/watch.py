"""Ray Tune's callbacks, translated for the ledger.

Ray pickles callbacks and stoppers for a restore that flstudy does not use; locks and terminals stay behind.
"""

import re
import threading
from pathlib import Path
from typing import Any

from ray import tune

from flstudy.tuning.ledger import Ledger
from flstudy.tuning.searcher import Search


class Watch(tune.Callback):
    """Tells the ledger what happens to trials."""

    def __init__(self, ledger: Ledger, search: Search, interrupt: threading.Event) -> None:
        self._ledger, self._search, self._interrupt = ledger, search, interrupt

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **named: Any) -> None:
        self._ledger.started(trial.config, anew=True)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **named: Any
    ) -> None:
        self._ledger.reported(trial.config, result)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **named: Any) -> None:
        stopped = trial.last_result.get("status", "running") == "running"
        if not (stopped and self._interrupt.is_set()):  # else the ledger calls it interrupted when it closes
            self._ledger.ended(trial.config, trial.last_result)
        self._stop_if_hopeless()

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **named: Any) -> None:
        """Its worker died; Ray starts it again."""
        self._ledger.lost(trial.config, self._reason(trial))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **named: Any) -> None:
        """Its worker died, and Ray has given up: for good, or because the worker died before it could start."""
        reason = self._reason(trial)
        again = self._ledger.lost(trial.config, reason) and not self._interrupt.is_set()
        if not again:
            self._ledger.ended(trial.config, trial.last_result, error=reason)
        self._search.lost(trial.config["number"], again=again)
        self._stop_if_hopeless()

    def _reason(self, trial: Any) -> str:
        return self._ledger.hung(trial.config) or _reason(trial)

    def _stop_if_hopeless(self) -> None:
        if self._ledger.hopeless is not None:
            self._interrupt.set()


class Stop(tune.Stopper):
    """Stops all trials once the user has asked for it."""

    def __init__(self, interrupt: threading.Event) -> None:
        self._interrupt = interrupt

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._interrupt.is_set()


def _reason(trial: Any) -> str:
    """Why Ray gave a trial up: its worker died, or could not be started; the last line says it in a sentence."""
    try:
        text = Path(trial.error_file).read_text()
    except (OSError, TypeError):
        return "the worker was lost without a word"
    detail = text.partition("\n")[2].strip()  # after 'Failure # 1'
    raised = re.findall(r"^\w[\w.]*(?:Error|Exception): .+", detail, re.MULTILINE)
    if raised:  # in starting the worker, most often an import
        return f"{detail}\n{raised[-1]}"
    return f"{detail}\nthe worker process died: out of memory, killed, or a crash in native code"
