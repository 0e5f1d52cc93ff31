"""The Python of a study's Ray workers: it asks the fork server (`flstudy.tuning.fork_server`) for a worker that has its
imports behind it, and where it gets none it runs Ray's command itself.

Run by its path, with the path of the server's socket and then Ray's command. It imports nothing of flstudy.
"""

import json
import os
import socket
import sys
from collections.abc import Sequence

_WAIT_S = 50  # for a server that still imports; Ray waits for a worker for 60


def ask_for_fork(path: str, command: Sequence[str]) -> bool:
    """Ask the server at a socket for a fork that runs a Python command with this process's environment, folder and
    streams; return whether there is one."""
    request = {"command": list(command), "environment": dict(os.environ), "folder": os.getcwd()}
    content = json.dumps(request).encode()
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.settimeout(_WAIT_S)
            server.connect(path)
            socket.send_fds(server, [len(content).to_bytes(4, "big")], [0, 1, 2])
            server.sendall(content)
            return server.recv(1) == b"f"
    except OSError:
        return False


if __name__ == "__main__" and not ask_for_fork(sys.argv[1], sys.argv[2:]):
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
