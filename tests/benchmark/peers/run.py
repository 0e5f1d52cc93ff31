"""Run Flower, pfl-research and flstudy on both workloads, and write the table.

    python tests/benchmark/peers/run.py

needs Python 3.11 or newer and nothing else. It installs the peers' pinned requirements in environments of their own
(some minutes and 2.5 GB the first time); the rows of flstudy and of the plain PyTorch loop come from `flstudy bench`
under the interpreter that runs this script, and are missing where that has no torch and lightning. It goes `--repeats`
times through all of them, so that a slow minute of the machine hits each, and takes the median over the repeats of the
median over a run's rounds (flstudy: of the mean). What cannot be installed or run gets a row that says so.

On a machine that others use it refuses to start, and does a run again that others disturbed; `--busy` measures all the
same and marks the rows.
"""

import argparse
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))
from flstudy.benchmark.gauge import BusyMachine, Gauge, account_lines  # of the standard library alone

HERE = Path(__file__).parent
CORES = len(os.sched_getaffinity(0))
ROUNDS = {"mlp": (30, 5), "cnn": (6, 1)}  # timed, warm
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
# What a user would try to make best use of the cores; the table shows all of them, the best one counts.
PEERS: dict[str, dict[str, list[str]]] = {
    "flower": {f"{CORES} actors of 1 thread": ["flower.py", "--actors", str(CORES)]},
    "pfl": {
        "1 process, 1 thread": ["pfl_research.py"],
        f"1 process, {CORES} threads": ["pfl_research.py", "--threads", str(CORES)],
        f"{CORES} processes of 1 thread": [*TORCHRUN, str(CORES), "pfl_research.py"],
    },
}
# The same for flstudy: its benchmark's executors, each of which is a row. Each has the seconds of ~30 rounds.
OURS = {"mlp": ["plain", "vectorized", "compiled"], "cnn": ["plain", "threads", "compiled"]}
SECONDS = {"mlp": 5, "cnn": 15}


def call(command: list[str | Path], seconds: float = 1800.0) -> str | None:
    """Run a command in this folder; what went wrong, in one line without paths or addresses, or None."""
    path = os.pathsep.join(filter(None, [str(HERE.parents[2]), os.environ.get("PYTHONPATH")]))
    ours = {"PYTHONPATH": path} if command[0] == sys.executable else {}  # the peers see nothing of this repository
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"} | ours
    try:
        done = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True, timeout=seconds)
    except (OSError, subprocess.TimeoutExpired) as error:
        return type(error).__name__
    if not done.returncode:
        return None
    sys.stderr.write(done.stdout + done.stderr)
    lines = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").splitlines()
    error_line = next((line for line in reversed(lines) if re.search(r"error", line, re.IGNORECASE)), lines[-1])
    return re.sub(r"\S*/\S+", "...", error_line).replace("|", "/").strip()[:160]


