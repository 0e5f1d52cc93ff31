"""Data sets whose devices are people: the HDF5 files in which TensorFlow Federated publishes them, by writer.

Each file holds a group ``examples`` with one group per person. The authors' training and test files are
pooled and divided anew for each device, by the population's shares ``valid`` and ``test``.
"""

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from flstudy.hyper import hyper
from flstudy.population.datasets.base import Examples, FileDataset, Originals, Piece
from flstudy.population.datasets.text import CHARACTERS, Special, by_character, by_word, most_frequent
from flstudy.population.streams import random_bits
from flstudy.user_error import UserError

Reader = Callable[[Mapping[str, NDArray[Any]]], tuple[NDArray[Any], NDArray[np.int64]]]
LEAST = 3  # examples of a device: one to train on, one to validate, one to test


def in_order_of_choice(selection: int, people: int) -> NDArray[np.int64]:
    """Return [people]: the people's numbers in the order in which a seed chooses them for devices."""
    return np.argsort(random_bits(selection, "people", np.arange(people)), kind="stable")


def chosen_for_devices(
    sizes: NDArray[np.int64], clients: int, selection: int, *, refused: tuple[str, str, object]
) -> NDArray[np.int64]:
    """Return [clients]: who of the people with so many examples [P] become devices, ascending.

    Args:
        sizes: [P] examples of each.
        clients: how many are wanted.
        selection: the seed that chooses.
        refused: words of the error: the data set, its word for people, and where its files are.

    Raises:
        UserError: where fewer people than that have enough examples.
    """
    order = in_order_of_choice(selection, len(sizes))
    able = order[sizes[order] >= LEAST]
    if len(able) < clients:
        name, people, place = refused
        raise UserError(
            f"{name}: clients must be ≤ {len(able)}, the {people} with {LEAST} or more examples in {place}, "
            f"got {clients}"
        )
    return np.sort(able[:clients])


