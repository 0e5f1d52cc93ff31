"""Connection to a Ray cluster, from one of its machines or from outside of it.

The study's writer runs on the machine that has the study's folder. A machine outside of the cluster therefore joins it
for the time of the study, by `ray start`, as a node without cores or GPUs. Errors of an address are reported within
seconds; Ray's own come after a minute and fill pages.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flstudy.config import ConfigError
from flstudy.config.errors import on_a_line
from flstudy.local_ray import is_loopback, joins_cluster

OPTION = "--address"
VARIABLE = "RAY_ADDRESS"
_FORM = re.compile(r"auto|(ray://)?(\[[0-9a-fA-F:]+\]|[^\s:/\[\]]+):\d{1,5}")
_TCP_S = 5.0  # for a connection, and for the first word of the server
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # of gRPC
_SETTINGS_FRAME = 4
_ANSWER_S = 60.0  # for the answer of a cluster that has greeted
_NODE_S = 4.0  # for the connection to a node of this machine, where there is one
_START_S = 60.0  # for `ray start`, of a cluster that has answered
_PROBE_SCRIPT = """
import json, os, sys, threading
address, seconds = sys.argv[1], float(sys.argv[2])
def say(**what):
    print(json.dumps(what), flush=True)
    os._exit(0)
try:
    import ray
    threading.Timer(seconds, say, kwargs={"outside": True}).start()
    ray.init(address, log_to_driver=False, logging_level="ERROR")
    head = lambda: ray.get_runtime_context().gcs_address
    say(head=ray.get(ray.remote(num_cpus=0)(head).remote()) if address.startswith("ray://") else head())
except BaseException as error:
    say(reason=f"{type(error).__name__}: {error}")
"""
_NODE_SCRIPT = """
import signal, subprocess, sys, threading
node = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
threading.Thread(target=lambda: (sys.stdin.read(), node.terminate()), daemon=True).start()
sys.exit(node.wait())
"""  # the node ends when nobody holds the other end of the pipe, however the driver ended


class ClusterPlace(NamedTuple):
    """Place of a cluster.

    Attributes:
        head: the address of its head, as its nodes know it.
        inside: whether this machine is one of its nodes.
    """

    head: str
    inside: bool


def cluster_address() -> str | None:
    """Return the address that a user has given; None: a study starts a Ray of its own."""
    return os.environ[VARIABLE] if joins_cluster() else None


def check_address(address: str) -> None:
    """Raise ConfigError for an address of no known form."""
    if not _FORM.fullmatch(address):
        raise ConfigError(
            f"{OPTION} must be auto, HOST:PORT of a Ray cluster's head, or ray://HOST:PORT, got {address!r}: "
            "ray start --head says it"
        )


def check_answers(address: str) -> None:
    """Raise ConfigError where there is nobody at an address."""
    check_address(address)
    host = address.removeprefix("ray://")
    if address != "auto" and (reason := unreachable_reason(host)) is not None:
        raise ConfigError(f"nobody answers at {address} ({reason}): give the address that 'ray start --head' printed")


def check_token(address: str) -> None:
    """Raise ConfigError for a cluster on a network that is joined without a token."""
    mode = os.environ.get("RAY_AUTH_MODE", "")
    if not is_loopback(address) and mode.lower() != "token":
        raise ConfigError(
            f"RAY_AUTH_MODE must be token for a cluster on a network, got {mode!r} for {address}: set it and the same "
            "RAY_AUTH_TOKEN for its nodes and here"
        )


def find_cluster(address: str) -> ClusterPlace:
    """Find the place of the cluster at an address.

    Raises:
        ConfigError: in one sentence, for nobody there, another Ray or Python, a token that is not the cluster's, and a
            cluster that asks for none.
    """
    check_token(address)
    check_answers(address)
    if address == "auto":
        answer = _probe(address)
        if "head" not in answer:
            raise ConfigError(
                f"{OPTION} auto needs a node of a Ray cluster on this machine, and none answers: give the cluster's "
                "HOST:PORT, or run 'ray start --address=HOST:PORT --num-cpus=0' here first"
            )
        place = ClusterPlace(answer["head"], inside=True)
    else:
        place = _find_cluster_at(_head_of_client_server(address) if address.startswith("ray://") else address)
    if not is_loopback(place.head):
        check_token(place.head)
        if _lets_in_everybody(place.head):
            raise ConfigError(
                f"the cluster at {address} must ask for a token, but lets in everybody: start all its nodes with "
                "RAY_AUTH_MODE=token and one RAY_AUTH_TOKEN"
            )
    return place


def _find_cluster_at(head: str) -> ClusterPlace:
    until = time.monotonic() + _ANSWER_S
    with _run_status(head, os.environ) as process:
        answer = _probe(head)
        if "head" not in answer and (refusal := _refusal(head, process, until)) is not None:
            raise refusal
    return ClusterPlace(head, inside="head" in answer)


def unreachable_reason(address: str) -> str | None:
    """Return the reason why no server of Ray's kind is at a host and port; None where one is, which greets at once,
    however busy this machine is."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _TCP_S) as connection:
            if os.environ.get("RAY_USE_TLS", "0") != "0":  # it waits for another greeting
                return None
            connection.sendall(_GREETING)
            greeted = connection.recv(9)
    except TimeoutError:
        return f"not within {_TCP_S:g} s"
    except (OSError, OverflowError) as error:
        return on_a_line(str(error), 60)
    return None if greeted[3:4] == bytes([_SETTINGS_FRAME]) else "it is another kind of server"


