"""Ray for one study: started quietly behind closed doors, or joined where RAY_ADDRESS names a cluster.

Who reaches Ray's ports runs what they like as this user. A Ray that is started here therefore listens on this machine
only and asks for a token that no file holds; a cluster must ask for one too.
"""

import contextlib
import functools
import importlib.metadata
import ipaddress
import logging
import os
import secrets
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flstudy import ray_worker
from flstudy.config import ConfigError
from flstudy.config.registry import IMPORT_ONLY
from flstudy.nursery import nursery, thread_settings
from flstudy.tuning.session import owned_session, sweep_sessions

if TYPE_CHECKING:
    from flstudy.config import Resources

_OF_STORES = ("MLFLOW_", "AWS_", "PG")  # variables that begin so say where and as whom MLflow, S3, PostgreSQL are used
_OLDEST = (2, 52)  # Ray that can ask for a token
_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # 0: Ray listens on loopback, as where firewalls ask
_ASK = """
import sys
from ray._raylet import GcsClient
GcsClient(address=sys.argv[1]).get_all_node_info(timeout=5)
print("open")
"""


@contextlib.contextmanager
def cluster(resources: "Resources") -> Iterator[None]:
    """A quiet Ray: the cluster at RAY_ADDRESS, or a local one that ends with the study."""
    for name, value in {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AIR_NEW_OUTPUT": "0",
        "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths in a config mean the same in a worker
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # no CSV, JSON and TensorBoard copies of what MLflow has
        "TUNE_DISABLE_SIGINT_HANDLER": "1",  # ours says what it does, and how to insist
        "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
        "TUNE_GLOBAL_CHECKPOINT_S": "60",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",  # without a share of a GPU a trial sees none
        "RAY_prestart_worker_first_driver": "0",  # idle workers, which Tune never takes and Ray's start waits for
    }.items():
        os.environ.setdefault(name, value)
    import ray

    mine, ending = not ray.is_initialized(), contextlib.ExitStack()
    if mine:
        _check_version()
        workers = worker_settings(resources)
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": True}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if _joins():
                _join(runtime_env={"env_vars": workers}, **quiet)
            else:
                os.environ.update({name: value for name, value in workers.items() if name not in os.environ})
                if not resources.gpu:  # a worker may see of GPUs only what its trial has
                    ending.enter_context(nursery(int(resources.cpu)))
                ending.enter_context(owned_session(_start(**quiet)))
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    try:
        _check(resources, ray.cluster_resources())
        with _mute() if mine else contextlib.nullcontext():
            yield
    finally:
        with ending:
            if mine:
                ray.shutdown()


def _joins() -> bool:
    """Whether RAY_ADDRESS names a cluster."""
    return os.environ.get("RAY_ADDRESS") not in (None, "", "local")


def _check_version() -> None:
    found = importlib.metadata.version("ray")
    if tuple(int(part) for part in found.split(".")[:2]) < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        raise ConfigError(f"ray must be >= {oldest}, which can ask for a token, got {found}: pip install --upgrade ray")


def _start(**options: Any) -> Path:
    """Start a local Ray whose servers listen on this machine only; returns the folder of its own files."""
    import ray
    from ray import _raylet
    from ray._private import ray_constants

    if "RAY_AUTH_MODE" not in os.environ:  # there may be others on this machine
        os.environ["RAY_AUTH_MODE"] = "token"
        if not os.environ.get("RAY_AUTH_TOKEN_PATH"):
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(24))  # kept: Ray reads it once in a process
        _raylet.Config.initialize("")  # type: ignore[attr-defined]  # reads the mode anew
    before, known = os.environ.get(_LOOPBACK), ray_constants.ENABLE_RAY_CLUSTER
    os.environ[_LOOPBACK], ray_constants.ENABLE_RAY_CLUSTER = "0", False  # read when ray was imported
    try:
        with _own_processes():
            started: Any = ray.init(address="local", include_dashboard=False, num_cpus=_cores(), **options)
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = known
        if before is None:
            del os.environ[_LOOPBACK]
        else:
            os.environ[_LOOPBACK] = before
    address = ray.util.get_node_ip_address()
    folder = Path(started.address_info["session_dir"])
    if not _is_loopback(address):
        ray.shutdown()
        raise ConfigError(
            f"ray must listen on this machine only, got {address}: install the version of constraints.txt"
        )
    sweep_sessions(folder.parent)
    return folder


@contextlib.contextmanager
def _own_processes() -> Iterator[None]:
    """Start Ray with our script for workers, and without the daemons that ask a cloud for machines and collect logs: a
    second of computing, and memory as long as the study lasts."""
    try:
        from ray._private import parameter

        whole = parameter.RayParams
    except (ImportError, AttributeError):  # private: another version may start them, no more
        yield
        return
    script = ray_worker.__file__
    ours = {"no_monitor": True, "include_log_monitor": False, "worker_path": script, "setup_worker_path": script}
    parameter.RayParams = functools.partial(whole, **ours)  # type: ignore
    try:
        yield
    finally:
        parameter.RayParams = whole  # type: ignore[misc]


