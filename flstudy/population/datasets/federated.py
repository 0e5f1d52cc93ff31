"""Data set of a folder of Federated Parquet (`flstudy.population.datasets.federated_format`)."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import torch

from flstudy.hyper import FilePath, hyper
from flstudy.population.datasets.base import Coding, Dataset, Examples, Ranges
from flstudy.population.datasets.federated_format import (
    Metadata,
    column_file,
    mapped_column,
    read_clients,
    read_metadata,
    write_columns,
)
from flstudy.population.datasets.natural import chosen_for_devices
from flstudy.population.datasets.on_node import copied_to_node
from flstudy.remote import is_uri


@dataclass(frozen=True, kw_only=True)
class FederatedParquet(Dataset):
    """A data set that ``flstudy data prepare`` has copied into a folder of Federated Parquet (docs/data.md).

    Examples stay on the disk and are mapped: opening costs the table of clients, whatever the number of examples. Where
    the set has clients of its own, a device is one of them with at least three examples; where ``clients`` are fewer,
    they are chosen by ``selection`` as the data set itself would choose them. A pooled set is for a partition to
    divide. Cohorts, batches and results are those of the data set that was copied, bit for bit.

    Differs: a ``partition`` of a set that has clients deals the examples of all of them, chosen or not.
    """

    citations: ClassVar[tuple[str, ...]] = ()
    mapped: ClassVar[bool] = True
    natural: ClassVar[bool] = True  # unless a pooled set was prepared

    path: FilePath
    """The folder, or its URI, such as s3://bucket/data/StackOverflow, of which each node makes a copy."""
    selection: int = hyper(0, "[0, 2e9]")
    """Seed of the choice of clients."""

    @cached_property
    def _metadata(self) -> Metadata:
        return read_metadata(self._here())

    def _here(self) -> Path:
        """Return the folder of this node: asked anew each time, since a data set may be sent to another one."""
        if not is_uri(self.path):
            return Path(self.path)
        return copied_to_node(self.path)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._metadata.shape

    @property
    def classes(self) -> int:
        return self._metadata.classes

    @property
    def tokens(self) -> int:
        return self._metadata.tokens

    def load(self, seed: int, clients: int) -> Examples:
        folder, metadata = self._here(), self._metadata
        if any(not column_file(folder, name).is_file() for name in metadata.columns):
            write_columns(folder, metadata)
        columns = {name: mapped_column(folder, metadata, name) for name in metadata.columns}
        x, y = columns["x"], columns["y"]
        assert x is not None
        assert y is not None
        coding = Coding(*(torch.tensor(statistic).view(-1, *[1] * (x.dim() - 2)) if statistic else torch.empty(0)
                          for statistic in (metadata.mean, metadata.deviation)))  # fmt: skip
        if metadata.pooled:
            split = columns.get("split")
            return Examples(x, y, None, None if split is None else split.to(torch.int64), None, coding)
        ranges = read_clients(folder, metadata).ranges
        refused = "FederatedParquet", "clients", self.path
        chosen = chosen_for_devices(ranges.counts.sum(1), clients, self.selection, refused=refused)
        return Examples(x, y, None, None, Ranges(ranges.starts[chosen], ranges.counts[chosen]), coding)
