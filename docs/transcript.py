"""A newcomer's walk through README and docs, played in an empty folder and written down as a page.

``python docs/transcript.py --environment VENV`` plays it with the flstudy that is installed in VENV. Every command is
one that stands in a page, and files are made of that page's code blocks: `missing` names what stands there no longer.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parent
PAGE = "transcript.md"
WIDTH = 110
BLOCK = re.compile(r"^```(?:python|yaml)\n# (\S+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07)")
STORE = "http://127.0.0.1:"

Say = Callable[[str], None]


class Step(NamedTuple):
    """A command of a page, and how it is played."""

    page: str
    """Where it stands, under docs."""
    command: str
    title: str = ""
    """The heading before it; the same part goes on without one."""
    keep: tuple[int, int] = (6, 6)
    """Lines of its output that are shown, of the first and of the last ones."""
    play: str = "run"
    """``run`` until it ends, ``kill`` it after one more trial, ``browse`` what it serves, or as a ``notebook``."""
    status: int = 0
    """What it exits with."""
    note: str = ""
    """A sentence before it."""


WALK = (
    Step("first_study.md", "flstudy", "First contact", keep=(3, 1)),
    Step("first_study.md", "flstudy tune quick", "A study", keep=(5, 14)),
    Step("first_study.md", "flstudy studies", keep=(8, 8)),
    Step("first_study.md", "flstudy show quick best", keep=(12, 4)),
    Step("first_study.md", "flstudy report quick", "Its report", keep=(14, 4)),
    Step("mlflow.md", "flstudy ui", "The MLflow page", play="browse"),
    Step("own.md", "flstudy run own.yaml", "An algorithm of one's own, with its laws", keep=(6, 8)),
    Step("own.md", "python laws.py", note="The laws are silent where they hold."),
    Step("own.md", "python wrong.py", keep=(0, 1), status=1, note="A method with an error in its mean:"),
    Step("lightning.md", "python script.py", "One's own LightningModule in a script", keep=(0, 1)),
    Step("python.md", "flstudy init study.yaml --algorithms Flash FedAvg", "A study from Python, and in a notebook"),
    Step("python.md", "python script.py", keep=(4, 10)),
    Step("python.md", "jupyter execute notebook.ipynb --inplace", keep=(0, 8), play="notebook"),
    Step(
        "first_study.md",
        "flstudy tune --resume quick --study.trials 18",
        "Killed, and resumed",
        play="kill",
        note="The study is extended, and its driver killed with SIGKILL once one more trial has ended.",
    ),
    Step("resume.md", "flstudy tune --resume quick", keep=(5, 12)),
    Step(
        "first_study.md",
        "flstudy tune quick --study.name calm --population.drift null --study.trials 3",
        "A second study, and both compared",
        keep=(4, 8),
    ),
    Step("first_study.md", "flstudy compare quick calm", keep=(14, 4)),
    Step("first_study.md", "flstudy report quick calm", keep=(14, 4)),
)

# What `jupyter execute` runs: the script of docs/python.md, and the study alone on a line.
SHOWN = 'study = flstudy.Study.open("study")\nstudy'


def commands_of(page: str) -> str:
    """What stands as code in a page: its blocks and what is between backticks, line by line."""
    text = (DOCS / page).read_text()
    blocks = re.findall(r"^```(?:sh)?\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    between = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE))
    return "\n".join([*blocks, *between])


def missing() -> list[Step]:
    """The steps whose command stands in their page no longer."""
    return [step for step in WALK if step.command not in commands_of(step.page).splitlines()]


def files_of(page: str) -> dict[str, str]:
    """The files that a page's code blocks name, by name; blocks of one file follow each other."""
    found: dict[str, list[str]] = {}
    for name, text in BLOCK.findall((DOCS / page).read_text()):
        found.setdefault(name, []).append(text)
    return {name: "\n\n".join(texts) for name, texts in found.items()}


class Played(NamedTuple):
    """What a command printed."""

    said: str
    seconds: float
    status: int


