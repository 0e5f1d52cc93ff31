"""A config that trains nothing: studies and trials are tested without the engine."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from flstudy.config import ConfigError, Objective, Resources, StopRun, StudySection
from flstudy.federation import Record
from flstudy.metrics.drift import DEFAULT, Recovery
from flstudy.study import Status, Trial
from flstudy.tuning import Tpe
from flstudy.tuning.proposals import Proposal, result_of

ALGORITHMS: dict[str, dict[str, Any]] = {
    "FedAvg": {"lr": 0.1},
    "FedYogi": {"lr": 0.1, "tau": 0.001},
    "Flash": {"lr": 0.1, "tau": 0.001, "gamma": 0.05},
    "Raises": {"lr": 0.1},
    "Diverges": {"lr": 0.1},
    "Dies": {"lr": 0.1},
    "Hangs": {"lr": 0.1},
}


def study(**changed: Any) -> StudySection:
    """A study of the stand-in's algorithms."""
    settings: dict[str, Any] = {"objective": Objective(), "search": {}, "sampler": Tpe(), "scheduler": None}
    return StudySection(**(settings | {"resources": Resources()} | changed))


def proposal(number: int, algorithm: str = "FedAvg", **more: Any) -> Proposal:
    """What a worker would get."""
    return {"number": number, "overrides": {"algorithm": algorithm}, "stage": "search", "confirms": None, **more}


def report(status: str, objective: float, rounds: int, **metrics: float) -> dict[str, Any]:
    """What a worker would report of a trial."""
    named = {name.replace("__", "/"): value for name, value in metrics.items()}
    trial = Trial(number=0, algorithm="", status=Status(status), objective=objective, rounds=rounds, metrics=named)
    return result_of(trial)


@dataclass
class StandIn:
    """As much of a Config as studies use."""

    study: StudySection = field(default_factory=study)
    values: dict[str, Any] = field(default_factory=lambda: {"algorithm": "FedAvg", "population.participants": 10})
    rounds: int = 6
    seeds: list[int] = field(default_factory=lambda: [0, 44, 56])
    path: str = "tune_configs/stand_in.yaml"
    modules: str = "tune_configs"
    store: str | None = None
    edits: list[tuple[str, Any]] = field(default_factory=list)
    round_s: float = 0.0
    parameter_count: int = 10
    recovery: Recovery = DEFAULT

    def hyper_parameters(self) -> dict[str, Any]:
        return self.flat()

    def flat(self) -> dict[str, Any]:
        algorithm_values = ALGORITHMS[self.values["algorithm"]]
        return {**{f"algorithm.{name}": value for name, value in algorithm_values.items()}, **self.values}

    def plain(self) -> dict[str, Any]:
        return {"values": self.flat(), "rounds": self.rounds, "seeds": self.seeds}

    def whole_study(self) -> dict[str, Any]:
        content = self.plain()
        return {**content, "study": {"name": self.study.name, **content.get("study", {})}}

    def left_out(self) -> list[str]:
        return []

    @property
    def settings(self) -> SimpleNamespace:
        return SimpleNamespace(evaluate_every=2)

    @property
    def method(self) -> str:
        return self.values["algorithm"]

    def tags(self) -> dict[str, str]:
        return {"algorithm": self.values["algorithm"], "dataset": "none", "drift": "SuddenDrift", "task": "none"}

    def drift_rounds(self) -> list[int]:
        return []

    def session_rounds(self) -> list[int]:
        return []

    def rehearse(self) -> dict[str, Any]:
        return {}

    def has_key(self, key: str) -> bool:
        return key in self.flat()

    def with_overrides(self, overrides: Mapping[str, Any]) -> "StandIn":
        name = overrides.get("algorithm", self.values["algorithm"])
        if name not in ALGORITHMS:
            raise ConfigError(f"algorithm must be one of {', '.join(ALGORITHMS)}, got {name!r}: correct it")
        overrides = dict(overrides)
        changed = replace(self, seeds=overrides.pop("seeds", self.seeds), values={**self.values, **overrides})
        for key in overrides:
            if not changed.has_key(key):
                raise ConfigError(f"unknown key {key!r}: remove it")
        lr = changed.flat()["algorithm.lr"]
        if lr <= 0:
            raise ConfigError(f"algorithm.lr must be > 0, got {lr}: raise it")
        return changed

    variant = with_overrides

    def check_value(self, key: str, value: Any) -> None:
        self.with_overrides({key: value})

    def run(self, on_round: Callable[[Record], None], **named: Any) -> None:
        values = self.flat()
        distance = abs(math.log10(values["algorithm.lr"]) + 1)
        try:
            for r in range(1, self.rounds + 1):
                time.sleep(self.round_s)
                metrics = {"train/loss": [1.0 / r] * len(self.seeds), "time/round_s": [0.01] * len(self.seeds)}
                if values["algorithm"] == "Raises" and r == 3:
                    raise RuntimeError("the third round is too much")
                if values["algorithm"] == "Dies" and r == 3:
                    import os

                    os._exit(7)
                if values["algorithm"] == "Hangs" and r == 3:
                    time.sleep(600)
                if values["algorithm"] == "Diverges" and r == 3:
                    metrics["train/loss"][1] = math.nan
                if r % 2 == 0:
                    level = (1 - 1 / (1 + r)) / (1 + distance)
                    metrics["valid/accuracy"] = [level + 0.01 * s for s in range(len(self.seeds))]
                    metrics["test/accuracy"] = [level - 0.01 * s for s in range(len(self.seeds))]
                on_round(Record(r, metrics))
        except StopRun:
            return
