"""Optuna's dashboard on a study, for this machine only.

For a study that runs, the dashboard reads the journal that its driver writes, and so follows it. For any other it shows
a history made of the study's list of trials and records, in which every trial has its curve. It cannot write to either:
the study's own files are its truth.
"""

import contextlib
import json
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import optuna
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage
from optuna.storages.journal import BaseJournalBackend

from flstudy.config import ConfigError
from flstudy.study import Domain, Space, StudyFolder, StudyResults, Trial, load_study
from flstudy.tracking.ui import HOST, check_port
from flstudy.tuning.search import frozen_trial

PORT = 8080


class JournalReader(BaseJournalBackend):
    """Reader of a journal that another process writes."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
        """Return the entries from a number on; a line that is not whole yet belongs to the next call."""
        with self._path.open(encoding="utf-8") as file:
            return [json.loads(line) for line in list(file)[log_number_from:] if line.endswith("\n")]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Refuse to write."""
        raise PermissionError(f"{self._path} is written by its study only")


def serve_dashboard(folder: StudyFolder, port: int = PORT) -> None:
    """Show a study in Optuna's dashboard until Ctrl-C.

    Raises:
        ConfigError: where the dashboard is not installed, or the port is taken.
        UserError: where there is no such study.
    """
    try:
        from optuna_dashboard import wsgi
    except ModuleNotFoundError as error:
        raise ConfigError(
            "flstudy dashboard needs 'optuna-dashboard', which is an extra: pip install 'flstudy[dashboard]'"
        ) from error
    check_port(port)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    results = load_study(folder)
    with make_server(HOST, port, wsgi(storage_of(results)), handler_class=_Quiet) as server:
        print(f"{results.name} at http://{HOST}:{port}/dashboard/ (Ctrl-C ends)", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


def storage_of(results: StudyResults) -> BaseStorage:
    """Return a study's history in Optuna's form: the whole study, and each method's part where there are several."""
    folder = results.folder
    if folder.busy_message() is not None and folder.journal.is_file():
        return JournalStorage(JournalReader(folder.journal))
    storage, domains = InMemoryStorage(), Space.of_study(results.section).widest()
    names = list(dict.fromkeys(trial.algorithm for trial in results.searched))
    for name in [None, *(names if len(names) > 1 else [])]:
        title = results.name if name is None else f"{results.name} {name}"
        study = optuna.create_study(
            storage=storage,
            study_name=title,
            directions=["maximize" if objective.higher else "minimize" for objective in results.objectives],
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.set_metric_names([objective.metric for objective in results.objectives])
        study.add_trials(
            [_frozen(results, domains, t) for t in results.searched if t.is_over and name in (None, t.algorithm)]
        )
    return storage


def _frozen(results: StudyResults, domains: Mapping[str, Domain], trial: Trial) -> optuna.trial.FrozenTrial:
    """Return a trial with its curve, which is the objective's mean over replicas."""
    point = {key: Domain.parameter(value) for key, value in trial.overrides.items() if key in domains}
    curve: Mapping[int, float] = {}
    with contextlib.suppress(ValueError, OSError):  # no records, or damaged ones, or another metric
        rounds, values = results.curve(trial, results.objective.metric)
        curve = dict(zip(rounds.tolist(), values.mean(0).tolist(), strict=True))
    return frozen_trial(trial, point, domains, results.goals, curve)


class _Quiet(WSGIRequestHandler):
    """Handler of requests that leaves no line on the terminal."""

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing."""