class Walk:
    """An empty folder, a home that is empty too, and an environment in which flstudy is installed."""

    def __init__(self, folder: Path, environment: Path, limit: float) -> None:
        self.home, self.folder = folder / "home", folder / "lab"
        self.environment, self.limit = environment, limit
        for made in (self.home, self.folder):
            made.mkdir()
        self.variables = {
            "PATH": os.pathsep.join([str(environment / "bin"), "/usr/local/bin", "/usr/bin", "/bin"]),
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "COLUMNS": "100",
            "NO_COLOR": "1",
            "TERM": "dumb",
            **{
                name: value for name, value in os.environ.items() if name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
            },
        }
        self._written: str | None = None

    def play(self, step: Step) -> Played | None:
        """The command, or None where what it needs is not installed."""
        if step.page != self._written:  # a page's files are made when the reader comes to it
            self._written = step.page
            for name, text in files_of(step.page).items():
                (self.folder / name).write_text(text)
        program, *arguments = step.command.split()
        path = self.environment / "bin" / program
        if step.play == "notebook":
            if not path.exists():
                return None
            (self.folder / arguments[1]).write_text(json.dumps(_notebook(files_of(step.page)["script.py"], SHOWN)))
        if step.play == "browse" and _is_taken(5000):
            arguments += ["--port", str(_free_port())]
        began = time.monotonic()
        with self._started([str(path), *arguments]) as process:
            if step.play == "kill":
                said = self._killed(process)
            elif step.play == "browse":
                said = self._browsed(process)
            else:
                said, _ = process.communicate(timeout=self.limit)
            seconds = time.monotonic() - began
        if step.play == "notebook":
            said += "".join(_shown(json.loads((self.folder / arguments[1]).read_text())))
        return Played(said, seconds, process.returncode)

    @contextlib.contextmanager
    def _started(self, command: list[str]) -> Iterator["subprocess.Popen[str]"]:
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        late = threading.Timer(self.limit, process.kill)  # also while a line is waited for
        late.start()
        try:
            yield process
        finally:
            late.cancel()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _killed(self, process: "subprocess.Popen[str]") -> str:
        """SIGKILL of the driver once one more trial has ended."""
        ended = self._ended() + 1
        while process.poll() is None and self._ended() < ended:
            time.sleep(0.5)
        process.kill()
        process.wait()
        assert process.stdout
        os.set_blocking(process.stdout.fileno(), False)  # workers that still end hold the other side of the pipe
        return (process.stdout.read() or "") + f"Killed, with {self._ended()} trials ended\n"

    def _ended(self) -> int:
        done = subprocess.run(
            [self.environment / "bin" / "flstudy", "studies", "--json"],
            cwd=self.folder,
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=self.limit,
            check=True,
        )
        (study,) = (study for study in json.loads(done.stdout) if study["study"] == "quick")
        return sum(study["counts"].get(status, 0) for status in ("finished", "pruned"))

    def _browsed(self, process: "subprocess.Popen[str]") -> str:
        """What it says, and what its pages answer; then it is ended by Ctrl-C."""
        assert process.stdout
        said = []
        for line in process.stdout:
            said.append(line)
            if found := re.search(rf"{STORE}\d+", line):
                said += _answers(found[0])
                break
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=self.limit)
        return "".join(said) + rest

    def readable(self, said: str) -> list[str]:
        """Lines without colours, drawn-over bars, paths of this machine and blanks, of at most so many columns."""
        for path, name in (
            (str(self.folder), "."),
            (str(self.home), "~"),
            (str(self.environment), "VENV"),
        ):
            said = said.replace(path, name)
        lines = (line.rpartition("\r")[2].rstrip() for line in ESCAPE.sub("", said.replace("\r\n", "\n")).split("\n"))
        return [line if len(line) <= WIDTH else line[: WIDTH - 1] + "…" for line in lines if line.strip()]


