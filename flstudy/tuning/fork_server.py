"""Server that forks the workers of a local Ray from one process, which has imported what a trial needs.

Importing takes every worker six seconds of a core and hundreds of megabytes, of which forks share what they do not
change. The server opens no device and does not import Ray, which reads at its import whose worker it is. It ends with
the process that started it, however that ends. Workers that it cannot serve import by themselves.
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PRELOADED = ("flstudy.config.config", "flstudy.tuning.worker")
"""Modules that the server imports: what a trial begins with."""
_FORKS_WELL = "jemalloc_bg_thd"  # a thread of pyarrow's allocator, which starts it anew in a fork
_REQUEST_S = 10  # for a request to arrive in full


@contextlib.contextmanager
def fork_server(environment: Mapping[str, str]) -> Iterator[str | None]:
    """Run a fork server while the block runs; yield the command with which Ray starts its workers in place of Python's,
    or None where the system has no safe forks.

    Args:
        environment: variables of the workers, some of which libraries read when they are imported.
    """
    if sys.platform != "linux":
        yield None
        return
    with contextlib.ExitStack() as ending:
        folder = tempfile.mkdtemp(prefix="flstudy-")  # of this user alone
        ending.callback(shutil.rmtree, folder, ignore_errors=True)
        path = str(Path(folder, "workers"))
        import_path = os.pathsep.join(place or os.getcwd() for place in sys.path)  # as of this process
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(128)
            server = subprocess.Popen(
                [sys.executable, "-P", __file__, str(listener.fileno()), folder],
                env={**os.environ, **environment, "PYTHONPATH": import_path},
                stdin=subprocess.PIPE,  # the system closes it when this process ends
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
                start_new_session=True,  # Ctrl-C is for this process
            )
        ending.enter_context(server)
        ending.callback(server.kill)
        worker = Path(__file__).with_name("ray_worker.py")
        yield shlex.join([sys.executable, "-P", str(worker), path])


def main(listener: socket.socket, folder: str) -> None:
    """Import what a trial needs, and fork a worker for each request until the parent process has ended.

    Args:
        listener: socket to which the requests come.
        folder: of the socket, which is removed when the parent was killed.
    """
    for name in PRELOADED:
        importlib.import_module(name)
    if not forks_well():
        return
    gc.collect()
    gc.freeze()  # a collection would change, and so copy, what was imported
    request = fork_on_request(listener)
    listener.close()
    if request is None:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        become_worker(request)


def forks_well() -> bool:
    """Return whether a fork of this process lacks no thread: libraries that take care of forks stop theirs before."""
    if (child := os.fork()) == 0:
        os.kill(os.getpid(), signal.SIGKILL)  # without the handlers that run at an exit
    os.waitpid(child, 0)
    threads = [Path("/proc/self/task", number, "comm").read_text().strip() for number in os.listdir("/proc/self/task")]
    return len(threads) - threads.count(_FORKS_WELL) == 1


def fork_on_request(listener: socket.socket) -> dict[str, Any] | None:
    """Fork for every request (`flstudy.tuning.ray_worker.ask_for_fork`); returns the request in the fork, and None when
    the parent process has ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for workers that end
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            return None
        with contextlib.suppress(OSError, ValueError):
            client, _ = listener.accept()
            with client:
                client.settimeout(_REQUEST_S)
                request, streams = receive_request(client)
                if os.fork() == 0:
                    os.setsid()  # Ray ends a worker's whole group with it
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for number, stream in enumerate(streams):
                        os.dup2(stream, number)
                        os.close(stream)
                    return request
                for stream in streams:
                    os.close(stream)
                client.sendall(b"f")


def receive_request(client: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return a request, and the descriptors of its three standard streams.

    Raises:
        OSError: for a client that went away, or does not send all.
    """
    size, streams, _, _ = socket.recv_fds(client, 4, 3)
    content = b""
    while len(content) < int.from_bytes(size, "big"):
        part = client.recv(1 << 16)
        if not part:
            raise ConnectionError("the client went away")
        content += part
    return json.loads(content), streams


def become_worker(request: Mapping[str, Any]) -> None:
    """Run the Python script of a request as the main module, with the request's environment and folder."""
    import numpy as np

    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    np.random.seed()  # noqa: NPY002  # else all forks would draw the same from NumPy's global generator
    sys.argv = request["command"]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
