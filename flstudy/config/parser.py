"""The one parser of YAML files and command lines: jsonargparse, with LightningCLI's habits."""

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn

import lightning as L
import yaml
from jsonargparse import ArgumentError, ArgumentParser, Namespace, set_parsing_settings

from flstudy.algorithms import Algorithm
from flstudy.config.names import nearest
from flstudy.config.precheck import LINKED, ROOTS, names, pairs
from flstudy.config.sections import ConfigError, Run, Sampler, Scheduler, Study
from flstudy.controllers import Controller, Schedule
from flstudy.metrics.drift import Recovery
from flstudy.metrics.dynamic_regret import Regret
from flstudy.metrics.wireless import Wireless
from flstudy.population import Dataset, Population
from flstudy.privacy import Privacy

set_parsing_settings(subclasses_enabled=[Algorithm, Sampler, Scheduler], docstring_parse_attribute_docstrings=True)


@functools.cache  # building one takes longer than parsing with it
def build_parser(command: str) -> ArgumentParser:
    """The parser of ``flstudy run`` and ``flstudy tune``: the same config serves both."""
    parser = ArgumentParser(
        prog=f"flstudy {command}",
        description={
            "run": "Train one configuration. Any key of the config may be given as an option.",
            "tune": "Search hyper-parameters: Ray Tune and Optuna over the config's study.search.",
        }[command],
        exit_on_error=False,
    )
    parser.add_argument("--config", action="config", help="YAML file; the first argument may be one without --config.")
    parser.add_subclass_arguments(
        L.LightningModule,
        "task",
        help="What flstudy list tasks shows, or your own class's path.",
    )
    parser.add_subclass_arguments(Dataset, "population.dataset", help="Where examples come from.")
    parser.add_class_arguments(Population, "population", skip={"dataset"})
    parser.add_subclass_arguments(Algorithm, "algorithm", help="The federated optimizer.")
    parser.add_argument("--rounds", type=int, default=100, help="Federated rounds.")
    parser.add_argument("--seeds", type=list[int], default=[0], help="One replica per seed, trained at once.")
    parser.add_argument("--evaluate_every", type=int, default=1, help="Rounds between evaluations.")
    parser.add_argument(
        "--initial",
        type=Literal["seeded", "given"],
        default="seeded",
        help="Draw each replica's initial model from its seed, or start all from the task as it is built.",
    )
    parser.add_argument(
        "--executor",
        type=Literal["vectorized", "threads", "sequential", "trainer", "auto"],
        default="vectorized",
        help="How local fits are carried out; all agree. auto takes the fastest by a short measurement.",
    )
    parser.add_argument(
        "--compile",
        type=bool | Literal["auto"],
        default="auto",
        help="Compile the vectorized steps; auto does if the rounds ahead pay for it.",
    )
    parser.add_argument("--max_lanes", type=int | None, default=None, help="Most lanes at once; null is all of them.")
    parser.add_subclass_arguments(
        Controller,
        "controller",
        required=False,
        default=None,
        help="What acts around rounds: flstudy list controllers.",
    )
    parser.add_subclass_arguments(
        Schedule,
        "schedule",
        required=False,
        default=None,
        help="How the devices' learning rate falls within a session: flstudy list schedules.",
    )
    parser.add_argument("--wireless", type=Wireless | None, default=None, help="A radio cell whose costs are logged.")
    parser.add_class_arguments(Recovery, "recovery")
    parser.add_argument(
        "--regret", type=Regret | None, default=None, help="Log dynamic regret; the tolerance of each round's optimum."
    )
    parser.add_argument(
        "--privacy", type=Privacy | None, default=None, help="Clipping and noise between devices and server."
    )
    parser.add_argument("--accelerator", type=str, default="cpu", help="Lightning's accelerator: cpu, gpu or auto.")
    parser.add_argument(
        "--precision", type=Literal["32-true", "64-true", "bf16-mixed"], default="32-true", help="Lightning's."
    )
    parser.add_argument(
        "--matmul",
        type=Literal["highest", "high", "medium"],
        default="highest",
        help="Precision inside float32 products; high is TF32 on GPUs, medium bfloat16.",
    )
    parser.add_argument(
        "--store", type=str | None, default=None, help="MLflow tracking URI; null is sqlite under mlflow_tracking/."
    )
    parser.add_class_arguments(Run, "run")
    parser.add_class_arguments(Study, "study")
    for name in LINKED:  # a task that asks for them is built for the data set
        parser.link_arguments(
            "population.dataset",
            f"task.init_args.{name}",
            compute_fn=lambda dataset, name=name: getattr(dataset, name),
            apply_on="instantiate",
        )
    return parser