def _answers(address: str) -> list[str]:
    """A line for the page, the runs and the studies that MLflow serves there, and for what a study links to."""

    def ask(path: str, body: dict[str, object] | None = None) -> tuple[int, str]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(address + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.read().decode()

    status, page = ask("/")
    title = re.search(r"<title>(.*?)</title>", page)
    lines = [f"GET / {status} {title[1] if title else ''}\n"]
    status, found = ask("/api/2.0/mlflow/experiments/get-by-name?experiment_name=flstudy")
    experiment = json.loads(found)["experiment"]["experiment_id"]
    search: dict[str, object] = {"experiment_ids": [experiment], "max_results": 1000}
    status, found = ask("/api/2.0/mlflow/runs/search", search)
    lines.append(f"POST runs/search {status}: {len(json.loads(found).get('runs', []))} runs\n")
    status, found = ask("/api/2.0/mlflow/runs/search", {**search, "filter": "tags.flstudy.kind = 'study'"})
    for run in json.loads(found).get("runs", []):
        tags = {tag["key"]: tag["value"] for tag in run["data"]["tags"]}
        note = tags.get("mlflow.note.content", "")
        lines.append(f"study {run['info']['run_name']!r}, its description:\n")
        lines += [f"  {line}\n" for line in note.splitlines()[:8]]
        status, files = ask(f"/api/2.0/mlflow/artifacts/list?run_id={run['info']['run_id']}")
        lines.append(f"its artifacts: {', '.join(file['path'] for file in json.loads(files).get('files', []))}\n")
        lines += [_linked(address, link) for link in re.findall(r"\]\((\S+?)\)", note)[:2]]
    return lines


def _linked(address: str, link: str) -> str:
    """What a run that a description links to is named."""
    run = re.search(r"runs/(\w+)", link)
    if not run:
        return f"link {link}\n"
    with urllib.request.urlopen(f"{address}/api/2.0/mlflow/runs/get?run_id={run[1]}", timeout=120) as answer:
        return f"link to run {json.load(answer)['run']['info']['run_name']!r}: {answer.status}\n"


def _notebook(*cells: str) -> dict[str, object]:
    made = [
        {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": cell, "id": f"cell-{i}"}
        for i, cell in enumerate(cells)
    ]
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": made}


def _shown(notebook: dict[str, list[dict[str, list[dict[str, object]]]]]) -> Iterator[str]:
    """What the cells of a notebook that ran show, as text."""
    for cell in notebook["cells"]:
        for output in cell["outputs"]:
            data = output.get("data", {})
            text = output.get("text") or (data.get("text/plain", "") if isinstance(data, dict) else "")
            yield ("".join(text) if isinstance(text, list) else str(text)).rstrip() + "\n"


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def shortened(lines: list[str], keep: tuple[int, int]) -> list[str]:
    """The first and last lines, with the number of those between."""
    first, last = keep
    left = len(lines) - first - last
    return lines if left <= 1 else [*lines[:first], f"… {left} lines", *lines[len(lines) - last :]]


def play(environment: Path, limit: float, say: Say) -> str:
    """The page of the walk; raises SystemExit where a command did not end as it should."""
    if gone := missing():
        raise SystemExit(f"{gone[0].page} must show {gone[0].command!r} as code: mend the page or docs/transcript.py")
    parts, table, load = [], [], [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory(prefix="walk", ignore_cleanup_errors=True) as folder:
        walk = Walk(Path(folder), environment.absolute(), limit)
        for step in WALK:
            played = walk.play(step)
            load.append(os.getloadavg()[0])
            if played is None:
                say(f"{step.command}: left out, it is not installed")
                continue
            lines = walk.readable(played.said)
            say(f"{played.seconds:7.1f} s  {step.command}")
            if played.status != (-signal.SIGKILL if step.play == "kill" else step.status):
                raise SystemExit("\n".join([*lines[-30:], f"{step.command} exited with {played.status}"]))
            parts += [f"## {step.title}\n"] if step.title else []
            parts += [f"{step.note}\n"] if step.note else []
            shown = "\n".join([f"$ {step.command}", *shortened(lines, step.keep)])
            parts.append(f"```text\n{shown}\n```\n")
            parts.append(f"{played.seconds:.1f} s; the command stands in [{step.page}]({step.page}).\n")
            table.append((step.command, played.seconds))
    clock = accumulate(seconds for _, seconds in table)
    slow = [
        f"| `{command}` | {seconds:.1f} | {since / 60:.1f} |"
        for (command, seconds), since in zip(table, clock, strict=True)
    ]
    head = [
        "# A newcomer's walk\n",
        "Played by `python docs/transcript.py --environment VENV` in an empty folder with an empty home; in VENV the",
        "wheel was installed, with `[study]`, and for the notebook nbclient and ipykernel. Commands and files are",
        "those of the pages; long outputs are cut in the middle. Seconds are by the wall clock, on",
        f"{os.cpu_count()} cores, whose load, this walk's own work included, was {min(load):.1f} to {max(load):.1f}; "
        f"OMP_NUM_THREADS was {os.environ.get('OMP_NUM_THREADS', 'not set')}.\n",
        "| command | seconds | minutes since the start |\n|---|--:|--:|",
        *slow,
        "",
    ]
    return "\n".join([*head, *parts])


def main(arguments: list[str] | None = None) -> None:
    """Play the walk and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--environment", type=Path, required=True, help="a virtual environment with flstudy[study]")
    parser.add_argument("--limit", type=float, default=900, help="seconds that a command may take")
    parser.add_argument("--to", type=Path, default=DOCS / PAGE, help="the page")
    given = parser.parse_args(arguments)
    if not (given.environment / "bin" / "flstudy").exists():
        parser.error(
            f"--environment must hold bin/flstudy, got {given.environment}: pip install 'flstudy[study]' there"
        )
    given.to.write_text(play(given.environment, given.limit, lambda line: print(line, file=sys.stderr, flush=True)))


if __name__ == "__main__":
    main()
