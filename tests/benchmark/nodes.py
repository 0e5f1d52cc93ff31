"""A study on nodes that share nothing: `python tests/benchmark/nodes.py > tests/benchmark/results/nodes.md`.

Three Ray nodes and a driver's machine, each with namespaces of its own, an S3 server, PostgreSQL, and an MLflow server
on it that asks for a password. The study's folder is a URI of the bucket. The nodes see neither the drivers' homes nor
the folder, the user's module comes to them by Ray, and the passwords of store and bucket are the driver's alone. In the
middle of the study one node is killed, a new one comes, one drains, then the driver is killed with its machine, and
another one with another home and another folder goes on from the URI. Each trial must be whole, have one run in MLflow,
and the values of the same study on one machine where nothing happens; no password may be anywhere on the nodes.

Linux only, as root: it mounts and unshares. Needs Debian's postgresql and
 `pip install 'mlflow[auth]' 'psycopg[binary]'`.
"""

import argparse
import base64
import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parents[2]))

from flstudy.study import StudyFolder, Trial
from flstudy.study.records import read_records
from tests.buckets import ACCOUNT, s3_server
from tests.servers import free_port
from tests.tuning.raylets import ALONE, ROOT, Raylets

NAME = "nodes"
MODULE = '''
import lightning as L
from torch import nn
from torch.nn import functional as F


class Net(L.LightningModule):
    """A network of the user's own, in a file of the driver's home."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]), batch[1])
'''
CONFIG: dict[str, Any] = {
    "task": "./mylab.py:Net",
    "population": {"dataset": "Digits", "clients": 6, "participants": 2, "batch_size": 4, "steps": 4},
    "algorithm": "Scaffold",
    "evaluate_every": 10,
    "compile": False,
    "study": {
        "name": NAME,
        "search": {"algorithm": {"choice": ["Scaffold", "FedAvg"]}, "algorithm.lr": {"loguniform": [1e-3, 1]}},
        "sampler": "RandomSearch",  # which proposes the same whatever comes when
        "resources": {"cpu": 1},
        "snapshot_s": 1.0,
        "failures": {"retries": 1},
    },
}
EXACT = ("valid/accuracy", "valid/loss", "train/loss", "server/update_norm")
"""Metrics that must be the same to the last bit; seconds are not."""


# ---- servers ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def program(command: list[str], ready: Callable[[], bool], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A server that answers when the block begins and is gone when it ends."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options) as server:
        try:
            until = time.monotonic() + 120
            while not ready():
                if server.poll() is not None or time.monotonic() > until:
                    raise SystemExit(f"{command[0]} does not start")
                time.sleep(0.2)
            yield server
        finally:
            server.terminate()


def answers(address: str) -> bool:
    """Whether an HTTP server says anything at an address."""
    try:
        urllib.request.urlopen(address, timeout=5)
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


@contextlib.contextmanager
def postgresql(folder: Path) -> Iterator[str]:
    """The URI of an empty database of Debian's PostgreSQL."""
    (binaries,) = sorted(Path("/usr/lib/postgresql").glob("*/bin"))[-1:]
    word, port = secrets.token_hex(16), free_port()
    data, secret = folder / "data", folder / "word"
    folder.mkdir()
    secret.write_text(word)
    shutil.chown(folder, "postgres")
    shutil.chown(secret, "postgres")
    os.chmod(folder.parent, 0o755)
    as_postgres = ["runuser", "-u", "postgres", "--"]
    initialise = [str(binaries / "initdb"), "-D", str(data), "--username=mlflow", f"--pwfile={secret}"]
    initialise += ["--auth-local=trust", "--auth-host=scram-sha-256"]
    subprocess.run([*as_postgres, *initialise], check=True, capture_output=True)
    server = [str(binaries / "postgres"), "-D", str(data), "-p", str(port), "-k", str(folder)]
    server += ["-c", "listen_addresses=127.0.0.1"]
    reach = ["-h", str(folder), "-p", str(port), "-U", "mlflow"]

    def ready() -> bool:
        return not subprocess.run([str(binaries / "pg_isready"), *reach], capture_output=True).returncode

    with program([*as_postgres, *server], ready):
        for database in ("mlflow", "users"):
            subprocess.run([str(binaries / "createdb"), *reach, database], check=True, capture_output=True)
        yield f"postgresql+psycopg://mlflow:{word}@127.0.0.1:{port}/"


