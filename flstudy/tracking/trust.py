"""The stores of this user: a study's folder may be somebody else's, and so may be the server that it names.

To open a store means to send it this user's credentials and to write what it says. The store that a folder has
recorded is therefore opened only where this user has chosen it as well: it is the default store, MLFLOW_TRACKING_URI,
or one to which ``--store`` or a config has sent a study of this user before. Those are listed, a line each, in
$XDG_STATE_HOME/flstudy/stores (~/.local/state/flstudy/stores).
"""

import contextlib
import os
from pathlib import Path

from flstudy.config import ConfigError
from flstudy.config.credentials import split_credentials
from flstudy.tracking.store import absolute_uri


def agreed_store(study: str, recorded: str | None, chosen: str | None) -> str:
    """Return the store of a study that goes on, or is delivered, from its folder.

    Args:
        study: its name.
        recorded: the store that its folder names.
        chosen: the one that the user has just named.

    Raises:
        ConfigError: for a recorded store that this user has not chosen.
    """
    if chosen is not None or recorded is None:
        return absolute_uri(chosen)
    uri = absolute_uri(split_credentials(recorded)[0])  # a folder has none to give
    if _spelled(uri) not in {_spelled(store) for store in _known()}:
        raise ConfigError(f"study {study} names a store that you have not used, {uri!r}: give --store {uri} to use it")
    return uri


def remember_store(uri: str) -> None:
    """List a store as this user's; where the list cannot be written, ``--store`` has to be given again."""
    uri, path = absolute_uri(uri), _list()
    if _spelled(uri) in {_spelled(store) for store in _known()}:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a", encoding="utf-8") as file:
            file.write(f"{uri}\n")


def _list() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "flstudy" / "stores"


def _known() -> list[str]:
    stores = [absolute_uri(None)]
    if os.environ.get("MLFLOW_TRACKING_URI"):
        stores.append(absolute_uri(split_credentials(os.environ["MLFLOW_TRACKING_URI"])[0]))
    with contextlib.suppress(OSError, UnicodeDecodeError):
        stores += _list().read_text(encoding="utf-8").split("\n")
    return stores


def _spelled(uri: str) -> str:
    """Return an address in its one spelling, for comparisons."""
    return uri.strip().rstrip("/")
