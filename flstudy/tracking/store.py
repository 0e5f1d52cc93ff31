"""The MLflow store of a study: opened and checked once in the driver, then used by every trial.

MLflow is imported on first use, so that the engine runs where it is not installed. Calls are synchronous, whatever the
environment says: a delivery is over when MLflow has answered, and only then is it known what to send again.
"""

import contextlib
import functools
import logging
import os
import socket
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

from flstudy.config import ConfigError
from flstudy.config.credentials import censored, take_credentials
from flstudy.config.errors import ECHO, on_a_line, shown
from flstudy.study.folder import from_here
from flstudy.tracking.names import mlflow_name, mlflow_text

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_FOLDER = "mlflow_tracking"  # of the working directory
_DEFAULT = f"sqlite:///{_FOLDER}/mlflow.db"
EXPERIMENT = "flstudy"
PORTS = {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306, "mssql": 1433}
_FORMS = "sqlite:///FILE, http(s)://HOST:PORT or postgresql://..."
_CONNECT_S = 3.0
METRICS_PER_CALL = 1000  # the most that MLflow takes
_PARAMS_PER_CALL = 100

Item = TypeVar("Item")
log = logging.getLogger(__name__)


class MetricValue(NamedTuple):
    """One value of one metric of a run."""

    name: str
    value: float
    timestamp: int  # ms since 1970
    step: int


@dataclass(frozen=True)
class Store:
    """MLflow store with the experiment of the runs; picklable, so that workers need not look for it again."""

    uri: str
    experiment_id: str

    @property
    def client(self) -> "MlflowClient":
        return _client(self.uri)

    def find(self, tags: dict[str, str]) -> "Run | None":
        """Return the newest run with all these tags."""
        # The filter language knows no escapes, so a value with one kind of quotes goes into the other.
        quoted = {name: f'"{value}"' if "'" in value else f"'{value}'" for name, value in tags.items()}
        wanted = " and ".join(f"tags.`{name}` = {value}" for name, value in quoted.items())
        runs = self.client.search_runs([self.experiment_id], wanted, max_results=1)
        return runs[0] if runs else None

    def get_or_create(self, key: dict[str, str], name: str, tags: dict[str, str], started: float | None = None) -> str:
        """Return the id of the run with the tags ``key``: a second start of the same trial goes on in the same run.

        ``started``: seconds since 1970; None is now.
        """
        run = self.find(key)
        if run is None:
            start_time = None if started is None else int(1000 * started)
            texts = {tag: mlflow_text(value) for tag, value in {**key, **tags}.items()}
            created = self.client.create_run(self.experiment_id, start_time, texts, name)
            return created.info.run_id
        if run.info.status != "RUNNING":
            self.client.update_run(run.info.run_id, status="RUNNING")
        return run.info.run_id

    def log_metrics(self, run_id: str, values: Sequence[MetricValue]) -> None:
        """Add at most METRICS_PER_CALL values to a run; those that it has already are left alone."""
        from mlflow.entities import Metric

        self.client.log_batch(run_id, metrics=[Metric(*value) for value in values], synchronous=True)

    def log_params(self, run_id: str, params: Mapping[str, Any]) -> int:
        """Add any number of parameters to a run; returns how many MLflow took. One that it refuses is left out, and a
        line of the log says which."""
        from mlflow.entities import Param

        def send(batch: Sequence[Param]) -> None:
            self.client.log_batch(run_id, params=batch, synchronous=True)

        def refuse(param: Param, error: Exception) -> None:
            log.warning("MLflow refuses the parameter %r: %s", param.key, one_line(error))

        entries = [Param(mlflow_name(name), mlflow_text(str(value))) for name, value in params.items()]
        return sum(len(accepted(send, batch, refuse)) for batch in in_batches(entries, _PARAMS_PER_CALL))

    def log_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Set at most 100 tags of a run in one call."""
        from mlflow.entities import RunTag

        if tags:
            entries = [RunTag(name, mlflow_text(value)) for name, value in tags.items()]
            self.client.log_batch(run_id, tags=entries, synchronous=True)


def in_batches(items: Sequence[Item], size: int) -> Iterable[Sequence[Item]]:
    """Yield the items in order, at most ``size`` at a time."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def accepted(
    send: Callable[[Sequence[Item]], object], items: Sequence[Item], refuse: Callable[[Item, Exception], object]
) -> Sequence[Item]:
    """Return the items that MLflow takes. Where it refuses several together, each half is sent alone, until ``refuse``
    is called with the single item that it refuses."""
    try:
        send(items)
        return items
    except Exception as error:
        if not is_refusal(error):
            raise
        if len(items) == 1:
            refuse(items[0], error)
            return []
    half = len(items) // 2
    return [*accepted(send, items[:half], refuse), *accepted(send, items[half:], refuse)]


def is_refusal(error: Exception) -> bool:
    """Return whether MLflow answered, and will answer the same again."""
    return getattr(error, "error_code", "") in ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST")


def one_line(error: Exception) -> str:
    """Return an error's first line, without any credential that it quotes."""
    return (censored(str(error)).strip().splitlines() or [type(error).__name__])[0][:300]


# ---- opening ---------------------------------------------------------------------------------------------------------


