"""Data sets whose devices are people: the HDF5 files in which TensorFlow Federated publishes them, by writer.

Each file holds a group ``examples`` with one group per person. What its authors put into training and test files is
pooled and divided anew for each device, by the population's shares ``valid`` and ``test``.
"""

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from flstudy.population.datasets.base import Dataset, Examples
from flstudy.population.datasets.text import CHARACTERS, Special, by_character, by_word, most_frequent
from flstudy.population.streams import random_bits

Reader = Callable[[Mapping[str, NDArray[Any]]], tuple[NDArray[Any], NDArray[np.int64]]]
LEAST = 3  # examples of a device: one to train on, one to validate, one to test


@dataclass
class Natural(Dataset):
    """People with at least three examples; ``clients`` of them are chosen at random, the same for all replicas, so
    that examples are loaded once, whatever the seeds. Only the chosen ones are read.

    Args:
        root: folder with the files.
        selection: seed of the choice of people, ≥ 0.
        largest: most examples of a device, ≥ 3, drawn at random where there are more; null keeps all.
    """

    root: str = "data"
    selection: int = 0
    largest: int | None = None

    contents: ClassVar[tuple[str, ...]]
    """What each person's group must hold."""
    page: ClassVar[str]
    """Where the files come from."""

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.selection < 0:
            raise ValueError(f"{name}: selection must be ≥ 0, got {self.selection}")
        if self.largest is not None and self.largest < LEAST:
            raise ValueError(f"{name}: largest must be ≥ {LEAST} (train, valid, test), got {self.largest}")

    @abstractmethod
    def files(self) -> list[str]:
        """Names of the files; the people are those of the first one."""

    @abstractmethod
    def reader(self) -> Reader:
        """What reads inputs [n, *shape] and labels [n, ...] from one person's part of a file, and raises ValueError
        for contents that are not as published."""

    def load(self, seed: int, clients: int) -> Examples:
        read = self.reader()
        with contextlib.ExitStack() as opened:
            groups = [opened.enter_context(self._open(name))["examples"] for name in self.files()]
            people = list(groups[0])
            order = np.argsort(random_bits(self.selection, "people", np.arange(len(people))), kind="stable")
            chosen: dict[int, tuple[NDArray[Any], NDArray[np.int64]]] = {}
            for index in order:
                if len(chosen) == clients:
                    break
                person = self._person(read, people[index], groups)
                if len(person[1]) >= LEAST:
                    chosen[int(index)] = self._capped(int(index), *person)
        if len(chosen) < clients:
            raise ValueError(
                f"{type(self).__name__}: clients must be ≤ {len(chosen)}, the people with {LEAST} or more examples in "
                f"{self._path(self.files()[0])}, got {clients}"
            )
        parts = [chosen.pop(index) for index in sorted(chosen)]
        owner = np.repeat(np.arange(clients), [len(y) for _, y in parts])
        x, y = (torch.from_numpy(np.concatenate(column)) for column in zip(*parts, strict=True))
        return Examples(x, y, torch.from_numpy(owner))

    def _person(self, read: Reader, name: str, groups: list[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """All examples of a person, whose groups some files may lack."""
        parts = []
        for group in groups:
            if name not in group:
                continue
            person = group[name]
            for content in self.contents:
                if content not in person:
                    self._refuse(group.file.filename, f"examples/{name} has no {content!r}")
            try:
                parts.append(read({content: person[content][()] for content in self.contents}))
            except ValueError as error:
                self._refuse(group.file.filename, f"examples/{name}: {error}")
        x, y = (np.concatenate(column) for column in zip(*parts, strict=True))
        return x, y

    def _capped(self, index: int, x: NDArray[Any], y: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        if self.largest is None or len(y) <= self.largest:
            return x, y
        kept = np.argsort(random_bits(self.selection, "largest", index, np.arange(len(y))), kind="stable")
        rows = np.sort(kept[: self.largest])
        return x[rows], y[rows]

    def _path(self, name: str) -> Path:
        """An existing file's path."""
        path = Path(self.root) / name
        if not path.is_file():
            missing = "folder" if not Path(self.root).is_dir() else "file"
            where = Path(self.root) if missing == "folder" else path
            raise ValueError(
                f"{type(self).__name__}: there is no {missing} {str(where)!r}: set root to the folder that holds "
                f"{name}; {self.page}"
            )
        return path

    def _open(self, name: str) -> Any:
        path = self._path(name)
        try:
            import h5py  # a study dependency; the engine runs without it
        except ImportError as error:
            raise ImportError(f"{type(self).__name__}: reading {path} needs h5py: pip install h5py") from error
        try:
            file = h5py.File(path, "r")
        except OSError as error:
            self._refuse(path, f"it is no HDF5 file that can be read ({error})")
        if not isinstance(file.get("examples"), h5py.Group) or not len(file["examples"]):
            file.close()
            self._refuse(path, "it has no group 'examples' with one group per person")
        return file

    def _refuse(self, path: Any, reason: str) -> NoReturn:
        raise ValueError(f"{type(self).__name__}: {path} is not as published: {reason}; {self.page}")


def page(module: str, size: str) -> str:
    """Where to get the files."""
    return f"get them ({size}) as the documentation of TensorFlow Federated says under tff.simulation.datasets.{module}"


@dataclass
class Emnist(Natural):
    """Federated EMNIST by writer (Cohen et al. 2017; Caldas et al. 2018): 28×28 grey images of 62 letters and digits.

    3,400 writers with 671,585 training and 77,483 test images, pooled. Pixels are as published, in [0, 1] with a
    background of 1. Labels 0 … 9 are digits, then come upper-case and lower-case letters.
    """

    citations: ClassVar[tuple[str, ...]] = ("cohen2017", "caldas2018")

    contents: ClassVar[tuple[str, ...]] = ("pixels", "label")
    page: ClassVar[str] = page("emnist", "about 0.3 GB")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.shape, self.classes = (1, 28, 28), 62

    def files(self) -> list[str]:
        return ["fed_emnist_train.h5", "fed_emnist_test.h5"]

    def reader(self) -> Reader:
        return self._images

    def _images(self, person: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        pixels, label = person["pixels"], person["label"]
        if pixels.shape != (len(label), 28, 28):
            raise ValueError(f"pixels must be [{len(label)}, 28, 28], as many as labels, got {list(pixels.shape)}")
        if len(label) and not 0 <= label.min() <= label.max() < self.classes:
            raise ValueError(f"labels must lie in 0 … {self.classes - 1}, got {label.min()} … {label.max()}")
        return pixels.astype(np.float32, copy=False)[:, None], label.astype(np.int64)


@dataclass
class Shakespeare(Natural):
    """Next-character prediction by role in Shakespeare's plays (McMahan et al. 2017; Caldas et al. 2018).

    715 roles. As in Reddi et al. 2021 (App. C.3) a line of a role becomes its characters between marks of beginning
    and end, is cut into pieces of ``length`` + 1 and padded; a piece is one example, its labels the characters that
    follow each position, −1 for padding. The vocabulary of 90 is: padding, 86 characters, unknown, beginning, end.

    Differs: a piece with a single character, which has nothing to predict, is left out.

    Args:
        length: characters of an example's input.
    """

    citations: ClassVar[tuple[str, ...]] = ("mcmahan2017", "caldas2018")

    length: int = 80

    contents: ClassVar[tuple[str, ...]] = ("snippets",)
    page: ClassVar[str] = page("shakespeare", "about 10 MB")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length < 1:
            raise ValueError(f"Shakespeare: length must be ≥ 1, got {self.length}")
        self.shape, self.classes = (self.length,), Special(len(CHARACTERS)).size
        self.tokens = self.classes

    def files(self) -> list[str]:
        return ["shakespeare_train.h5", "shakespeare_test.h5"]

    def reader(self) -> Reader:
        return lambda person: by_character(person["snippets"], self.length)


@dataclass
class StackOverflow(Natural):
    """Next-word prediction by user of Stack Overflow (TensorFlow Federated's, used by Reddi et al. 2021, App. C.4).

    342,477 users with 135,818,730 sentences in the training part. A sentence becomes the numbers of its first
    ``length`` words after a mark of its beginning, with a mark of its end if there is room; its labels are the words
    that follow each position, −1 for padding. The vocabulary is: padding, ``vocabulary`` words, unknown, beginning,
    end. Accuracies count all of these labels but padding; Reddi et al. leave out unknown words and the ends as well.

    The files are large: choose ``clients`` and ``largest`` for your memory, of which an example takes 320 bytes.

    Args:
        parts: train (users before 2018), held_out (other users) or test (users since 2018), one or more of them;
            devices are the users of the first part, to whose sentences those in the others are added.
        vocabulary: number of the most frequent words, ≥ 1.
        length: words of an example's input, ≥ 1.
    """

    citations: ClassVar[tuple[str, ...]] = ("reddi2021",)

    parts: list[Literal["train", "held_out", "test"]] = field(default_factory=lambda: ["train", "test"])
    vocabulary: int = 10_000
    length: int = 20

    contents: ClassVar[tuple[str, ...]] = ("tokens",)
    page: ClassVar[str] = page("stackoverflow", "tens of GB")

    def __post_init__(self) -> None:
        super().__post_init__()
        kind = type(self).__name__
        for name in ("vocabulary", "length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{kind}: {name} must be ≥ 1, got {getattr(self, name)}")
        if not self.parts or len(set(self.parts)) < len(self.parts):
            raise ValueError(f"{kind}: parts must be different ones of train, held_out, test, got {self.parts}")
        self.shape, self.classes = (self.length,), Special(self.vocabulary).size
        self.tokens = self.classes

    def files(self) -> list[str]:
        return [f"stackoverflow_{part}.h5" for part in self.parts]

    def reader(self) -> Reader:
        vocabulary = self.words()
        return lambda person: by_word(person["tokens"], self.length, vocabulary)

    def words(self) -> dict[bytes, int]:
        """Numbers 1 … vocabulary of the most frequent words."""
        path = self._path("stackoverflow.word_count")
        try:
            return most_frequent(path, self.vocabulary)
        except (ValueError, OSError) as error:
            self._refuse(path, str(error))
