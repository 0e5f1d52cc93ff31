"""Credentials of stores: taken out of the addresses in which users type them, before anything keeps or shows these.

A password belongs to the environment, where MLflow, PostgreSQL and S3 look for theirs (MLFLOW_TRACKING_PASSWORD,
PGPASSWORD, AWS_SECRET_ACCESS_KEY), or to a file of theirs (~/.mlflow/credentials, ~/.pgpass, ~/.aws/credentials). One
in an address is moved to the environment of this process; its children and Ray's workers have it from there.
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from flstudy.config.errors import ConfigError

_SECRETS = (
    *("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "PGPASSWORD"),
    *("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "RAY_AUTH_TOKEN"),
)
_SHORTEST = 6  # characters; the name of a metric is no password
_WORDS = "pass|pwd|token|secret|credential|signature|api_?key|odbc_connect"  # in the names of a query's parameters
_IN_TEXT = (
    (re.compile(r"(https?://)[^\s'\"<>]*@", re.IGNORECASE), r"\1"),
    (re.compile(r"(://[^\s'\"<>/:@]*):[^\s'\"<>]*@"), r"\1@"),
    (re.compile(rf"([?&;][^\s=&;'\"]*(?:{_WORDS})[^\s=&;'\"]*=)[^\s&;'\"]+", re.IGNORECASE), r"\1***"),
)


def censored(text: str) -> str:
    """Return a text, such as an error or a traceback, without the credentials in its addresses and without those that
    the environment holds."""
    for pattern, left in _IN_TEXT:
        text = pattern.sub(left, text)
    for secret in filter(None, map(os.environ.get, _SECRETS)):
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, "***")
    return text


def split_credentials(uri: str) -> tuple[str, dict[str, str]]:
    """Return a store's address without its credentials, and these by the variables in which the store's client finds
    them.

    The user of a database's address stays: it names a role, and is no secret.

    Raises:
        ConfigError: for credentials that cannot be told from the rest, or that have no such variable.
    """
    try:
        parts = urlsplit(uri)
    except ValueError:  # whose text may quote a password
        raise ConfigError("store must be a valid address: in a password write %5B for [ and %5D for ]") from None
    kind = parts.scheme.split("+")[0]
    account, _, host = parts.netloc.rpartition("@")
    user, _, password = account.partition(":")
    query = parse_qsl(parts.query, keep_blank_values=True)
    secret = [(name, value) for name, value in query if re.search(_WORDS, name, re.IGNORECASE)]
    if parts.netloc and "@" in parts.path + parts.query + parts.fragment:
        raise ConfigError("store must have no @ after its host: in a password write %40 for @, %2F for /, %3F for ?")
    taken: dict[str, str] = {}
    if kind in ("http", "https"):
        taken = {"MLFLOW_TRACKING_USERNAME": unquote(user), "MLFLOW_TRACKING_PASSWORD": unquote(password)}
        user, remedy = "", "set MLFLOW_TRACKING_TOKEN or MLFLOW_TRACKING_PASSWORD"
    elif kind == "postgresql":
        taken = {"PGPASSWORD": unquote(password) or dict(secret).get("password", "")}
        secret = [pair for pair in secret if pair[0] != "password"]
        remedy = "set PGPASSWORD, or use ~/.pgpass"
    else:
        remedy = "use the driver's own file, or an MLflow server before it"
        secret += [("password", password)] if password else []
    if secret:
        place = f"{parts.scheme}://{host}"
        raise ConfigError(f"store must hold no {secret[0][0]} in its address, got one for {place!r}: {remedy}")
    taken = {name: value for name, value in taken.items() if value}
    if not taken:
        return uri, {}
    remaining_query = urlencode([pair for pair in query if kind != "postgresql" or pair[0] != "password"])
    return urlunsplit(parts._replace(netloc=f"{user}@{host}" if user else host, query=remaining_query)), taken


def take_credentials(uri: str) -> str:
    """Return a store's address without its credentials, which go to the environment; a line says so.

    Raises:
        ConfigError: as `split_credentials`.
    """
    address, taken = split_credentials(uri)
    if any(os.environ.get(name) != value for name, value in taken.items()):  # else it has been printed
        os.environ.update(taken)
        print(
            f"flstudy: the credentials of store {address} are written nowhere: set {' and '.join(taken)} next time",
            file=sys.stderr,
        )
    return address


def clean_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command without the credentials of ``--store``, which go to the environment."""
    cleaned = list(arguments)
    for place, argument in enumerate(cleaned):
        if argument.startswith("--store="):
            cleaned[place] = f"--store={take_credentials(argument.removeprefix('--store='))}"
        elif place and cleaned[place - 1] == "--store":
            cleaned[place] = take_credentials(argument)
    return cleaned


def clean_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a config without the credentials of their store, which go to the environment."""
    store = values.get("store")
    return {**values, "store": take_credentials(store)} if isinstance(store, str) else dict(values)


def clean_yaml(text: str, values: Mapping[str, Any]) -> str:
    """Return a config's text without the credentials of its store, which go to the environment.

    Args:
        text: YAML.
        values: the values that it holds.
    """
    import yaml

    cleaned = clean_values(values)
    return text if cleaned == values else yaml.safe_dump(cleaned, sort_keys=False)


def hide_from_process_list(arguments: Sequence[str]) -> None:
    """Replace this process by one whose command line, which all users of the machine can read, has no credentials.

    The new process keeps the process id. Without credentials in the arguments nothing happens.

    Args:
        arguments: the command's own arguments, which stand at the end of the command line.
    """
    cleaned = clean_arguments(arguments)
    if cleaned != list(arguments):
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1 : -len(cleaned)], *cleaned])
