"""The images, built and run where no image registry is reached: `python docker/try_images.py > docker/images.md`.

It needs root and Debian's packages buildah, podman, runc, catatonit and debootstrap, and takes half an hour and some
30 GB. What stands in for what has to be downloaded:

- the Dockerfile's base image: a Debian of debootstrap with its python3, tagged with the name in `FROM`;
- postgres: Debian's PostgreSQL, which reads the same variables and keeps its files in the same folder;
- the S3 server: s3rver of npm, which keeps each object as a file as well.

The services are those of compose.yaml, read from it: images, commands, environment, volumes, rights. Only the network
is another one: all share the machine's, so each listens on its loopback addresses and finds the others there by name.
"""

import argparse
import json
import os
import re
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

DOCKER = Path(__file__).parent
ROOT = DOCKER.parent
STAND_INS = {
    "database": """
FROM {base}
RUN apt-get update && apt-get install --yes --no-install-recommends postgresql && rm -rf /var/lib/apt/lists/* \\
    && install --directory --owner postgres --mode 700 /var/lib/postgresql/data && chown postgres /run/postgresql
ENV PATH=/usr/lib/postgresql/15/bin:$PATH PGDATA=/var/lib/postgresql/data
USER postgres
COPY --chmod=0755 start.sh /usr/local/bin/
ENTRYPOINT ["start.sh"]
""",
    "artifacts": """
FROM {base}
RUN apt-get update && apt-get install --yes --no-install-recommends nodejs npm && rm -rf /var/lib/apt/lists/* \\
    && npm install --global --cafile /run/certs/ca-certificates.crt s3rver@3.7.1
ENTRYPOINT ["s3rver"]
""",
}
START_DATABASE = """#!/bin/sh
# The first start makes the cluster and the database, as the official image does.
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    echo "$POSTGRES_PASSWORD" > /tmp/word
    initdb --encoding UTF8 --locale C.UTF-8 --username "$POSTGRES_USER" --pwfile /tmp/word \\
        --auth-local trust --auth-host scram-sha-256
    rm /tmp/word
    pg_ctl start --wait --options "-c listen_addresses="
    createdb --username "$POSTGRES_USER" "$POSTGRES_DB"
    pg_ctl stop --wait
fi
exec postgres -c listen_addresses=127.0.0.1
"""
LOOPBACK = {"database": 1, "artifacts": 1, "bucket": 1, "mlflow": 1, "ray-head": 1, "ray-worker": 2, "study": 3}
"""The last figure of the address 127.0.0.* that a service answers on; Ray tells its nodes apart by theirs."""
INSTEAD: dict[str, list[str]] = {  # a service's command, where the stand-in or the shared network wants another one
    "artifacts": ["--directory=/data", "--address=127.0.0.1", "--port=7070", "--no-vhost-buckets"],
}
FURTHER: dict[str, list[str]] = {  # options after the service's own: the last one counts
    "mlflow": ["--host=127.0.0.1"],
    "ray-head": ["--node-ip-address=127.0.0.1"],
    "ray-worker": ["--node-ip-address=127.0.0.2"],
}
CHECKS: dict[str, list[str]] = {  # health checks of stand-ins that lack compose's
    "artifacts": ["python", "-c", "import socket as s; s.create_connection(('127.0.0.1', 7070), 3)"],
}
S3RVER = "S3RVER"  # its only key and its secret


def told(command: Sequence[str | Path], **options: Any) -> str:
    """A command's standard output; a failure tells the command and the end of what it said."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-3000:]
        raise SystemExit(f"{shlex.join(map(str, command))}\nended with {done.returncode}:\n{said}")
    return done.stdout


def pip_mounts() -> list[str]:
    """Options that show a build this machine's pip configuration, certificates and package folders."""
    listed = told([sys.executable, "-m", "pip", "config", "debug"]) + told(
        [sys.executable, "-m", "pip", "config", "list"]
    )
    named = re.findall(r"(?:file://)?(/[\w./-]+)", listed)
    folders = {str(Path(path)) for path in [*named, "/etc/ssl/certs"] if Path(path).exists() and path != "/"}
    return [f"--volume={path}:{path}:ro" for path in sorted(folders) if not path.startswith(str(Path.home()))]


