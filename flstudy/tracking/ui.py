"""MLflow's own pages on a store, for this machine only."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

from flstudy.config import ConfigError
from flstudy.tracking.content import STUDY_ID
from flstudy.tracking.pages import absolute, charts_page, study_key, table_page
from flstudy.tracking.store import Store, absolute_uri, open_store
from flstudy.tracking.views import log_views, studies_view

HOST = "127.0.0.1"
PORT = 5000
_START_S = 120.0  # on a busy machine MLflow takes a minute to import


def serve_ui(store: str | None = None, port: int = PORT, *, say: Callable[[str], None] = print) -> None:
    """Show the store's studies until Ctrl-C; of a store that is a server already, only say where it is.

    Raises ConfigError for a store that cannot be opened and for a port that is taken.
    """
    uri = absolute_uri(store)
    if uri.startswith(("http://", "https://")):
        _say_pages(open_store(uri), uri, say)
        return
    if threading.current_thread() is threading.main_thread():  # before there is a server, which would be left behind
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # unwinds, so that the server's workers end too
    with mlflow_server(uri, port) as (address, process):
        _say_pages(open_store(uri), address, say)
        say("Ctrl-C ends")
        with contextlib.suppress(KeyboardInterrupt):
            process.wait()


def _say_pages(store: Store, address: str, say: Callable[[str], None]) -> None:
    """Say where all studies are, and where the latest one is."""
    log_views(store, studies_view())
    say(f"All studies: {absolute(address, table_page(store.experiment_id))}")
    for run in store.client.search_runs([store.experiment_id], "tags.`flstudy.kind` = 'study'", max_results=1):
        for name, page in study_pages(store, run.data.tags[STUDY_ID], address).items():
            say(f"{name} of {run.info.run_name}: {page}")


def study_pages(store: Store, study_id: str, address: str = "") -> dict[str, str]:
    """Return the addresses of a study's table and charts, by what they show. Without an ``address`` of a server they
    are those of `flstudy ui`."""
    if not address:
        address = store.uri if store.uri.startswith(("http://", "https://")) else f"http://{HOST}:{PORT}"
    key = study_key(study_id)
    pages = {"Trials": table_page(store.experiment_id, key), "Charts": charts_page(store.experiment_id, key)}
    return {name: absolute(address, page) for name, page in pages.items()}


@contextlib.contextmanager
def mlflow_server(uri: str, port: int = PORT) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """An MLflow server on the store, as (address, process), once it answers; ended afterwards."""
    check_port(port)
    open_store(uri)  # made here, where an error is one sentence
    address = f"http://{HOST}:{port}"
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri, "--host", HOST]
    command += ["--port", str(port), "--workers", "1"]
    # Without MLflow's job runner: seven more processes that import MLflow, for evaluations of language models.
    environment = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
    with tempfile.TemporaryFile() as output:
        # A group of its own, so that Ctrl-C reaches only us and the server's workers end with it.
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)
        try:
            if not _answers(address, process):
                output.seek(0)
                last = (output.read().decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
                raise ConfigError(
                    f"the MLflow server must answer at {address} within {_START_S:g} s, got {last!r}: "
                    f"run {' '.join(['mlflow', *command[3:]])!r} to see more"
                )
            yield address, process
        finally:
            _end(process)


def check_port(port: int) -> None:
    """Raise ConfigError where nothing can listen on the port."""
    if not 1 <= port <= 65535:
        raise ConfigError(f"port must lie in [1, 65535], got {port}: {PORT} is usual")
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
    except OSError as error:
        raise ConfigError(
            f"port must be free on {HOST}, got {port} ({error.strerror}): stop what listens there, or use {port + 1}"
        ) from error


def _answers(address: str, process: "subprocess.Popen[bytes]") -> bool:
    until = time.monotonic() + _START_S
    while time.monotonic() < until and process.poll() is None:
        with (
            contextlib.suppress(OSError, urllib.error.URLError),
            urllib.request.urlopen(f"{address}/health", timeout=2),
        ):
            return True
        time.sleep(0.2)
    return False


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Ask the server's group to end, and insist after a while."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
            return
