"""A real config whose runs leave a line behind: which process they were in, and what that process has done so far."""

import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flstudy.config.config import Config


class Noted(Config):
    """Appends one JSON object to the file ``notes`` after every run; its trials are of the same kind."""

    notes: str

    @classmethod
    def of(cls, config: Config, notes: Path) -> "Noted":
        """The same config, noting."""
        noted = cls(config.path, config.content, config.options, config.overrides, "tune")
        noted.notes = str(notes)
        return noted

    def with_overrides(self, overrides: Mapping[str, Any]) -> "Noted":
        """As Config's."""
        changed = super().with_overrides(overrides)
        changed.__class__, changed.notes = type(self), self.notes
        return changed  # type: ignore[return-value]

    def run(self, *arguments: Any, **named: Any) -> Any:
        """As Config's, and the note."""
        from flstudy.execution import programs
        from flstudy.population import Digits

        if not hasattr(Digits, "loads"):
            count(Digits)
        with warnings.catch_warnings(record=True) as warned:
            coordinator = super().run(*arguments, **named)
        noted = {
            "pid": os.getpid(),
            "programs": programs.compilations(),
            "loads": Digits.loads,  # type: ignore[attr-defined]
            "warned": [str(warning.message) for warning in warned if "not writable" in str(warning.message)],
        }
        with open(self.notes, "a") as file:
            file.write(json.dumps(noted) + "\n")  # one short write: lines of two workers do not mix
        return coordinator


def count(dataset: Any) -> None:
    """Let a data set's class count in ``loads`` how often this process loads it."""
    load, dataset.loads = dataset.load, 0

    def counting(self: Any, seed: int, clients: int) -> Any:
        dataset.loads += 1
        return load(self, seed, clients)

    dataset.load = counting


def read(notes: Path) -> list[dict[str, Any]]:
    """The notes of all runs, in the order in which these ended."""
    return [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []
