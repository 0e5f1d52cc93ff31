"""Mutations of a study's files, each read by every command that reads studies:
``python -m tests.study.mutations FIRST LAST`` reports those that end otherwise than in an answer or a sentence."""

import contextlib
import io
import json
import os
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

from flstudy.cli import main
from tests.foreign_study import foreign_study

SECONDS, BYTES = 30, 2 * 2**30  # the most that a command may take
COMMANDS = (
    *("show {study} best", "studies {home}", "compare {study} {study}/0", "report {study}"),
    *("export {study} --to {out}/model.pt", "sync {study} --store sqlite:///{out}/mlflow.db"),
)
NUMBERS = (-1, 0, 1 << 31, 1 << 63, 10**400, 1e308, float("nan"), float("inf"))
TEXTS = (
    *("", "\0", "\x1b]0;x\x07", "\u202e", "../../etc/passwd", "/dev/zero", "%s%n{0}", "<script>alert(1)</script>"),
    *("os.system", "a" * 100_000, "file:///etc/passwd", "http://localhost:1"),
)
NASTY = (None, True, [], {}, [[]] * 1_000, {"": {}}, {"class_path": "os.system"}, {"class_path": 3}, *NUMBERS, *TEXTS)


def deep(levels: int) -> list:
    """Nest lists."""
    value: list = []
    for _ in range(levels):
        value = [value]
    return value


def places(value, path=()) -> Iterator[tuple]:
    """The paths of all values in a tree of mappings and lists."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield from places(part, (*path, key))


def change_value(dice: random.Random, value):
    """Replace a value of a tree, remove it, or rename its key."""
    path = dice.choice(list(places(value)))
    new = deep(dice.choice([60, 600])) if dice.random() < 0.05 else dice.choice(NASTY)
    if not path:
        return new
    holder = value
    for key in path[:-1]:
        holder = holder[key]
    kind = dice.random()
    if kind < 0.7:
        holder[path[-1]] = new
    elif kind < 0.85 or isinstance(holder, list):
        del holder[path[-1]]
    else:
        holder[str(new)[:50]] = holder.pop(path[-1])
    return value


def change_content(dice: random.Random, path: Path) -> None:
    """Change a value in a text file that is understood; else bytes."""
    if path.suffix in (".json", ".jsonl", ".yaml") and dice.random() < 0.7:
        if path.suffix == ".yaml":
            value, usual = change_value(dice, yaml.safe_load(path.read_text())), sys.getrecursionlimit()
            sys.setrecursionlimit(100_000)  # what is written may be deeper than what can be read
            path.write_text(yaml.safe_dump(value))
            sys.setrecursionlimit(usual)
        elif path.suffix == ".json":
            path.write_text(json.dumps(change_value(dice, json.loads(path.read_text()))))
        else:
            lines = path.read_text().splitlines()
            place = dice.randrange(len(lines))
            entry = json.loads(lines[place])
            entry.pop("crc32", None)
            lines[place] = json.dumps(change_value(dice, entry))
            path.write_text("\n".join(lines) + "\n")
        return
    content = bytearray(path.read_bytes())
    for _ in range(dice.choice([1, 1, 8, 64])):
        at, kind = dice.randrange(max(1, len(content))), dice.random()
        if kind < 0.5 and content:
            content[at] ^= 1 << dice.randrange(8)
        elif kind < 0.7:
            del content[at : at + dice.choice([1, 16, 1 << 20])]
        elif kind < 0.9:
            content[at:at] = dice.randbytes(dice.choice([1, 16, 4096]))
        else:
            content[at:at] = content[: dice.choice([1, 16, 4096])]
    path.write_bytes(content)


def change_kind(dice: random.Random, path: Path) -> None:
    """Put something else in a file's place."""
    path.unlink()
    kind = dice.randrange(6)
    if kind == 0:
        path.mkdir()
    elif kind == 1:
        path.symlink_to(dice.choice(["/dev/zero", "/etc/passwd", "nowhere", path.name, "/"]))
    elif kind == 2:
        os.mkfifo(path)
    elif kind == 3:
        path.touch()
        os.truncate(path, 1 << 40)
    elif kind == 4:
        path.write_bytes(b"\0" * 1000)


