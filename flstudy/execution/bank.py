"""The one owner of client state: a row per device, made at its first visit.

Where other processes or machines train, a row lies where its device was trained last, until it is read or saved here.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flstudy.algorithms import Algorithm
from flstudy.execution.devices import to_device
from flstudy.execution.row_files import RowFile, row_bytes
from flstudy.execution.row_segments import AT_ONCE, RowJournal, Segment, read_segments
from flstudy.execution.trees import leaves, refill
from flstudy.run_settings import IN_MEMORY

Fetch = Callable[[Sequence[Any]], Sequence[Sequence[Tensor]]]
"""The leaves of each of some rows that lie elsewhere."""

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
        self._lying = dict[int, Any]()  # rows elsewhere, by slot
        self._stale = set[int]()  # those of them that are others here
        self._fetch: Fetch | None = None

    def gather(self, algorithm: Algorithm, clients: Tensor, x: Tensor, replicas: Sequence[int] | None = None) -> Any:
        """Return the rows of devices clients [S, J]; first visitors get ``client_init`` of the model x [S, n] they are
        sent. ``replicas`` are the numbers of the replicas; None stands for all.

        Returns a tree whose leaves are [S, J, ...] on x's device.
        """
        template = algorithm.client_init(x[0])
        if not leaves(template):
            return template
        slots = self._met(algorithm, clients, x, replicas)
        self.bring_home(slots)
        return refill(template, [to_device(stored[slots], x.device) for stored in self.rows])

    def _met(self, algorithm: Algorithm, clients: Tensor, x: Tensor, replicas: Sequence[int] | None) -> Tensor:
        """Return the slots [S, J] of devices; first visitors get rows."""
        lines, where = places(clients, replicas)
        new = self.slot[lines, where] < 0
        if new.any():
            fresh = leaves(torch.vmap(algorithm.client_init)(x.detach().to("cpu")))
            self._grow(int(new.sum()), fresh)
            rows = torch.arange(self.used, self.used + int(new.sum()))
            self.slot[lines[new], where[new]] = rows
            of = torch.arange(len(where))[:, None].expand_as(where)[new]
            for stored, leaf in zip(self.rows, fresh, strict=True):
                stored[rows] = leaf[of]
            self.used += len(rows)
            self._touch(rows)
        return self.slot[lines, where]

    def lend(
        self, algorithm: Algorithm, clients: Tensor, x: Tensor, replicas: Sequence[int] | None = None
    ) -> list[Any]:
        """Return the rows of devices clients [S, J], one after another: the reference that `leave` got, the leaves, or
        None for a first visitor; an empty list where the method keeps no rows. The models are x [S, n]."""
        if not leaves(algorithm.client_init(x[0])):
            return []
        slots = self.slot[places(clients, replicas)].flatten().tolist()
        home = {
            slot: tuple(stored[slot] for stored in self.rows) for slot in slots if slot >= 0 and slot not in self._lying
        }
        return [self._lying.get(slot, home.get(slot)) for slot in slots]  # a first visitor's place makes its row

    def leave(
        self,
        algorithm: Algorithm,
        clients: Tensor,
        x: Tensor,
        lying: Sequence[Any],
        fetch: Fetch,
        replicas: Sequence[int] | None = None,
    ) -> None:
        """Leave the rows of devices clients [S, J], one after another, where they are; ``fetch`` brings them here.

        First visitors get rows by their models x [S, n].
        """
        if not lying:
            return
        slots = self._met(algorithm, clients, x, replicas).flatten().tolist()
        self._lying |= zip(slots, lying, strict=True)
        self._stale |= set(slots)
        self._fetch = fetch

    def bring_home(self, slots: Tensor | None = None) -> None:
        """Copy rows that lie elsewhere into this bank, all or those at some slots [...]; they stay there as well.

        Raises:
            RuntimeError: where they are lost.
        """
        wanted = sorted(self._stale if slots is None else self._stale.intersection(slots.flatten().tolist()))
        together = max(1, AT_ONCE // max(1, row_bytes(self.rows)))
        for begin in range(0, len(wanted), together):
            part = wanted[begin : begin + together]
            assert self._fetch is not None
            for slot, row in zip(part, self._fetch([self._lying[slot] for slot in part]), strict=True):
                for stored, leaf in zip(self.rows, row, strict=True):
                    stored[slot] = leaf
            self._touch(torch.tensor(part))
            self._stale.difference_update(part)

    def _changed_here(self, slots: Tensor) -> None:
        """Note that rows at some slots changed here, so that what lies elsewhere is out of date."""
        if self._lying:
            for slot in slots.flatten().tolist():
                self._lying.pop(slot, None)
                self._stale.discard(slot)
        self._touch(slots)

    def read(self, algorithm: Algorithm, clients: Tensor, x: Tensor) -> Any:
        """Return the rows, leaves [S, J, ...], of devices clients [S, J] with models x [S, n]; none is made: first
        visitors get what they would start with."""
        template = algorithm.client_init(x[0])
        fresh = leaves(torch.vmap(algorithm.client_init)(x))
        slots = self.slot[places(clients)]
        self.bring_home(slots)
        states = []
        for number, leaf in enumerate(fresh):
            visited = (slots >= 0).view(*slots.shape, *[1] * (leaf.dim() - 1))
            start = leaf[:, None].expand(*slots.shape, *leaf.shape[1:])
            rows = to_device(self.rows[number][slots.clamp(min=0)], x.device) if self.used else start
            states.append(torch.where(to_device(visited, x.device), rows, start))
        return refill(template, states)

    def scatter(self, clients: Tensor, states: Any, replicas: Sequence[int] | None = None) -> None:
        """Write back the rows of devices clients [S, J] of all replicas or of some; no device may appear twice in one
        replica."""
        if not self.rows:
            return
        slots = self.slot[places(clients, replicas)]
        assert torch.unique(slots).numel() == slots.numel(), "a device twice in one round of a stateful algorithm"
        for stored, leaf in zip(self.rows, leaves(states), strict=True):
            stored[slots] = leaf.detach().to("cpu")
        self._changed_here(slots)

    def restart(self, algorithm: Algorithm, replica: int, x: Tensor) -> None:
        """Restart the rows of a replica's devices, whose training goes on from a new initial model x [n]."""
        slots = self.slot[replica][self.slot[replica] >= 0]
        template = algorithm.client_init(x)
        if not leaves(template) or not len(slots):
            return
        self.bring_home(slots)
        for part in torch.split(slots, self._together(len(slots))):
            rows = refill(template, [stored[part] for stored in self.rows])
            restarted = torch.vmap(algorithm.client_restarted, in_dims=(0, None))(rows, x.detach().to("cpu"))
            for stored, leaf in zip(self.rows, leaves(restarted), strict=True):
                stored[part] = leaf
        self._changed_here(slots)

    def forget(self, replica: int) -> None:
        """Drop the rows of a replica's devices: their next visits are first ones."""
        self.bring_home()
        self._lying = {}
        self.slot[replica] = -1
        in_use = self.slot >= 0
        slots, place = self.slot[in_use].sort()
        for stored in self.rows:
            done = 0
            for part in torch.split(slots, self._together(len(slots))):  # ascending: each is read before it is written
                stored[done : done + len(part)] = stored[part]
                done += len(part)
        self.slot[in_use] = torch.empty_like(slots).index_copy(0, place, torch.arange(len(slots)))
        self.used = len(slots)
        self._touch(torch.arange(self.used))

    def _touch(self, slots: Tensor) -> None:
        """Note changed rows, of which a checkpoint may hold an earlier state."""
        if self._files:
            self._journal.touch(slots)

    def _together(self, rows: int) -> int:
        """Return the number of rows that are moved at once: all of them in memory."""
        return max(1, AT_ONCE // row_bytes(self.rows) if self._files else rows)

    def _grow(self, more: int, like: list[Tensor]) -> None:
        if not self.rows:
            self.rows = [leaf.new_empty((0, *leaf.shape[1:])) for leaf in like]
        capacity, needed = len(self.rows[0]), self.used + more
        if needed > capacity:
            self._make_room(needed, max(needed, 2 * capacity))

    def _make_room(self, needed: int, wanted: int) -> None:
        """Make storage for at least ``needed`` rows, and while they stay in memory, for as many as are ``wanted``."""
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
        """Return plain tensors for a checkpoint. Those of files are the files' own, to be written before the next
        round."""
        self.bring_home()
        if self._files:
            self.rows = [file.mapped(self.used) for file in self._files]  # torch saves all of what it sees a part of
            return {"slot": self.slot.clone(), "rows": list(self.rows)}
        return {"slot": self.slot.clone(), "rows": [stored[: self.used].clone() for stored in self.rows]}

    def saved_beside(self, folder: Path) -> dict[str, Any] | None:
        """Return the state for a checkpoint in a folder, beside which the rows lie: those that changed since the last
        one there are written now. None where rows are in memory."""
        if not self._files or not self.used:
            return None
        self.bring_home()
        like = [torch.empty(0, *stored.shape[1:], dtype=stored.dtype) for stored in self.rows]
        segments = [list(segment) for segment in self._journal.write(folder, self.rows, self.used)]
        return {"slot": self.slot.clone(), "rows": like, "used": self.used, "segments": segments}

    def collect(self, folder: Path, named: Iterable[str]) -> None:
        """Delete from a folder its segments that no checkpoint names any more."""
        self._journal.collect(folder, named)

    def load_state_dict(self, state: dict[str, Any], folder: Path | None = None) -> None:
        """Take up the bank as it was saved in a folder.

        Raises:
            UserError: for rows beside a checkpoint that are damaged or not there.
        """
        self.slot, self._files, rows = state["slot"].clone(), [], state["rows"]
        self._lying, self._stale = {}, set()
        self.rows, self.used, self._journal = [leaf.new_empty((0, *leaf.shape[1:])) for leaf in rows], 0, RowJournal()
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


def places(clients: Tensor, replicas: Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
    """Return the replica and the number [S, J] of devices clients [S, J] of all replicas or of some, on CPU."""
    where = clients.to("cpu")
    lines = torch.arange(len(where)) if replicas is None else torch.tensor(replicas)
    return lines[:, None].expand_as(where), where