@dataclass
class Engine:
    """buildah and podman over one storage of their own, and the services of compose.yaml."""

    folder: Path
    driver: str
    environment: dict[str, str]
    services: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.services = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]

    @property
    def storage(self) -> list[str]:
        return [
            f"--root={self.folder / 'storage'}",
            f"--runroot={self.folder / 'run'}",
            f"--storage-driver={self.driver}",
        ]

    def buildah(self, *command: str | Path) -> str:
        return told(["buildah", *self.storage, *command])

    def podman(self, *command: str | Path, **options: Any) -> str:
        return told(["podman", *self.storage, "--runtime=runc", "--cgroup-manager=cgroupfs", *command], **options)

    def value(self, text: str) -> str:
        """A value of compose.yaml, as compose reads it with `environment`."""

        def meant(match: re.Match[str]) -> str:
            return self.environment.get(match[1]) or (match[3] if match[2] == "-" else "")

        return re.sub(r"\$\{(\w+):?([-?])([^}]*)\}", meant, text)

    def image(self, name: str) -> str:
        return self.value(self.services[name]["image"])

    def options(self, name: str) -> list[str]:
        """Options of `podman run` for a service's rights, environment, volumes and memory."""
        service = self.services[name]
        found = ["--network=host", "--pull=never", "--ulimit=nofile=8192:8192", "--ulimit=nproc=8192:8192"]
        hosts = {**{other: f"127.0.0.{last}" for other, last in LOOPBACK.items()}, "study": "127.0.0.3"}
        own = f"127.0.0.{LOOPBACK[name]}"
        found += [f"--add-host={host}:{address}" for host, address in (hosts | {socket.gethostname(): own}).items()]
        found += ["--init"] if service.get("init") else []
        found += [f"--cap-drop={right}" for right in service.get("cap_drop", [])]
        found += [f"--security-opt={option.removesuffix(':true')}" for option in service.get("security_opt", [])]
        found += [f"--shm-size={self.value(service['shm_size'])}"] if "shm_size" in service else []
        found += [f"--env={key}={self.value(str(value))}" for key, value in service.get("environment", {}).items()]
        for volume in service.get("volumes", []):
            source, rest = self.value(volume).split(":", 1)
            found.append(f"--volume={source if source.startswith('/') else 'flstudy_' + source}:{rest}")
        return found

    def command(self, name: str, arguments: Sequence[str] | None = None) -> list[str]:
        """What follows `podman run`: options, image and command of a service."""
        service = self.services[name]
        entry = service.get("entrypoint")
        first = [f"--entrypoint={json.dumps(entry)}"] if entry else []
        given = INSTEAD.get(name, service.get("command", []) if arguments is None else list(arguments))
        return [*self.options(name), *first, self.image(name), *map(self.value, given), *FURTHER.get(name, [])]

    def up(self, *names: str) -> float:
        """The seconds until services are healthy, started one after the other."""
        begun = time.monotonic()
        for name in names:
            self.podman("run", "--detach", "--replace", f"--name={name}", *self.command(name))
            self.healthy(name)
        return time.monotonic() - begun

    def healthy(self, name: str, seconds: float = 120.0) -> None:
        """A return once a service's health check, compose's or the image's own, succeeds."""
        service = self.services[name]
        test = CHECKS.get(name) or service.get("healthcheck", {}).get("test", ["CMD"])[1:]
        check = ["exec", name, *test] if test else ["healthcheck", "run", name]
        end = time.monotonic() + seconds
        while subprocess.run(["podman", *self.storage, "--runtime=runc", *check], capture_output=True).returncode:
            if time.monotonic() > end:
                raise SystemExit(
                    f"{name} is not healthy after {seconds:g} s:\n{self.podman('logs', '--tail=40', name)}"
                )
            time.sleep(0.5)

    def said(self, name: str) -> str:
        """The last lines of a container's log."""
        command = ["podman", *self.storage, "logs", "--tail=60", name]
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout

    def end(self) -> None:
        """No container and no volume of this script is left: passwords are new each time."""
        for name in LOOPBACK:
            subprocess.run(["podman", *self.storage, "rm", "--force", "--time=5", name], capture_output=True)
        for volume in ("database", "artifacts", "studies"):
            subprocess.run(["podman", *self.storage, "volume", "rm", f"flstudy_{volume}"], capture_output=True)


