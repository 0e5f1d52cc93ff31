"""Pooled sets of images, for a partition to divide: scikit-learn's digits, and those that torchvision reads."""

import contextlib
import gzip
import importlib.util
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flstudy.population.datasets.base import Dataset, Examples, FileDataset, Originals, Piece

DIGITS_FILE = "datasets/data/digits.csv.gz"  # of scikit-learn
SLICE = 1024  # examples of a pooled set that make a piece


@dataclass(frozen=True, kw_only=True)
class Digits(Dataset):
    """scikit-learn's 1,797 handwritten digits (Alpaydin & Kaynak 1998): 8×8 grey images in [0, 1], ten classes."""

    citations: ClassVar[tuple[str, ...]] = ("alpaydin1998",)
    shape, classes = (1, 8, 8), 10

    def load(self, seed: int, clients: int) -> Examples:
        images, labels = digits_table()
        x = torch.from_numpy(images / 16.0).to(torch.float32)[:, None]
        return Examples(x, torch.from_numpy(labels).to(torch.int64), None)


def digits_table() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the pixels [D, 8, 8] from 0 to 16 and labels [D], from scikit-learn's own file: to import it takes a
    study's start more than a second."""
    package = importlib.util.find_spec("sklearn")
    for folder in (package and package.submodule_search_locations) or ():
        with contextlib.suppress(OSError, ValueError), gzip.open(Path(folder, DIGITS_FILE), "rt") as file:
            table = np.loadtxt(file, delimiter=",")
            return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits  # a study dependency; the engine runs without it

    digits = load_digits()
    return digits.images, digits.target


