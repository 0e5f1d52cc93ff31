"""The state of a run: everything that its rounds change."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from flstudy import pytree
from flstudy.execution import ClientBank
from flstudy.execution.trees import leaves, refill
from flstudy.federation.round_metrics import Record
from flstudy.population import Event


@dataclass
class RunState:
    """State of a run: everything that its rounds change; its plain form goes into checkpoints.

    Attributes:
        server: the method's server state, leaves [S, ...].
        bank: the rows of client state.
        controllers: the state of each controller, leaves [S, ...].
        record: the measurements of the last round; None before the first.
    """

    server: Any
    bank: ClientBank
    controllers: list[Any] = field(default_factory=list)
    record: Record | None = None

    @property
    def round(self) -> int:
        """Number of rounds that were played."""
        return 0 if self.record is None else self.record.round

    def plain(self) -> dict[str, Any]:
        """Return the state as plain tensors and containers, without the seconds that rounds took."""
        number, metrics, events, _ = self.record or Record(0, {})
        clockless = {name: values for name, values in metrics.items() if not name.startswith("time/")}
        return {
            "server": leaves(self.server),
            "bank": self.bank.state_dict(),
            "control": [leaves(state) for state in self.controllers],
            "record": [number, clockless, [list(event) for event in events]],
        }

    def take_up(self, saved: Mapping[str, Any], folder: Path | None, device: torch.device) -> None:
        """Replace all values by those of a plain form.

        Args:
            saved: the plain form of a state of the same types.
            folder: the checkpoint's, beside which rows may lie.
            device: where the run works.
        """
        self.take_up_models(saved, folder)
        self.server = pytree.tree_map(lambda leaf: leaf.to(device), self.server)
        self.controllers = [
            refill(state, [leaf.to(device) for leaf in values])
            for state, values in zip(self.controllers, saved["control"], strict=True)
        ]

    def take_up_models(self, saved: Mapping[str, Any], folder: Path | None) -> None:
        """Replace server, rows and record by those of a plain form; controllers' states are not needed for models."""
        number, metrics, events = saved["record"]
        self.record = Record(number, metrics, tuple(Event(*event) for event in events))
        self.server = refill(self.server, list(saved["server"]))
        self.bank.load_state_dict(saved["bank"], folder)
