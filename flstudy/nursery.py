"""Workers of a local Ray that are forked from one process which has imported what a trial needs.

Importing takes seconds of a core for every worker, and hundreds of megabytes, of which forks share all but what they
change. The nursery's process has one thread, opens no device and does not import Ray; it ends with the process that
made it, however that ends. Whoever cannot be served starts in Ray's own way, only later.
"""

import contextlib
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # not this folder, whose modules have short names

from flstudy.ray_worker import SOCKET

NEEDED = (
    *("flstudy.config.config", "flstudy.tuning.worker"),  # to begin a trial
    *("torch._dynamo", "mlflow.store.tracking.sqlalchemy_store"),  # torch's gradients under vmap, and the trial's run
)
_FORKS_WELL = "jemalloc_bg_thd"  # a thread of pyarrow's allocator, which starts it anew in a fork


def thread_settings(threads: int) -> dict[str, str]:
    """Environment of a worker: trials side by side must not fight for cores."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    return dict.fromkeys(names, str(max(1, threads)))


@contextlib.contextmanager
def nursery(threads: int) -> Iterator[None]:
    """A nursery for the workers of a Ray that is started meanwhile, if there is none yet.

    Args:
        threads: of a trial, which libraries ask for when they are imported.
    """
    if SOCKET in os.environ:
        yield
        return
    with contextlib.ExitStack() as ending:
        folder = tempfile.mkdtemp(prefix="flstudy-")  # nobody else's
        ending.callback(shutil.rmtree, folder, ignore_errors=True)
        path = str(Path(folder, "workers"))
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(128)
            process = subprocess.Popen(
                [sys.executable, __file__, str(listener.fileno()), folder],
                env={**thread_settings(threads), **os.environ},
                stdin=subprocess.PIPE,  # closed when this process ends
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
                start_new_session=True,  # Ctrl-C is the driver's
            )
        ending.callback(_end_nursery, process)
        os.environ[SOCKET] = path
        ending.callback(os.environ.pop, SOCKET, None)
        yield


def _end_nursery(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    assert process.stdin is not None
    process.stdin.close()


def fork_for_whoever_asks(listener: socket.socket) -> dict[str, Any] | None:
    """Fork for everybody who asks; returns the request in the fork, None when the maker has ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for workers that end
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            return None
        with contextlib.suppress(OSError, ValueError):
            asked, _ = listener.accept()
            with asked:
                asked.settimeout(10)
                size, files, _, _ = socket.recv_fds(asked, 4, 3)
                content = b""
                while len(content) < int.from_bytes(size, "big"):
                    content += asked.recv(1 << 16) or b"\0"
                request: dict[str, Any] = json.loads(content)
                if os.fork() == 0:
                    os.setsid()  # Ray ends a worker's whole group with it
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for place, file in enumerate(files):
                        os.dup2(file, place)
                        os.close(file)
                    return request
                for file in files:
                    os.close(file)
                asked.sendall(b"f")


def become_worker(request: dict[str, Any]) -> None:
    """Be the worker of Ray's that was asked for."""
    import runpy

    import numpy as np

    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["variables"])
    signal.pthread_sigmask(signal.SIG_SETMASK, request["mask"])
    np.random.seed()  # noqa: NPY002  # NumPy's own generator would draw the same in all workers
    from ray._private import workers  # Ray reads, when it is imported, whose worker this is

    script = Path(workers.__file__).parent / "default_worker.py"
    sys.path[0] = str(script.parent)
    sys.path.append(str(Path(__file__).parents[1]))
    sys.argv = [str(script), *request["arguments"]]
    runpy.run_path(str(script), run_name="__main__")


def main() -> None:
    """The nursery's life, and that of its workers."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    from flstudy.lean import import_lightning

    import_lightning()
    for name in NEEDED:
        importlib.import_module(name)
    threads = [Path("/proc/self/task", number, "comm").read_text().strip() for number in os.listdir("/proc/self/task")]
    if len(threads) - threads.count(_FORKS_WELL) > 1:
        return  # a fork would lack the others
    gc.collect()
    gc.freeze()  # looking through what was imported would copy it
    request = fork_for_whoever_asks(listener)
    listener.close()
    if request is None:
        shutil.rmtree(sys.argv[2], ignore_errors=True)
    else:
        become_worker(request)


if __name__ == "__main__":
    main()
