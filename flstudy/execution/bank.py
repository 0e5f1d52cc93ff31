"""The one owner of client state: a row per device, made at its first visit."""

from typing import Any

import torch
from torch import Tensor

from flstudy.algorithms import Algorithm
from flstudy.execution.devices import to_device
from flstudy.execution.trees import leaves, refill


class ClientBank:
    """Rows of client state for S replicas of N devices, on CPU; gathered and scattered once per round.

    A device that leaves keeps its row: in life the state is on the device. Storage grows with the devices seen, not
    with the population.

    Args:
        replicas: S.
        devices: N.
    """

    def __init__(self, replicas: int, devices: int) -> None:
        self.slot = torch.full((replicas, devices), -1, dtype=torch.int64)  # row of each device, -1 before its visit
        self.rows: list[Tensor] = []  # leaves [capacity, ...]
        self.used = 0

    def gather(self, algorithm: Algorithm, clients: Tensor, x: Tensor) -> Any:
        """The rows of devices clients [S, J]; first visitors get ``client_init`` of the model x [S, n] they are sent.

        Returns a tree whose leaves are [S, J, ...] on x's device.
        """
        template = algorithm.client_init(x[0])
        if not leaves(template):
            return template
        lines, where = places(clients)
        new = self.slot[lines, where] < 0
        if new.any():
            fresh = leaves(torch.vmap(algorithm.client_init)(x.detach().to("cpu")))
            self._grow(int(new.sum()), fresh)
            rows = torch.arange(self.used, self.used + int(new.sum()))
            self.slot[lines[new], where[new]] = rows
            for stored, leaf in zip(self.rows, fresh, strict=True):
                stored[rows] = leaf[lines[new]]
            self.used += len(rows)
        slots = self.slot[lines, where]
        return refill(template, [to_device(stored[slots], x.device) for stored in self.rows])

    def read(self, algorithm: Algorithm, clients: Tensor, x: Tensor) -> Any:
        """The same, but nobody's row is made: devices that were never there get what they would start with."""
        template = algorithm.client_init(x[0])
        fresh = leaves(torch.vmap(algorithm.client_init)(x))
        slots = self.slot[places(clients)]
        found = []
        for number, leaf in enumerate(fresh):
            known = (slots >= 0).view(*slots.shape, *[1] * (leaf.dim() - 1))
            start = leaf[:, None].expand(*slots.shape, *leaf.shape[1:])
            rows = to_device(self.rows[number][slots.clamp(min=0)], x.device) if self.used else start
            found.append(torch.where(to_device(known, x.device), rows, start))
        return refill(template, found)

    def scatter(self, clients: Tensor, states: Any) -> None:
        """Write back the rows of devices clients [S, J]; no device may appear twice in one replica."""
        if not self.rows:
            return
        slots = self.slot[places(clients)]
        assert torch.unique(slots).numel() == slots.numel(), "a device twice in one round of a stateful algorithm"
        for stored, leaf in zip(self.rows, leaves(states), strict=True):
            stored[slots] = leaf.detach().to("cpu")

    def restart(self, algorithm: Algorithm, replica: int, x: Tensor) -> None:
        """The rows of a replica's devices as they are when training goes on from a new initial model x [n]."""
        slots = self.slot[replica][self.slot[replica] >= 0]
        template = algorithm.client_init(x)
        if not leaves(template) or not len(slots):
            return
        rows = refill(template, [stored[slots] for stored in self.rows])
        restarted = torch.vmap(algorithm.client_restarted, in_dims=(0, None))(rows, x.detach().to("cpu"))
        for stored, leaf in zip(self.rows, leaves(restarted), strict=True):
            stored[slots] = leaf

    def forget(self, replica: int) -> None:
        """No row of a replica's devices: their next visits are first ones."""
        self.slot[replica] = -1
        known = self.slot >= 0
        kept = self.slot[known]
        self.rows = [stored[kept] for stored in self.rows]
        self.slot[known] = torch.arange(len(kept))
        self.used = len(kept)

    def _grow(self, more: int, like: list[Tensor]) -> None:
        if not self.rows:
            self.rows = [leaf.new_empty((0, *leaf.shape[1:])) for leaf in like]
        capacity = len(self.rows[0])
        if self.used + more > capacity:
            extra = max(self.used + more - capacity, capacity)
            self.rows = [torch.cat([stored, stored.new_zeros(extra, *stored.shape[1:])]) for stored in self.rows]

    def state_dict(self) -> dict[str, Any]:
        """Plain tensors for a checkpoint."""
        return {"slot": self.slot.clone(), "rows": [stored[: self.used].clone() for stored in self.rows]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The bank as it was saved."""
        self.slot = state["slot"].clone()
        self.rows = [stored.clone() for stored in state["rows"]]
        self.used = len(self.rows[0]) if self.rows else 0


def places(clients: Tensor) -> tuple[Tensor, Tensor]:
    """The replica and the number [S, J] of devices clients [S, J], on CPU."""
    where = clients.to("cpu")
    return torch.arange(len(where))[:, None].expand_as(where), where
