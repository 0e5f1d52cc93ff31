"""LEAF's data sets by person, from the JSON files that its preprocessing leaves in data/train and data/test."""

import json
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from flstudy.hyper import FilePath, hyper
from flstudy.population.datasets.base import Examples, FileDataset, Originals, Piece
from flstudy.population.datasets.natural import chosen_for_devices
from flstudy.population.datasets.text import CHARACTERS, Special, successors
from flstudy.user_error import UserError


@dataclass(frozen=True, kw_only=True)
class Leaf(FileDataset):
    """LEAF's people (Caldas et al. 2018) with at least three examples; where ``clients`` are fewer, they are chosen by
    ``selection``, the same for all replicas. Only two files are in memory at a time. LEAF's training and test files
    are pooled and divided anew for each device, by the population's shares ``valid`` and ``test``.
    """

    citations: ClassVar[tuple[str, ...]] = ("caldas2018",)
    aim: ClassVar[str] = "classification"
    """Quantity that a task predicts."""
    natural: ClassVar[bool] = True

    root: FilePath = "data"
    """Folder of the folders train and test, as preprocess.sh leaves them in data."""
    selection: int = hyper(0, "[0, 2e9]")
    """Seed of the choice of people."""

    @property
    def remedy(self) -> str:
        return "set root to the folder with train/*.json and test/*.json that LEAF's preprocess.sh leaves in data"

    @abstractmethod
    def examples_of(self, x: list[Any], y: list[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the inputs [n, *shape] and labels [n, ...] of a person's x and y; raises UserError for other
        contents."""

    def known(self) -> tuple[str, ...]:
        """Return the tokens in the order of their numbers 1, 2, … in texts."""
        return ()

    def load(self, seed: int, clients: int) -> Examples:
        sizes = np.array([count for _, count in self._names()])
        refused = type(self).__name__, "people", self.folder
        chosen = set(chosen_for_devices(sizes, clients, self.selection, refused=refused).tolist())
        parts = [piece for index, piece in enumerate(self._people()) if index in chosen]
        owner = np.repeat(np.arange(clients), [len(piece.y) for piece in parts])
        x, y = (
            torch.from_numpy(np.concatenate(column)) for column in zip(*(piece[:2] for piece in parts), strict=True)
        )
        return Examples(x, y, torch.from_numpy(owner))

    def originals(self, scratch: Path) -> Originals:
        def pieces(start: int) -> Iterator[Piece]:
            for index, piece in enumerate(self._people()):
                if index >= start:
                    yield piece

        files = [file for pair in self._pairs() for file in pair if file is not None]
        return Originals(files, len(self._names()), pieces, task=self.aim, vocabulary=self.known())

    def _names(self) -> list[tuple[str, int]]:
        """Return the names of all people with the number of their examples, in the order of `_people`."""
        return [(piece.client or "", len(piece.y)) for piece in self._people()]

    def _pairs(self) -> list[tuple[Path | None, Path | None]]:
        """Return the files of training and testing that hold the same people, by their place among the files."""
        parts: list[list[Path]] = []
        for part in ("train", "test"):
            folder = self.folder / part
            if not folder.is_dir():
                self.absent("folder", folder)
            parts.append(sorted(folder.glob("*.json")))
            if not parts[-1]:
                self.absent("file", folder / "*.json")
        return list(zip_longest(parts[0], parts[1]))

    def _people(self) -> Iterator[Piece]:
        for train, test in self._pairs():
            files = [self._read(path) for path in (train, test) if path is not None]
            for name in dict.fromkeys(name for people in files for name in people):
                parts = [people[name] for people in files if name in people]
                x, y = (np.concatenate(column) for column in zip(*parts, strict=True))
                yield Piece(x, y, name)

    def _read(self, path: Path) -> dict[str, tuple[NDArray[Any], NDArray[np.int64]]]:
        """Return the examples of all people in a file, by name."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            people = {name: (data["x"], data["y"]) for name, data in content["user_data"].items()}
            listed = dict(zip(content["users"], content["num_samples"], strict=True))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else str(error).splitlines()[0][:60]
            self.refuse(f"it is no JSON file of users, num_samples and user_data ({reason})", path)
        examples = {}
        for name, (x, y) in people.items():
            if not len(x) == len(y) == listed.get(name):
                self.refuse(f"{name} has {len(x)} x, {len(y)} y and num_samples {listed.get(name)}", path)
            try:
                examples[name] = self.examples_of(x, y)
            except (ValueError, TypeError) as error:
                self.refuse(f"{name}: {error}", path)
        return examples


class LeafFemnist(Leaf):
    """FEMNIST of LEAF (Caldas et al. 2018), by writer: 28×28 grey images of 62 letters and digits.

    Pixels are as published, in [0, 1]. Labels 0 … 9 are digits, then come upper-case and lower-case letters.
    """

    citations: ClassVar[tuple[str, ...]] = ("caldas2018",)
    first_task: ClassVar[str] = "Cnn"
    shape, classes = (1, 28, 28), 62

    def examples_of(self, x: list[Any], y: list[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        pixels, label = np.array(x, dtype=np.float32), np.array(y, dtype=np.int64)
        pixels = pixels if len(x) else pixels.reshape(0, 784)
        if pixels.shape != (len(label), 784):
            raise UserError(f"x must be [{len(label)}, 784], got {list(pixels.shape)}")
        if len(label) and not 0 <= label.min() <= label.max() < self.classes:
            raise UserError(f"labels must lie in 0 … {self.classes - 1}, got {label.min()} … {label.max()}")
        return pixels.reshape(-1, *self.shape), label


@dataclass(frozen=True, kw_only=True)
class LeafShakespeare(Leaf):
    """Shakespeare of LEAF (Caldas et al. 2018), by role: 80 characters and the one that follows.

    Inputs and labels have the numbers of `Shakespeare`, and so the same tasks: an example's labels are the characters
    that follow each position.

    Differs: LEAF itself predicts the last of them only, and numbers 80 characters.
    """

    citations: ClassVar[tuple[str, ...]] = ("caldas2018",)
    aim: ClassVar[str] = "next character"
    first_task: ClassVar[str] = "Lstm"
    licence: ClassVar[str] = "public domain (Project Gutenberg)"
    classes = tokens = Special.after(len(CHARACTERS)).size

    length: int = hyper(80, "[1, 1e5]")
    """Characters of an example's input, as the files have it."""

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return (self.length,)

    def known(self) -> tuple[str, ...]:
        return tuple(CHARACTERS)

    def examples_of(self, x: list[Any], y: list[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        numbers = {character: number for number, character in enumerate(CHARACTERS, start=1)}
        unknown = Special.after(len(CHARACTERS)).unknown
        tokens = np.empty((len(x), self.length + 1), dtype=np.int64)
        for line, text, last in zip(tokens, x, y, strict=True):
            if len(text) != self.length or len(last) != 1:
                raise UserError(f"texts must be {self.length} characters and one more, got {len(text)} and {len(last)}")
            line[:] = [numbers.get(character, unknown) for character in text + last]
        return successors(tokens)
