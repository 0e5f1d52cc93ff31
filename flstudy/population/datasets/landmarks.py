"""Google Landmarks by photographer: the mapping of TensorFlow Federated and a folder of JPEG files."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from flstudy.population.datasets.base import Dataset, Examples
from flstudy.population.datasets.decoded import Decoder, decoded
from flstudy.population.datasets.natural import LEAST
from flstudy.population.streams import random_bits

COLUMNS = ("user_id", "image_id", "class")
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, as FedAda²'s published code takes


@dataclass
class Landmarks(Dataset):
    """GLD-23K (Hsu et al. 2020, of Weyand et al. 2020): 23,080 images of 203 landmarks by 233 photographers.

    A device is a photographer with at least three images; where ``clients`` are fewer, they are chosen by
    ``selection``, the same for all replicas. Images are scaled to ``size`` × ``size`` and normalised by ImageNet's mean
    and deviation. The JPEG files are decoded once: a copy of all pixels beside them (3.5 GB) keeps them for later runs.
    In memory all take 13.9 GB.

    Differs: the test images of ``mini_gld_test.csv`` are nobody's and not read; each device's own are divided by the
    population's shares.

    Args:
        root: folder with the mapping and the images, as images/<image_id>.jpg or, as the publisher's tar files unpack,
            train/<a>/<b>/<c>/<image_id>.jpg with the first three letters of the id.
        mapping: name of the CSV file of user_id, image_id, class; GLD-160K's is federated_train.csv.
        landmarks: number of classes, ≥ 1; GLD-160K has 2,028.
        size: height and width of images, ≥ 1.
        selection: seed of the choice of people, ≥ 0.
    """

    citations: ClassVar[tuple[str, ...]] = ("weyand2020", "hsu2020")

    root: str = "data"
    mapping: str = "mini_gld_train_split.csv"
    landmarks: int = 203
    size: int = 224
    selection: int = 0

    def __post_init__(self) -> None:
        for name, least in (("landmarks", 1), ("size", 1), ("selection", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"Landmarks: {name} must be ≥ {least}, got {getattr(self, name)}")
        self.shape, self.classes = (3, self.size, self.size), self.landmarks

    def load(self, seed: int, clients: int) -> Examples:
        people: dict[str, list[tuple[str, int]]] = {}
        for user, image, label in self._rows():
            people.setdefault(user, []).append((image, label))
        names = [user for user in sorted(people) if len(people[user]) >= LEAST]
        if len(names) < clients:
            raise ValueError(
                f"Landmarks: clients must be ≤ {len(names)}, the people with {LEAST} or more images in {self.mapping}, "
                f"got {clients}"
            )
        order = np.argsort(random_bits(self.selection, "people", np.arange(len(names))), kind="stable")
        chosen = [people[names[index]] for index in sorted(order[:clients].tolist())]
        held = [row for rows in chosen for row in rows]
        owner = np.repeat(np.arange(clients), [len(rows) for rows in chosen])
        copy = Path(self.root) / f"{Path(self.mapping).stem}-{self.size}-{clients}-{self.selection}.npy"
        how = Decoder("Landmarks", Path(self.root), copy, (3, self.size, self.size), self._decoded, self._absent)
        x = decoded([self._file(image) for image, _ in held], how).to(torch.float32).div_(255)
        mean, deviation = (torch.tensor(values).view(-1, 1, 1) for values in (MEAN, DEVIATION))
        y = torch.tensor([label for _, label in held])
        return Examples(x.sub_(mean).div_(deviation), y, torch.from_numpy(owner))

    def _rows(self) -> Iterator[tuple[str, str, int]]:
        """Person, image and label of every line."""
        path = Path(self.root) / self.mapping
        if not Path(self.root).is_dir():
            self._absent("folder", Path(self.root))
        if not path.is_file():
            self._absent("file", path)
        with path.open(newline="", encoding="utf-8") as file:
            lines = csv.DictReader(file)
            for column in COLUMNS:
                if column not in (lines.fieldnames or ()):
                    self._refuse(f"{self.mapping} has no column {column!r}, but {list(lines.fieldnames or ())}")
            for number, line in enumerate(lines, start=2):
                user, image, label = (line[column] or "" for column in COLUMNS)
                if not user or not image or not label.isdigit() or int(label) >= self.classes:
                    self._refuse(
                        f"line {number} of {self.mapping} must be a person, an image and a class in 0 … "
                        f"{self.classes - 1}, got {(user, image, label)}"
                    )
                yield user, image, int(label)

    def _file(self, image: str) -> str:
        """Below the root; of either layout the one that is there."""
        flat, deep = f"images/{image}.jpg", f"train/{'/'.join(image[:3])}/{image}.jpg"
        return deep if (Path(self.root) / deep).is_file() else flat

    def _decoded(self, file: str) -> NDArray[Any]:
        """uint8 [3, size, size]."""
        from PIL import Image  # a study dependency, of torchvision's; the engine runs without it

        try:
            with Image.open(Path(self.root) / file) as image:
                small = image.convert("RGB").resize((self.size, self.size), Image.Resampling.BILINEAR)
        except (OSError, ValueError, SyntaxError) as error:
            self._refuse(f"{file} is no image that can be read: {error}")
        return np.asarray(small).transpose(2, 0, 1)

    def _absent(self, kind: str, path: Path) -> NoReturn:
        raise ValueError(
            f"Landmarks: there is no {kind} {str(path)!r}: set root to the folder that holds {self.mapping} and the "
            f"images of Google Landmarks v2, which the documentation of TensorFlow Federated says how to get under "
            f"tff.simulation.datasets.gldv2 (gld23k)"
        )

    def _refuse(self, reason: str) -> NoReturn:
        raise ValueError(f"Landmarks: {self.root} is not as published: {reason}; get it anew, or set mapping")
