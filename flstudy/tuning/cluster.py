"""Ray for one study: started quietly behind closed doors, or joined where an address names a cluster.

Anybody who reaches Ray's ports can run any code as this user. A Ray that is started here therefore listens on this
machine only and asks for a token that no file holds; a cluster must ask for one too.
"""

import concurrent.futures
import contextlib
import logging
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from flstudy.config import ConfigError
from flstudy.config.registry import IMPORT_ONLY
from flstudy.local_ray import (
    QUIET,
    SETTINGS,
    check_ray_version,
    check_sockets,
    close_doors,
    joins_cluster,
    owned_session,
    start_local_ray,
)
from flstudy.tuning import nodes, own_files
from flstudy.tuning.address import ClusterPlace, check_answers, cluster_address, find_cluster, join_as_node
from flstudy.tuning.fork_server import fork_server
from flstudy.tuning.resources import check_fit, check_local, refuse_none, trials_that_fit

if TYPE_CHECKING:
    from flstudy.config import Resources

_OF_STORES = ("MLFLOW_", "AWS_", "PG")  # prefixes of the variables by which MLflow, S3 and PostgreSQL are used
_S3_FILE = "AWS_SHARED_CREDENTIALS_FILE"
_S3_KEYS = {
    "AWS_ACCESS_KEY_ID": "aws_access_key_id",
    "AWS_SECRET_ACCESS_KEY": "aws_secret_access_key",
    "AWS_SESSION_TOKEN": "aws_session_token",
    "AWS_SECURITY_TOKEN": "aws_session_token",
}
"""The names of keys in the environment, and in a file."""
_SETTINGS = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths in a config mean the same in a worker
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # no CSV, JSON and TensorBoard copies of what MLflow has
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # ours says what it does, and how to insist
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "TUNE_GLOBAL_CHECKPOINT_S": "60",
}
_started_ahead: "concurrent.futures.Future[contextlib.ExitStack | ClusterPlace] | None" = None
"""The local Ray that starts, or the way to a cluster that is looked for, while the command line imports."""


class UserModules(NamedTuple):
    """The user's own modules.

    Attributes:
        folder: where they lie.
        modules: those that a study's config names.
    """

    folder: str
    modules: tuple[str, ...]


@contextlib.contextmanager
def start_ray_ahead(resources: "Resources") -> Iterator[None]:
    """Start a local Ray, or look for the cluster at the user's address, in the background while the block runs.

    `cluster` takes over the result; a local Ray that no study has taken is shut down when the block ends.

    Raises:
        ConfigError: where nobody answers at that address.
    """
    global _started_ahead
    if "ray" in sys.modules:
        yield
        return
    with _convert_value_errors():
        check_ray_version()
    address = cluster_address()
    if address is not None:
        check_answers(address)
    with concurrent.futures.ThreadPoolExecutor(1) as aside:
        _started_ahead = aside.submit(_start, resources) if address is None else aside.submit(find_cluster, address)
        try:
            yield
        finally:
            started, _started_ahead = _started_ahead, None
            if started is not None and address is None:  # nobody wanted it
                with contextlib.suppress(Exception):
                    local_ray: Any = started.result()
                    local_ray.close()


@contextlib.contextmanager
def cluster(
    resources: "Resources", modules: UserModules | None = None, say: Callable[[str], None] = lambda line: None
) -> Iterator[None]:
    """Run a quiet Ray for a study: the cluster at the user's address, or a local one that ends with the study.

    Args:
        resources: of a trial.
        modules: modules that the nodes of a cluster must be able to import; those of the folder travel there.
        say: called with a line for the user.

    Raises:
        ConfigError: in one sentence, for a cluster that cannot be joined, nodes that cannot take trials, and resources
            that no node has.
    """
    global _started_ahead
    started, _started_ahead = _started_ahead, None
    ready: Any = None if started is None else started.result()
    _prepare()
    import ray

    owns_ray, address, ending = ready is not None or not ray.is_initialized(), cluster_address(), contextlib.ExitStack()
    with ending:
        if owns_ray:
            with _convert_value_errors():
                check_ray_version()
            if address is None:
                ending.enter_context(ready or _start(resources))
            else:
                place = ready or find_cluster(address)
                ending.enter_context(join_as_node(place))
                _join(place, address, resources, modules or UserModules("", ()))
                ending.callback(ray.shutdown)
        logging.getLogger("ray").setLevel(logging.CRITICAL)
        check_fit(resources, [node.resources for node in nodes.alive_nodes()], say)
        if owns_ray and address is not None and modules is not None:
            nodes.check_nodes(modules.modules, [modules.folder], say)
        with contextlib.redirect_stdout(_WithoutRay(sys.stdout)) if owns_ray else contextlib.nullcontext():
            yield


def _prepare() -> None:
    """Set Ray's environment variables, some of which it reads when it is imported."""
    if not joins_cluster():
        close_doors()
    os.environ.update({**SETTINGS, **_SETTINGS, **os.environ})


