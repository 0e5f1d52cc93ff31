"""MLflow servers that go away and come back."""

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

from flstudy.tracking.ui import mlflow_server


def free_port() -> int:
    """One on which nothing listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """An MLflow server on a SQLite file, at the same address whenever it runs."""

    def __init__(self, folder: Path) -> None:
        self.backend = f"sqlite:///{folder}/mlflow.db"
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self._stack = contextlib.ExitStack()

    def start(self) -> None:
        """Answers when this returns."""
        _, self.process = self._stack.enter_context(mlflow_server(self.backend, self.port))

    def kill(self) -> None:
        """Gone at once, with its workers: what was under way gets no answer."""
        with contextlib.suppress(ProcessLookupError):  # it is gone already
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._stack.close()

    def freeze(self) -> None:
        """Takes connections and says nothing."""
        os.killpg(self.process.pid, signal.SIGSTOP)


@contextlib.contextmanager
def server(folder: Path) -> Iterator[Server]:
    """Started, and gone in the end."""
    made = Server(folder)
    made.start()
    try:
        yield made
    finally:
        made.kill()
