"""The pages' address; the pages themselves are asked in the tests of whole studies."""

import socket
import subprocess
import sys
import urllib.request

import pytest

from flstudy.config import ConfigError
from flstudy.tracking.ui import check_port, serve_ui
from tests.waiting import LIMIT_S


def test_a_taken_port_is_refused_with_another():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port must be free on 127.0.0.1, got {port} .* or use {port + 1}"):
            check_port(port)


def test_a_port_outside_the_range_is_refused():
    with pytest.raises(ConfigError, match=r"port must lie in \[1, 65535\], got 70000"):
        check_port(70000)


def test_a_server_that_does_not_answer_is_refused():
    with pytest.raises(ConfigError, match="store must be a server that answers"):
        serve_ui("http://127.0.0.1:9")


@pytest.mark.slow
def test_the_server_ends_with_the_command(tmp_path):
    """By SIGTERM too: a server whose command was ended would keep the port and the store."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "flstudy.cli", "ui", "--port", str(port)]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        assert f"http://127.0.0.1:{port}" in process.stdout.readline()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=LIMIT_S) as answer:
            assert answer.status == 200
        process.terminate()
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
