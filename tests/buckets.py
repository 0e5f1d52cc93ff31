"""A server of S3 from a package, in a process of its own, and a door before it that a test closes."""

import contextlib
import http.client
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

from tests.servers import free_port

_SERVE = """
import logging, sys, time
logging.getLogger("werkzeug").setLevel(logging.ERROR)
from moto.server import ThreadedMotoServer
ThreadedMotoServer(ip_address="127.0.0.1", port=int(sys.argv[1]), verbose=False).start()
print("up", flush=True)
sys.stdin.read()
"""
ACCOUNT = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "of-the-tests", "AWS_DEFAULT_REGION": "us-east-1"}
DENIED = (403, "AccessDenied")
FULL = (507, "XMinioStorageFull")


@contextlib.contextmanager
def s3_server() -> Iterator[int]:
    """The port of a server with an empty bucket named ``bucket``."""
    port = free_port()
    with subprocess.Popen(
        [sys.executable, "-c", _SERVE, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "up\n"
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.request("PUT", "/bucket")
            assert connection.getresponse().status == 200
            connection.close()
            yield port
        finally:
            process.stdin.close()
            process.wait()


class Door:
    """What a client reaches in front of a server.

    Attributes:
        port: of the door.
        refuses: status and code of S3 with which it answers whoever writes; None lets all through.
        is_open: whether it answers anybody.
        read: names of the objects that were read.
        written: names of the objects that were written or deleted, with the method, in that order.
        sent: bytes that clients have written.
    """

    def __init__(self, behind: int) -> None:
        self.refuses: tuple[int, str] | None = None
        self.is_open = True
        self.read: list[str] = []
        self.written: list[tuple[str, str]] = []
        self.sent = 0
        door = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.content()
                writes = self.command in ("PUT", "POST", "DELETE")
                if not door.is_open:
                    self.close_connection = True
                elif writes and door.refuses is not None:
                    status, code = door.refuses
                    self.reply(status, {}, f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode())
                else:
                    self.ask(body)
                    name = self.path.partition("?")[0].removeprefix("/bucket/")
                    if self.command == "GET":
                        door.read.append(name)
                    if writes:
                        door.written.append((self.command, name))
                        door.sent += len(body)

            def content(self) -> bytes:
                """What follows the headers, as it came: chunks with their sizes where they have no length."""
                if "chunked" not in self.headers.get("Transfer-Encoding", ""):
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                received, size = b"", 1
                while size:
                    line = self.rfile.readline()
                    size = int(line.partition(b";")[0], 16)
                    received += line + (self.rfile.read(size + 2) if size else b"")
                while (line := self.rfile.readline()) != b"\r\n":
                    received += line
                return received + line

            def ask(self, body: bytes) -> None:
                """Pass the request on, and the answer back."""
                connection = http.client.HTTPConnection("127.0.0.1", behind, timeout=60)
                connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    if name.lower() != "expect":
                        connection.putheader(name, value)
                connection.endheaders(body)
                there = connection.getresponse()
                self.reply(there.status, dict(there.getheaders()), there.read())
                connection.close()

            def reply(self, status: int, headers: dict[str, str], content: bytes) -> None:
                self.send_response_only(status)
                length = headers.pop("Content-Length", "0") if self.command == "HEAD" else str(len(content))
                for name, value in {**headers, "Content-Length": length}.items():
                    if name.lower() not in ("transfer-encoding", "connection"):
                        self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content if self.command != "HEAD" else b"")

            do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = answer

            def log_message(self, *arguments: Any) -> None:
                """Nothing on the terminal."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port

    @property
    def account(self) -> dict[str, str]:
        """Variables by which a client comes through the door."""
        return {**ACCOUNT, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}"}

    def __enter__(self) -> "Door":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def environment_at(home: os.PathLike[str], door: Door) -> dict[str, str]:
    """The environment of a user at home somewhere else, with an account of the store."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "XDG_"))}
    return {
        **inherited,
        **door.account,
        "HOME": str(home),
        "XDG_CACHE_HOME": f"{home}/cache",
        "XDG_STATE_HOME": f"{home}/state",
    }