class Store:
    """An MLflow server on PostgreSQL that lets in who has the password."""

    def __init__(self, folder: Path, database: str) -> None:
        self.port, self.password, self.folder, self.database = free_port(), secrets.token_hex(16), folder, database
        self.address = f"http://127.0.0.1:{self.port}"

    @contextlib.contextmanager
    def started(self) -> Iterator[None]:
        """It answers within the block."""
        self.folder.mkdir()
        rights = self.folder / "auth.ini"
        rights.write_text(
            f"[mlflow]\ndefault_permission = READ\ndatabase_uri = {self.database}users\nadmin_username = lead\n"
            f"admin_password = {self.password}\nauthorization_function = "
            "mlflow.server.auth:authenticate_request_basic_auth\n"
        )
        command = [str(Path(sys.executable).with_name("mlflow")), "server", "--app-name=basic-auth"]
        command += [f"--backend-store-uri={self.database}mlflow", f"--artifacts-destination={self.folder}/artifacts"]
        command += ["--host=127.0.0.1", f"--port={self.port}", "--workers=1"]
        keys = {"MLFLOW_AUTH_CONFIG_PATH": str(rights), "MLFLOW_FLASK_SERVER_SECRET_KEY": secrets.token_hex(16)}
        with program(command, lambda: answers(self.address), env=os.environ | keys):
            yield

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer of its REST interface."""
        word = base64.b64encode(f"lead:{self.password}".encode()).decode()
        request = urllib.request.Request(
            f"{self.address}/api/2.0/mlflow/{path}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json", "Authorization": f"Basic {word}"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())

    def runs(self) -> list[dict[str, Any]]:
        """All runs."""
        experiments = self.ask("experiments/search", {"max_results": 100})["experiments"]
        ids = [experiment["experiment_id"] for experiment in experiments]
        runs: list[dict[str, Any]] = self.ask("runs/search", {"experiment_ids": ids, "max_results": 1000})["runs"]
        return runs

    def rounds(self, run_id: str) -> list[int]:
        """The steps of a run's training loss, as they are stored."""
        query = f"run_id={run_id}&metric_key=train%2Floss&max_results=10000"
        return sorted(int(metric["step"]) for metric in self.ask(f"metrics/get-history?{query}")["metrics"])


# ---- drivers ---------------------------------------------------------------------------------------------------------


class Driver:
    """A machine's user who studies: a home with the config and the user's module.

    Args:
        home: the user's.
        environment: of commands, without that home.
    """

    def __init__(self, home: Path, environment: Mapping[str, str]) -> None:
        self.home, self.log = home, home.with_suffix(".log")
        self.environment = {**environment, "HOME": str(home), "PYTHONPATH": str(ROOT)}
        home.mkdir()
        (home / "mylab.py").write_text(MODULE)

    def write(self, content: Mapping[str, Any]) -> str:
        """The name of the study's config in the home."""
        (self.home / "nodes.yaml").write_text(yaml.safe_dump(dict(content)))
        return "nodes.yaml"

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """`flstudy` with arguments."""
        command = [
            *ALONE,
            sys.executable,
            "-m",
            "flstudy.cli",
            *arguments,
        ]  # a machine of its own, none of the cluster's
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command, cwd=self.home, env=self.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )


def working_copy(home: Path) -> StudyFolder:
    """The local folder of the study of a home."""
    (state,) = [path for path in home.glob("**/state.json") if path.parent.name == NAME]
    return StudyFolder(state.parent)


def over(home: Path) -> int:
    """Trials of a home's study that are over."""
    with contextlib.suppress(ValueError, OSError):
        return sum(trial.is_over for trial in working_copy(home).read_trials())
    return 0


def wait_for(what: str, reached: Callable[[], bool], driver: "subprocess.Popen[bytes]", log: Path) -> None:
    """Wait for something that a driver brings about."""
    until = time.monotonic() + 900
    while not reached():
        if driver.poll() is not None or time.monotonic() > until:
            raise SystemExit(f"{what} does not come:\n{log.read_text()[-3000:]}")
        time.sleep(0.2)


# ---- what must hold --------------------------------------------------------------------------------------------------


