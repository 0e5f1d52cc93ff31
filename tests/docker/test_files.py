"""The Dockerfile and the compose files: pinned, unprivileged, closed to other machines, in line with the project."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import flstudy
from tests.waiting import LIMIT_S, wait_until

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION = flstudy.__version__
PINNED = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
ON_RAY = ("ray-head", "ray-worker", "study")
SECRETS = {"POSTGRES_PASSWORD": "pass-word", "S3_SECRET_KEY": "secret-key", "RAY_TOKEN": "token"}
GPU = ("compose.yaml", "compose.gpu.yaml")


def compose(name: str) -> dict[str, Any]:
    return yaml.safe_load((DOCKER / name).read_text())


SERVICES: dict[str, dict[str, Any]] = compose("compose.yaml")["services"]


def instructions() -> list[tuple[str, str]]:
    """(word, rest) of every instruction of the Dockerfile, with continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE, flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line.strip()]


def stages() -> dict[str, list[tuple[str, str]]]:
    """The instructions of every stage by its name, those of the stages it starts from first."""
    by_name: dict[str, list[tuple[str, str]]] = {}
    name = ""
    for word, rest in instructions():
        if word == "FROM":
            base, name = re.fullmatch(r"(\S+) AS (\S+)", rest).groups()  # type: ignore[union-attr]
            by_name[name] = list(by_name.get(base, []))
        elif name:
            by_name[name].append((word, rest))
    return by_name


def default(text: str) -> str:
    """A value as compose reads it where the environment has nothing for it."""
    return re.sub(r"\$\{\w+:?-([^}]*)\}", r"\1", text)


def test_the_trial_of_the_images_reads_every_service_whole() -> None:
    """`docker/try_images.py` takes images, commands, environment, volumes and rights from compose.yaml."""
    spec = importlib.util.spec_from_file_location("try_images", DOCKER / "try_images.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["try_images"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    engine = module.Engine(Path("storage"), "vfs", SECRETS)
    assert set(module.LOOPBACK) == set(SERVICES)
    for name, service in SERVICES.items():
        command = engine.command(name)
        assert "$" not in " ".join(command), name
        assert ("--cap-drop=ALL" in command) == ("cap_drop" in service), name
        assert "--security-opt=no-new-privileges" in command, name
        assert sum(option.startswith("--volume=") for option in command) == len(service.get("volumes", [])), name
    assert f"--env=RAY_AUTH_TOKEN={SECRETS['RAY_TOKEN']}" in engine.command("ray-head")


def test_base_images_are_pinned_to_a_patch_version() -> None:
    arguments = dict(rest.split("=", 1) for word, rest in instructions() if word == "ARG")
    bases = [rest.split()[0] for word, rest in instructions() if word == "FROM"]
    outer = [base for base in bases if base not in stages()]
    assert outer == ["python:${PYTHON}"]
    assert re.fullmatch(r"\d+\.\d+\.\d+-slim-\w+", arguments["PYTHON"])
    tested = re.search(r"CPython (\d+\.\d+)", (ROOT / "constraints.txt").read_text())
    assert tested is not None
    assert arguments["PYTHON"].startswith(f"{tested[1]}.")


def test_images_of_services_are_pinned() -> None:
    images = f"flstudy:{VERSION}", f"flstudy-server:{VERSION}"
    for name, service in SERVICES.items():
        image, tag = default(service["image"]).rsplit(":", 1)
        assert re.search(r"\d+\.\d+", tag), name
        assert f"{image}:{tag}" in images or "build" not in service, name
        assert image.count("/") <= 1, f"{name} names a registry"
    assert default(compose("compose.gpu.yaml")["x-cuda"]["image"]) == f"flstudy:{VERSION}-cuda"


def test_every_package_has_its_version_from_the_constraints() -> None:
    installs = re.findall(r"pip install ([^&\n]*)", re.sub(r"\\\n", " ", DOCKERFILE))
    assert len(installs) == 4
    for line in installs:
        exact = re.findall(r"([\w-]+)==(\S+)", line)
        assert exact or "--constraint constraints.txt" in line or "--no-deps" in line, line
        for name, version in exact:
            assert PINNED.get(name, version) == version, line
    server = [name.strip("'") for name in next(line for line in installs if "mlflow" in line).split()[2:]]
    serve = [re.split(r"[<>=]", need)[0] for need in PROJECT["optional-dependencies"]["serve"]]
    assert sorted(server) == sorted(["mlflow", *serve])
    assert {name.split("[")[0] for name in server} | {"psycopg-binary"} <= set(PINNED)
    assert "'.[study,serve,cluster]'" in DOCKERFILE


@pytest.mark.parametrize("target", ["study", "server"])
def test_what_runs_has_no_privileges(target: str) -> None:
    users = [rest for word, rest in stages()[target] if word == "USER"]
    assert users[-1:] == ["10001:10001"]
    commands = [rest for word, rest in stages()[target] if word == "RUN" and "useradd" in rest]
    assert re.search(r"--uid 10001 .*researcher$", commands[0])


def test_the_server_says_how_it_is() -> None:
    words = [word for word, _ in stages()["server"]]
    assert "HEALTHCHECK" in words
    assert "/health" in DOCKERFILE
    for name in ("database", "artifacts", "ray-head", "ray-worker"):
        assert "test" in SERVICES[name]["healthcheck"], name


def test_copied_files_are_there() -> None:
    for word, rest in instructions():
        if word == "COPY" and "--from" not in rest:
            for source in [part for part in rest.split() if not part.startswith("--")][:-1]:
                assert (ROOT / source).exists(), source
    assert os.access(DOCKER / "make_bucket.py", os.X_OK)


def test_ports_are_published_on_this_machine_only() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert list(published) == ["mlflow"]
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)
    assert not any("network_mode" in service or "privileged" in service for service in SERVICES.values())


