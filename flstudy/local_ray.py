"""Local Ray that listens on this machine only and asks for a token, and the folder in which it keeps its files.

Whoever reaches Ray's ports can run any code as this user. A Ray that is started here therefore listens on this machine
only and asks for a token that no file holds.

The folder of its logs and sockets goes when the Ray ends. The driver holds a lock on a file of its own there, which
the kernel releases however the driver ends. What a driver that was killed has left behind goes with the next Ray that
is started: a folder with such a file and no lock. Folders without one, those of other users and those of clusters stay.
"""

import contextlib
import fcntl
import importlib.metadata
import ipaddress
import logging
import os
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from flstudy.process_state import usable_cores
from flstudy.user_error import UserError

QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": True}
_OLDEST = (2, 52)  # Ray that can ask for a token
_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # 0: Ray listens on loopback, as where firewalls ask
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # read when Ray is imported
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",  # without a share of a GPU a worker sees none
    "RAY_prestart_worker_first_driver": "0",  # idle workers, which nobody takes and Ray's start waits for
}
_NAME = "flstudy.lock"


def joins_cluster() -> bool:
    """Return whether RAY_ADDRESS names a cluster."""
    return os.environ.get("RAY_ADDRESS") not in (None, "", "local")


def check_ray_version() -> None:
    """Raise UserError for a Ray that cannot ask for a token."""
    installed = importlib.metadata.version("ray")
    if tuple(int(part) for part in installed.split(".")[:2]) < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        raise UserError(
            f"ray must be >= {oldest}, which can ask for a token, got {installed}: pip install --upgrade ray"
        )


def close_doors() -> None:
    """Set the environment variables, some of them read when Ray is imported, that keep a Ray on this machine."""
    if "RAY_AUTH_MODE" not in os.environ:  # there may be others on this machine
        if not os.environ.get("RAY_AUTH_TOKEN_PATH"):
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(24))  # kept: Ray reads it once in a process
        if "ray" not in sys.modules:  # where it is, a new enough one asks for tokens by itself
            os.environ["RAY_AUTH_MODE"] = "token"
    if "ray" not in sys.modules:
        os.environ.setdefault(_LOOPBACK, "0")
    os.environ.update({**SETTINGS, **os.environ})


def check_sockets() -> None:
    """Raise UserError where a folder for temporary files has so long a path that the system takes no socket below it,
    neither Ray's nor those between Python's processes."""
    most = (104 if sys.platform == "darwin" else 108) - 1  # bytes of a socket's path
    session = f"/ray/session_2000-01-01_00-00-00_000000_{os.getpid()}/sockets/plasma_store"
    ray_variable = "RAY_TMPDIR" if "RAY_TMPDIR" in os.environ else "TMPDIR"
    places = [
        ("TMPDIR", tempfile.gettempdir(), "/pymp-00000000/listener-00000000", "TMPDIR"),
        (ray_variable, os.environ.get(ray_variable, ""), session, "RAY_TMPDIR"),
    ]
    for name, folder, below, shorter in places:
        length = len(os.fsencode(folder))
        if length + len(below) > most:
            raise UserError(
                f"{name} must be a folder whose path has at most {most - len(below)} bytes, since sockets lie below "
                f"it, got {folder!r} of {length}: set {shorter}=/tmp"
            )


def start_local_ray(environment: Mapping[str, str], python: str | None = None) -> Path:
    """Start a local Ray whose servers listen on this machine only, and ask for a token; returns the folder of its own
    files, for `owned_session`.

    Args:
        environment: variables of its workers.
        python: command that starts its workers in place of Python's.

    Raises:
        UserError: where Ray is too old, was imported by somebody who let it listen to others, or finds no room for the
            paths of its sockets.
    """
    check_ray_version()
    check_sockets()
    close_doors()
    import ray

    logging.getLogger("ray").setLevel(logging.CRITICAL)
    workers: dict[str, Any] = {"env_vars": dict(environment)}
    if python is not None:
        workers["py_executable"] = python
    settings: dict[str, Any] = {"include_dashboard": False, "num_cpus": usable_cores(), **QUIET}
    with tempfile.TemporaryDirectory() as empty:
        # Else Ray would put this process's current folder and its script's before all packages of a worker.
        workers["working_dir"] = empty
        # No warnings.catch_warnings, which is of all threads: another one imports meanwhile, under filters of its own.
        started: Any = ray.init(address="local", runtime_env=workers, **settings)
    folder = Path(started.address_info["session_dir"])
    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    mode = os.environ.get("RAY_AUTH_MODE")
    if not is_loopback(address) or mode is None:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
        raise UserError(
            f"ray must listen on this machine only and ask for a token, got {address} and RAY_AUTH_MODE={mode}: set "
            f"{_LOOPBACK}=0 and RAY_AUTH_MODE=token before Ray is imported, or start a Ray of your own with ray.init"
        )
    sweep_sessions(folder.parent)
    return folder


def is_loopback(address: str) -> bool:
    """Return whether an address, with or without a port, can be reached from this machine only."""
    host = address.removeprefix("ray://").rpartition(":")[0] or address
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:  # a name
        return False


@contextlib.contextmanager
def owned_session(folder: Path) -> Iterator[None]:
    """Hold the folder of a Ray that was started here, and remove it in the end, when Ray is down."""
    hidden = folder / f"{_NAME}.tmp"
    with hidden.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        hidden.rename(folder / _NAME)  # locked before anybody finds it
        try:
            yield
        finally:
            _remove(folder)


def sweep_sessions(home: Path) -> None:
    """Remove the folders of Rays whose drivers are dead."""
    for folder in home.glob("session_*"):
        with contextlib.suppress(OSError):  # another one sweeps, or holds it
            if _is_mine(folder, stat.S_ISDIR) and _is_mine(folder / _NAME, stat.S_ISREG):
                with (folder / _NAME).open() as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(folder)


def _is_mine(path: Path, kind: Callable[[int], bool]) -> bool:
    """Return whether a path is of a kind, no link, and this user's."""
    status = path.lstat()
    return kind(status.st_mode) and status.st_uid == os.getuid()


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    latest = folder.parent / "session_latest"
    with contextlib.suppress(OSError):
        if os.readlink(latest) == str(folder):
            latest.unlink()