def claim_rows(dice: random.Random, path: Path) -> None:
    """Let records claim many rows in few bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(path, partitioning=None)
    rows = dice.choice([10**4, 10**6, 2 * 10**8 if dice.random() < 0.1 else 10**7])
    row = table.slice(0, 1).combine_chunks()
    with pq.ParquetWriter(path, table.schema, compression="zstd") as writer:
        chunk = row.take(pa.array([0] * min(rows, 10**6), pa.int32())).replace_schema_metadata(table.schema.metadata)
        for _ in range(max(1, rows // 10**6)):
            writer.write_table(chunk)


def mutate(dice: random.Random, folder: Path) -> str:
    """Mutate a file of a study's folder; returns which, and how."""
    path = dice.choice(sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".py"))
    changes: list[Callable] = [change_content] * 8 + [change_kind] + [claim_rows] * (path.suffix == ".parquet")
    change = dice.choice(changes)
    change(dice, path)
    return f"{change.__name__} {path.relative_to(folder)}"


class Failure(NamedTuple):
    """Command that did not answer as it should."""

    seed: int
    change: str
    command: str
    reason: str


def read_by_all(seed: int, template: Path) -> list[Failure]:
    """Mutate a copy of a study and read it by every command, each in a process of its own.

    Args:
        seed: of the mutation.
        template: a folder with the study ``studies/theirs`` and a store ``mlflow.db``.
    """
    failures = []
    with tempfile.TemporaryDirectory() as temporary:
        home, out = Path(temporary) / "studies", Path(temporary)
        shutil.copytree(template / "studies", home)
        shutil.copy(template / "mlflow.db", out)
        change = mutate(random.Random(seed), home / "theirs")
        for command in COMMANDS:
            words = command.format(study=home / "theirs", home=home, out=out).split()
            reason = _run(words, out / "answer")
            failures += [Failure(seed, change, words[0], reason)] if reason else []
    return failures


def _run(words: list[str], answer: Path) -> str | None:
    """Run a command in a child of this process; returns what is wrong with its end."""
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        import signal

        signal.alarm(2 * SECONDS)
        limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + 2 * BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        stream = io.StringIO()
        with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
            status = main(words)
        answer.write_text(stream.getvalue(), errors="replace")
        os._exit(status)
    _, status, usage = os.wait4(child, 0)
    seconds, code = time.monotonic() - began, os.waitstatus_to_exitcode(status)
    text = answer.read_text() if answer.exists() else ""
    answer.unlink(missing_ok=True)
    if code not in (0, 1, 2) or "unexpected" in text or "Traceback" in text:
        return f"exit {code}: {text[-600:]}"
    if code and not text.strip().splitlines()[-1].startswith(("flstudy: ", "flstudy ")):
        return f"exit {code} without a sentence: {text[-600:]}"
    if usage.ru_maxrss * 1024 > BYTES or seconds > SECONDS:
        return f"{usage.ru_maxrss >> 10} MiB, {seconds:.0f} s"
    return None


def prepare(folder: Path) -> None:
    """Write the study and a store that has it, and import what commands import."""
    study = foreign_study(folder / "studies" / "theirs", folder / "canary")
    study.write_events([])
    for command in COMMANDS:
        words = command.format(study=study.path, home=folder / "studies", out=folder).split()
        with contextlib.redirect_stdout(io.StringIO()):  # what is printed is what went wrong, and no more
            status = main(words)
        if status != 0:
            raise SystemExit(f"{command} fails on the whole study")
    shutil.rmtree(study.report, ignore_errors=True)
    shutil.rmtree(study.best, ignore_errors=True)


if __name__ == "__main__":
    first, last = map(int, sys.argv[1:])
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["XDG_STATE_HOME"] = temporary
        prepare(Path(temporary))
        count = 0
        for seed in range(first, last):
            for failure in read_by_all(seed, Path(temporary)):
                print(*failure, sep=" | ", flush=True)
                count += 1
            if seed % 50 == 49:
                print(f"{seed + 1} done", flush=True)
    sys.exit(count > 0)