def _start(resources: "Resources") -> contextlib.ExitStack:
    """Start a local Ray for a study; the stack that is returned ends it, its fork server, and the folder of its files.

    Where trials have GPUs there is no fork server: its imports may ask for GPUs before a worker knows its own.
    """
    _prepare()
    environment = worker_settings(resources)
    with contextlib.ExitStack() as started:
        python = None if resources.gpu else started.enter_context(fork_server(environment))
        with _convert_value_errors():
            started.enter_context(owned_session(start_local_ray(environment, python)))
        import ray

        started.callback(ray.shutdown)
        return started.pop_all()


@contextlib.contextmanager
def _convert_value_errors() -> Iterator[None]:
    """Turn the ValueError for a Ray that is refused into a ConfigError, which the user can mend."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(str(error)) from error


def thread_settings(threads: int) -> dict[str, str]:
    """Return the environment variables of a worker's threads: trials side by side must not fight for cores."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    return dict.fromkeys(names, str(max(1, threads)))


def worker_settings(resources: "Resources") -> dict[str, str]:
    """Return the environment variables of workers on every machine, without those of stores (`store_variables`)."""
    settings = {**thread_settings(max(1, int(resources.cpu))), "TUNE_FUNCTION_THREAD_TIMEOUT_S": "30"}
    return settings | {name: value for name, value in os.environ.items() if name == IMPORT_ONLY}


def _join(place: ClusterPlace, address: str, resources: "Resources", modules: UserModules) -> None:
    """Connect to a cluster, with the user's own files in its runtime environment."""
    import ray

    environment: dict[str, Any] = {"env_vars": worker_settings(resources)}
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if own_files.any_imported_from(Path(modules.folder), modules.modules):
            environment["py_modules"] = [str(own_files.collect_files(Path(modules.folder), Path(scratch)))]
        try:
            ray.init(place.head, runtime_env=environment, **QUIET)
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.AuthenticationError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:60]
            raise ConfigError(
                f"the Ray cluster at {address} cannot be joined ({reason}): see flstudy doctor --address {address}"
            ) from error


class _WithoutRay:
    """Standard output without the lines that Ray's own threads print of dead workers, which the study tells itself."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text, unless a thread of Ray's prints it; returns its length."""
        return len(text) if threading.current_thread().name.startswith("ray_") else int(self._stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def store_variables() -> dict[str, str]:
    """Return the variables by which this process uses stores, for the study's writer alone. As an argument they stay in
    memory: Ray logs what is in a runtime environment."""
    return {name: value for name, value in os.environ.items() if name.startswith(_OF_STORES)}


@contextlib.contextmanager
def s3_keys_in_a_file() -> Iterator[None]:
    """Keep this process's keys of S3 in a file in place of its environment.

    Only its user reads that file, which is gone with the process. Ray Tune hands keys in the environment to the workers
    of every node, where Ray logs them.
    """
    keys = {name: os.environ[name] for name in _S3_KEYS if name in os.environ}
    if not keys or not joins_cluster() or not hasattr(os, "memfd_create"):
        yield
        return
    file, before = os.memfd_create("credentials"), os.environ.get(_S3_FILE)
    profile = os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE") or "default"
    lines = [f"[{profile}]", *(f"{_S3_KEYS[name]} = {value}" for name, value in keys.items())]
    os.write(file, "\n".join(lines).encode())
    for name in keys:
        del os.environ[name]
    os.environ[_S3_FILE] = f"/proc/{os.getpid()}/fd/{file}"
    try:
        yield
    finally:
        del os.environ[_S3_FILE]
        os.environ |= keys if before is None else {**keys, _S3_FILE: before}
        os.close(file)


def max_concurrent_trials(resources: "Resources") -> int:
    """Return the largest number of trials that may run side by side now: at least one, and on a cluster one more than
    fit."""
    fits = trials_that_fit(resources, [node.resources for node in nodes.alive_nodes()])
    return max(1, fits + joins_cluster())  # one that waits makes a cluster grow that can


@contextlib.contextmanager
def set_max_pending_trials(trials: int) -> Iterator[None]:
    """Let Tune start this many workers at once while the block runs.

    By default, with a searcher, it starts one worker, waits for it, and starts the next.
    """
    name = "TUNE_MAX_PENDING_TRIALS_PG"
    before = os.environ.get(name)
    os.environ[name] = before or str(trials)
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]


def check_resources(resources: "Resources") -> None:
    """Raise ConfigError, before Ray starts, for a trial that this machine cannot hold; a cluster is asked later."""
    refuse_none(resources)
    _prepare()  # before Ray is imported
    import ray

    if not ray.is_initialized() and not joins_cluster():
        with _convert_value_errors():
            check_sockets()
        import torch

        check_local(resources, torch.cuda.device_count())
