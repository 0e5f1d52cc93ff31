"""What a config's values may be, as far as it can be told without importing torch."""

import ast
from collections.abc import Mapping
from typing import Any

from flstudy.config.names import nearest
from flstudy.config.sections import ConfigError
from flstudy.hyper import within

DRIFT = "population.drift"
WITHIN = ("round", "back", "until")  # rounds that a drift may name


def check_rounds(content: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Refuse a drift that comes after the last round: it would never happen.

    Args:
        content: a config file's.
        options: dotted keys and values that replace the file's.

    Raises:
        ConfigError: one sentence.
    """
    rounds = options.get("rounds", content.get("rounds"))
    if not isinstance(rounds, int) or rounds < 1:
        return  # for the parser to refuse
    section = content.get("population")
    drift = section.get("drift") if isinstance(section, Mapping) else None
    values: dict[str, Any] = {}
    if isinstance(drift, Mapping) and DRIFT not in options:  # naming a class starts from its own defaults
        values = dict(drift.get("init_args") or {})
    if isinstance(options.get(DRIFT), Mapping):
        values = dict(options[DRIFT].get("init_args") or {})
    values |= {key.removeprefix(f"{DRIFT}."): value for key, value in options.items() if key.startswith(f"{DRIFT}.")}
    named = {f"{DRIFT}.{name}": values.get(name) for name in WITHIN}
    schedule = values.get("schedule")
    for device, changes in schedule.items() if isinstance(schedule, Mapping) else ():
        for index, change in enumerate(changes if isinstance(changes, list) else (), start=1):
            if isinstance(change, list | tuple) and change:
                named[f"{DRIFT}.schedule: device {device}, entry {index}: round"] = change[0]
    for name, number in named.items():
        if isinstance(number, int) and number > rounds:
            raise ConfigError(
                f"{name} must be ≤ rounds ({rounds}), got {number}: raise rounds or let the drift come earlier"
            )


def check_value(key: str, value: Any, annotation: str, domain: str | None) -> None:
    """Check a scalar against its annotation and domain.

    Raises:
        ConfigError: one sentence.
    """
    kinds = [kind.strip() for kind in annotation.split("|")]
    if (value is None and "None" in kinds) or len(kinds) > 2:
        return
    kind = kinds[0]
    if kind == "int" and (isinstance(value, bool) or not isinstance(value, int)):
        raise ConfigError(f"{key} must be an integer, got {value!r}")
    if kind == "float":
        number = _number(value)
        if number is None:
            raise ConfigError(f"{key} must be a number, got {value!r}")
        value = number
    others = [choice for kind in kinds[1:] if kind.startswith("Literal[") for choice in _choices(kind)]
    if kind == "bool" and not isinstance(value, bool) and value not in others:
        raise ConfigError(
            f"{key} must be true{', ' if others else ' or '}{' or '.join(['false', *others])}, got {value!r}"
        )
    if kind.startswith("Literal["):
        choices = _choices(kind)
        if str(value) not in choices:
            raise ConfigError(
                f"{key} must be one of {', '.join(choices)}, got {value!r}{nearest(str(value), choices, else_say='')}"
            )
    if domain is None or not isinstance(value, int | float):
        return
    if not within(value, domain):
        raise ConfigError(f"{key} must lie in {domain}, got {value}")


def _choices(literal: str) -> list[str]:
    """The values of a Literal annotation."""
    return [str(choice) for choice in ast.literal_eval(f"[{literal[8:-1]}]")]


def _number(value: Any) -> float | None:
    """The value as a number: YAML reads 1e-3 as a string."""
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            return float(value)
        except ValueError:
            return None
    return None
