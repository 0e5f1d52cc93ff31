"""What may be said when a study goes on, and where its user's own modules lie."""

import sys
from collections.abc import Iterable
from pathlib import Path

from flstudy.config import ConfigError
from flstudy.study.folder import StudyFolder

CHANGEABLE = (
    *("study.trials", "study.budget.rounds", "study.budget.hours", "study.confirm.top", "study.confirm.seeds"),
    *("study.failures.retries", "study.failures.round_timeout_s", "study.failures.most", "study.concurrent"),
    *("study.resources.cpu", "study.resources.gpu", "study.register", "store"),
)


def check_changes(keys: Iterable[str], what: str) -> None:
    """Raise ConfigError for a key that cannot change when a study goes on.

    Args:
        keys: of the config.
        what: the sentence begins with it.
    """
    for key in keys:
        if key not in CHANGEABLE:
            raise ConfigError(f"{what}: a study goes on as it began; {key} cannot change, only {', '.join(CHANGEABLE)}")


def find_modules(folder: Path) -> None:
    """Let classes be imported that lie beside the config with which a study was started."""
    modules = StudyFolder(folder).state().get("modules")
    if modules is not None and modules not in sys.path:
        sys.path.append(modules)
