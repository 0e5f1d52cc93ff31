"""Real Ray nodes on this machine that see no more of each other than machines do: each has an address of its own, its
own processes (a PID namespace) and empty folders in the place of those that it must not see (a mount namespace)."""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.servers import free_port

RAY = str(Path(sys.executable).with_name("ray"))
ALONE = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
"""Runs a command as on a machine of its own; whoever kills it kills all that it started."""
ROOT = Path(__file__).parents[2]


def can_unshare() -> bool:
    """Whether this user may make namespaces."""
    return shutil.which("unshare") is not None and not subprocess.run([*ALONE, "true"], capture_output=True).returncode


def hiding(folders: Sequence[Path]) -> str:
    """A shell's words that put empty folders in the place of others, before the command that follows."""
    return "".join(f"mount -t tmpfs none {folder} && " for folder in folders) + 'exec "$@"'


class Raylets:
    """A cluster: a head without cores, and nodes of one core.

    Args:
        folder: a short path, for Ray's sockets.
        hidden: folders that the nodes do not see, but the head and drivers do.
    """

    def __init__(self, folder: Path, hidden: Sequence[Path] = ()) -> None:
        self.hidden, self.nodes = hidden, list[subprocess.Popen[bytes]]()
        self._of = dict[int, subprocess.Popen[bytes]]()
        self._waiting = list[tuple[subprocess.Popen[bytes], Path]]()
        self.address = f"127.0.0.2:{free_port()}"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self.environment = inherited | {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(16),
            "RAY_TMPDIR": str(folder),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
            "RAY_prestart_worker_first_driver": "0",
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
        }

    def head(self, *options: str, command: Sequence[str] = (RAY,)) -> None:
        """Start the head."""
        place = ["--head", f"--port={self.address.rpartition(':')[2]}", "--node-ip-address=127.0.0.2", "--num-cpus=0"]
        self._start([*ALONE, *command, "start", *place, "--include-dashboard=false", *options], "head")
        self.wait()

    def node(self, number: int, *options: str, **environment: str) -> None:
        """Start the node at 127.0.0.NUMBER, of one core, with further variables of the environment."""
        place = [f"--address={self.address}", f"--node-ip-address=127.0.0.{number}", "--num-cpus=1"]
        # Nodes that share Ray's folder remove each other's copies of the user's files when they end.
        shell = ["sh", "-c", hiding([*self.hidden, Path(self.environment["RAY_TMPDIR"])]), "sh"]
        self._start([*ALONE, *shell, RAY, "start", *place, *options], str(number), **environment)
        self._of[number] = self.nodes[-1]

    def drain(self, number: int) -> None:
        """What Kubernetes and Slurm do to a node: SIGTERM to its `ray start`, the first process of its namespace."""
        below = self._of[number].pid
        os.kill(int(Path(f"/proc/{below}/task/{below}/children").read_text().split()[0]), signal.SIGTERM)

    def _start(self, command: Sequence[str], log: str, **environment: str) -> None:
        log_path = Path(self.environment["RAY_TMPDIR"], f"{log}.txt")
        with log_path.open("wb") as file:
            self.nodes.append(
                subprocess.Popen(
                    [*command, "--block", "--object-store-memory=100000000", "--disable-usage-stats"],
                    env=self.environment | environment,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                )
            )
        self._waiting.append((self.nodes[-1], log_path))

    def wait(self) -> None:
        """Wait until the nodes that were started are there."""
        until = time.monotonic() + 300
        for node, log_path in self._waiting:
            while "Ray runtime started" not in log_path.read_text():
                if node.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(log_path.read_text()[-2000:])
                time.sleep(0.1)
        self._waiting.clear()

    def kill(self, number: int) -> None:
        """End the node at 127.0.0.NUMBER with all of its processes, at once."""
        self._of[number].kill()
        self._of[number].wait()

    def places_of(self, words: Sequence[str]) -> tuple[list[str], int]:
        """Where on the nodes one of some words stands: environments and command lines of their processes, and files of
        Ray; with the number of places looked at."""
        ours, parents = {node.pid for node in self.nodes}, dict[int, int]()
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        places, sessions = [], {0: Path(self.environment["RAY_TMPDIR"])}  # of the head; and by node
        for pid in parents:
            above = pid
            while above in parents and above not in ours:
                above = parents[above]
            if above in ours:
                places += [Path(f"/proc/{pid}/environ"), Path(f"/proc/{pid}/cmdline")]
                sessions[above] = Path(f"/proc/{pid}/root{sessions[0]}")
        for session in sessions.values():
            with contextlib.suppress(OSError):  # of a process that has ended meanwhile
                places += [path for path in session.rglob("*") if path.is_file() and not path.is_symlink()]
        return [str(path) for path in places if any(word in _text(path) for word in words)], len(places)

    def close(self) -> None:
        """End all nodes."""
        for node in reversed(self.nodes):
            node.kill()
            node.wait()


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""


@contextlib.contextmanager
def raylets(folder: Path, hidden: Sequence[Path] = (), numbers: Sequence[int] = (3, 4)) -> Iterator[Raylets]:
    """A head and nodes, which are gone in the end."""
    cluster = Raylets(folder, hidden)
    try:
        cluster.head()
        for number in numbers:
            cluster.node(number)
            cluster.wait()  # beside others, on a machine with other work on it, one did not start within Ray's 30 s
        yield cluster
    finally:
        cluster.close()
