"""Both ends of the domain of every number that a config can have: a run of four rounds trains with it, or one sentence
refuses it before anything is trained.

    python -m tests.config.test_bounds                        all of them, in minutes
    python -m tests.config.test_bounds --count 100 --seed 3   a hundred of them; FUZZ_SEED does the same for pytest
    python -m tests.config.test_bounds study.sampler Mlp      those of some keys or classes

Data that no package ships are not loaded: configs of such data sets are only checked. A value that means long work,
such as a million rounds, trains for as long as it is watched.
"""

import argparse
import copy
import inspect
import math
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import typing
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest
import torch
import yaml

from flstudy.config import Config, ConfigError, load
from flstudy.config.errors import LONGEST
from flstudy.config.registry import LINKED, ROOTS, SECTIONS, locate
from flstudy.config.schema import nameable
from flstudy.federation import Record
from flstudy.hyper import NOTATION, Configurable, declared
from flstudy.population import Dataset, Examples
from flstudy.study import Space
from flstudy.tuning.plan import check_study
from tests.config.test_fuzz import SEED

COUNT = 80
WATCHED_S = 5.0
MEMORY = 14 << 30  # bytes of a process
UNSHIPPED = "there is no folder"
"""What says that a data set's files are missing."""
WORLD: dict[str, Any] = {
    "task": "Logistic",
    "population": {"dataset": "Digits", "clients": 4, "participants": 2, "batch_size": 8, "steps": 2},
    "algorithm": {"class_path": "FedAvg", "init_args": {"lr": 0.1}},
    "rounds": 4,
    "seeds": [0],
    "compile": False,
    "evaluate_every": 2,
    "study": {"search": {"algorithm.lr": {"choice": [0.01, 0.1, 1.0]}}, "trials": 4},
}
ARGUMENTS: dict[str, dict[str, Any]] = {  # that a class needs to be built, or to go with the world
    "AlternatingGroups": {"rounds": 2},
    "Restart": {"rounds": 2},
    "SuddenDrift": {"round": 2},
    "IncrementalDrift": {"round": 2},
    "RecurrentDrift": {"round": 2, "back": 3},
    "StaggeredDrift": {"round": 2, "until": 3},
    "RepeatedDrift": {"rounds": [2], "cycle": 2},
    "OptunaSampler": {"class_path": "optuna.samplers.RandomSampler"},
    "RayScheduler": {"class_path": "ray.tune.schedulers.FIFOScheduler"},
    "TwoStep": {"tie": [["algorithm.lr", "algorithm.server_lr"]]},
    "Asha": {"grace_rounds": 2},
    "HyperBand": {"grace_rounds": 2},
    "MedianStopping": {"grace_rounds": 2},
    "Pbt": {"keys": ["algorithm.lr"], "every": 2},
    "Panel": {"clients": 2},
    "Privacy": {"clip": 1.0, "noise": 1.0},
}
UNIFORM = {"algorithm": {"class_path": "FedAvg", "init_args": {"lr": 0.1, "weighting": "uniform"}}}
SESSIONS = {
    "rounds": 8,
    "population.availability": {"class_path": "AlternatingGroups", "init_args": {"rounds": 2}},
}
SUDDEN = {"class_path": "SuddenDrift", "init_args": {"round": 2}}
RANGE = {"algorithm.lr": {"loguniform": [0.01, 1.0]}}
BESIDE: dict[str, dict[str, Any]] = {  # keys of a class or a section in whose world it makes sense
    "MasterFL": {"algorithm": {"class_path": "FedOmd", "init_args": {"lr": 0.1}}},
    "Average": SESSIONS,
    "DynamicInitialModel": SESSIONS,
    "Oracle": {"population.drift": SUDDEN},
    "population.drift.change": {"population.drift": SUDDEN},
    "Moon": {"task": "Mlp"},
    "Privacy": UNIFORM,
    "AdaptiveClip": {**UNIFORM, "privacy": {"clip": 1.0, "noise": 1.0}},
    "Pbt": {"study.search": RANGE, "study.sampler": "RandomSearch"},
    "GridSearch": {"study.search": RANGE, "study.trials": None, "study.budget": {"rounds": 100}},
    "TwoStep": {
        "algorithm": {"class_path": "FedAdam", "init_args": {"lr": 0.1}},
        "study.search": {key: {"choice": [0.01, 0.1, 1.0]} for key in ("algorithm.lr", "algorithm.server_lr")},
        "study.trials": 9,
    },
    "FastText": {"population.dataset": "tests.config.test_bounds.Words"},
    "Lstm": {"population.dataset": "tests.config.test_bounds.Words"},
    "TagLogistic": {"population.dataset": "tests.config.test_bounds.Tags"},
}