def test_stores_are_out_of_the_studies_reach() -> None:
    assert compose("compose.yaml")["networks"]["stores"] == {"internal": True}
    for name in ("database", "artifacts", "bucket"):
        assert SERVICES[name]["networks"] == ["stores"]
    for name in ON_RAY:
        assert "networks" not in SERVICES[name]


def test_passwords_come_from_the_environment() -> None:
    for name, service in SERVICES.items():
        for key, value in service.get("environment", {}).items():
            if re.search("PASSWORD|SECRET|TOKEN", key):
                assert re.fullmatch(r"\$\{\w+:\?.+\}", value), f"{name}: {key}"
        assert "PASSWORD" not in str(service.get("command")), name  # any user of the machine can list commands


def test_studies_and_ray_share_the_image_and_the_driver_has_the_folder() -> None:
    for key in ("image", "build", "shm_size"):
        first = SERVICES["study"][key]
        assert all(SERVICES[name][key] == first for name in ON_RAY), key
    assert [name for name in ON_RAY if "volumes" in SERVICES[name]] == ["study"]
    gpu = compose("compose.gpu.yaml")["services"]
    assert set(gpu) == set(ON_RAY)
    assert len({service["image"] for service in gpu.values()}) == 1
    folder = default(SERVICES["study"]["volumes"][0]).split(":")[1]
    workdir = next(rest for word, rest in stages()["study"] if word == "WORKDIR" and "flstudy" in rest)
    assert folder == f"{workdir}/studies"


def test_services_wait_for_what_they_need() -> None:
    for name, service in SERVICES.items():
        for needed, how in service.get("depends_on", {}).items():
            expected = "service_completed_successfully" if needed == "bucket" else "service_healthy"
            assert how == {"condition": expected}, f"{name} on {needed}"
    head = int(re.search(r"--port=(\d+)", str(SERVICES["ray-head"]["command"]))[1])  # type: ignore[index]
    assert SERVICES["study"]["environment"]["RAY_ADDRESS"] == f"ray-head:{head}"
    assert f"--address=ray-head:{head}" in SERVICES["ray-worker"]["command"]


def test_what_can_be_set_is_in_the_example() -> None:
    text = "".join((DOCKER / name).read_text() for name in ("compose.yaml", "env.example"))
    used = set(re.findall(r"\$\{(\w+)", (DOCKER / "compose.yaml").read_text())) - {"FLSTUDY_IMAGE"}
    listed = set(re.findall(r"^(?:# )?([A-Z]\w+)=", text, re.MULTILINE))
    assert used == listed
    assert subprocess.run(["git", "check-ignore", "-q", "docker/.env"], cwd=ROOT, check=False).returncode == 0


