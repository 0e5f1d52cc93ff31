"""The pages' address; the pages themselves are asked in the tests of whole studies."""

import socket

import pytest

from flstudy.config import ConfigError
from flstudy.tracking.ui import check_port, serve


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
        serve("http://127.0.0.1:9")
