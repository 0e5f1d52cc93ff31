"""Ray for one study: started quietly, or joined where RAY_ADDRESS names a cluster."""

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flstudy.config import ConfigError
from flstudy.tuning.worker import thread_settings

if TYPE_CHECKING:
    from flstudy.config import Resources

_OF_STORES = ("MLFLOW_", "AWS_", "PG")  # variables that begin so say where and as whom MLflow, S3, PostgreSQL are used


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
    }.items():
        os.environ.setdefault(name, value)
    import ray

    mine = not ray.is_initialized()
    if mine:
        workers = {**thread_settings(max(1, int(resources.cpu))), "TUNE_FUNCTION_THREAD_TIMEOUT_S": "30"}
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": True}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if os.environ.get("RAY_ADDRESS"):
                _join(runtime_env={"env_vars": workers}, **quiet)
            else:
                os.environ.update({name: value for name, value in workers.items() if name not in os.environ})
                ray.init(address="local", include_dashboard=False, num_cpus=_cores(), **quiet)
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    try:
        _check(resources, ray.cluster_resources())
        with _mute() if mine else contextlib.nullcontext():
            yield
    finally:
        if mine:
            ray.shutdown()


def _join(**options: Any) -> None:
    """Connect to the cluster at RAY_ADDRESS, whose own errors fill pages and come after a minute."""
    import ray

    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.AuthenticationError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        raise ConfigError(
            f"RAY_ADDRESS must name a Ray cluster with a node on this machine, got {os.environ['RAY_ADDRESS']!r} "
            f"({reason}): run 'ray start --address=...' here first, with the cluster's RAY_AUTH_MODE and "
            f"RAY_AUTH_TOKEN set if it has them, or unset RAY_ADDRESS"
        ) from error


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
    return max(1, fits + bool(os.environ.get("RAY_ADDRESS")))  # one that waits makes a cluster grow that can


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
    elif not os.environ.get("RAY_ADDRESS"):
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
