"""A commented study to start from, for a data set, methods and a drift of one's choice: all from the schema.

The search follows from the methods' fields. A number that may be of any size, such as τ, is searched from a decade
below its default to a decade above; a share, such as β₁, over usual values. A key that is off by default for one of the
methods is left alone, since searching it would switch it on. Both learning rates are searched, and of each method those
keys that FedAvg lacks: its scales or, where it has none, its shares; the others are written as comments. As arms, each
method has ranges around its own defaults, but for those that are the same for all.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from flstudy.config.composition import checked_values
from flstudy.config.errors import ConfigError, nearest, spelled
from flstudy.config.reading import ARMS, SEARCH, parsed
from flstudy.config.registry import ROOTS
from flstudy.config.schema import class_names, config_schema, types_of
from flstudy.config.values import dereferenced, resolved
from flstudy.hyper import NOTATION

BASE = "FedAvg"
RATES = ("lr", "server_lr")
MOMENTA = (0.0, 0.5, 0.9, 0.99)
NONE = "none"
MOST_LABELS = 1000  # of a drift that names them all
HEADS = {"Mlp": "network.3.*", **dict.fromkeys(("Cnn", "FastText", "Lstm", "ResNet18"), "head.*")}
"""Last layers of a first task, for methods of which devices keep or share a part; other first tasks have one layer."""

SENTENCES = {  # instead of the schema's
    ARMS: "Methods and variants that are compared, with ranges beside the shared ones; the last holds one value",
    "study.presets": "Parts of the model that devices keep, or share; other values of one method may stand here, too",
}


class Choice(NamedTuple):
    """Contents of a study to start from; flstudy chooses a field that is None."""

    dataset: str = "Digits"
    algorithms: Sequence[str] = ("Flash", "FedYogi", "FedAvg")
    drift: str | None = None
    """Class of the drift, or ``none``; None: SuddenDrift, or none where there are sessions."""
    sessions: bool = False
    """Whether two groups of devices take turns."""
    arms: bool = False
    """Whether each method is an arm with ranges of its own, beside a variant of the first."""
    rounds: int | None = None
    trials: int | None = None

    def checked(self) -> "Choice":
        """Return this choice, once every name in it is known; raises ConfigError for another."""
        _known("population.dataset", self.dataset)
        for name in self.algorithms:
            _known("algorithm", name)
        if len(set(self.algorithms)) < len(self.algorithms) or not self.algorithms:
            raise ConfigError(f"algorithms must be one or more different ones, got {' '.join(self.algorithms)}")
        if self.drift not in (None, NONE):
            _known("population.drift", str(self.drift), NONE)
        return self


class Aside(NamedTuple):
    """A value that stands in the study as a comment."""

    value: Any
    why: str = ""


def starter(choice: Choice | None = None) -> str:
    """Return a study to start from, each key with its sentence.

    Raises:
        ConfigError: for a name that there is not, with the nearest one that there is, or a number out of its domain.
    """
    choice = (choice or Choice()).checked()
    lines = [
        "# A study to start from. flstudy tune FILE runs it, flstudy tune --help names every key, and",
        "# flstudy list algorithms every algorithm. Editors with a YAML language server complete and check keys",
        "# by the schema whose place on a machine flstudy schema --path tells.",
    ]
    text = "\n".join([*lines, *_commented(_study(choice), config_schema()["properties"], "", "")]) + "\n"
    checked_values(parsed(text), [], imports=False)  # numbers of the user's are as wrong here as anywhere
    return text


def ask_choice(read: Callable[[str], str] = input, say: Callable[[str], object] = print) -> Choice:
    """Ask at a terminal for a choice; an empty answer takes the value in brackets.

    Args:
        read: asks a question.
        say: shows a line.
    """
    usual = Choice()

    def ask(question: str, otherwise: str, kind: str, change: Callable[[Choice, list[str]], Choice]) -> None:
        nonlocal usual
        while True:
            words = read(f"{question} [{otherwise}]: ").replace(",", " ").split()
            try:
                usual = change(usual, words).checked() if words else usual
                return
            except ConfigError as error:
                say(f"{error} (flstudy list {kind} shows all)")

    ask("data set", usual.dataset, "datasets", lambda so_far, words: so_far._replace(dataset=" ".join(words)))
    ask(
        "methods, apart by spaces",
        " ".join(usual.algorithms),
        "algorithms",
        lambda so_far, words: so_far._replace(algorithms=tuple(words)),
    )
    ask("drift, or none", "SuddenDrift", "drifts", lambda so_far, words: so_far._replace(drift=" ".join(words)))
    return usual


def _known(key: str, name: str, *more: str) -> None:
    names = [*class_names(key), *more]
    if name not in names:
        what = key.rpartition(".")[2]
        raise ConfigError(f"unknown {what} {name!r}{nearest(name, names, f': see flstudy list {ROOTS[key].kind}')}")


# ---- the study -------------------------------------------------------------------------------------------------------


def _study(choice: Choice) -> dict[str, Any]:
    """Return the content of a study's file for a choice."""
    dataset = config_schema()["$defs"][choice.dataset]
    from_files = "root" in dataset["properties"] or "path" in dataset["properties"]
    rounds = (200 if from_files else 60) if choice.rounds is None else choice.rounds
    drift = choice.drift or (NONE if choice.sessions else "SuddenDrift")
    if drift != NONE and choice.drift is None and dataset.get("x-labels", 2) < 2:
        drift = NONE
    grace = max(rounds // 6, 1)
    planned = Aside(_drift("SuddenDrift", dataset, rounds)[0])
    if drift != NONE:
        planned, last = _drift(drift, dataset, rounds)
        grace = last + (rounds - last) // 3
    needed = {name: f"data/{choice.dataset.lower()}" for name in dataset.get("required", ())}
    session = max(rounds // 4, 1)
    availability = _class("AlternatingGroups", {"rounds": session})
    population = {
        "dataset": _class(choice.dataset, needed),
        "clients": 100 if from_files else 20,
        "participants": 10,
        **({} if dataset["x-natural"] else {"partition": _partition(choice)}),
        "drift": planned,
        "availability": availability
        if choice.sessions
        else Aside(availability, "Sessions, in which groups of devices take turns"),
        "batch_size": 20,
        "epochs": 3,
    }
    search, asides = _space(choice.algorithms)
    parts = {name: _parts(name, dataset["x-first-task"]) for name in choice.algorithms}
    several = len(choice.algorithms) > 1
    first = next((name for name in choice.algorithms if not parts[name]), choice.algorithms[0])
    presets = {name: arguments for name, arguments in parts.items() if arguments and several and not choice.arms}
    names = {"algorithm": {"choice": list(choice.algorithms)}} if several else {}
    arms: dict[str, dict[str, Any]] = {}
    compared, searched = len(choice.algorithms), len(search)
    # Several begin with their own defaults: what the config gives would hold for all of them.
    defaults = {} if several or choice.arms else _defaults(first, search)
    first_class = _class(first, {**parts[first], **defaults})
    if choice.arms:
        search, arms = _arms(choice.algorithms, parts)
        names, asides = {}, {}
        compared, searched = len(arms), len(search) + max(len(arm["search"]) for arm in arms.values())
    better = {"metric": "valid/accuracy", "mode": "max"}
    if dataset["x-first-task"] == "Quadratic":
        better = {"metric": "valid/loss", "mode": "min"}
    return {
        "task": _class(dataset["x-first-task"], {"hidden": 64} if dataset["x-first-task"] == "Mlp" else {}),
        "population": population,
        "algorithm": first_class,
        "controller": Aside(_class("DynamicInitialModel"), "Starts every session from a model of its own"),
        "rounds": rounds,
        "seeds": [0, 44, 56],
        "study": {
            "trials": max(5, 2 + searched) * compared if choice.trials is None else choice.trials,
            "objective": better,
            **({"search": {**names, **search, **asides}} if names or search else {}),
            **({"arms": arms} if arms else {}),
            **({"presets": presets} if presets else {}),
            "scheduler": _class("Asha", {"grace_rounds": grace}),
            "confirm": Aside({"top": 1, "seeds": 5}),
            "resources": {"cpu": 1, "gpu": 0},
        },
    }


def _class(name: str, arguments: Mapping[str, Any] | None = None) -> Any:
    return {"class_path": name, "init_args": dict(arguments)} if arguments else name


def _parts(algorithm: str, task: str) -> dict[str, list[str]]:
    """Return the argument that names a task's last layers, for a method that makes no sense without.

    Raises:
        ConfigError: such a method for a task of one layer.
    """
    argument = config_schema()["$defs"][algorithm].get("x-parts")
    if argument is None:
        return {}
    if task not in HEADS:
        raise ConfigError(f"{algorithm} must have a model of two parts, got {task}: take another method or data set")
    return {argument: [HEADS[task]]}


def _partition(choice: Choice) -> Any:
    return _class("LabelGroups" if choice.sessions else "Dirichlet", {"alpha": 0.3})


def _drift(name: str, dataset: Mapping[str, Any], rounds: int) -> tuple[Any, int]:
    """Return a drift within so many rounds, whose values are chosen by the names of its arguments, and its last
    round."""
    half, third, later = (max(2, 1 + round(rounds * share)) for share in (1 / 2, 1 / 3, 2 / 3))
    properties = config_schema()["$defs"][name]["properties"]
    several = bool({"back", "until", "step", "rounds"} & set(properties)) and "groups" not in properties
    arguments: dict[str, Any] = {"round": third if several else half, "back": later, "until": later}
    if "step" in properties:  # the last increment comes no later
        increments = math.ceil(1 / properties["step"]["default"])
        arguments["every"] = max((later - third) // (increments - 1), 1)
    arguments |= {"rounds": [third, later], "schedule": {0: [[half, 1]], 1: [[half, 1]]}}
    if "groups" in properties:
        labels = list(range(dataset.get("x-labels", 10)))
        if not 1 < len(labels) <= MOST_LABELS:
            raise ConfigError(f"{name} must be of 2 to {MOST_LABELS} labels, got {len(labels)}: take another drift")
        arguments |= {"rounds": [half], "groups": [labels[: -(-len(labels) // 2)], labels[-(-len(labels) // 2) :]]}
    chosen = {key: value for key, value in arguments.items() if key in properties}
    return _class(name, chosen), later if several else half


# ---- the search ------------------------------------------------------------------------------------------------------


class Reach(NamedTuple):
    """The values that an argument may have, and its default."""

    low: float
    high: float
    closed: bool  # whether the high end belongs to it
    default: float

    @property
    def is_scale(self) -> bool:
        """Return whether the argument may be of any size."""
        return self.low == 0 and self.high > 1

    @property
    def is_share(self) -> bool:
        """Return whether the argument lies between 0 and 1."""
        return self.low == 0 and self.high == 1


def _reach(node: Mapping[str, Any]) -> Reach | None:
    """Return the reach of a number that is on by default; None for other arguments."""
    node, default = dereferenced(node), node.get("default")
    match = NOTATION.match(node.get("x-domain", ""))
    if "number" not in types_of(node) or match is None or isinstance(default, bool | str) or not default:
        return None
    return Reach(float(match[2]), float(match[3]), match[4] == "]", float(default))


def _space(algorithms: Sequence[str]) -> tuple[dict[str, Any], dict[str, Aside]]:
    """Return the keys that are searched with their ranges, and those that could be."""
    by_method = {name: config_schema()["$defs"][name]["properties"] for name in algorithms}
    base = config_schema()["$defs"][BASE]["properties"]
    searched, others = dict.fromkeys(RATES), dict[str, None]()
    for properties in by_method.values():
        added = {name: node for name, node in properties.items() if node != base.get(name) and name not in RATES}
        reaches = {name: reach for name, node in added.items() if (reach := _reach(node)) is not None}
        scales = [name for name, reach in reaches.items() if reach.is_scale]
        shares = [name for name, reach in reaches.items() if reach.is_share]
        searched |= dict.fromkeys(scales or shares)
        others |= dict.fromkeys([*scales, *shares])
    space: dict[str, Any] = {}
    for name in [*searched, *(key for key in others if key not in searched)]:
        per_method = [_reach(properties[name]) for properties in by_method.values() if name in properties]
        if per_method and all(reach is not None for reach in per_method):
            space[f"algorithm.{name}"] = _range([reach for reach in per_method if reach is not None])
    ranges = {key: value for key, value in space.items() if key.partition(".")[2] in searched}
    return ranges, {key: Aside(value) for key, value in space.items() if key not in ranges}


def _arms(
    algorithms: Sequence[str], parts: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the ranges that all methods share, and an arm of each with its own; the last arm is the first method with
    one value held at its default."""
    spaces = {name: _space([name])[0] for name in algorithms}
    first = algorithms[0]
    held = [*spaces[first]][-1]
    in_all = {key: span for key, span in spaces[first].items() if all(s.get(key) == span for s in spaces.values())}
    shared = {key: span for key, span in in_all.items() if key != held}
    arms: dict[str, dict[str, Any]] = {}
    for name, space in spaces.items():
        own_ranges = {key.partition(".")[2]: span for key, span in space.items() if key not in shared}
        arms[name] = {**({"init_args": parts[name]} if parts[name] else {}), "search": own_ranges}
    argument = held.partition(".")[2]
    value = config_schema()["$defs"][first]["properties"][argument]["default"]
    ranges = {key: span for key, span in arms[first]["search"].items() if key != argument}
    variant = {"class_path": first, "init_args": {**parts[first], argument: value}, "search": ranges}
    return shared, {**arms, f"{first}-{argument}-{value}": variant}


def _range(reaches: Sequence[Reach]) -> dict[str, list[float]]:
    """Return the distribution to search for a key that one or more methods have."""
    if all(reach.is_share for reach in reaches):
        if all(reach.closed for reach in reaches):
            return {"uniform": [0.0, 1.0]}
        return {"choice": sorted({*MOMENTA, *(reach.default for reach in reaches)})}
    low = min(reach.default for reach in reaches) / 10
    high = max(reach.default for reach in reaches) * 10
    most = min(reach.high if reach.closed or reach.high > 1 else 0.99 for reach in reaches)
    return {"loguniform": [float(f"{low:.3g}"), float(f"{min(high, most):.3g}")]}


def _defaults(algorithm: str, search: Mapping[str, Any]) -> dict[str, Any]:
    """Return a method's own values of the searched keys, and of keys that are switched off in FedAvg."""
    arguments, base = (config_schema()["$defs"][name]["properties"] for name in (algorithm, BASE))
    on = {name for name in base if name in arguments and _reach(arguments[name]) and not _reach(base[name])}
    return {name: node["default"] for name, node in arguments.items() if name in on or f"algorithm.{name}" in search}


# ---- its text --------------------------------------------------------------------------------------------------------


def _commented(values: Mapping[str, Any], properties: Mapping[str, Any], at: str, indent: str) -> Iterator[str]:
    for name, value in values.items():
        node, key = properties.get(name, {}), f"{at}.{name}" if at else name
        sentence = re.split(r"[.;:] ", node.get("description", ""))[0].rstrip(".")
        aside = isinstance(value, Aside)
        sentence = SENTENCES.get(key, sentence)
        if aside:
            sentence, value = value.why or sentence, value.value
        if sentence and at != SEARCH:
            yield f"{indent}# {sentence}"
        if aside:
            yield f"{indent}# {name}: {_flow(value)}"
        elif key in ROOTS and isinstance(value, Mapping):
            yield f"{indent}{name}:"
            yield f"{indent}  class_path: {value['class_path']}"
            yield f"{indent}  init_args:"
            below = config_schema()["$defs"][resolved(key, value)]["properties"]
            yield from _commented(value["init_args"], below, key, f"{indent}    ")
        elif key == ARMS:
            yield f"{indent}{name}:"
            for arm, fields in value.items():
                yield f"{indent}  {arm}:" if any(fields.values()) else f"{indent}  {arm}: {{}}"
                for field, content in fields.items():
                    if field != "search":
                        yield f"{indent}    {field}: {_flow(content)}"
                    elif content:
                        yield f"{indent}    search:"
                        yield from (f"{indent}      {argument}: {_flow(span)}" for argument, span in content.items())
        elif key in ("population", "study", SEARCH):
            yield f"{indent}{name}:"
            yield from _commented(value, dereferenced(node).get("properties", {}), key, f"{indent}  ")
        else:
            yield f"{indent}{name}: {_flow(value)}"


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_flow(part)}' for key, part in value.items())}}}"
    return f"[{', '.join(map(_flow, value))}]" if isinstance(value, list) else spelled(value)