def open_store(uri: str | None = None, *, experiment: str = EXPERIMENT) -> Store:
    """Check or create the store, and make the experiment; to be done once, before any trial starts.

    Raises ConfigError within a few seconds where the store cannot be written, is another MLflow's or does not answer.
    """
    uri, scheme = check_store(uri)
    try:
        experiment_id = _experiment(uri, scheme, experiment)
    except ConfigError:
        raise
    except ModuleNotFoundError as error:  # the database's driver, which MLflow does not bring along
        raise ConfigError(
            f"store must be one whose driver is installed, got {shown(uri)}, which needs {error.name!r}: "
            f"run pip install 'flstudy[serve]', or use an MLflow server"
        ) from error
    except Exception as error:  # MLflow, SQLAlchemy and requests each have their own
        raise ConfigError(
            f"store must be a writable MLflow store, got {uri!r}, which answers {one_line(error)!r}: "
            f"check the address and what runs there"
        ) from error
    return Store(uri, experiment_id)


def check_store(uri: str | None = None) -> tuple[str, str]:
    """Return the full URI of a store that can be written or answers, and its scheme; without MLflow, so in
    milliseconds.

    Raises ConfigError for any other.
    """
    uri = absolute_uri(uri)
    scheme = urlsplit(uri).scheme.split("+")[0]
    if scheme == "sqlite":
        _check_sqlite(uri)
    elif scheme in PORTS:
        _check_server(uri, scheme)
    else:
        remedy = f"write sqlite:///{uri}" if not scheme else "MLflow no longer takes plain folders"
        raise ConfigError(f"store must be {_FORMS}, got {uri!r}: {remedy}")
    return uri, scheme


def absolute_uri(uri: str | None) -> str:
    """Return the URI, or the default one, without credentials and with a relative SQLite path made absolute: workers
    have working directories of their own."""
    uri = take_credentials(uri or _DEFAULT)
    if uri.startswith("sqlite") and "///" in uri and not uri.startswith("sqlite:////"):
        head, path = uri.split("///", 1)
        if path != ":memory:":
            return f"{head}///{Path(path).absolute()}"
    return uri


def for_people(uri: str | None) -> str:
    """Return the address of a store for messages: a SQLite file by its path from here, without any credential."""
    address = censored(uri or _DEFAULT)
    file = sqlite_file(address)
    if file is None:
        return address
    return from_here(file)


def sqlite_file(uri: str) -> Path | None:
    """Return the database file of a SQLite store; None for other stores."""
    return Path(unquote(uri.split("///", 1)[1].split("?")[0])) if uri.startswith("sqlite") and "///" in uri else None


_SETTINGS = {  # against telemetry, minutes of silent retries and chatter
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # A request whose answer was lost may have been carried out: we ask again only where that does no harm.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # a line for every run of a server
    "GIT_PYTHON_REFRESH": "quiet",
}


@functools.cache
def _client(uri: str) -> "MlflowClient":
    os.environ.update({**_SETTINGS, **os.environ})  # what the user has set, stays
    logging.getLogger("alembic").setLevel(logging.WARNING)
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def _check_sqlite(uri: str) -> None:
    path = sqlite_file(uri)
    if path is None or path.name in ("", ":memory:"):
        raise ConfigError(f"store must be {_FORMS}, got {uri!r}: name a file that all trials can open")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(path, timeout=_CONNECT_S)) as connection:
            # Readers and one writer at a time without blocking each other; kept in the file for later connections.
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("BEGIN IMMEDIATE")  # fails on a read-only file, or one that is no database
            connection.rollback()
    except (OSError, sqlite3.Error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(
            f"store must be a writable SQLite file, got {shown(str(path))} ({on_a_line(reason, ECHO)}): "
            f"give one that you may write, such as {_DEFAULT}"
        ) from error


def _check_server(uri: str, scheme: str) -> None:
    """Refuse a server that does not accept a connection, within seconds, where MLflow would retry for minutes."""
    parts = urlsplit(uri)
    try:
        port = parts.port or PORTS[scheme]
        socket.create_connection((parts.hostname or "", port), timeout=_CONNECT_S).close()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"store must be a server that answers, got {uri!r} ({error}): "
            f"start it, or leave store out to use {_FOLDER}/mlflow.db"
        ) from error


_KIND = {"mlflow.experimentKind": "custom_model_development"}
"""Tag of the experiment by which MLflow's page opens on the table of runs and their metrics; without it, it asks or
guesses, and shows traces and evaluations of language models."""


def _experiment(uri: str, scheme: str, name: str) -> str:
    try:
        client = _client(uri)
        experiment = client.get_experiment_by_name(name)
    except Exception as error:
        if "out-of-date database schema" not in str(error):
            raise
        raise ConfigError(
            f"store must be of the installed MLflow's schema, got {shown(for_people(uri))} of another version's: name "
            "another store, or back this one up and migrate it, which no version undoes",
            f"mlflow db upgrade {uri}",
        ) from error
    if experiment is not None and experiment.lifecycle_stage == "deleted":
        raise ConfigError(
            f"store {shown(uri)} must not hold experiment {name!r} as deleted: run 'mlflow experiments "
            f"restore --experiment-id {experiment.experiment_id}' with MLFLOW_TRACKING_URI set to it"
        )
    if experiment is not None:
        if _KIND.items() - experiment.tags.items():  # made by an earlier version
            for tag in _KIND.items():
                client.set_experiment_tag(experiment.experiment_id, *tag)
        return experiment.experiment_id
    file = sqlite_file(uri)
    folder = Path(_FOLDER).absolute() if file is None else file.parent
    location = None if scheme.startswith("http") else (folder / "artifacts").as_uri()  # a server has its own
    try:
        return client.create_experiment(name, artifact_location=location, tags=_KIND)
    except Exception:
        experiment = client.get_experiment_by_name(name)  # another study was faster
        if experiment is None:
            raise
        return experiment.experiment_id