def client() -> list[str] | None:
    """A compose client of the specification; the first generation (1.x) is no more and knows no `name`."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]):
            asked = subprocess.run([*command, "version", "--short"], capture_output=True, text=True, check=False)
            if asked.returncode == 0 and re.match(r"v?([2-9]|\d\d)\.", asked.stdout):
                return command
    return None


def config(files: tuple[str, ...], profile: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = client()
    if command is None:
        pytest.skip("no compose client of version 2 or later is installed")
    named = [part for name in files for part in ("--file", str(DOCKER / name))]
    return subprocess.run(
        [*command, *named, "--profile", profile, "config"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **environment},
    )


@pytest.mark.parametrize("profile", ["cluster", "study"])
@pytest.mark.parametrize("files", [("compose.yaml",), GPU])
def test_a_compose_client_takes_them(files: tuple[str, ...], profile: str) -> None:
    done = config(files, profile, SECRETS)
    assert done.returncode == 0, done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    images = {services[name]["image"] for name in ("ray-head", "ray-worker")}
    assert images == {f"flstudy:{VERSION}{'-cuda' if len(files) > 1 else ''}"}
    assert SECRETS["POSTGRES_PASSWORD"] == services["mlflow"]["environment"]["PGPASSWORD"]


@pytest.mark.parametrize("missing", sorted(SECRETS))
def test_a_compose_client_asks_for_a_missing_password(missing: str, tmp_path: Path) -> None:
    done = config(("compose.yaml",), "study", {name: value for name, value in SECRETS.items() if name != missing})
    assert done.returncode != 0
    assert missing in done.stderr


def test_a_ray_job_of_kuberay_has_the_image_and_its_ray() -> None:
    job, claim = yaml.safe_load_all((DOCKER / "cluster" / "rayjob.yaml").read_text())
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["rayVersion"] == PINNED["ray"]
    assert cluster["authOptions"] == {"mode": "token"}
    head, *groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    assert head["rayStartParams"]["num-cpus"] == "0"
    for group in (head, *groups):
        pod = group["template"]["spec"]
        assert pod["securityContext"]["runAsUser"] == 10001
        (container,) = pod["containers"]
        assert container["image"] == f"flstudy:{VERSION}"
        assert ("volumeMounts" in container) == (group is head)  # the driver writes, and nobody else
    (volume,) = (entry for entry in head["template"]["spec"]["volumes"] if "persistentVolumeClaim" in entry)
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    command = job["spec"]["entrypoint"].split()
    assert command[:2] == ["flstudy", "tune"]
    assert {"--address", "--study.folder", "--store"} < set(command)


SLURM = """#!/bin/sh
case $(basename "$0") in
hostname) case "$*" in *address*) echo 127.0.0.1 ;; *) echo first ;; esac ;;
ray) echo "ray $*" >>calls; case "$*" in *--block*) trap 'exit 0' TERM; while :; do sleep 0.1; done ;; esac ;;
srun) echo "srun $*" >>calls; trap 'exit 0' TERM; while :; do sleep 0.1; done ;;
flstudy)
    echo "flstudy $*" >>calls
    trap 'echo "flstudy stops" >>calls; exit 1' TERM
    until grep -q srun calls; do sleep 0.05; done
    [ "$2" = long.yaml ] || exit 3
    while :; do sleep 0.1; done ;;
esac
"""


@pytest.mark.parametrize("config", ["short.yaml", "long.yaml"])
def test_the_script_for_slurm_starts_ray_runs_the_study_and_ends_both(config: str, tmp_path: Path) -> None:
    """With stand-ins for ray, srun and flstudy; a long study is told to end, as Slurm does before its time limit."""
    for name in ("ray", "srun", "flstudy", "hostname"):
        (tmp_path / name).write_text(SLURM)
        (tmp_path / name).chmod(0o755)
    job = {"SLURM_JOB_ID": "12345", "SLURM_JOB_NUM_NODES": "3", "SLURM_CPUS_PER_TASK": "4"}
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **job}
    script = subprocess.Popen(["bash", str(DOCKER / "cluster" / "study.sbatch"), config], cwd=tmp_path, env=environment)
    calls = tmp_path / "calls"
    if config == "long.yaml":
        begun = ("flstudy tune", "srun --nodes", "ray start --address")  # the workers begin in the background
        wait_until(lambda: calls.exists() and all(call in calls.read_text() for call in begun))
        script.terminate()
    assert script.wait(LIMIT_S) == (1 if config == "long.yaml" else 3)
    log = calls.read_text()
    assert "ray start --head --node-ip-address=127.0.0.1 --port=22345 --num-cpus=4" in log
    assert "srun --nodes=2 --ntasks-per-node=1 --exclude=first" in log
    assert "ray start --address=127.0.0.1:22345 --num-cpus=4 --block" in log
    assert f"flstudy tune {config} --address 127.0.0.1:22345" in log
    assert ("flstudy stops" in log) == (config == "long.yaml")
    assert not list(Path("/tmp").glob("r12345.*"))


@pytest.mark.slow
def test_the_bucket_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = pytest.importorskip("botocore.stub")
    boto3 = pytest.importorskip("boto3")
    monkeypatch.syspath_prepend(str(DOCKER))
    make_bucket = __import__("make_bucket")
    s3 = boto3.client("s3", region_name="us-east-1", aws_access_key_id="key", aws_secret_access_key="secret")
    monkeypatch.setattr(boto3, "client", lambda *_, **__: s3)
    with stub.Stubber(s3) as answers:
        answers.add_client_error("head_bucket", http_status_code=404)
        answers.add_response("create_bucket", {}, {"Bucket": "mlflow"})
        answers.add_response("head_bucket", {}, {"Bucket": "mlflow"})
        answers.add_client_error("head_bucket", http_status_code=403)
        assert make_bucket.make("mlflow") == "bucket 'mlflow' made"
        assert make_bucket.make("mlflow") == "bucket 'mlflow' is there"
        with pytest.raises(sys.modules["botocore.exceptions"].ClientError):
            make_bucket.make("mlflow")
        answers.assert_no_pending_responses()