@dataclass(frozen=True, kw_only=True)
class Words(Dataset):
    """Made-up texts of two kinds."""

    shape, classes, tokens = (5,), 2, 20

    def load(self, seed: int, clients: int) -> Examples:
        generator = torch.Generator().manual_seed(0)
        return Examples(torch.randint(1, 20, (200, 5), generator=generator), torch.arange(200) % 2, None)


@dataclass(frozen=True, kw_only=True)
class Tags(Words):
    """The same texts, each with two tags of six."""

    classes = 6

    def load(self, seed: int, clients: int) -> Examples:
        return (
            super().load(seed, clients)._replace(y=torch.stack([torch.arange(200) % 3, 3 + torch.arange(200) % 3], 1))
        )


class Case(NamedTuple):
    """A number at an end of its domain."""

    key: str  # of the class or section
    owner: str  # its class
    name: str
    value: Any  # the number, or a list of it

    def content(self) -> dict[str, Any]:
        """The config in which all else is as it should be."""
        content = copy.deepcopy(WORLD)
        for key, value in {**BESIDE.get(self.key, {}), **BESIDE.get(self.owner, {})}.items():
            put(content, key, value)
        arguments = copy.deepcopy(ARGUMENTS.get(self.owner, {})) | {self.name: self.value}
        if self.key == "algorithm":
            arguments = {"lr": 0.1} | arguments
        if self.key in ROOTS:
            where = self.key.replace("drift.change", "drift.init_args.change")
            put(content, where, {"class_path": self.owner, "init_args": arguments})
        else:
            for name, value in arguments.items():
                put(content, f"{self.key}.{name}".removeprefix("."), value)
        return content