def _is_loopback(address: str) -> bool:
    """Whether an address, with or without a port, can be reached from this machine only."""
    host = address.removeprefix("ray://").rpartition(":")[0] or address
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:  # a name
        return False


def _check_auth(address: str) -> None:
    """Raise ConfigError for a cluster on a network that is joined without a token."""
    mode = os.environ.get("RAY_AUTH_MODE", "")
    if not _is_loopback(address) and mode.lower() != "token":
        raise ConfigError(
            f"RAY_AUTH_MODE must be token for a cluster on a network, got {mode!r} for {address}: set it and the same "
            "RAY_AUTH_TOKEN for its nodes and here"
        )


def _asks_nobody(address: str) -> bool:
    """Whether a cluster answers who has no token; a driver in mode token joins such a one without a word."""
    stranger = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH_")}
    command = [sys.executable, "-c", _ASK, address]
    try:
        asked = subprocess.run(
            command, env={**stranger, "RAY_AUTH_MODE": "disabled"}, capture_output=True, timeout=60, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return asked.stdout.strip() == b"open"


def worker_settings(resources: "Resources") -> dict[str, str]:
    """The environment of workers on every machine; that of stores goes to them in another way."""
    found = {**thread_settings(max(1, int(resources.cpu))), "TUNE_FUNCTION_THREAD_TIMEOUT_S": "30"}
    return found | {name: value for name, value in os.environ.items() if name == IMPORT_ONLY}


def _join(**options: Any) -> None:
    """Connect to the cluster at RAY_ADDRESS, whose own errors fill pages and come after a minute."""
    import ray

    given = os.environ["RAY_ADDRESS"]
    _check_auth(given)
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.AuthenticationError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:60]
        raise ConfigError(
            f"RAY_ADDRESS must name a Ray cluster with a node on this machine, got {given!r} "
            f"({reason}): run 'ray start --address=...' here first, with the cluster's RAY_AUTH_TOKEN, "
            f"or unset RAY_ADDRESS"
        ) from error
    address = ray.get_runtime_context().gcs_address
    if not _is_loopback(address) and _asks_nobody(address):
        ray.shutdown()
        raise ConfigError(
            f"the cluster at {given} must ask for a token, but lets in everybody: start all its nodes with "
            "RAY_AUTH_MODE=token and one RAY_AUTH_TOKEN"
        )


@contextlib.contextmanager
def _mute() -> Iterator[None]:
    """Drop what Ray's daemons print of dead workers, whatever ``log_to_driver`` says: the study tells it in a line."""
    try:
        from ray._private import worker

        told = worker.print_to_stdstream
    except (ImportError, AttributeError):  # private: another version may print again, no more
        yield
        return
    worker.print_to_stdstream = lambda *arguments, **named: None
    try:
        yield
    finally:
        worker.print_to_stdstream = told


def store_variables() -> Any:
    """Ray's reference to the variables by which this process uses stores, for the workers of a Ray that was there
    before. They stay in memory so: Ray logs what is in a runtime environment."""
    import ray

    return ray.put({name: value for name, value in os.environ.items() if name.startswith(_OF_STORES)})


def room(resources: "Resources") -> int:
    """Trials that the machine or cluster can run side by side as it is now."""
    import ray

    has = ray.cluster_resources()
    shares = [
        has.get(name, 0.0) / wanted for name, wanted in (("CPU", resources.cpu), ("GPU", resources.gpu)) if wanted > 0
    ]
    fits = int(min(shares) + 1e-6) if shares else sys.maxsize
    return max(1, fits + _joins())  # one that waits makes a cluster grow that can


@contextlib.contextmanager
def starting(trials: int) -> Iterator[None]:
    """Let Tune start so many workers at once: with a searcher it starts one, waits for it, and starts the next."""
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
    import ray

    if ray.is_initialized():
        _check(resources, ray.cluster_resources())
    elif not _joins():
        import torch

        _check(resources, {"CPU": _cores(), "GPU": torch.cuda.device_count()})


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check(resources: "Resources", has: dict[str, float]) -> None:
    """A trial that never fits would wait for ever."""
    for name, wanted, there in (
        ("cpu", resources.cpu, has.get("CPU", 0.0)),
        ("gpu", resources.gpu, has.get("GPU", 0.0)),
    ):
        if not 0 <= wanted <= there:
            raise ConfigError(
                f"study.resources.{name} must lie in [0, {there:g}], what this machine or cluster has, "
                f"got {wanted:g}: lower it, or start Ray where there is more and set RAY_ADDRESS"
            )
