"""Google Landmarks by photographer: the mapping of TensorFlow Federated and a folder of JPEG files."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from flstudy.hyper import FilePath, hyper
from flstudy.population.datasets.base import Examples, Originals, Piece
from flstudy.population.datasets.decoded import DecodedImages
from flstudy.population.datasets.images import normalised
from flstudy.population.datasets.natural import LEAST, in_order_of_choice
from flstudy.user_error import UserError

COLUMNS = ("user_id", "image_id", "class")
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, as FedAda²'s published code takes


@dataclass(frozen=True, kw_only=True)
class Landmarks(DecodedImages):
    """GLD-23K (Hsu et al. 2020, of Weyand et al. 2020): 23,080 images of 203 landmarks by 233 photographers.

    A device is a photographer with at least three images; where ``clients`` are fewer, they are chosen by
    ``selection``, the same for all replicas. Images are scaled to ``size`` × ``size`` and normalised by ImageNet's mean
    and deviation. The JPEG files are decoded once: a copy of all pixels beside them (3.5 GB) keeps them for later runs.
    In memory all take 13.9 GB.

    Differs: the test images of ``mini_gld_test.csv`` are nobody's and not read; each device's own are divided by the
    population's shares.
    """

    citations: ClassVar[tuple[str, ...]] = ("weyand2020", "hsu2020")
    first_task: ClassVar[str] = "ResNet18"
    natural: ClassVar[bool] = True

    root: FilePath = "data"
    """Folder with the mapping and the images, as images/<image_id>.jpg or, as the publisher's tar files unpack,
    train/<a>/<b>/<c>/<image_id>.jpg with the first three letters of the id."""
    mapping: str = "mini_gld_train_split.csv"
    """Name of the CSV file of user_id, image_id, class; GLD-160K's is federated_train.csv."""
    landmarks: int = hyper(203, "[1, 1e5]")
    """Number of classes; GLD-160K has 2,028."""
    size: int = hyper(224, "[1, 1e4]")
    """Height and width of images."""
    selection: int = hyper(0, "[0, 2e9]")
    """Seed of the choice of people."""

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return (3, self.size, self.size)

    @cached_property
    def classes(self) -> int:
        return self.landmarks

    @property
    def remedy(self) -> str:
        return (
            f"set root to the folder that holds {self.mapping} and the images of Google Landmarks v2, which the "
            f"documentation of TensorFlow Federated says how to get under tff.simulation.datasets.gldv2 (gld23k)"
        )

    def load(self, seed: int, clients: int) -> Examples:
        people = self._people()
        names = list(people)
        if len(names) < clients:
            raise UserError(
                f"Landmarks: clients must be ≤ {len(names)}, the people with {LEAST} or more images in {self.mapping}, "
                f"got {clients}"
            )
        order = in_order_of_choice(self.selection, len(names))
        chosen = [people[names[index]] for index in sorted(order[:clients].tolist())]
        held = [row for rows in chosen for row in rows]
        owner = np.repeat(np.arange(clients), [len(rows) for rows in chosen])
        copy = Path(self.root) / f"{Path(self.mapping).stem}-{self.size}-{clients}-{self.selection}.npy"
        x = normalised(self.decoded([self._file(image) for image, _ in held], copy), MEAN, DEVIATION)
        return Examples(x, torch.tensor([label for _, label in held]), torch.from_numpy(owner))

    def originals(self, scratch: Path) -> Originals:
        people = self._people()

        def pieces(start: int) -> Iterator[Piece]:
            for name in list(people)[start:]:
                pixels = np.stack([self.decode(self._file(image)) for image, _ in people[name]])
                yield Piece(pixels, np.array([label for _, label in people[name]]), name)

        files = [self.folder / self.mapping]
        files += [self.folder / self._file(image) for rows in people.values() for image, _ in rows]
        return Originals(files, len(people), pieces, MEAN, DEVIATION)

    def _people(self) -> dict[str, list[tuple[str, int]]]:
        """Return the images and labels of the people who have enough for a device, by name."""
        people: dict[str, list[tuple[str, int]]] = {}
        for user, image, label in self._rows():
            people.setdefault(user, []).append((image, label))
        return {user: people[user] for user in sorted(people) if len(people[user]) >= LEAST}

    def _rows(self) -> Iterator[tuple[str, str, int]]:
        """Yield the person, image and label of every line."""
        with self.existing(self.folder / self.mapping).open(newline="", encoding="utf-8") as file:
            lines = csv.DictReader(file)
            for column in COLUMNS:
                if column not in (lines.fieldnames or ()):
                    self.refuse(f"{self.mapping} has no column {column!r}, but {list(lines.fieldnames or ())}")
            for number, line in enumerate(lines, start=2):
                user, image, label = (line[column] or "" for column in COLUMNS)
                if not user or not image or not label.isdigit() or int(label) >= self.classes:
                    self.refuse(
                        f"line {number} of {self.mapping} must be a person, an image and a class in 0 … "
                        f"{self.classes - 1}, got {(user, image, label)}",
                    )
                yield user, image, int(label)

    def _file(self, image: str) -> str:
        """Return the path of an image below the root, in whichever of the two layouts it is there."""
        flat, deep = f"images/{image}.jpg", f"train/{'/'.join(image[:3])}/{image}.jpg"
        return deep if (self.folder / deep).is_file() else flat

    def decode(self, file: str) -> NDArray[Any]:
        return self.image(file, (self.size, self.size))