def put(content: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key."""
    *sections, name = key.split(".")
    for section in sections:
        content = content.setdefault(section, {})
    content[name] = copy.deepcopy(value)


def ends(domain: str, *, whole: bool) -> list[float]:
    """The least and the largest number of a domain."""
    match = NOTATION.match(domain)
    assert match is not None
    least, most = float(match[2]), float(match[3])
    if whole:
        return [int(least) + (match[1] == "("), int(most) - (match[4] == ")")]
    return [
        least if match[1] == "[" else math.nextafter(least, math.inf),
        most if match[4] == "]" else math.nextafter(most, -math.inf),
    ]


def classes() -> Iterator[tuple[str, type[Any]]]:
    """Every class that a config's keys name, and every section's."""
    for key, root in ROOTS.items():
        yield from ((key, cls) for cls in nameable(root).values())
    for key, section in SECTIONS.items():
        cls = locate(f"{section.module}.{section.name}")
        yield key, cls
        for name, annotation in typing.get_type_hints(cls).items():
            for part in (annotation, *typing.get_args(annotation)):
                below = f"{key}.{name}".removeprefix(".")
                if inspect.isclass(part) and issubclass(part, Configurable) and below not in ROOTS:
                    yield below, part


def cases() -> list[Case]:
    """Both ends of each number; what classes inherit is tried with the first of them."""
    every = dict[tuple[Any, ...], Case]()
    for key, cls in classes():
        for name, declaration in declared(cls).items():
            if declaration.domain is None or (key == "task" and name in LINKED):
                continue
            parts = {declaration.annotation, *re.findall(r"\bfloat\b", str(declaration.annotation))}
            source = next(base for base in reversed(cls.__mro__) if name in declared_by(base))
            for place, value in enumerate(ends(declaration.domain, whole=not parts & {float, "float"})):
                case = Case(key, cls.__name__, name, nested(declaration.annotation, value))
                every.setdefault((key, source, name, place), case)
    return list(every.values())


def nested(annotation: Any, number: float) -> Any:
    """A number in as many lists as an annotation asks for."""
    for part in (annotation, *typing.get_args(annotation)):
        if typing.get_origin(part) in (list, tuple, Sequence):
            return [nested(typing.get_args(part)[0], number)]
    return number


def declared_by(cls: type[Any]) -> Mapping[str, Any]:
    """The fields, or arguments of the constructor, that a class declares itself."""
    if "__init__" in vars(cls) and not is_dataclass(cls):
        return declared(cls)
    return inspect.get_annotations(cls)


class Watched(BaseException):
    """Signal that a value has been tried for as long as it is watched."""


def interrupt(number: int, frame: FrameType | None) -> None:
    raise Watched


def verdict(case: Case, folder: Path) -> str:
    """What becomes of a value: trained, diverged, refused, watched, or unshipped.

    Raises:
        Exception: for one that is neither refused nor trained.
    """
    path = folder / "case.yaml"
    path.write_text(yaml.safe_dump(case.content(), sort_keys=False))
    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 4 * WATCHED_S)  # since a plan ends by itself
    try:
        try:
            config = load(path, command="tune")
            check_study(config.checked())
            config.rehearse()
        except ConfigError as error:
            sentence = re.sub(r"^[\w.-]+:\d+: ", "", str(error))
            assert 0 < len(sentence) <= LONGEST, sentence
            assert sentence.isprintable(), sentence
            assert "Error:" not in sentence, sentence  # of somebody else's making
            missing = case.key == "population.dataset" and re.search(UNSHIPPED, sentence)
            return "unshipped" if missing else f"refused: {sentence}"
        if case.key.startswith("study"):
            begin_search(config)
        return trained(config)
    except Watched as error:
        if case.key == "population.dataset":
            return "watched"
        raise AssertionError("it is neither refused nor trained") from error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def trained(config: Config) -> str:
    """Whether all rounds were trained, or it diverged, or trained for as long as it is watched."""
    signal.setitimer(signal.ITIMER_REAL, WATCHED_S)
    records = list[Record]()
    try:
        config.run(records.append)
    except Watched:
        return "watched"
    losses = [loss for record in records for loss in record.metrics["train/loss"]]
    return "trained" if all(map(math.isfinite, losses)) else "diverged"


def begin_search(config: Config) -> None:
    """Ask a study's sampler for its first proposals, and build its scheduler."""
    from flstudy.tuning.schedulers import ray_scheduler
    from flstudy.tuning.search import Search

    search = Search(Space.of_study(config.study), config, name="s", max_concurrent=lambda: 2)
    assert search.suggest("first")["overrides"]  # type: ignore[index]
    search.suggest("second")
    ray_scheduler(config)
    if config.study.scheduler is not None:
        config.study.scheduler.build(config, {})


@pytest.mark.parametrize(
    ("owner", "name", "most", "outcome"),
    [
        ("Polynomial", "power", True, "trained"),  # a rate too small for a number
        ("IncrementalDrift", "step", False, "trained"),  # more increments than any run has rounds
        ("Lstm", "embedding", False, "trained"),  # of texts whose labels are other classes than their tokens
        ("Privacy", "noise", True, "trained"),  # for which the accountant has no sum
        ("Asha", "reduction_factor", False, "refused: study.scheduler.reduction_factor must make fewer rungs than the"),
        ("Regret", "tolerance", False, "refused: case.yaml: optimum: ‖∇F‖ is "),
        ("Wireless", "slot", False, "refused: case.yaml: Wireless: a device needs inf slots of 5e-324 s"),
    ],
)
def test_numbers_that_failed_after_the_first_round_had_begun(tmp_path, owner, name, most, outcome):
    matching = [case for case in cases() if (case.owner, case.name) == (owner, name)]
    assert verdict(matching[most], tmp_path).startswith(outcome)


def test_a_controller_that_an_algorithm_cannot_serve_is_refused_before_anything_is_trained(tmp_path):
    content = Case("controller", "MasterFL", "c1", 1.0).content() | {"algorithm": "FedAvg"}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigError, match="controller: MasterFL: lr instance needs an algorithm whose server sends a"):
        load(tmp_path / "a.yaml", command="run").checked()


@pytest.mark.slow
def test_a_number_inside_its_domain_trains_or_is_refused_before_anything_is_trained():
    command = [sys.executable, "-m", "tests.config.test_bounds", "--count", str(COUNT), "--seed", str(SEED)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
    assert run.stdout.count("trained") > COUNT // 3


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="keys or classes")
    parser.add_argument("--count", type=int)
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    chosen = [case for case in cases() if not arguments.names or {case.key, case.owner} & {*arguments.names}]
    if arguments.count is not None:
        chosen = random.Random(arguments.seed).sample(chosen, min(arguments.count, len(chosen)))
    failures = 0
    with tempfile.TemporaryDirectory() as place:
        for case in chosen:
            try:
                outcome = verdict(case, Path(place))
            except Exception as error:
                failures += 1
                outcome = f"WRONG: {type(error).__name__}: {error}"
            print(
                f"{outcome[:9]:10}{case.key or 'top'} {case.owner}.{case.name} = {case.value} {outcome[9:]}",
                flush=True,
            )
    print(f"{len(chosen)} values, FUZZ_SEED={arguments.seed}, {failures} wrong")
    sys.exit(bool(failures))