def make_base(engine: Engine, tag: str) -> None:
    """Debian's smallest system with python3 as `python`, under the name that the Dockerfile asks for."""
    if tag in engine.buildah("images", "--format={{.Name}}:{{.Tag}}"):
        return
    root = engine.folder / "base"
    shutil.rmtree(root, ignore_errors=True)
    told(["debootstrap", "--variant=minbase", "--include=python3,python3-venv,ca-certificates", "bookworm", root])
    (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    shutil.rmtree(root / "var/cache/apt/archives")
    container = engine.buildah("from", "scratch").strip()
    engine.buildah("add", "--quiet", container, root, "/")
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    engine.buildah("config", f"--env=PATH={path}", "--cmd=python", container)
    engine.buildah("commit", "--quiet", "--rm", container, tag)
    shutil.rmtree(root)


def build(engine: Engine, name: str, *options: str | Path) -> float:
    """The seconds that the image of a service took, now or when --folder got it."""
    kept = engine.folder / "seconds.json"
    seconds: dict[str, float] = json.loads(kept.read_text()) if kept.exists() else {}
    if name not in seconds:
        begun = time.monotonic()
        shared = ["--pull=never", "--isolation=chroot", "--format=docker", "--network=host"]
        engine.buildah("bud", *shared, f"--tag={engine.image(name)}", *options)
        seconds[name] = time.monotonic() - begun
        kept.write_text(json.dumps(seconds))
    return seconds[name]


def row(engine: Engine, name: str, seconds: float) -> tuple[str, str, str]:
    """An image's size in GB, the seconds it took and its user."""
    found = json.loads(engine.podman("image", "inspect", engine.image(name)))[0]
    return f"{found['Size'] / 1e9:.2f}", f"{seconds:.0f}", found["Config"].get("User") or "root"


class Store:
    """What MLflow's HTTP interface tells of the runs it holds."""

    ADDRESS = "http://127.0.0.1:5000"

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self.ADDRESS}/api/2.0/mlflow/{path}", headers={"Content-Type": "application/json"}
        )
        request.data = json.dumps(body).encode() if body is not None else None
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())

    def runs(self) -> list[dict[str, Any]]:
        experiments = self.ask("experiments/search", {"max_results": 100})["experiments"]
        ids = [experiment["experiment_id"] for experiment in experiments]
        return self.ask("runs/search", {"experiment_ids": ids, "max_results": 1000}).get("runs", [])

    def files(self, run: str, folder: str = "") -> Iterator[tuple[str, int]]:
        """(path, bytes) of a run's artifacts."""
        suffix = f"&path={folder}" if folder else ""
        for file in self.ask(f"artifacts/list?run_id={run}{suffix}").get("files", []):
            if file.get("is_dir"):
                yield from self.files(run, file["path"])
            else:
                yield file["path"], int(file.get("file_size", 0))

    def state(self) -> dict[str, Any]:
        """All that must be the same after a restart or a restore."""
        runs = sorted(self.runs(), key=lambda run: run["info"]["run_id"])
        return {
            "runs": {run["info"]["run_id"]: run["info"]["status"] for run in runs},
            "metrics": sum(len(run["data"].get("metrics", [])) for run in runs),
            "files": {run["info"]["run_id"]: sorted(self.files(run["info"]["run_id"])) for run in runs},
        }

    def sentence(self) -> str:
        state = self.state()
        files = [file for found in state["files"].values() for file in found]
        ended = sum(status == "FINISHED" for status in state["runs"].values())
        return (
            f"{len(state['runs'])} runs, {ended} of them finished, {state['metrics']} last metrics, {len(files)} files"
        )


