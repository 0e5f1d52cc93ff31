"""The nursery of a study's workers: what it forks, and who goes Ray's own way."""

import os
import subprocess
import sys

import pytest

from flstudy import ray_worker

GIVEN = '--serialized-runtime-env-context={"command_prefix": [], "env_vars": %s, "py_executable": "%s"}'


def test_a_runtime_environment_of_variables_is_set_here_and_any_other_one_is_ray_s_business():
    plain = GIVEN % ('{"PL_DISABLE_FORK": "1"}', sys.executable)
    assert ray_worker.variables_of_runtime(["--worker-id=1"]) == {}
    assert ray_worker.variables_of_runtime([plain, "--language=PYTHON"]) == {"PL_DISABLE_FORK": "1"}
    assert ray_worker.variables_of_runtime([plain, "--language=JAVA"]) is None
    assert ray_worker.variables_of_runtime([GIVEN % ("{}", "/another/python")]) is None
    assert ray_worker.variables_of_runtime([plain.replace("[]", '["nice"]')]) is None


def test_nobody_asks_where_there_is_no_nursery(monkeypatch, tmp_path):
    monkeypatch.delenv(ray_worker.SOCKET, raising=False)
    assert not ray_worker.ask_for_fork([], {})
    monkeypatch.setenv(ray_worker.SOCKET, str(tmp_path / "absent"))
    assert not ray_worker.ask_for_fork([], {})


@pytest.mark.end_to_end
@pytest.mark.usefixtures("ray_cluster")
def test_workers_are_forks_with_their_imports_behind_them_and_lives_of_their_own():
    import ray

    @ray.remote(num_cpus=0.1, runtime_env={"env_vars": {"OF_A_WORKER": "1"}})
    class Look:
        def around(self):
            names = {"torch", "lightning", "flstudy.tuning.worker"} & set(sys.modules)
            return os.getpid(), os.getpgid(0), os.getppid(), sorted(names), os.environ["OF_A_WORKER"]

        def die(self):
            os._exit(3)

    ones = [Look.remote() for _ in range(2)]
    for pid, group, _, names, told in (found := ray.get([one.around.remote() for one in ones])):
        assert pid == group  # Ray ends a worker's group with it
        assert names == ["flstudy.tuning.worker", "lightning", "torch"]
        assert told == "1"
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(ones[0].die.remote())
    later = Look.remote()
    assert ray.get(later.around.remote())[2] == found[0][2] == found[1][2]  # the nursery goes on


def test_a_nursery_ends_with_its_maker(monkeypatch):
    monkeypatch.delenv(ray_worker.SOCKET, raising=False)
    code = "import os; from flstudy.nursery import nursery; from flstudy.ray_worker import SOCKET\n"
    code += "with nursery(1): print(os.environ[SOCKET], flush=True)"
    path = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert path
    assert not os.path.exists(os.path.dirname(path))