@dataclass(frozen=True, kw_only=True)
class Natural(FileDataset):
    """People with at least three examples; ``clients`` of them are chosen at random, the same for all replicas, so
    that examples are loaded once, whatever the seeds. Only the chosen ones are read.
    """

    contents: ClassVar[tuple[str, ...]]
    """Data sets that each person's group in a file must hold."""
    aim: ClassVar[str] = "classification"
    """Quantity that a task predicts."""
    natural: ClassVar[bool] = True
    page: ClassVar[str]
    """TensorFlow Federated's module that documents where the files come from, and how large they are."""

    selection: int = hyper(0, "[0, 2e9]")
    """Seed of the choice of people."""
    largest: int | None = hyper(None, "[3, 1e6]")
    """Largest number of a device's examples, drawn at random where there are more; null keeps all."""

    @property
    def remedy(self) -> str:
        return (
            f"set root to the folder that holds {', '.join(self.files())}; get them as the documentation of TensorFlow "
            f"Federated says under tff.simulation.datasets.{self.page}"
        )

    @abstractmethod
    def files(self) -> list[str]:
        """Return the names of the files; the people are those of the first one."""

    @abstractmethod
    def reader(self) -> Reader:
        """Return the function that reads inputs [n, *shape] and labels [n, ...] from one person's part of a file, and
        raises UserError for contents that are not as published."""

    def load(self, seed: int, clients: int) -> Examples:
        read = self.reader()
        with contextlib.ExitStack() as opened:
            groups = [opened.enter_context(self._open(name))["examples"] for name in self.files()]
            people = list(groups[0])
            chosen: dict[int, tuple[NDArray[Any], NDArray[np.int64]]] = {}
            for index in in_order_of_choice(self.selection, len(people)):
                if len(chosen) == clients:
                    break
                person = self._person(read, people[index], groups)
                if len(person[1]) >= LEAST:
                    chosen[int(index)] = self._capped(int(index), *person)
        if len(chosen) < clients:
            raise UserError(
                f"{type(self).__name__}: clients must be ≤ {len(chosen)}, the people with {LEAST} or more examples in "
                f"{self.folder / self.files()[0]}, got {clients}"
            )
        parts = [chosen.pop(index) for index in sorted(chosen)]
        owner = np.repeat(np.arange(clients), [len(y) for _, y in parts])
        x, y = (torch.from_numpy(np.concatenate(column)) for column in zip(*parts, strict=True))
        return Examples(x, y, torch.from_numpy(owner))

    def originals(self, scratch: Path) -> Originals:
        with self._open(self.files()[0]) as first:
            count = len(first["examples"])
        self.reader()  # what it needs beside the people is there
        return Originals(
            [self.folder / name for name in self.files()], count, self._pieces, task=self.aim, vocabulary=self.known()
        )

    def _pieces(self, start: int) -> Iterator[Piece]:
        """Yield all people from the person with that number on, those with too few examples for a device included."""
        read = self.reader()
        with contextlib.ExitStack() as opened:
            groups = [opened.enter_context(self._open(name))["examples"] for name in self.files()]
            for index, name in enumerate(groups[0]):
                if index >= start:
                    yield Piece(*self._capped(index, *self._person(read, name, groups)), name)

    def known(self) -> tuple[str, ...]:
        """Return the tokens in the order of their numbers 1, 2, … in texts."""
        return ()

    def _person(self, read: Reader, name: str, groups: list[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return all examples of a person, whose groups some files may lack."""
        parts = []
        for group in groups:
            if name not in group:
                continue
            person = group[name]
            for content in self.contents:
                if content not in person:
                    self.refuse(f"examples/{name} has no {content!r}", Path(group.file.filename))
            try:
                parts.append(read({content: person[content][()] for content in self.contents}))
            except ValueError as error:
                self.refuse(f"examples/{name}: {error}", Path(group.file.filename))
        x, y = (np.concatenate(column) for column in zip(*parts, strict=True))
        return x, y

    def _capped(self, index: int, x: NDArray[Any], y: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        if self.largest is None or len(y) <= self.largest:
            return x, y
        order = np.argsort(random_bits(self.selection, "largest", index, np.arange(len(y))), kind="stable")
        rows = np.sort(order[: self.largest])
        return x[rows], y[rows]

    def _open(self, name: str) -> Any:
        path = self.existing(self.folder / name)
        try:
            import h5py  # a study dependency; the engine runs without it
        except ImportError as error:
            raise ImportError(f"{type(self).__name__}: reading {path} needs h5py: pip install h5py") from error
        try:
            file = h5py.File(path, "r")
        except OSError as error:
            self.refuse(f"it is no HDF5 file that can be read ({error})", path)
        if not isinstance(file.get("examples"), h5py.Group) or not len(file["examples"]):
            file.close()
            self.refuse("it has no group 'examples' with one group per person", path)
        return file


@dataclass(frozen=True, kw_only=True)
class Emnist(Natural):
    """Federated EMNIST by writer (Cohen et al. 2017; Caldas et al. 2018): 28×28 grey images of 62 letters and digits.

    3,400 writers with 671,585 training and 77,483 test images, pooled. Pixels are as published, in [0, 1] with a
    background of 1. Labels 0 … 9 are digits, then come upper-case and lower-case letters.
    """

    citations: ClassVar[tuple[str, ...]] = ("cohen2017", "caldas2018")

    contents: ClassVar[tuple[str, ...]] = ("pixels", "label")
    first_task: ClassVar[str] = "Cnn"
    page: ClassVar[str] = "emnist (about 0.3 GB)"

    shape, classes = (1, 28, 28), 62

    def files(self) -> list[str]:
        return ["fed_emnist_train.h5", "fed_emnist_test.h5"]

    def reader(self) -> Reader:
        return self._images

    def _images(self, person: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        pixels, label = person["pixels"], person["label"]
        if pixels.shape != (len(label), 28, 28):
            raise UserError(f"pixels must be [{len(label)}, 28, 28], as many as labels, got {list(pixels.shape)}")
        if len(label) and not 0 <= label.min() <= label.max() < self.classes:
            raise UserError(f"labels must lie in 0 … {self.classes - 1}, got {label.min()} … {label.max()}")
        return pixels.astype(np.float32, copy=False)[:, None], label.astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class Shakespeare(Natural):
    """Next-character prediction by role in Shakespeare's plays (McMahan et al. 2017; Caldas et al. 2018).

    715 roles. As in Reddi et al. 2021 (App. C.3) a line of a role becomes its characters between marks of beginning
    and end, is cut into pieces of ``length`` + 1 and padded; a piece is one example, its labels the characters that
    follow each position, −1 for padding. The vocabulary of 90 is: padding, 86 characters, unknown, beginning, end.

    Differs: a piece with a single character, which has nothing to predict, is left out.
    """

    citations: ClassVar[tuple[str, ...]] = ("mcmahan2017", "caldas2018")

    contents: ClassVar[tuple[str, ...]] = ("snippets",)
    first_task: ClassVar[str] = "Lstm"
    aim: ClassVar[str] = "next character"
    page: ClassVar[str] = "shakespeare (about 10 MB)"
    licence: ClassVar[str] = "public domain (Project Gutenberg)"
    classes = tokens = Special.after(len(CHARACTERS)).size

    length: int = hyper(80, "[1, 1e5]")
    """Characters of an example's input."""

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return (self.length,)

    def files(self) -> list[str]:
        return ["shakespeare_train.h5", "shakespeare_test.h5"]

    def reader(self) -> Reader:
        return lambda person: by_character(person["snippets"], self.length)

    def known(self) -> tuple[str, ...]:
        return tuple(CHARACTERS)


@dataclass(frozen=True, kw_only=True)
class StackOverflow(Natural):
    """Next-word prediction by user of Stack Overflow (TensorFlow Federated's, used by Reddi et al. 2021, App. C.4).

    342,477 users with 135,818,730 sentences in the training part. A sentence becomes the numbers of its first
    ``length`` words after a mark of its beginning, with a mark of its end if there is room; its labels are the words
    that follow each position, −1 for padding. The vocabulary is: padding, ``vocabulary`` words, unknown, beginning,
    end. Accuracies count all of these labels but padding; Reddi et al. leave out unknown words and the ends as well.

    The files are large: choose ``clients`` and ``largest`` for your memory, of which an example takes 320 bytes.
    """

    citations: ClassVar[tuple[str, ...]] = ("reddi2021",)

    contents: ClassVar[tuple[str, ...]] = ("tokens",)
    first_task: ClassVar[str] = "Lstm"
    aim: ClassVar[str] = "next word"
    page: ClassVar[str] = "stackoverflow (tens of GB)"
    licence: ClassVar[str] = "CC BY-SA 3.0"

    parts: list[Literal["train", "held_out", "test"]] = field(default_factory=lambda: ["train", "test"])
    """train (users before 2018), held_out (other users) or test (users since 2018), one or more of them. Devices are
    the users of the first part; their sentences in the other parts are added."""
    vocabulary: int = hyper(10_000, "[1, 1e6]")
    """Number of the most frequent words."""
    length: int = hyper(20, "[1, 1e5]")
    """Words of an example's input."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.parts or len(set(self.parts)) < len(self.parts):
            raise UserError(f"{type(self).__name__}: parts must be one or more different ones, got {self.parts}")

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return (self.length,)

    @cached_property
    def classes(self) -> int:
        return Special.after(self.vocabulary).size

    @cached_property
    def tokens(self) -> int:
        return self.classes

    def files(self) -> list[str]:
        return [f"stackoverflow_{part}.h5" for part in self.parts]

    def reader(self) -> Reader:
        vocabulary = self.words()
        return lambda person: by_word(person["tokens"], self.length, vocabulary)

    def known(self) -> tuple[str, ...]:
        return tuple(word.decode(errors="replace") for word in self.words())

    def words(self) -> dict[bytes, int]:
        """Return the numbers 1 … vocabulary of the most frequent words; UserError where their file is not as
        published."""
        path = self.existing(self.folder / "stackoverflow.word_count")
        try:
            return most_frequent(path, self.vocabulary)
        except (ValueError, OSError) as error:
            self.refuse(error, path)
