"""Who can reach Ray, what its workers are told, what a user is told where there is no cluster, and what is left."""

import contextlib
import functools
import http.server
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
import ray

from flstudy.config import ConfigError
from flstudy.config.sections import Resources
from flstudy.local_ray import is_loopback, owned_session, sweep_sessions
from flstudy.tuning.address import check_address, find_cluster, join_refusal
from flstudy.tuning.cluster import check_resources, cluster
from tests.servers import free_port

from ..processes import family


@pytest.mark.parametrize("mode", ["", "disabled"])
def test_a_cluster_on_a_network_is_joined_with_a_token_only(monkeypatch, mode):
    monkeypatch.setattr(ray, "init", lambda **options: pytest.fail("joined"))
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    with pytest.raises(ConfigError, match=f"RAY_AUTH_MODE must be token .* got '{mode}'"), cluster(Resources()):
        pass


@pytest.mark.parametrize("address", ["head", "head:", "http://head:6379", "ray://head", "10.0.0.1:port", "a b:1"])
def test_an_address_of_no_known_form_is_refused(address):
    with pytest.raises(ConfigError, match="must be auto, HOST:PORT of a Ray cluster's head, or ray://HOST:PORT, got"):
        check_address(address)


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_that_nobody_answers_is_told(scheme):
    address = f"{scheme}127.0.0.1:{free_port()}"
    with pytest.raises(ConfigError, match=rf"nobody answers at {address} \(.*Connection refused\)"):
        find_cluster(address)


def long_folder(place, length):
    """A folder below a place, whose path has so many bytes."""
    folder = place / ("d" * (length - len(str(place)) - 1))
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"TMPDIR": 50}, r"TMPDIR must be a folder whose path has at most \d+ bytes, .* of 50: set RAY_TMPDIR=/tmp"),
        ({"TMPDIR": 95}, r"TMPDIR must be a folder whose path has at most 75 bytes, .* of 95: set TMPDIR=/tmp"),
        ({"TMPDIR": 95, "RAY_TMPDIR": 0}, r"TMPDIR must be .* of 95: set TMPDIR=/tmp"),
        ({"RAY_TMPDIR": 60}, r"RAY_TMPDIR must be a folder .* of 60: set RAY_TMPDIR=/tmp"),
        ({"TMPDIR": 50, "RAY_TMPDIR": 0}, None),
        ({"TMPDIR": 30}, None),
    ],
)
def test_folders_that_are_too_long_for_sockets_are_named(variables, message, monkeypatch):
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(tempfile, "tempdir", None)  # which Python finds once
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        for name, length in variables.items():
            monkeypatch.setenv(name, str(long_folder(Path(place), length)) if length else "/tmp")
        with contextlib.nullcontext() if message is None else pytest.raises(ConfigError, match=message):
            check_resources(Resources())


@pytest.mark.slow
def test_the_longest_folder_that_is_taken_holds_rays_sockets():
    program = "import ray; from flstudy.config import Resources; from flstudy.tuning.cluster import cluster\n"
    program += "with cluster(Resources()): print(ray.get(ray.remote(lambda: 7).remote()))"
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        folder = long_folder(Path(place), 39)  # of a process whose number has seven digits
        environment = {name: value for name, value in os.environ.items() if name != "RAY_TMPDIR"}
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, env=environment | {"TMPDIR": str(folder)}, capture_output=True, text=True)
    assert done.stdout.strip() == "7", done.stderr


@pytest.mark.slow
def test_a_server_that_says_nothing_is_told():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ConfigError, match=rf"nobody answers at {address} \(not within 5 s\)"):
            find_cluster(address)


@pytest.mark.slow
def test_a_server_of_another_kind_is_told(tmp_path):
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{web.server_port}"
        with pytest.raises(ConfigError, match=rf"nobody answers at {address} \(it is another kind of server\)"):
            find_cluster(address)
        web.shutdown()


def test_pages_of_rays_become_a_sentence():
    error_text = """Traceback
RuntimeError: Version mismatch: The cluster was started with:
    Ray: 2.55.0
    Python: 3.12.1
This process on 10.0.0.7 was started with:
    Ray: 2.60.0
    Python: 3.11.2
"""
    assert join_refusal("head:1", error_text).startswith(
        "the cluster at head:1 has Ray 2.55.0 and Python 3.12.1, this machine Ray 2.60.0 and Python 3.11.2: install"
    )
    assert "does not take the token" in join_refusal("head:1", "ray.exceptions.AuthenticationError: RPC error")
    assert join_refusal("head:1", "one\ntwo\n") == "the cluster at head:1 cannot be joined (two)"


