"""MLflow servers that go away and come back, and one that asks who is there."""

import base64
import contextlib
import http.server
import os
import signal
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
    started = Server(folder)
    started.start()
    try:
        yield started
    finally:
        started.kill()


class Guard:
    """A door in front of a server: lets in who has the account, and keeps what all have said at it.

    Args:
        behind: the address of the server.
        account: user and password; None lets nobody in.

    Attributes:
        address: of the door.
        heard: the headers of every request.
    """

    def __init__(self, behind: str, account: tuple[str, str] | None) -> None:
        self.behind, self.heard = behind, list[dict[str, str]]()
        self.key = account and "Basic " + base64.b64encode(":".join(account).encode()).decode()
        guard = self

        class Door(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                guard.heard.append(dict(self.headers))
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, content = 401, b"who are you?"
                if self.headers.get("Authorization") == guard.key:
                    status, content = guard.ask(self.command, self.path, body, self.headers.get("Content-Type"))
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

            def log_message(self, *arguments: Any) -> None:
                """Nothing on the terminal."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Door)
        self.host = f"127.0.0.1:{self._server.server_port}"
        self.address = f"http://{self.host}"

    def ask(self, method: str, path: str, body: bytes, kind: str | None) -> tuple[int, bytes]:
        """What the server behind says."""
        headers = {"Content-Type": kind} if kind else {}
        request = urllib.request.Request(self.behind + path, body or None, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def __enter__(self) -> "Guard":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
