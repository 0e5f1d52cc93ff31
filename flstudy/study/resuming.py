"""Changes that are allowed when a study goes on, and the place of its user's own modules."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flstudy.config import ConfigError, load
from flstudy.config.reading import ARMS, content_of, in_a_line
from flstudy.study.consent import require_consent
from flstudy.study.folder import StudyFolder

if TYPE_CHECKING:
    from flstudy.config import Config

CHANGEABLE = (
    *("study.trials", "study.budget.rounds", "study.budget.hours", "study.confirm.top", "study.confirm.seeds"),
    *("study.failures.retries", "study.failures.round_timeout_s", "study.failures.most", "study.concurrent"),
    *("study.resources.cpu", "study.resources.gpu", "study.resources.memory", "study.resources.accelerator_type"),
    *("study.resources.custom", "study.register", "store"),
)


def check_changes(folder: StudyFolder, changes: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return the changes of a study that goes on, with ``study.trials`` where arms are added.

    That number gives each new arm as many trials as the others have.

    Args:
        folder: the study's.
        changes: keys with values; an arm's key is ``study.arms.NAME``.
        what: the words with which an error message begins.

    Raises:
        ConfigError: for a key that cannot change, and arms that would make the comparison unfair.
    """
    for key, value in changes.items():
        if key not in CHANGEABLE and not key.startswith(f"{ARMS}."):
            command = ["flstudy", "tune", str(folder.config), f"--{key}", in_a_line(value)]
            command += ["--import-from", folder.name_or_uri]
            raise ConfigError(
                f"{what}: a study goes on as it began; {key} cannot change: begin another one, which takes over the "
                "trials that are the same",
                shlex.join(command),
            )
    added = [key.removeprefix(f"{ARMS}.") for key in changes if key.startswith(f"{ARMS}.")]
    return {**_more_trials(folder, added, changes, what), **changes} if added else dict(changes)


def _more_trials(
    folder: StudyFolder, added: Sequence[str], changes: Mapping[str, Any], what: str
) -> dict[str, int | None]:
    """Return the number of trials, as ``study.trials``, of a study with more arms; ConfigError for arms that cannot be
    added."""
    study = content_of(folder.config, folder.read_config())["study"]
    for name in added:
        if name in study["arms"]:
            raise ConfigError(f"{what}: {ARMS}.{name} must be a new arm, and {folder.name} has one: give another name")
    if not study["arms"]:
        begin = f"begin a study of several with --import-from {shlex.quote(folder.name_or_uri)}"
        raise ConfigError(f"{what}: {ARMS} must be added to a comparison, and {folder.name} has one method: {begin}")
    if study["allocation"] != "equal" or not study["trials"]:
        lacking = "study.allocation equal" if study["trials"] else "study.trials"
        begin = f"begin another with --import-from {shlex.quote(folder.name_or_uri)}"
        raise ConfigError(
            f"{what}: {ARMS} may be added where each has its share, and {folder.name} lacks {lacking}: {begin}"
        )
    count = len(study["arms"]) + len(added)
    least = -(-study["trials"] // len(study["arms"])) * count
    wanted = changes.get("study.trials", least)
    if not isinstance(wanted, int) or wanted < least:
        raise ConfigError(
            f"{what}: study.trials must be {least} or more, so that {count} arms get as many as {len(study['arms'])} "
            f"had, got {wanted}: raise it, or leave it out"
        )
    return {"study.trials": wanted}


def load_study_config(
    folder: StudyFolder,
    changes: Mapping[str, Any] | None = None,
    options: Sequence[str] = (),
    *,
    trust: bool = False,
) -> "Config":
    """Return the checked config of a study that has begun, whose own modules and files are looked for where they lay
    then.

    Args:
        folder: the study's.
        changes: keys with other values.
        options: of a command line, with other values, too.
        trust: whether the user agrees to the code that somebody else's study names.

    Raises:
        ConfigError: as `flstudy.config.load`, and for code that the user has not agreed to (`flstudy.study.consent`).
    """
    add_modules_to_path(folder, trust=trust)
    return load(folder.config, changes, options=options, command="tune", text=folder.read_config())


def modules_folder(folder: StudyFolder) -> str | None:
    """Return the folder of the user's own modules: that in which they lay when the study began, or the current one on a
    machine that lacks it; None where none is recorded."""
    recorded: str | None = folder.state().get("modules")
    return recorded if recorded is None or Path(recorded).is_dir() else str(Path.cwd())


def add_modules_to_path(folder: StudyFolder, *, trust: bool = False) -> None:
    """Let a study's own classes be imported.

    Args:
        folder: the study's.
        trust: whether the user agrees to the code that somebody else's study names.

    Raises:
        ConfigError: for code that the user has not agreed to.
    """
    modules = modules_folder(folder)
    require_consent(folder, modules, trust=trust)
    if modules is not None and modules not in sys.path:
        sys.path.append(modules)
