"""Tiny ImageNet from its folder of JPEG files, which are decoded once."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from flstudy.population.datasets.decoded import DecodedImages
from flstudy.population.datasets.images import Images


@dataclass(frozen=True, kw_only=True)
class TinyImageNet(DecodedImages, Images):
    """Tiny ImageNet (Le & Yang 2015): 110,000 colour images of 64×64 in 200 classes, pooled.

    They are the 100,000 of training and the 10,000 of validation; those of testing have no published labels. Labels
    number the WordNet ids in their alphabetic order. Grey images become colour images. In memory all take 5.4 GB.

    The JPEG files are decoded once: tiny-imagenet-200.npy (1.4 GB) beside the folder keeps the pixels for later runs,
    which compare it with the names and sizes of all files and decode anew where these have changed.
    """

    citations: ClassVar[tuple[str, ...]] = ("le2015",)
    shape, classes = (3, 64, 64), 200
    mean: ClassVar[tuple[float, ...]] = (0.4802, 0.4481, 0.3975)
    deviation: ClassVar[tuple[float, ...]] = (0.2770, 0.2691, 0.2821)
    inside: ClassVar[str] = "tiny-imagenet-200"
    first_task: ClassVar[str] = "ResNet18"
    remedy = "unpack tiny-imagenet-200.zip of Stanford University's CS231n (about 240 MB) into root"

    def read(self) -> tuple[Tensor, Tensor]:
        names = sorted(line.strip() for line in self._lines("wnids.txt"))
        if len(set(names)) != self.classes or len(names) != self.classes:
            self.refuse(f"wnids.txt must name {self.classes} different classes, names {len(set(names))}")
        files, labels = zip(*self._training(names), *self._validation(names), strict=True)
        return self.decoded(files, Path(self.root) / "tiny-imagenet-200.npy"), torch.tensor(labels)

    def _lines(self, name: str) -> list[str]:
        return self.existing(self.folder / name).read_text().splitlines()

    def _training(self, names: list[str]) -> Iterator[tuple[str, int]]:
        """Yield the paths of training files below the folder, and their labels."""
        counts = {}
        for label, name in enumerate(names):
            folder = self.folder / "train" / name / "images"
            if not folder.is_dir():
                self.absent("folder", folder)
            files = sorted(file for file in os.listdir(folder) if file.endswith(".JPEG"))
            counts[name] = len(files)
            for file in files:
                yield f"train/{name}/images/{file}", label
        fewest, most = min(names, key=lambda name: counts[name]), max(counts.values())
        if counts[fewest] < most:
            self.refuse(f"train/{fewest}/images holds {counts[fewest]} JPEG files where other classes have {most}")

    def _validation(self, names: list[str]) -> Iterator[tuple[str, int]]:
        number = {name: label for label, name in enumerate(names)}
        for row, line in enumerate(self._lines("val/val_annotations.txt"), start=1):
            file, name, *_ = (*line.split("\t"), "", "")
            if name not in number:
                self.refuse(f"line {row} of val/val_annotations.txt must be a file and its class, got {line[:40]!r}")
            yield f"val/images/{file}", number[name]

    def decode(self, file: str) -> NDArray[Any]:
        pixels = self.image(file)
        if pixels.shape != self.shape:
            self.refuse(f"{file} must be 64×64, is {pixels.shape[2]}×{pixels.shape[1]}")
        return pixels
