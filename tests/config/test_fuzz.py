"""Configs that went wrong: every shipped one, mutated at random. Each is refused in one sentence, or builds.

    python -m tests.config.test_fuzz --count 2000        more of them than a run of the suite tries
    python -m tests.config.test_fuzz --seed 20261122     those of a run that failed; FUZZ_SEED does the same for pytest

Data are not loaded, since no published set lies here; weights are not read from files.
"""

import argparse
import datetime
import os
import random
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from flstudy.config import ConfigError, load
from flstudy.config.composition import quick_check
from flstudy.config.errors import LONGEST
from flstudy.config.shipped import configs
from flstudy.study.space import Space
from flstudy.tasks import vit

COUNT = 200
SEED = int(os.environ.get("FUZZ_SEED", datetime.date.today().strftime("%Y%m%d")))
HOLE = "HERE"
"""Where brackets go, too deep for what writes YAML."""
WORDS = ["", "ünïcödé ☃", "\U0001f9ea" * 40, "x" * 600, "a\nb", "\x1b[31mred", "null", "1e3", "Flash", "../../etc", "-"]
SCALARS: list[Any] = [
    *(None, True, False, 0, -1, -0.5, 1.5, 1e30, -1e30, 10**18, 10**400, 2**31, 999_999, 10**6),
    *(float("inf"), float("-inf"), float("nan"), 1e-300, [], {}, [None], [[]], *WORDS),
]


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a nested one."""
    if at:
        yield at
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in below:
        yield from places(child, (*at, key))


def replaced(value: Any, at: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    """A nested value with one of its parts changed."""
    if not at:
        return change(value)
    copy = value.copy()
    copy[at[0]] = replaced(value[at[0]], at[1:], change)
    return copy


def renamed(value: dict[Any, Any], at: tuple[Any, ...], name: Any) -> dict[Any, Any]:
    """A nested value with another word for one of its keys."""

    def rename(parent: Any) -> Any:
        if not isinstance(parent, dict):
            return {name: parent}
        return {name if key == at[-1] else key: child for key, child in parent.items()}

    return replaced(value, at[:-1], rename)


def retyped(value: Any, rng: random.Random) -> Any:
    """The same value as another kind of thing."""
    kinds: list[Callable[[], Any]] = [
        lambda: str(value),
        lambda: [value],
        lambda: [value, value],
        lambda: {"value": value},
        lambda: {"class_path": value},
        lambda: {"class_path": "Mlp", "init_args": value},
        lambda: {1: value, None: value},
        lambda: float(value) if isinstance(value, int) else 7,
        lambda: list(value) if isinstance(value, dict) else dict.fromkeys("ab", value),
    ]
    return rng.choice(kinds)()


def changed(content: dict[Any, Any], rng: random.Random) -> dict[Any, Any]:
    """A config's content with one value or key of it wrong."""
    at, kind = rng.choice(list(places(content))), rng.randrange(8)
    if kind == 0:
        return renamed(content, at, rng.choice([*WORDS, 3, None, True, 1.5, f"{at[-1]}s", "class_path"]))
    if kind < 3:
        return replaced(content, at, lambda value: retyped(value, rng))
    if kind == 3:
        return replaced(content, at, lambda value: value * 1000 if isinstance(value, int) else HOLE)
    return replaced(content, at, lambda _: rng.choice(SCALARS))


def marred(text: str, rng: random.Random) -> str:
    """A YAML text with one line or character of it wrong."""
    lines, kind = text.splitlines(), rng.randrange(4)
    line = rng.randrange(len(lines))
    if kind == 0:
        return "\n".join(lines[:line] + lines[line + 1 :])
    if kind == 1:
        return "\n".join([*lines[:line], lines[line], *lines[line:]])
    if kind == 2:
        return "\n".join([*lines[:line], f"  {lines[line]}", *lines[line + 1 :]])
    cut = rng.randrange(len(text))
    return text[:cut] + rng.choice(["{", "}", "[", "\t", ":", "&a", "*a", "!!set ", "- ", "\0", "é", "'"]) + text[cut:]


def mutated(original: Path, rng: random.Random) -> str:
    """A config's text with one thing wrong with it, or two."""
    text = original.read_text(encoding="utf-8")
    if rng.random() < 0.7:
        content = yaml.load(text, yaml.CSafeLoader)
        for _ in range(rng.choice([1, 1, 2])):
            content = changed(content, rng) or content
        deep = rng.choice([1, 3, 60, 3000])
        text = yaml.dump(content, Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True)
        return text.replace(HOLE, "[" * deep + "]" * deep)
    return marred(text, rng)


def verdict(action: Callable[[], Any]) -> str | None:
    """None where a config is accepted, else the sentence that refuses it."""
    try:
        action()
    except ConfigError as error:
        message = str(error)
        assert 0 < len(re.sub(r"^[\w.-]+:\d+: ", "", message)) <= LONGEST, message
        assert message.isprintable(), message
        return message
    return None


def build(path: Path) -> None:
    """All that stands before the data: objects, their rules, and the search space."""
    config = load(path, command="tune")
    Space.parse(config.study.search)


def check(path: Path, *, twice: bool) -> bool:
    """Whether a config is accepted; raises AssertionError for one that is not dealt with as it should be.

    Args:
        path: of it.
        twice: load what the quick check refuses too, though that is how loading begins.
    """
    quick = verdict(lambda: quick_check(path, []))
    full = verdict(lambda: build(path)) if quick is None or twice else quick
    assert quick is None or full is not None, f"only the quick check refuses it: {quick}"
    return full is None


def fuzz(count: int, seed: int, folder: Path, fail: Callable[[str], None]) -> dict[str, int]:
    """Mutations of all configs in turn: how many were refused and how many accepted."""
    paths, seen = configs(), {"accepted": 0, "refused": 0}
    for number in range(count):
        rng = random.Random(f"{seed}/{number}")
        original = paths[(number + seed) % len(paths)]
        path = folder / "study.yaml"
        path.write_text(mutated(original, rng), encoding="utf-8", errors="surrogateescape")
        try:
            seen["accepted" if check(path, twice=number % 10 == 0) else "refused"] += 1
        except Exception:
            saved = path.rename(folder / f"{seed}-{number}.yaml")
            fail(f"mutation {number} of FUZZ_SEED={seed}, of {original}, kept as {saved}:\n{traceback.format_exc()}")
    return seen


def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that is named is not there."""
    monkeypatch.setattr(vit, "pretrained", lambda model, path: None)


@pytest.mark.slow
def test_mutated_configs_are_refused_in_a_sentence_or_build(tmp_path, monkeypatch):
    no_weights(monkeypatch)
    seen = fuzz(COUNT, SEED, tmp_path, pytest.fail)
    assert seen["refused"] > seen["accepted"] > 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--folder", type=Path, default=Path("/tmp"))
    options = parser.parse_args()
    failures: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        no_weights(patch)
        began = time.monotonic()
        counts = fuzz(options.count, options.seed, options.folder, failures.append)
    print(*failures, sep="\n")
    seconds = round(time.monotonic() - began)
    print(f"{options.count} mutations, FUZZ_SEED={options.seed}: {counts}, {len(failures)} wrong, {seconds} s")
    sys.exit(bool(failures))