def differences(trials: list[Trial], folder: StudyFolder, alone: StudyFolder, store: Store, rounds: int) -> list[str]:
    """What is wrong with a study beside the undisturbed one, in sentences."""
    wrong = []
    expected = {trial.number: trial for trial in alone.read_trials()}
    runs = {run["info"]["run_id"]: run for run in store.runs()}
    numbers = sorted(
        tag["value"] for run in runs.values() for tag in run["data"]["tags"] if tag["key"] == "flstudy.trial"
    )
    if numbers != sorted(map(str, expected)):
        wrong.append(f"MLflow has runs of the trials {numbers}")
    every = list(range(1, rounds + 1))
    for trial in trials:
        same = expected[trial.number]
        if trial.status != "finished" or trial.overrides != same.overrides:
            wrong.append(f"trial {trial.number} is {trial.status} with {trial.overrides}")
            continue
        table = read_records(folder.records(trial.number))
        if table.num_rows != read_records(alone.records(trial.number)).num_rows:
            wrong.append(f"trial {trial.number} has {table.num_rows} values in its records")
        for name in EXACT:
            if trial.metrics[name] != same.metrics[name]:
                wrong.append(f"trial {trial.number}: {name} is {trial.metrics[name]!r}, not {same.metrics[name]!r}")
        if trial.run_id is None or trial.run_id not in runs or runs[trial.run_id]["info"]["status"] != "FINISHED":
            wrong.append(f"trial {trial.number} has no finished run in MLflow")
        elif store.rounds(trial.run_id) != every:
            wrong.append(f"trial {trial.number} has {len(store.rounds(trial.run_id))} rounds in MLflow")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=150)
    options = parser.parse_args()
    print(
        f"# Nodes that share nothing\n\n`python tests/benchmark/nodes.py {' '.join(sys.argv[1:])}`".rstrip(" `") + "`\n"
    )
    print("| after s | what happened |\n|--:|---|", flush=True)
    begun = time.monotonic()

    def note(line: str) -> None:
        print(f"| {time.monotonic() - begun:.0f} | {line} |", flush=True)

    study = {**CONFIG["study"], "trials": options.trials}
    with tempfile.TemporaryDirectory(prefix="nodes-") as place, tempfile.TemporaryDirectory(prefix="r") as short:
        base = Path(place)
        homes, keys = base / "homes", {**ACCOUNT, "AWS_SECRET_ACCESS_KEY": secrets.token_hex(16)}
        homes.mkdir()
        with contextlib.ExitStack() as stack:
            endpoint = f"http://127.0.0.1:{stack.enter_context(s3_server())}"
            store = Store(base / "mlflow", stack.enter_context(postgresql(base / "postgresql")))
            stack.enter_context(store.started())
            note("S3 server, PostgreSQL and MLflow with a password answer")
            cluster = Raylets(Path(short), hidden=[homes])
            stack.callback(cluster.close)
            cluster.head()
            for number in (3, 4):
                cluster.node(number)
                cluster.wait()
            note("three Ray nodes: a head, and two of one core")
            environment = {
                **cluster.environment,
                **keys,
                "AWS_ENDPOINT_URL": endpoint,
                "MLFLOW_TRACKING_USERNAME": "lead",
                "MLFLOW_TRACKING_PASSWORD": store.password,
            }
            uri = "s3://bucket/studies"
            first, second = Driver(homes / "first", environment), Driver(homes / "second", environment)
            content = {**CONFIG, "rounds": options.rounds, "store": store.address, "study": {**study, "folder": uri}}
            driver = first.start("tune", first.write(content), "--address", cluster.address)
            wait_for("the first trial's end", lambda: over(first.home) >= 1, driver, first.log)
            note("the first trial is over")
            cluster.kill(3)
            note("the node at 127.0.0.3 killed (KILL), another one comes at 127.0.0.5")
            cluster.node(5)
            cluster.wait()
            before = over(first.home)
            wait_for("a trial's end", lambda: over(first.home) >= before + 2, driver, first.log)
            secret, looked = cluster.places_of([store.password, keys["AWS_SECRET_ACCESS_KEY"]])
            note(f"the passwords of store and bucket stand in {len(secret)} of {looked} places of the nodes")
            cluster.drain(4)
            note("the node at 127.0.0.4 drains (SIGTERM to its `ray start`), another one comes at 127.0.0.6")
            cluster.node(6)
            cluster.wait()
            before = over(first.home)
            wait_for("a trial's end", lambda: over(first.home) >= before + 3, driver, first.log)
            driver.kill()  # and with it all of its machine
            driver.wait()
            note(f"the driver killed (KILL) when {over(first.home)} trials are over; its home is removed")
            shutil.rmtree(first.home)
            known_store = ["--store", store.address]  # which this home has not used
            driver = second.start("tune", "--resume", f"{uri}/{NAME}", *known_store, "--address", cluster.address)
            code = driver.wait(1200)
            note(f"resumed from {uri}/{NAME} in another home and folder: exit status {code}")
            more, again = cluster.places_of([store.password, keys["AWS_SECRET_ACCESS_KEY"]])
            note(f"the passwords stand in {len(more)} of {again} places of the nodes")
            cluster.close()
            plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
            alone = Driver(homes / "alone", plain)
            quiet = {**content, "store": f"sqlite:///{alone.home}/mlflow.db", "study": {**study, "folder": "studies"}}
            status = alone.start("tune", alone.write(quiet)).wait(1200)
            note(f"the same study on one machine where nothing happens: exit status {status}")
            folder = working_copy(second.home)
            trials = folder.read_trials()
            wrong = differences(trials, folder, working_copy(alone.home), store, options.rounds)
            wrong += [f"a password stands in {where}" for where in [*secret, *more]]
            if code or status:
                wrong.append(f"exit statuses {code}, {status}: {second.log.read_text()[-2000:]}")
            for log in (first.log, second.log):
                if "Traceback (most recent call last)" in log.read_text():
                    wrong.append(f"a driver printed a traceback: {log.read_text()[-2000:]}")
            whole = options.trials - len({text.split(":")[0].split(" has ")[0] for text in wrong if "trial " in text})
            note(f"{whole} of {options.trials} trials whole, with one run each and equal values; {len(trials)} there")
    print("\n" + ("\n".join(f"- {text}" for text in wrong) or f"Compared to the last bit: {', '.join(EXACT)}."))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
