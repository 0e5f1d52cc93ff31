"""File for rows of numbers too many for memory, which nobody else sees and which is gone with the process."""

import math
import os
import tempfile
from collections.abc import Sequence
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor


class RowFile:
    """Rows of one shape in a memory-mapped file in the folder for temporary files (``TMPDIR``).

    Args:
        like: one row [...] of zeros or anything else; its type counts.
    """

    def __init__(self, like: Tensor) -> None:
        self.shape, self.dtype = tuple(like.shape), like.dtype
        self.row_bytes = like.numel() * like.element_size()
        self._folder = tempfile.gettempdir()
        self._file: IO[Any] = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115

    def mapped(self, rows: int) -> Tensor:
        """Return the file as rows [rows, ...], of which it is made to hold as many; new ones are zeros.

        Raises:
            OSError: where the disk lacks the room; found here, since writing to a page without room ends a process.
        """
        length = rows * self.row_bytes
        if not length:
            return torch.zeros(rows, *self.shape, dtype=self.dtype)
        try:
            self._file.truncate(length)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._file.fileno(), 0, length)
        except OSError as error:
            # Where a message looks for a file there is only its folder: the file has no name.
            raise OSError(error.errno, error.strerror, os.path.join(self._folder, "rows")) from error
        content = np.memmap(self._file, dtype=np.uint8, mode="r+", shape=(length,))
        return torch.from_numpy(content).view(self.dtype).view(rows, *self.shape)


def row_bytes(leaves: Sequence[Tensor]) -> int:
    """Return the bytes of one row in all of the leaves [rows, ...]."""
    return sum(math.prod(leaf.shape[1:]) * leaf.element_size() for leaf in leaves)
