"""The script of a local Ray's workers: asks the study's nursery (`flstudy.nursery`) to fork one that has its
imports behind it; where there is none it is Ray's own script. Run by path, so it imports nothing of flstudy."""

import sys

if __name__ == "__main__":
    del sys.path[0]  # this folder, whose modules have short names

import json
import os
import signal
import socket
from pathlib import Path

SOCKET = "FLSTUDY_NURSERY"  # the path of the nursery's socket
_CONTEXT, _LANGUAGE = "--serialized-runtime-env-context=", "--language="


def variables_of_runtime(arguments: list[str]) -> dict[str, str] | None:
    """Variables of the runtime environment for which Ray starts the worker; None where it asks for more than such."""
    found: dict[str, str] = {}
    for argument in arguments:
        if argument.startswith(_CONTEXT):
            context = json.loads(argument.removeprefix(_CONTEXT))
            found = {name: str(value) for name, value in (context.pop("env_vars", None) or {}).items()}
            plain = context.pop("py_executable", None) in (None, sys.executable)
            if not plain or any(context.values()):
                return None
        elif argument.startswith(_LANGUAGE) and argument.removeprefix(_LANGUAGE) not in ("PYTHON", "0"):
            return None
    return found


def ask_for_fork(arguments: list[str], variables: dict[str, str]) -> bool:
    """Whether the nursery has forked a worker with these arguments, in this process's place."""
    request = {
        "arguments": arguments,
        "variables": {**os.environ, **variables},
        "folder": os.getcwd(),
        "mask": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
    }
    content = json.dumps(request).encode()
    try:
        with socket.socket(socket.AF_UNIX) as nursery:
            nursery.settimeout(50)  # Ray waits for 60
            nursery.connect(os.environ[SOCKET])
            socket.send_fds(nursery, [len(content).to_bytes(4, "big")], [0, 1, 2])
            nursery.sendall(content)
            return nursery.recv(1) == b"f"
    except (OSError, KeyError):
        return False


def main() -> None:
    """Leave a worker behind, or become one."""
    given = [argument for argument in sys.argv[1:] if argument != __file__]  # in the place of Ray's own script
    variables, plain = variables_of_runtime(given), [one for one in given if not one.startswith((_CONTEXT, _LANGUAGE))]
    if variables is not None and ask_for_fork(plain, variables):
        return
    from ray._private import workers

    scripts = Path(workers.__file__).parent
    command = [str(scripts / "default_worker.py"), *plain]
    if given != plain:  # what Ray's own script understands is between the two
        own = [one for one in given if one not in plain]
        command = [str(scripts / "setup_worker.py"), *own, *command]
    os.execv(sys.executable, [sys.executable, *command])


if __name__ == "__main__":
    main()
