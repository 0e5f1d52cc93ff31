"""Workers that are forked with their imports behind them, and those that import by themselves."""

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from flstudy.tuning import ray_worker
from flstudy.tuning.fork_server import fork_server, forks_well

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has safe forks")
STATE = """
import json, os, sys, numpy
print(json.dumps({
    "same": [__name__, sys.argv, os.getcwd(), dict(os.environ)],
    "draw": float(numpy.random.uniform()),
    "leads_group": os.getpgid(0) == os.getpid(),
    "imported": [name for name in ("flstudy.tuning.worker", "lightning", "ray", "torch") if name in sys.modules],
}))
print("to stderr", file=sys.stderr)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "worker.py"
    path.write_text(STATE)
    return path


def state_of(command, script, folder):
    """Return what a command's worker tells of itself, which is a fork where the server answers."""
    environment = {**os.environ, "OF_A_WORKER": "1"}
    done = subprocess.run(
        [*command, str(script), "--flag"], capture_output=True, text=True, check=True, cwd=folder, env=environment
    )
    assert done.stderr.startswith("to stderr\n")  # libraries may say more at the end
    return json.loads(done.stdout)


@pytest.mark.slow
def test_a_fork_is_the_process_that_asked_but_for_its_imports(script, tmp_path):
    plain = state_of([sys.executable], script, tmp_path)
    with fork_server({"OMP_NUM_THREADS": "1"}) as python:
        forks = [state_of(shlex.split(python), script, tmp_path) for _ in range(2)]
    assert plain["imported"] == []
    for fork in forks:
        assert fork["same"] == plain["same"]
        assert fork["imported"] == ["flstudy.tuning.worker", "lightning", "torch"]
        assert fork["leads_group"]  # Ray ends a worker's whole group with it
    assert forks[0]["draw"] != forks[1]["draw"]


def test_a_worker_imports_by_itself_where_there_is_no_server(script, tmp_path):
    command = [sys.executable, "-P", ray_worker.__file__, str(tmp_path / "absent")]
    alone, plain = state_of(command, script, tmp_path), state_of([sys.executable], script, tmp_path)
    assert alone["same"] == plain["same"]
    assert alone["imported"] == []


def test_a_process_with_a_thread_of_its_own_forks_no_worker():
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        assert not forks_well()
    finally:
        end.set()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("stop", ["end", "kill"])
def test_a_server_ends_with_the_process_that_started_it(stop):
    code = "from flstudy.tuning.fork_server import fork_server\n"
    code += "with fork_server({}) as python: print(python, flush=True); input()"
    starter = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    socket_path = Path(shlex.split(starter.stdout.readline())[-1])
    server = next(int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if named_in(path, socket_path))
    if stop == "kill":
        starter.send_signal(signal.SIGKILL)
    starter.communicate("\n")
    until = time.monotonic() + 60  # a server that still imports looks afterwards
    while Path("/proc", str(server)).exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path("/proc", str(server)).exists()
    assert not socket_path.parent.exists()


def named_in(command_line, socket_path):
    """Return whether a process's command line, a file of /proc, names the folder of a socket."""
    try:
        return str(socket_path.parent).encode() in command_line.read_bytes().split(b"\0")
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_workers_of_a_study_s_ray_are_forks():
    import ray

    @ray.remote(num_cpus=0.1)
    class Worker:
        def imported(self):
            return os.getppid(), sorted({"torch", "lightning", "flstudy.tuning.worker"} & set(sys.modules))

        def die(self):
            os._exit(3)

    workers = [Worker.remote() for _ in range(2)]
    parents, imports = zip(*ray.get([worker.imported.remote() for worker in workers]), strict=True)
    assert imports == (["flstudy.tuning.worker", "lightning", "torch"],) * 2
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(workers[0].die.remote())
    assert {*parents} == {ray.get(Worker.remote().imported.remote())[0]}  # the server goes on


def test_ray_and_the_fork_server_start_before_torch_is_imported():
    code = "import sys; import flstudy.tuning.cluster, flstudy.tuning.fork_server\n"
    code += "assert not {'torch', 'lightning', 'ray'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True)
