"""The one owner of client state: a row per device, made at its first visit."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flstudy.algorithms import Algorithm
from flstudy.execution.devices import to_device
from flstudy.execution.row_files import RowFile, row_bytes
from flstudy.execution.row_segments import AT_ONCE, RowJournal, Segment, read_segments
from flstudy.execution.trees import leaves, refill

IN_MEMORY = 2**32  # bytes of rows
GROWTH = 8  # a file grows by this part of it at least


class ClientBank:
    """Rows of client state for S replicas of N devices, on CPU; gathered and scattered once per round.

    A device that leaves keeps its row: in life the state is on the device. Storage grows with the devices seen, not
    with the population; beyond a bound it is memory-mapped files.

    Args:
        replicas: S.
        devices: N.
        memory: bytes of rows that are kept in memory at most.
    """

    def __init__(self, replicas: int, devices: int, memory: int = IN_MEMORY) -> None:
        self.slot = torch.full((replicas, devices), -1, dtype=torch.int64)  # row of each device, -1 before its visit
        self.rows: list[Tensor] = []  # leaves [capacity, ...]
        self.used, self.memory = 0, memory
        self._files: list[RowFile] = []  # one for each leaf, where memory does not suffice
        self._journal = RowJournal()

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
            self._touch(rows)
        slots = self.slot[lines, where]
        return refill(template, [to_device(stored[slots], x.device) for stored in self.rows])

    def read(self, algorithm: Algorithm, clients: Tensor, x: Tensor) -> Any:
        """The same rows [R, J, ...], but nobody's is made: devices never there get what they would start with."""
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
        self._touch(slots)

    def restart(self, algorithm: Algorithm, replica: int, x: Tensor) -> None:
        """The rows of a replica's devices as they are when training goes on from a new initial model x [n]."""
        slots = self.slot[replica][self.slot[replica] >= 0]
        template = algorithm.client_init(x)
        if not leaves(template) or not len(slots):
            return
        for part in torch.split(slots, self._together(len(slots))):
            rows = refill(template, [stored[part] for stored in self.rows])
            restarted = torch.vmap(algorithm.client_restarted, in_dims=(0, None))(rows, x.detach().to("cpu"))
            for stored, leaf in zip(self.rows, leaves(restarted), strict=True):
                stored[part] = leaf
        self._touch(slots)

    def forget(self, replica: int) -> None:
        """No row of a replica's devices: their next visits are first ones."""
        self.slot[replica] = -1
        known = self.slot >= 0
        kept, place = self.slot[known].sort()
        for stored in self.rows:
            done = 0
            for part in torch.split(kept, self._together(len(kept))):  # ascending: none is written to before it is read
                stored[done : done + len(part)] = stored[part]
                done += len(part)
        self.slot[known] = torch.empty_like(kept).index_copy(0, place, torch.arange(len(kept)))
        self.used = len(kept)
        self._touch(torch.arange(self.used))

    def _touch(self, slots: Tensor) -> None:
        """Rows change, of which a checkpoint may hold what they were."""
        if self._files:
            self._journal.touch(slots)

    def _together(self, rows: int) -> int:
        """How many of so many rows are moved at once: all of those in memory."""
        return max(1, AT_ONCE // row_bytes(self.rows) if self._files else rows)

    def _grow(self, more: int, like: list[Tensor]) -> None:
        if not self.rows:
            self.rows = [leaf.new_empty((0, *leaf.shape[1:])) for leaf in like]
        capacity, needed = len(self.rows[0]), self.used + more
        if needed > capacity:
            self._make_room(needed, max(needed, 2 * capacity))

    def _make_room(self, needed: int, wanted: int) -> None:
        """Storage of so many rows at least, and if they stay in memory, of as many as are wanted."""
        most = self.memory // max(1, row_bytes(self.rows))
        if not self._files and needed <= most:
            extra = min(wanted, most) - len(self.rows[0])
            self.rows = [torch.cat([stored, stored.new_zeros(extra, *stored.shape[1:])]) for stored in self.rows]
            return
        files = self._files or [RowFile(stored.new_empty(stored.shape[1:])) for stored in self.rows]
        longer = [file.mapped(needed + needed // GROWTH) for file in files]
        if not self._files:
            for stored, room in zip(self.rows, longer, strict=True):
                room[: self.used] = stored[: self.used]
        self.rows, self._files = longer, files

    def state_dict(self) -> dict[str, Any]:
        """Plain tensors for a checkpoint. Those of files are the files' own, to be written before the next round."""
        if self._files:
            self.rows = [file.mapped(self.used) for file in self._files]  # torch saves all of what it sees a part of
            return {"slot": self.slot.clone(), "rows": list(self.rows)}
        return {"slot": self.slot.clone(), "rows": [stored[: self.used].clone() for stored in self.rows]}

    def saved_beside(self, folder: Path) -> dict[str, Any] | None:
        """The same for a checkpoint in a folder, beside which lie the rows: those that changed since the last one there
        are written now. None where they are in memory."""
        if not self._files or not self.used:
            return None
        like = [torch.empty(0, *stored.shape[1:], dtype=stored.dtype) for stored in self.rows]
        segments = [list(segment) for segment in self._journal.write(folder, self.rows, self.used)]
        return {"slot": self.slot.clone(), "rows": like, "used": self.used, "segments": segments}

    def collect(self, folder: Path, named: Iterable[str]) -> None:
        """Delete from a folder those of its segments that no checkpoint names any more."""
        self._journal.collect(folder, named)

    def load_state_dict(self, state: dict[str, Any], folder: Path | None = None) -> None:
        """The bank as it was saved in a folder.

        Raises:
            ValueError: for rows beside a checkpoint that are damaged or not there.
        """
        self.slot, self._files, rows = state["slot"].clone(), [], state["rows"]
        self.rows, self.used, self._journal = [one.new_empty((0, *one.shape[1:])) for one in rows], 0, RowJournal()
        if "segments" in state:
            self._load_segments(state, folder or Path())
            return
        if rows and len(rows[0]):
            self._make_room(len(rows[0]), len(rows[0]))
            self.used = len(rows[0])
        for stored, saved in zip(self.rows, rows, strict=True):
            stored[: self.used] = saved

    def _load_segments(self, state: dict[str, Any], folder: Path) -> None:
        segments = [Segment(name, rows, tuple(checksums)) for name, rows, checksums in state["segments"]]
        self._make_room(state["used"], state["used"])
        self.used = state["used"]
        for slots, number, content in read_segments(folder, segments):
            stored, wide = self.rows[number], max(1, content.shape[1])
            there = (slots < self.used).nonzero().squeeze(1)  # there were more rows once
            for part in torch.split(there, max(1, AT_ONCE // wide)):
                values = torch.from_numpy(content[part.numpy()]).view(stored.dtype)
                stored[slots[part]] = values.view(len(part), *stored.shape[1:])
        self._journal.taken_up(folder, segments, self.used)


def places(clients: Tensor) -> tuple[Tensor, Tensor]:
    """The replica and the number [S, J] of devices clients [S, J], on CPU."""
    where = clients.to("cpu")
    return torch.arange(len(where))[:, None].expand_as(where), where