SERVERS = ("database", "artifacts", "mlflow")


def start_servers(engine: Engine) -> float:
    """The seconds until MLflow is healthy; the bucket is made on the way."""
    seconds = engine.up("database", "artifacts")
    begun = time.monotonic()
    engine.podman("run", "--rm", *engine.command("bucket"))
    return seconds + time.monotonic() - begun + engine.up("mlflow")


def trial_run(engine: Engine, note: Callable[[str, str], None]) -> None:
    """The services, a study in them, kills and restarts, a backup and its restore."""
    store = Store()
    note("database, bucket, MLflow", f"healthy after {start_servers(engine):.0f} s")
    with urllib.request.urlopen(f"{Store.ADDRESS}/", timeout=30) as page:
        note("MLflow's page over HTTP", f"status {page.status}, {len(page.read())} bytes")
    note("Ray head and a worker", f"healthy after {engine.up('ray-head', 'ray-worker'):.0f} s")
    study = ["tune", "tune_configs/quick.yaml", "--study.name", "images", "--study.trials", "3", "--rounds", "40"]
    study += ["--study.confirm.seeds", "0", "--store", "http://mlflow:5000"]
    begun = time.monotonic()
    driver = subprocess.Popen(
        [
            "podman",
            *engine.storage,
            "--runtime=runc",
            "--cgroup-manager=cgroupfs",
            "run",
            "--replace",
            "--name=study",
            *engine.command("study", study),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not any(run["info"]["status"] == "FINISHED" for run in store.runs()):
        if time.monotonic() - begun > 400 or driver.poll() is not None:
            raise SystemExit(f"no trial ended:\n{engine.said('study')}")
        time.sleep(1)
    engine.podman("kill", "--signal=KILL", "study")
    driver.wait()
    note(
        "`study` run against `mlflow`",
        f"first trial after {time.monotonic() - begun:.0f} s; then the driver is killed (KILL)",
    )
    resumed = engine.command("study", ["tune", "--resume", "images", "--store", "http://mlflow:5000"])
    begun = time.monotonic()
    said = engine.podman("run", "--replace", "--name=study", *resumed)
    note("`study tune --resume`", f"ended after {time.monotonic() - begun:.0f} s: {store.sentence()}")
    shown = engine.podman("run", "--rm", "--env=RAY_ADDRESS=", *engine.command("study", ["studies"]))
    note("`study studies`", next((line.strip() for line in shown.splitlines() if "images" in line), said[-80:]))
    before = store.state()
    for name in ("mlflow", "artifacts", "database"):
        engine.podman("kill", "--signal=KILL", name)
    seconds = 0.0
    for name in ("database", "artifacts", "mlflow"):
        begun = time.monotonic()
        engine.podman("start", name)
        engine.healthy(name)
        seconds += time.monotonic() - begun
    lost = "nothing lost" if store.state() == before else "SOMETHING LOST"
    note("servers killed (KILL) and started again", f"healthy after {seconds:.0f} s, {lost}")
    for name in ("ray-worker", "ray-head"):
        engine.podman("kill", "--signal=KILL", name)
    note("Ray killed (KILL) and started again", f"healthy after {engine.up('ray-head', 'ray-worker'):.0f} s")
    backup = engine.folder / "backup"
    shutil.rmtree(backup, ignore_errors=True)
    backup.mkdir()
    dump = subprocess.run(
        [
            "podman",
            *engine.storage,
            "--runtime=runc",
            "exec",
            "database",
            "pg_dump",
            "--username=mlflow",
            "--format=custom",
            "mlflow",
        ],
        capture_output=True,
        check=True,
    ).stdout
    pack = ["--gzip", "--xattrs", "--xattrs-include=user.*", "--file=/backup/artifacts.tar.gz", "--directory=/data"]
    tar = ["run", "--rm", "--network=host", "--pull=never", "--user=root", "--entrypoint=tar"]
    tar += ["--ulimit=nofile=8192:8192", "--ulimit=nproc=8192:8192"]
    volumes = "--volume=flstudy_artifacts:/data", f"--volume={backup}:/backup"
    engine.podman(*tar, *volumes, engine.image("mlflow"), "--create", *pack, ".")
    size = (backup / "artifacts.tar.gz").stat().st_size
    for name in SERVERS:
        engine.podman("rm", "--force", "--time=5", name)
    engine.podman("volume", "rm", "flstudy_database", "flstudy_artifacts")
    begun = time.monotonic()
    engine.up("database")
    restore = [
        "exec",
        "--interactive",
        "database",
        "pg_restore",
        "--username=mlflow",
        "--dbname=mlflow",
        "--clean",
        "--if-exists",
    ]
    restored = subprocess.run(["podman", *engine.storage, "--runtime=runc", *restore], input=dump, capture_output=True)
    if restored.returncode:
        raise SystemExit(restored.stderr.decode()[-2000:])
    engine.podman(*tar, *volumes, engine.image("mlflow"), "--extract", *pack)
    engine.up("artifacts", "mlflow")
    lost = "everything is back" if store.state() == before else "SOMETHING LOST"
    kib = (len(dump) + size) / 1024
    note("backup, volumes removed, restore", f"{kib:.0f} KiB; {lost} after {time.monotonic() - begun:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--folder", type=Path, help="of images and volumes; what it has is not built again; else a temporary one"
    )
    parser.add_argument(
        "--driver", default="vfs", help="of the storage: vfs runs anywhere, overlay takes less room and time"
    )
    given = parser.parse_args()
    if os.geteuid():
        parser.error("this script needs root, for debootstrap and chroot")
    missing = [tool for tool in ("buildah", "podman", "runc", "debootstrap") if shutil.which(tool) is None]
    if missing:
        parser.error(f"install {', '.join(missing)} first, with Debian's packages of these names")
    folder = given.folder or Path(tempfile.mkdtemp(prefix="images-"))
    folder.mkdir(parents=True, exist_ok=True)
    words = {name: secrets.token_hex(16) for name in ("POSTGRES_PASSWORD", "RAY_TOKEN")}
    engine = Engine(folder, given.driver, words | {"S3_ACCESS_KEY": S3RVER, "S3_SECRET_KEY": S3RVER})
    python = re.search(r"^ARG PYTHON=(\S+)", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    assert python is not None
    base = f"localhost/python:{python[1]}"

    commit = told(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"]).strip()
    print("# The images, built and run\n")
    print(
        f"`python docker/try_images.py --driver {given.driver}`, {os.cpu_count()} cores, commit {commit}. "
        "What stands in for what, the script says.\n"
    )
    try:
        engine.end()  # what a killed run has left
        begun = time.monotonic()
        make_base(engine, base)
        print("| image | GB | seconds to build | user |\n|---|--:|--:|---|")
        print(f"| base (debootstrap) | | {time.monotonic() - begun:.0f} | |")
        with tempfile.TemporaryDirectory() as checkout:
            archive = subprocess.run(["git", "-C", ROOT, "archive", "HEAD"], capture_output=True, check=True).stdout
            subprocess.run(["tar", "--extract", "--directory", checkout], input=archive, check=True)
            for name, target in (("mlflow", "server"), ("study", "study")):
                file = f"--file={checkout}/docker/Dockerfile"
                took = build(engine, name, *pip_mounts(), file, f"--target={target}", checkout)
                print(f"| `{target}` |", " | ".join(row(engine, name, took)), "|")
        for name, text in STAND_INS.items():
            with tempfile.TemporaryDirectory() as context:
                Path(context, "Dockerfile").write_text(text.format(base=base))
                Path(context, "start.sh").write_text(START_DATABASE)
                took = build(engine, name, "--volume=/etc/ssl/certs:/run/certs:ro", context)
            print(f"| stand-in for {engine.image(name)} |", " | ".join(row(engine, name, took)), "|", flush=True)
        print()
        print("| step | seen |\n|---|---|")
        trial_run(engine, lambda step, seen: print(f"| {step} | {seen} |", flush=True))
    finally:
        engine.end()
        if given.folder is None:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