@dataclass(frozen=True, kw_only=True)
class Images(FileDataset):
    """Images normalised by channel with the training images' mean and deviation.

    The authors' training and test files are pooled, and each device's examples are divided by the population's
    shares ``valid`` and ``test``. Images are not augmented.
    """

    mean: ClassVar[tuple[float, ...]]
    """Mean of each channel's values in 0 … 1."""
    deviation: ClassVar[tuple[float, ...]]
    first_task: ClassVar[str] = "Cnn"

    @abstractmethod
    def read(self) -> tuple[Tensor, Tensor]:
        """Return the pixels uint8 [D, channels, height, width] and labels [D], those for training first."""

    def load(self, seed: int, clients: int) -> Examples:
        pixels, y = self.checked()
        return Examples(normalised(pixels, self.mean, self.deviation), y, None)

    def checked(self) -> tuple[Tensor, Tensor]:
        """Return the pixels and labels as `read` returns them, once their shapes and labels are checked."""
        pixels, y = self.read()
        if tuple(pixels.shape[1:]) != self.shape or y.shape != pixels.shape[:1]:
            self.refuse(f"images must be {list(self.shape)}, each with a label, got {list(pixels.shape)}")
        if not 0 <= int(y.min()) <= int(y.max()) < self.classes:
            self.refuse(f"labels must lie in 0 … {self.classes - 1}, got {int(y.min())} … {int(y.max())}")
        return pixels, y

    def sources(self) -> list[Path]:
        """Return the files that `read` reads, or the folder that holds them all."""
        return [self.folder]

    def originals(self, scratch: Path) -> Originals:
        pixels, y = self.checked()
        pieces = in_slices(pixels.numpy(), y.numpy())
        return Originals(self.sources(), -(-len(y) // SLICE), pieces, self.mean, self.deviation)


def in_slices(x: NDArray[Any], y: NDArray[Any]) -> Callable[[int], Iterator[Piece]]:
    """Return the pieces of a pooled set x [D, ...], y [D, ...] that is in memory, or mapped."""

    def pieces(start: int) -> Iterator[Piece]:
        for begin in range(start * SLICE, len(y), SLICE):
            yield Piece(x[begin : begin + SLICE], y[begin : begin + SLICE], None)

    return pieces


def normalised(pixels: Tensor, mean: tuple[float, ...], deviation: tuple[float, ...]) -> Tensor:
    """Return float32 of pixels uint8 [D, channels, height, width], by the mean and deviation of each channel in 0 …
    1."""
    x = pixels.to(torch.float32, memory_format=torch.contiguous_format).div_(255)
    return x.sub_(torch.tensor(mean).view(-1, 1, 1)).div_(torch.tensor(deviation).view(-1, 1, 1))


@dataclass(frozen=True, kw_only=True)
class TorchvisionImages(Images):
    """Images that torchvision reads, and downloads where asked to."""

    download: bool = False
    """Fetch the files where they are missing."""

    @property
    @abstractmethod
    def published(self) -> str:
        """Name of torchvision's class."""

    def source(self) -> Any:
        """Return torchvision's class, a study dependency: the engine runs without it."""
        from torchvision import datasets

        return getattr(datasets, self.published)

    @abstractmethod
    def files(self) -> list[str]:
        """Return the names below the folder."""

    def sources(self) -> list[Path]:
        return [self.folder / name for name in self.files()]

    def parts(self) -> list[tuple[Any, Any]]:
        """Return the pixels and labels for training and for testing, as torchvision has them."""
        parts = [self.source()(self.root, train=train, download=self.download) for train in (True, False)]
        return [(part.data, part.targets) for part in parts]

    def read(self) -> tuple[Tensor, Tensor]:
        for name in () if self.download else self.files():
            self.existing(self.folder / name)
        try:
            parts = self.parts()
        except (RuntimeError, OSError, ValueError, TypeError, LookupError, AssertionError) as error:
            self.refuse(str(error) or type(error).__name__)  # torchvision compares checksums, or asserts
        pixels, y = (np.concatenate([np.asarray(part) for part in column]) for column in zip(*parts, strict=True))
        return self.arranged(torch.from_numpy(pixels)), torch.from_numpy(y).to(torch.int64)

    def arranged(self, pixels: Tensor) -> Tensor:
        """Return the pixels [D, channels, height, width]."""
        return pixels


class Cifar(TorchvisionImages):
    """CIFAR's images (Krizhevsky 2009): 60,000 colour images of 32×32, 50,000 for training and 10,000 for testing.

    500 devices of a ``BalancedDirichlet`` have 120 each, and valid 0.25 and test 0.1667 give FLASH's 100 and 20 (App.
    A), the 100 divided 70 to 30 for early stopping. The folder is what the publisher's "python version" unpacks to.
    """

    shape = (3, 32, 32)

    @property
    def folder(self) -> Path:
        return Path(self.root, self.source().base_folder)

    @property
    def remedy(self) -> str:
        return (
            f"unpack the python version of {self.published} of the University of Toronto's CIFAR page "
            f"(about 170 MB) into root, or say download: true"
        )

    def files(self) -> list[str]:
        return [name for name, _ in (*self.source().train_list, *self.source().test_list)]

    def arranged(self, pixels: Tensor) -> Tensor:
        return pixels.permute(0, 3, 1, 2)


class Cifar10(Cifar):
    """CIFAR-10 (Krizhevsky 2009): 60,000 colour images of 32×32 in ten classes, pooled."""

    citations: ClassVar[tuple[str, ...]] = ("krizhevsky2009",)
    published = "CIFAR10"
    classes = 10
    mean: ClassVar[tuple[float, ...]] = (0.4914, 0.4822, 0.4465)
    deviation: ClassVar[tuple[float, ...]] = (0.2470, 0.2435, 0.2616)


class Cifar100(Cifar):
    """CIFAR-100 (Krizhevsky 2009): 60,000 colour images of 32×32 in 100 classes, pooled."""

    citations: ClassVar[tuple[str, ...]] = ("krizhevsky2009",)
    published = "CIFAR100"
    classes = 100
    mean: ClassVar[tuple[float, ...]] = (0.5071, 0.4865, 0.4409)
    deviation: ClassVar[tuple[float, ...]] = (0.2673, 0.2564, 0.2762)


class Idx(TorchvisionImages):
    """Grey images of 28×28 in four idx files, as MNIST has them: 60,000 for training and 10,000 for testing."""

    shape, classes = (1, 28, 28), 10

    @property
    def folder(self) -> Path:
        return Path(self.root, self.published, "raw")

    @property
    def remedy(self) -> str:
        return (
            f"unpack (gunzip) the four idx files of {self.published} (about 55 MB) into {self.folder}, or say "
            f"download: true"
        )

    def files(self) -> list[str]:
        return [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]

    def arranged(self, pixels: Tensor) -> Tensor:
        return pixels[:, None]


Division = Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"]


@dataclass(frozen=True, kw_only=True)
class EmnistImages(Idx):
    """EMNIST (Cohen et al. 2017) without its writers: grey images of 28×28 of letters and digits, pooled.

    814,255 images by class, 131,600 balanced. The files hold them on their sides; here they stand upright. Labels of
    ``letters``, which are published from 1, begin at 0. `Emnist` has the writers.
    """

    citations: ClassVar[tuple[str, ...]] = ("cohen2017",)
    published = "EMNIST"
    mean: ClassVar[tuple[float, ...]] = (0.1736,)
    deviation: ClassVar[tuple[float, ...]] = (0.3317,)
    numbers: ClassVar[dict[str, int]] = {
        "byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26, "digits": 10, "mnist": 10
    }  # fmt: skip

    division: Division = "balanced"
    """Division into classes. byclass: 62. bymerge: 47, since letters that look alike are merged; balanced: likewise,
    with equally many of each. letters: 26. digits: ten; mnist: likewise, as many as in MNIST."""

    @property
    def classes(self) -> int:  # type: ignore[override]
        return self.numbers[self.division]

    def files(self) -> list[str]:
        kinds = "images-idx3", "labels-idx1"
        return [f"emnist-{self.division}-{part}-{kind}-ubyte" for part in ("train", "test") for kind in kinds]

    @property
    def remedy(self) -> str:
        return (
            f"unpack (gunzip) the files emnist-{self.division}-* of NIST's gzip.zip (about 560 MB) into {self.folder}, "
            "or say download: true"
        )

    def parts(self) -> list[tuple[Any, Any]]:
        make = partial(self.source(), self.root, split=self.division, download=self.download)
        first = int(self.division == "letters")
        return [(part.data.mT, part.targets - first) for part in (make(train=train) for train in (True, False))]


class Mnist(Idx):
    """MNIST (LeCun et al. 1998): 70,000 grey images of 28×28 of the ten digits, pooled."""

    citations: ClassVar[tuple[str, ...]] = ("lecun1998",)
    licence: ClassVar[str] = "CC BY-SA 3.0"
    published = "MNIST"
    mean: ClassVar[tuple[float, ...]] = (0.1307,)
    deviation: ClassVar[tuple[float, ...]] = (0.3081,)


class FashionMnist(Idx):
    """Fashion-MNIST (Xiao et al. 2017): 70,000 grey images of 28×28 of ten kinds of clothing, pooled.

    Where the root has no folder of it, the files of Debian's package dataset-fashion-mnist are read as they are.
    """

    citations: ClassVar[tuple[str, ...]] = ("xiao2017",)
    licence: ClassVar[str] = "MIT"
    published = "FashionMNIST"
    mean: ClassVar[tuple[float, ...]] = (0.2860,)
    deviation: ClassVar[tuple[float, ...]] = (0.3530,)
    package: ClassVar[str] = "dataset-fashion-mnist"
    packed: ClassVar[Path] = Path("/usr/share/datasets/fashion-mnist")
    """Folder of the package's files."""
    contents: ClassVar[dict[str, str]] = {  # SHA-256 of the authors' four files, unpacked
        "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    }

    @property
    def folder(self) -> Path:
        unpacked_folder = super().folder
        return unpacked_folder if self.download or unpacked_folder.is_dir() or not self.packed.is_dir() else self.packed

    @property
    def remedy(self) -> str:
        again = " again" if self.folder == self.packed else ""
        return (
            f"unpack its four idx files into {super().folder}, install Debian's {self.package}{again}, or say "
            f"download: true"
        )

    def files(self) -> list[str]:
        return [f"{name}.gz" for name in super().files()] if self.folder == self.packed else super().files()

    def parts(self) -> list[tuple[Any, Any]]:
        if self.folder != self.packed:
            return super().parts()
        images, labels, test_images, test_labels = (self.unpacked(name) for name in super().files())
        return [(images.reshape(-1, 28, 28), labels), (test_images.reshape(-1, 28, 28), test_labels)]

    def unpacked(self, name: str) -> np.ndarray:
        """Return the bytes behind the head of one of the package's files."""
        path = self.folder / f"{name}.gz"
        try:
            content = gzip.decompress(path.read_bytes())
        except (EOFError, OSError, zlib.error) as error:
            self.refuse(str(error), path)
        if sha256(content).hexdigest() != self.contents[name]:
            self.refuse("another version", path)
        return np.frombuffer(content, np.uint8, offset=16 if "images" in name else 8)


class Svhn(TorchvisionImages):
    """SVHN's cropped digits (Netzer et al. 2011): 99,289 colour images of 32×32 of house numbers' digits, pooled.

    They are the 73,257 of training and the 26,032 of testing; the 531,131 extra ones are left out. The label of a
    digit is the digit.
    """

    citations: ClassVar[tuple[str, ...]] = ("netzer2011",)
    licence: ClassVar[str] = "non-commercial use"
    published = "SVHN"
    shape, classes = (3, 32, 32), 10
    mean: ClassVar[tuple[float, ...]] = (0.4377, 0.4438, 0.4728)
    deviation: ClassVar[tuple[float, ...]] = (0.1980, 0.2010, 0.1970)

    remedy = "put train_32x32.mat and test_32x32.mat of SVHN's page (about 250 MB) into root, or say download: true"

    def files(self) -> list[str]:
        return ["train_32x32.mat", "test_32x32.mat"]

    def parts(self) -> list[tuple[Any, Any]]:
        parts = [self.source()(self.root, split=split, download=self.download) for split in ("train", "test")]
        return [(part.data, part.labels) for part in parts]