def _head_of_client_server(address: str) -> str:
    """Return the address of the head that a Ray Client server belongs to."""
    answer = _probe(address)
    if "head" not in answer:
        reason = answer.get("reason", "no answer")
        install = ": pip install 'ray[client]', or" if "grpc" in reason or "ImportError" in reason else ":"
        raise ConfigError(
            f"{address} is no Ray Client server ({on_a_line(reason, 80)}){install} give HOST:PORT of the head"
        )
    head: str = answer["head"]
    if (reason := unreachable_reason(head)) is not None:
        raise ConfigError(
            f"the head behind {address} is {head}, which cannot be reached from here ({reason}), so that this machine "
            "cannot be a node: run the study on the cluster, 'ray job submit -- flstudy tune ...', with a study.folder "
            "that stays"
        )
    return head


def _probe(address: str) -> dict[str, Any]:
    """Return the answer of a process that connects to an address as a driver does.

    Its key is ``head``, ``outside`` where this machine has no node, or ``reason``; it is empty where none came.
    """
    seconds = _ANSWER_S if address.startswith("ray://") else _NODE_S
    command = [sys.executable, "-c", _PROBE_SCRIPT, address, str(seconds)]
    hidden = (VARIABLE, "RAY_JOB_CONFIG_JSON_ENV_VAR")  # else it would be a part of the job that this process is
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    try:
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_START_S, check=False
        )
    except subprocess.TimeoutExpired:
        return {}
    lines = [line for line in done.stdout.decode().splitlines() if line.startswith("{")]
    return dict(json.loads(lines[-1])) if lines else {}


def ray_command() -> str:
    """Return the program `ray` of this Python."""
    return str(Path(sys.executable).with_name("ray"))


@contextlib.contextmanager
def _run_status(head: str, environment: Any) -> Iterator["subprocess.Popen[str]"]:
    """Run `ray status`, which needs no node on this machine, beside the block."""
    command = [ray_command(), "status", f"--address={head}"]
    process = subprocess.Popen(
        command, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _refusal(head: str, process: "subprocess.Popen[str]", until: float) -> ConfigError | None:
    """Return the error that says why `ray status` was refused; None where it was answered."""
    try:
        output = process.communicate(timeout=max(0.1, until - time.monotonic()))[0]
    except subprocess.TimeoutExpired:
        return ConfigError(f"what listens at {head} does not answer as a Ray cluster: give the address of its head")
    if process.returncode == 0:
        return None
    return ConfigError(join_refusal(head, output))


def join_refusal(head: str, output: str) -> str:
    """Return one sentence on why a cluster cannot be joined, from Ray's pages of output."""
    versions = re.findall(r"^ +(Ray|Python): (\S+)", output, re.MULTILINE)
    if "Version mismatch" in output and len(versions) == 4:
        there, here = (" and ".join(" ".join(pair) for pair in pairs) for pairs in (versions[:2], versions[2:]))
        return f"the cluster at {head} has {there}, this machine {here}: install the same on all nodes and here"
    if "uthenticat" in output or "InvalidAuthToken" in output:
        return f"the cluster at {head} does not take the token: set RAY_AUTH_MODE=token and its nodes' RAY_AUTH_TOKEN"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return f"the cluster at {head} cannot be joined ({on_a_line(lines[-1] if lines else 'no word', 120)})"


def _lets_in_everybody(head: str) -> bool:
    """Return whether a cluster answers without a token; a driver in mode token joins such a one without a word."""
    stranger = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH_")}
    with _run_status(head, {**stranger, "RAY_AUTH_MODE": "disabled"}) as process:
        try:
            process.communicate(timeout=_START_S)
        except subprocess.TimeoutExpired:
            return False
        return process.returncode == 0


@contextlib.contextmanager
def join_as_node(place: ClusterPlace) -> Iterator[None]:
    """Make this machine a node of the cluster for the time of the block, unless it is a node already.

    Raises:
        ConfigError: where this machine cannot be a node.
    """
    if place.inside:
        yield
        return
    command = [ray_command(), "start", f"--address={place.head}", "--num-cpus=0", "--num-gpus=0"]
    with _run_node([*command, "--disable-usage-stats", "--block"], place.head):
        yield


@contextlib.contextmanager
def _run_node(command: Sequence[str], head: str) -> Iterator[None]:
    """Run `ray start` for the time of the block; it ends with this process, too."""
    environment = os.environ | {"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"}  # nothing runs there but the writer
    with tempfile.TemporaryFile("a+") as log:
        holder = subprocess.Popen(
            [sys.executable, "-c", _NODE_SCRIPT, *command],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the study
        )
        try:
            until = time.monotonic() + _START_S
            while "Ray runtime started" not in (output := _read(log)):
                if holder.poll() is not None:
                    raise ConfigError(join_refusal(head, output))
                if time.monotonic() > until:
                    raise ConfigError(f"{' '.join(command[1:])!r} did not end within {_START_S:g} s: try it by hand")
                time.sleep(0.1)
            yield
        finally:
            assert holder.stdin is not None
            holder.stdin.close()
            try:
                holder.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(holder.pid, signal.SIGKILL)
                holder.wait()


def _read(file: Any) -> str:
    file.seek(0)
    return str(file.read())