def arguments(overrides: Mapping[str, Any]) -> list[str]:
    """Overrides as command-line options; a class comes before its own parameters."""
    return [f"--{key}={text(value)}" for key, value in sorted(overrides.items(), key=lambda item: item[0].count("."))]


def command_line(content: str, options: Sequence[str]) -> list[str]:
    """A config file's content and options as jsonargparse's arguments.

    An option that names another class than the file does starts from that class's defaults: jsonargparse would keep
    the file's values of equal names, and FedAvg would silently run with the server learning rate of another method.
    """
    nested = yaml.safe_load(content)
    for key, value in pairs(options):
        *parents, name = key.split(".")
        section = nested
        for parent in parents:
            section = section.get(parent) or {} if isinstance(section, Mapping) else {}
        given = section.get(name) if key in ROOTS and isinstance(section, Mapping) else None
        if given is not None and isinstance(value, str) and short(given) != short(value):
            section[name] = value
    return [f"--config={yaml.safe_dump(nested)}", *options]


def short(given: Any) -> str:
    """The class name in a class path, or in a mapping that has one."""
    path = given.get("class_path") if isinstance(given, Mapping) else given
    return str(path).rpartition(".")[2]


def text(value: Any) -> str:
    """A value as YAML on one line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, str | int) else repr(value)


def parse(parser: ArgumentParser, argv: Sequence[str]) -> Namespace:
    """Parsed options.

    Raises:
        ConfigError: one sentence, whatever jsonargparse found.
    """
    try:
        return parser.parse_args(list(argv))
    except (ArgumentError, TypeError, ValueError, OSError) as error:
        refuse(parser, str(error))


def refuse(parser: ArgumentParser, message: str) -> NoReturn:
    """Raise ConfigError with jsonargparse's finding in one sentence, with the nearest right name."""
    key = match[1] if (match := re.search(r'key "([^"]+)"', message)) else ""
    if match := re.search(r"Expected a dot import path string: (\S+)", message):
        known = names(key) if key in ROOTS else []
        raise ConfigError(f"unknown {key.rpartition('.')[2]} {match[1]!r}{nearest(match[1], known)}")
    if match := re.search(r"Option '([^']+)' is not accepted", message):
        owner = re.search(r"class_path '([^']+)'", message)
        prefix = f"{key}." if key else ""
        where = f" of {owner[1].rpartition('.')[2]}" if owner else ""
        known = sorted(
            {action.dest for action in parser._actions} | {action.dest.split(".")[0] for action in parser._actions}
        )
        raise ConfigError(f"unknown key {prefix + match[1]!r}{where}{nearest(match[1], [] if owner else known)}")
    if match := re.search(r"unrecognized arguments: --(\S+)", message):
        name = match[1].partition("=")[0]
        known = [action.dest for action in parser._actions]
        raise ConfigError(f"unknown key {name!r}{nearest(name, known)}")
    if match := re.search(r"Given value: (.+)", message):
        reason = re.search(r"(Import path does not .*|Problem with given class_path.*\n.*|No module named .*)", message)
        if reason:
            raise ConfigError(
                f"{key} must name a class that can be imported, got {match[1]}: {' '.join(reason[1].split())}"
            )
    lines = [line.strip(" -") for line in message.splitlines() if line.strip()]
    lines = [
        line for line in lines if not line.startswith(("Does not validate", "Subtypes", "Errors:", "Given value type"))
    ]
    raise ConfigError("; ".join(line.rstrip(":.") for line in lines)[:500])
