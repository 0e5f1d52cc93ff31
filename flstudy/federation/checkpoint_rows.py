"""Checkpoints of a run whose devices' rows do not fit into memory: the rows lie beside them, written as they change."""

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import CheckpointIO

from flstudy.execution import ClientBank
from flstudy.execution.row_segments import FOLDER


class RowsBeside(CheckpointIO):
    """Checkpoint plugin that writes and deletes as an inner one does, and the rows beside the checkpoints.

    Args:
        inner: the Trainer's own.
        bank: of the run that it fits; None: there is none.
    """

    def __init__(self, inner: CheckpointIO, bank: Callable[[], ClientBank | None]) -> None:
        self.inner, self.bank = inner, bank

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Write the rows first and then the checkpoint, so that it never names rows that are not on disk."""
        saved, bank, here = checkpoint.get("flstudy"), self.bank(), local_folder(path)
        beside = None if saved is None or bank is None or here is None else bank.saved_beside(here)
        if beside is not None:
            checkpoint = {**checkpoint, "flstudy": {**saved, "bank": beside}}  # type: ignore[dict-item]
        self.inner.save_checkpoint(checkpoint, path, storage_options)
        if beside is not None:
            self._collect(path)

    def load_checkpoint(self, path: Any, *arguments: Any, **how: Any) -> Any:
        """Load a checkpoint as the inner plugin does."""
        return self.inner.load_checkpoint(path, *arguments, **how)

    def remove_checkpoint(self, path: Any) -> None:
        """Delete a checkpoint and the rows that it alone named."""
        self.inner.remove_checkpoint(path)
        self._collect(path)

    def teardown(self) -> None:
        """Tear the inner plugin down."""
        self.inner.teardown()

    def _collect(self, path: Any) -> None:
        bank, here = self.bank(), local_folder(path)
        if bank is not None and here is not None and (here / FOLDER).is_dir():
            named = segments_named(here)
            if named is not None:
                bank.collect(here, named)


def local_folder(path: Any) -> Path | None:
    """Return the folder of a checkpoint; None where it is not on a disk of this machine."""
    return None if "://" in str(path) else Path(path).absolute().parent


def segments_named(folder: Path) -> set[str] | None:
    """Return the segments that checkpoints in a folder name; None where one cannot be read, and may name any."""
    named = set[str]()
    for path in folder.iterdir():
        if path.is_file() and zipfile.is_zipfile(path):  # nobody goes on from half of one
            try:
                named |= set(segments_of(path))
            except Exception:  # whatever a file with another content raises
                return None
    return named


def segments_of(path: Path) -> list[str]:
    """Return the segments that a checkpoint names."""
    content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    return [name for name, *_ in content.get("flstudy", {}).get("bank", {}).get("segments", ())]


def remove_with_rows(path: Path) -> None:
    """Delete the last checkpoint of a run, and all that was ever written beside it."""
    try:
        writers = {name.split("-")[0] for name in segments_of(path)}
    except Exception:  # damaged or not there
        writers = set()
    path.unlink(missing_ok=True)
    for segment in (path.parent / FOLDER).iterdir():
        if segment.name.lstrip(".").split("-")[0] in writers:
            shutil.rmtree(segment, ignore_errors=True)
