"""The stores of this user: a study's folder may be somebody else's, and so may be the server that it names.

To open a store means to send it this user's credentials and to write what it says. The store that a folder has
recorded is therefore opened only where this user has chosen it as well: it is the default store, MLFLOW_TRACKING_URI,
or one to which ``--store`` or a config has sent a study of this user before. Those are listed, a line each, in
$XDG_STATE_HOME/flstudy/stores (~/.local/state/flstudy/stores).
"""

import contextlib
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from flstudy.config import ConfigError
from flstudy.config.credentials import split_credentials
from flstudy.config.reading import content_of, study_of_config
from flstudy.tracking.store import PORTS, absolute_uri
from flstudy.user_choices import read_choices, remember_choice

_LIST = "stores"


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
    uri = absolute_uri(uri)
    if _spelled(uri) not in {_spelled(store) for store in _known()}:
        remember_choice(_LIST, uri)


def _known() -> list[str]:
    stores = [absolute_uri(None)]
    if os.environ.get("MLFLOW_TRACKING_URI"):
        stores.append(absolute_uri(split_credentials(os.environ["MLFLOW_TRACKING_URI"])[0]))
    return stores + read_choices(_LIST)


def _spelled(uri: str) -> Any:
    """Return an address in its one spelling, for comparisons: of a server its scheme, host, port, path and query."""
    uri = uri.strip()
    with contextlib.suppress(ValueError):  # no port, or no address at all
        parts = urlsplit(uri)
        if parts.scheme in PORTS and parts.hostname and not re.search(r"[\\\s\x00-\x1f]", uri):
            return parts.scheme, parts.hostname, parts.port or PORTS[parts.scheme], parts.path.rstrip("/"), parts.query
    return uri.rstrip("/")


def check_config_store(path: str | Path) -> None:
    """Raise ConfigError for a config of a study's folder that names a store which this user has not chosen."""
    place = study_of_config(path)
    store = None if place is None else content_of(path).get("store")
    if place is not None and isinstance(store, str):
        agreed_store(place.name, store, None)