def install(peer: str, env: Path) -> dict[str, object]:
    """Make an environment with the pinned requirements, unless it is there already. Seconds, megabytes or an error."""
    wanted, stamp = HERE / f"requirements-{peer}.txt", env / "installed.json"
    if stamp.exists() and (installed := json.loads(stamp.read_text()))["requirements"] == wanted.read_text():
        return installed["setup"]
    print(f"{peer}: installing {wanted.name} ...", flush=True)
    shutil.rmtree(env, ignore_errors=True)
    start = time.perf_counter()
    pip = [env / "bin" / "python", "-m", "pip"]
    for command in [sys.executable, "-m", "venv", env], [*pip, "install", "-q", "-r", wanted.name], [*pip, "check"]:
        if error := call(command):
            return {"error": f"not installed: {error}"}
    size = sum(file.stat().st_size for file in env.rglob("*") if file.is_file() and not file.is_symlink())
    setup: dict[str, object] = {"seconds": round(time.perf_counter() - start), "megabytes": size // 10**6}
    stamp.write_text(json.dumps({"requirements": wanted.read_text(), "setup": setup}))
    return setup


def measure(python: Path, arguments: list[str], workload: str) -> dict:
    """One process of one peer on one workload: its result or {"error": why}."""
    rounds, warm = ROUNDS[workload]
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        options = ["--workload", workload, "--rounds", str(rounds), "--warm", str(warm), "--json", str(result)]
        if error := call([python, *arguments, *options]):
            return {"error": f"failed: {error}"}
        return json.loads(result.read_text())


def measured(envs: Path, case: tuple[str, str, str]) -> dict[str, dict]:
    """A run of a peer: configuration -> its result."""
    workload, peer, name = case
    return {name: measure(envs / peer / "bin" / "python", PEERS[peer][name], workload)}


def measure_ours(workload: str) -> dict[str, dict]:
    """One run of flstudy's benchmark: configuration -> its result or {"error": why}."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        options = ["--workloads", workload, "--executors", *OURS[workload]]
        options += ["--busy", "--repeats", "1", "--seconds", str(SECONDS[workload]), "--accelerator", "cpu"]
        error = call([sys.executable, "-m", "flstudy.benchmark", *options, "--json", str(result)])
        if not result.exists():
            return {", ".join(OURS[workload]): {"error": f"failed: {error}"}}
        report = json.loads(result.read_text())
    results = {}
    for row in report["workloads"][0]["rows"]:
        plain, name = row["executor"] == "plain", f"{row['threads']} thread{'s' * (row['threads'] > 1)}"
        name = f"plain loop, {name}" if plain else f"{row['executor']}, {name}"
        if "error" in row:
            results[name] = {"error": f"failed: {row['error']}"}
            continue
        packages = {"flstudy": report["versions"]["flstudy"]} if not plain else {}
        results[name] = {
            "rounds_per_second": row["seed_rounds_per_s"],
            "fits_per_second": row["fits_per_s"],
            "versions": packages | {"torch": report["versions"]["torch"]},
            "limit_rounds_per_second": 1e3 * row["seeds"] / row["limit_ms"] if row["limit_ms"] else None,
            "disturbed": row["busy"],
        }
    return results


def cpu() -> str:
    """The processor's name and the cores this process may use."""
    names = re.findall(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text()) or [platform.machine()]
    return f"{names[0]}, {CORES} cores"


def table(report: dict) -> str:
    """The report as Markdown."""
    lines = [
        f"{report['hardware']}, Python {report['python']}; `{report['command']}`",
        "",
        *first_table(report),
        "",
        "| workload | peer | configuration | rounds/s | lowest to highest | client fits/s | × of it |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        name = f"| {row['workload']} | {row['peer']} | {row['configuration']}{' (!)' * row.get('disturbed', False)} "
        if "error" in row:
            lines.append(f"{name}| {row['error']} | | | |")
            continue
        rates = row["rates"]
        span = f"{min(rates):.2f} to {max(rates):.2f} ({len(rates)} run{'s' * (len(rates) > 1)})"
        best = max((r["rounds_per_second"] for r in report["rows"] if is_ours(r, row["workload"])), default=None)
        times = "" if best is None else f"{best / row['rounds_per_second']:.1f}"
        lines.append(f"{name}| {row['rounds_per_second']:.2f} | {span} | {row['fits_per_second']:.1f} | {times} |")
    lines += ["", "× of it: flstudy's best rate on the workload, as a multiple of the row's."]
    return "\n".join([*lines, "", account_lines(report["quiet"])])


SYSTEMS = {  # in the first table: whose rows, and which of them
    "flstudy": ("flstudy", ""),
    "Flower + Ray": ("flower", ""),
    "pfl, 1 process": ("pfl", "1 process"),
    f"pfl, {CORES} processes": ("pfl", f"{CORES} processes"),
    "plain loop": ("plain", ""),
}


def first_table(report: dict) -> list[str]:
    """A line for each workload: every system at its best, and how many times faster flstudy is."""
    lines = [f"| rounds/s (× : flstudy's multiple) | {' | '.join(SYSTEMS)} | limit of one core |"]
    lines.append("|---" * (len(SYSTEMS) + 2) + "|")
    for workload in ROUNDS:
        rows = [row for row in report["rows"] if row["workload"] == workload and "error" not in row]
        best: dict[str, dict] = {}
        for name, (system, beginning) in SYSTEMS.items():
            mine = [row for row in rows if row["system"] == system and row["configuration"].startswith(beginning)]
            if mine:
                best[name] = max(mine, key=lambda row: row["rounds_per_second"])
        ours = best.get("flstudy", {}).get("rounds_per_second")
        cells = [workload]
        for name in SYSTEMS:
            rate = best.get(name, {}).get("rounds_per_second")
            times = f" ({ours / rate:.1f})" if rate and ours and name != "flstudy" else ""
            cells.append("-" if not rate else f"{rate:.2f}{times}{' !' * best[name]['disturbed']}")
        limit = best.get("flstudy", {}).get("limit_rounds_per_second")
        lines.append(f"| {' | '.join(cells)} | {f'{limit:.1f}' if limit else '-'} |")
    marked = any(row.get("disturbed") for row in report["rows"])
    note = "Limit: the matrix products of the round's steps and nothing else, on one core."
    return [*lines, "", note + " (!): others used the machine meanwhile, no word about speed." * marked, ""]


def is_ours(row: dict, workload: str) -> bool:
    """Whether this is a row of flstudy that was measured on the workload."""
    return row["workload"] == workload and "error" not in row and "flstudy" in row["versions"]


def summary(runs: dict[tuple[str, str, str], list[dict]], setups: dict, gauge: Gauge, repeats: int) -> dict:
    """Medians over the repeats so far, with what they were measured on."""
    rows = []
    for (workload, peer, name), results in sorted(runs.items(), key=lambda item: list(ROUNDS).index(item[0][0])):
        system = "plain" if name.startswith("plain loop") else peer
        row: dict = {"workload": workload, "peer": peer, "system": system, "configuration": name}
        if error := next((r["error"] for r in results if "error" in r), None):
            rows.append(row | {"error": error})
            continue
        versions = results[0]["versions"]
        row["peer"] = ", ".join(f"{package} {version}" for package, version in versions.items())
        row["disturbed"] = any(r["disturbed"] for r in results)
        for key in "rounds_per_second", "fits_per_second", "loss_before", "loss_after", "limit_rounds_per_second":
            if results[0].get(key) is not None:
                row[key] = statistics.median(r[key] for r in results)
        rows.append(row | {"versions": versions, "rates": [r["rounds_per_second"] for r in results]})
    return {
        "hardware": cpu(),
        "python": platform.python_version(),
        "quiet": gauge.account(),
        "command": f"python tests/benchmark/peers/run.py --repeats {repeats}",
        "setup": setups,
        "rows": rows,
    }


def main() -> None:
    """Install, measure, write results.json and results.md after each repeat, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=Path, default=HERE / ".peers", help="where the environments are kept")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--busy", action="store_true", help="measure though others use the machine, and mark the rows")
    parser.add_argument("--out", type=Path, default=HERE, help="folder of results.json and results.md")
    options = parser.parse_args()
    envs = options.envs.resolve()
    setups = {peer: install(peer, envs / peer) for peer in PEERS}
    gauge = Gauge(strict=not options.busy, every_s=1.0)
    try:
        gauge.check()
        compare(options, envs, setups, gauge)
    except BusyMachine as error:
        sys.exit(f"{parser.prog}: error: {error}")
    finally:
        gauge.end()


def compare(options: argparse.Namespace, envs: Path, setups: dict, gauge: Gauge) -> None:
    """All systems, as often as asked for."""

    def quietly(work: Callable[[], dict[str, dict]]) -> dict[str, dict]:
        """Results by configuration, each with whether others disturbed it."""
        done = gauge.quietly(
            work,
            say=lambda line: print(line, flush=True),
            refused=lambda results: any(measurement.get("disturbed") for measurement in results.values()),
        )
        disturbed = done.moment.busy(gauge.best_s)
        return {
            name: {**measurement, "disturbed": disturbed or measurement.get("disturbed", False)}
            for name, measurement in done.result.items()
        }

    plan = [(workload, peer, name) for workload in ROUNDS for peer in PEERS for name in PEERS[peer]]
    runs: dict[tuple[str, str, str], list[dict]] = {case: [] for case in plan}
    have_ours = call([sys.executable, "-c", "import flstudy.benchmark.measure"]) is None
    if not have_ours:
        print(f"{sys.executable} cannot import flstudy with torch and lightning: its rows are left out", flush=True)
    for repeat in range(options.repeats):
        for workload in ROUNDS if have_ours else ():
            for name, result in quietly(partial(measure_ours, workload)).items():
                runs.setdefault((workload, "flstudy", name), []).append(result)
                shown = result.get("error") or f"{result['rounds_per_second']:.2f} rounds/s"
                print(f"{repeat + 1}/{options.repeats} {workload}, flstudy, {name}: {shown}", flush=True)
        for case in plan:
            workload, peer, name = case
            broken = setups[peer] if "error" in setups[peer] else next((r for r in runs[case] if "error" in r), None)
            runs[case].append(broken or quietly(partial(measured, envs, case))[name])
            shown = runs[case][-1].get("error") or f"{runs[case][-1]['rounds_per_second']:.2f} rounds/s"
            print(f"{repeat + 1}/{options.repeats} {workload}, {peer}, {name}: {shown}", flush=True)
        report = summary(runs, setups, gauge, repeat + 1)  # an interrupted run keeps its table
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "results.json").write_text(json.dumps(report, indent=1) + "\n")
        (options.out / "results.md").write_text(table(report))
    print(table(report))


if __name__ == "__main__":
    main()