def test_a_ray_that_knows_no_token_is_refused(monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.51.1")
    with pytest.raises(ConfigError, match=r"ray must be >= 2.52, .* got 2.51.1"), cluster(Resources()):
        pass


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        *[("127.0.0.1:6379", True), ("[::1]:6379", True), ("localhost:1", True), ("ray://127.0.0.2:1", True)],
        *[("auto", False), ("head:6379", False), ("10.0.0.1:6379", False), ("127.0.0.1.example:1", False)],
    ],
)
def test_loopback_is_told_from_a_network(address, loopback):
    assert is_loopback(address) is loopback


def listening(pids: set[int]) -> dict[str, str]:
    """Where TCP sockets of processes listen, as the kernel writes it: address by port, both in hexadecimal."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                inodes.add(os.readlink(link))
            except OSError:
                continue
    address_by_port = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            row = line.split()
            if row[3] == "0A" and f"socket:[{row[9]}]" in inodes:
                address, _, port = row[1].rpartition(":")
                address_by_port[port] = address
    return address_by_port


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="only Linux tells it so")
@pytest.mark.usefixtures("ray_cluster")
def test_ray_listens_on_loopback_only():
    @ray.remote
    def worker() -> set[int]:
        time.sleep(1)
        return {os.getpid()}

    waiting = worker.remote()
    pids = ray.get(waiting) | family(os.getpid())
    addresses = listening(pids)
    assert len(addresses) >= 4  # GCS, raylet, the driver, a worker
    # 127.0.0.1, also as IPv4 within IPv6, and ::1, in the order of bytes of this machine
    loopback = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    assert set(addresses.values()) <= loopback


def session(home: Path, name: str) -> Path:
    """What Ray leaves."""
    folder = home / f"session_{name}"
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "raylet.out").write_text("said")
    return folder


def test_a_folder_of_rays_goes_with_its_study_and_others_stay(tmp_path):
    strange, held = session(tmp_path, "strange"), session(tmp_path, "held")
    dead = session(tmp_path, "dead")
    (dead / "flstudy.lock").touch()  # nobody holds it
    elsewhere = session(tmp_path / "elsewhere", "kept")
    (elsewhere / "flstudy.lock").touch()
    (tmp_path / "session_link").symlink_to(elsewhere)
    (tmp_path / "session_latest").symlink_to(held)
    with owned_session(held):
        sweep_sessions(tmp_path)
        assert not dead.exists()
        assert (held / "logs" / "raylet.out").exists()
    assert not held.exists()
    assert not (tmp_path / "session_latest").is_symlink()
    assert strange.exists()
    assert elsewhere.exists()


@pytest.fixture
def short_path():
    """A folder for Ray, whose sockets have names of at most 107 bytes; pytest's own are longer beside other workers."""
    with tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as path:
        yield Path(path)


PROGRAM = """
import faulthandler, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite that a script runs in the background ignores Ctrl-C
from flstudy.config import Resources
from flstudy.tuning.cluster import cluster
with cluster(Resources()):
    faulthandler.dump_traceback_later(60)  # where it stands, should Ctrl-C not end it
    print("started", flush=True)
    while True:  # a signal between the line above and a long sleep would only be seen at that one's end
        time.sleep(0.2)
"""


@pytest.mark.slow
def test_nothing_of_ray_is_left_after_ctrl_c_nor_after_the_study_that_follows_a_kill(short_path):
    home = short_path
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"RAY_TMPDIR": str(home), "RAY_worker_niceness": "0"}

    def started() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "started\n"
        return process

    def sessions() -> list[Path]:
        return [path for path in home.glob("**/session_*") if path.is_dir() and not path.is_symlink()]

    first = started()
    killed = sessions()
    assert len(killed) == 1
    first.kill()
    first.wait()
    second = started()
    assert len(sessions()) == 1
    assert sessions() != killed
    second.send_signal(signal.SIGINT)
    try:
        second.wait(70)
    except subprocess.TimeoutExpired:
        second.kill()
        pytest.fail(f"Ctrl-C does not end it: {second.communicate()[1]}")
    assert sessions() == []
