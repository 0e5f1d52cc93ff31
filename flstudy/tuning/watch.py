"""Ray Tune's callbacks, translated for the ledger.

Ray pickles callbacks and stoppers for a restore that flstudy does not use; locks and terminals stay behind.
"""

import re
import threading
from pathlib import Path
from typing import Any

from ray import tune

from flstudy.tuning.ledger import Ledger


class Watch(tune.Callback):
    """Tells the ledger what happens to trials."""

    def __init__(self, ledger: Ledger, interrupt: threading.Event) -> None:
        self._ledger, self._interrupt = ledger, interrupt

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **named: Any) -> None:
        self._ledger.started(trial.config)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **named: Any
    ) -> None:
        self._ledger.reported(trial.config, result)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **named: Any) -> None:
        stopped = trial.last_result.get("status", "running") == "running"
        if not (stopped and self._interrupt.is_set()):  # else the ledger calls it interrupted when it closes
            self._ledger.ended(trial.config, trial.last_result)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **named: Any) -> None:
        self._ledger.ended(trial.config, trial.last_result, error=_reason(trial))


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
