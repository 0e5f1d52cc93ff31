"""AG's News, short texts in four classes, from the comma-separated files of Zhang et al. 2015."""

import csv
import re
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from flstudy.hyper import FilePath, hyper
from flstudy.population.datasets.base import Examples, FileDataset, Originals
from flstudy.population.datasets.images import SLICE, in_slices
from flstudy.population.datasets.text import PADDING, Special
from flstudy.user_error import UserError

FILES = ("train.csv", "test.csv")
WORD = re.compile(r"[^\W_]+")  # letters and digits; a backslash is a line's end in these files


@dataclass(frozen=True, kw_only=True)
class AgNews(FileDataset):
    """AG's News (Zhang et al. 2015): 127,600 titles with descriptions in four classes, pooled.

    The 120,000 training and 7,600 test texts are divided anew for each device, by the population's shares ``valid`` and
    ``test``. A text is the numbers of its first ``length`` words, in lower case and without punctuation: 1 for the most
    frequent word of train.csv, and so on, ``vocabulary`` + 1 for a word that is not among the most frequent ones, and 0
    after the last one. The default has 30,522 numbers in all. Labels 0 … 3 are world, sports, business, science.

    Differs: Chang et al. 2025 cut words into the 30,522 pieces of a trained model's vocabulary.
    """

    citations: ClassVar[tuple[str, ...]] = ("zhang2015",)

    classes = 4
    licence: ClassVar[str] = "non-commercial use (AG's corpus of news articles)"
    inside: ClassVar[str] = "ag_news_csv"
    first_task: ClassVar[str] = "FastText"
    remedy = "unpack ag_news_csv.tgz of Zhang et al. 2015 (about 12 MB) into root"

    root: FilePath = "data"
    """Folder of the folder ag_news_csv."""
    vocabulary: int = hyper(30_520, "[1, 1e6]")
    """Number of the most frequent words."""
    length: int = hyper(128, "[1, 1e5]")
    """Words of a text; others are cut off."""

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return (self.length,)

    @cached_property
    def tokens(self) -> int:
        return Special.after(self.vocabulary).unknown + 1

    def load(self, seed: int, clients: int) -> Examples:
        x, y, _ = self._numbered()
        return Examples(torch.from_numpy(x), torch.from_numpy(y), None)

    def originals(self, scratch: Path) -> Originals:
        x, y, words = self._numbered()
        files = [self.folder / name for name in FILES]
        return Originals(files, -(-len(y) // SLICE), in_slices(x, y), vocabulary=words)

    def _numbered(self) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[str, ...]]:
        """Return the texts [D, length], their labels [D], and the words that have numbers of their own."""
        parts = [self._read(name) for name in FILES]
        counts = Counter(word for _, words in parts[0] for word in words)
        if len(counts) < self.vocabulary:
            raise UserError(
                f"AgNews: vocabulary must be ≤ {len(counts)}, the different words of {self.folder / 'train.csv'}, got "
                f"{self.vocabulary}"
            )
        ranked = sorted(counts, key=lambda word: (-counts[word], word))[: self.vocabulary]
        numbers = {word: number for number, word in enumerate(ranked, start=1)}
        unknown = Special.after(self.vocabulary).unknown
        rows = [row for part in parts for row in part]
        x = np.full((len(rows), self.length), PADDING, dtype=np.int64)
        for line, (_, words) in zip(x, rows, strict=True):
            tokens = [numbers.get(word, unknown) for word in words[: self.length]]
            line[: len(tokens)] = tokens
        return x, np.array([label for label, _ in rows], dtype=np.int64), tuple(ranked)

    def _read(self, name: str) -> list[tuple[int, list[str]]]:
        """Return the label and words of each text."""
        path = self.existing(self.folder / name)
        rows: list[tuple[int, list[str]]] = []
        try:
            with path.open(encoding="utf-8", newline="") as file:
                for row in csv.reader(file):
                    if len(row) != 3 or row[0] not in ("1", "2", "3", "4"):
                        wanted = f"row {len(rows) + 1} must be a class 1 … 4, a title and a description"
                        raise UserError(f"{wanted}, got {','.join(row)[:40]!r}")
                    words = WORD.findall(f"{row[1]} {row[2]}".lower())
                    rows.append((int(row[0]) - 1, [sys.intern(word) for word in words]))  # 5 million, few different
        except (ValueError, csv.Error) as error:
            self.refuse(error, path)
        if not rows:
            self.refuse("it is empty", path)
        return rows
