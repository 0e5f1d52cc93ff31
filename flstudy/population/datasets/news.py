"""AG's News, short texts in four classes, from the comma-separated files of Zhang et al. 2015."""

import csv
import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from flstudy.population.datasets.base import Dataset, Examples
from flstudy.population.datasets.text import PADDING, Special

WORD = re.compile(r"[^\W_]+")  # letters and digits; a backslash is a line's end in these files
PAGE = "unpack ag_news_csv.tgz of Zhang et al. 2015 (about 12 MB) into root"


@dataclass
class AgNews(Dataset):
    """AG's News (Zhang et al. 2015): 127,600 titles with descriptions in four classes, pooled.

    The 120,000 training and 7,600 test texts are divided anew for each device, by the population's shares ``valid`` and
    ``test``. A text is the numbers of its first ``length`` words, in lower case and without punctuation: 1 for the most
    frequent word of train.csv, and so on, ``vocabulary`` + 1 for a word that is not among the most frequent ones, and 0
    after the last one. The default has 30,522 numbers in all. Labels 0 … 3 are world, sports, business, science.

    Differs: Chang et al. 2025 cut words into the 30,522 pieces of a trained model's vocabulary.

    Args:
        root: folder with the folder ag_news_csv.
        vocabulary: number of the most frequent words, ≥ 1.
        length: words of a text, ≥ 1; others are cut off.
    """

    citations: ClassVar[tuple[str, ...]] = ("zhang2015",)

    root: str = "data"
    vocabulary: int = 30_520
    length: int = 128

    def __post_init__(self) -> None:
        for name in ("vocabulary", "length"):
            if getattr(self, name) < 1:
                raise ValueError(f"AgNews: {name} must be ≥ 1, got {getattr(self, name)}")
        self.shape, self.classes, self.tokens = (self.length,), 4, Special(self.vocabulary).unknown + 1

    def load(self, seed: int, clients: int) -> Examples:
        parts = [self._read(name) for name in ("train.csv", "test.csv")]
        counts = Counter(word for _, words in parts[0] for word in words)
        if len(counts) < self.vocabulary:
            raise ValueError(
                f"AgNews: vocabulary must be ≤ {len(counts)}, the different words of {self._path('train.csv')}, got "
                f"{self.vocabulary}"
            )
        ranked = sorted(counts, key=lambda word: (-counts[word], word))[: self.vocabulary]
        numbers = {word: number for number, word in enumerate(ranked, start=1)}
        unknown = Special(self.vocabulary).unknown
        rows = [row for part in parts for row in part]
        x = np.full((len(rows), self.length), PADDING, dtype=np.int64)
        for line, (_, words) in zip(x, rows, strict=True):
            known = [numbers.get(word, unknown) for word in words[: self.length]]
            line[: len(known)] = known
        return Examples(torch.from_numpy(x), torch.tensor([label for label, _ in rows]), None)

    def _path(self, name: str) -> Path:
        return Path(self.root) / "ag_news_csv" / name

    def _read(self, name: str) -> list[tuple[int, list[str]]]:
        """Label and words of each text."""
        path = self._path(name)
        rows: list[tuple[int, list[str]]] = []
        for kind, wanted, there in (("folder", path.parent, path.parent.is_dir()), ("file", path, path.is_file())):
            if not there:
                raise ValueError(f"AgNews: there is no {kind} {str(wanted)!r}: {PAGE}")
        try:
            with path.open(encoding="utf-8", newline="") as file:
                for row in csv.reader(file):
                    if len(row) != 3 or row[0] not in ("1", "2", "3", "4"):
                        told = f"row {len(rows) + 1} must be a class 1 … 4, a title and a description"
                        raise ValueError(f"{told}, got {','.join(row)[:40]!r}")
                    words = WORD.findall(f"{row[1]} {row[2]}".lower())
                    rows.append((int(row[0]) - 1, [sys.intern(word) for word in words]))  # 5 million, few different
        except (ValueError, csv.Error) as error:
            raise ValueError(f"AgNews: {path} is not as published: {error}; {PAGE}") from error
        if not rows:
            raise ValueError(f"AgNews: {path} is not as published: it is empty; {PAGE}")
        return rows
