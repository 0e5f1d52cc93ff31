"""Image sets as torchvision reads them: pooled, normalised, and refused where they are not what was published."""

import gzip
import pickle
import struct
from hashlib import sha256

import numpy as np
import pytest
import torch
from scipy.io import loadmat

from flstudy import Population
from flstudy.algorithms import FedAvg
from flstudy.population import BalancedDirichlet, Cifar10, Cifar100, FashionMnist, Mnist, Svhn
from flstudy.population.datasets import images
from flstudy.tasks import Logistic

from ...worlds import run
from .on_disk import accept_any_checksum, needs_fashion_mnist, write_cifar, write_idx, write_svhn


def stored_cifar(folder, first, name):
    """The first part's pixels [D, C, H, W] and labels, as its file says."""

    def stored(root):
        part = pickle.loads((root / folder / first).read_bytes())
        return part["data"].reshape(-1, 3, 32, 32), part[name]  # channels first, as it is stored

    return stored


def stored_idx(folder):
    def stored(root):
        arrays = []
        for kind, dimensions in (("images", 3), ("labels", 1)):
            content = (root / folder / "raw" / f"train-{kind}-idx{dimensions}-ubyte").read_bytes()
            magic, *shape = struct.unpack(f">i{dimensions}i", content[: 4 * (dimensions + 1)])
            assert magic == 2048 + dimensions  # 2051 and 2049 in LeCun's description of the format
            arrays.append(np.frombuffer(content, np.uint8, offset=4 * (dimensions + 1)).reshape(shape))
        return arrays[0][:, None], arrays[1].tolist()

    return stored


def stored_svhn(root):
    part = loadmat(root / "train_32x32.mat")
    return part["X"].transpose(3, 2, 0, 1), (part["y"][:, 0] % 10).tolist()


KINDS = {  # class, how its files are written, what the first of them holds, where a file may be damaged
    "Cifar10": (
        Cifar10,
        lambda root, images=60: write_cifar(root, 10, images),
        stored_cifar("cifar-10-batches-py", "data_batch_1", "labels"),
        "cifar-10-batches-py/data_batch_3",
    ),
    "Cifar100": (
        Cifar100,
        lambda root, images=60: write_cifar(root, 100, images),
        stored_cifar("cifar-100-python", "train", "fine_labels"),
        "cifar-100-python/test",
    ),
    "Mnist": (
        Mnist,
        lambda root, images=60: write_idx(root, "MNIST", images),
        stored_idx("MNIST"),
        "MNIST/raw/t10k-images-idx3-ubyte",
    ),
    "FashionMnist": (
        FashionMnist,
        lambda root, images=60: write_idx(root, "FashionMNIST", images),
        stored_idx("FashionMNIST"),
        "FashionMNIST/raw/train-labels-idx1-ubyte",
    ),
    "Svhn": (Svhn, write_svhn, stored_svhn, "test_32x32.mat"),
}


@pytest.mark.parametrize("name", KINDS)
def test_two_rounds_from_the_files(name, tmp_path, monkeypatch):
    kind, write, *_ = KINDS[name]
    write(tmp_path, images=500)
    accept_any_checksum(monkeypatch)
    source = kind(root=str(tmp_path))
    shares = {"valid": 0.25, "test": 1 / 6}  # FLASH, App. A
    population = Population(source, clients=5, participants=3, partition=BalancedDirichlet(alpha=0.6), **shares).settle(
        (0,)
    )
    sizes = {split: {len(device[split]) for device in population.members[0]} for split in ("train", "valid", "test")}
    assert sizes == {"train": {70}, "valid": {30}, "test": {20}}
    assert population.cohort(1).batches.rows.shape == (1, 3, 4, 20)
    task = Logistic(source.shape, source.classes)
    module = run(FedAvg(lr=0.01), 2, population=population, task=task, evaluate=True, precision="32-true")
    assert np.isfinite(module.record.metrics["test/loss"]).all()


@pytest.mark.parametrize("name", KINDS)
def test_images_are_pooled_and_normalised(name, tmp_path, monkeypatch):
    kind, write, stored, _ = KINDS[name]
    write(tmp_path, images=200)
    accept_any_checksum(monkeypatch)
    source = kind(root=str(tmp_path))
    x, y, owner, *_ = source.load(0, 5)
    assert owner is None
    assert (x.shape, y.shape) == ((240, *source.shape), (240,))
    assert (x.dtype, y.dtype, source.classes) == (torch.float32, torch.int64, 100 if name == "Cifar100" else 10)
    assert x.is_contiguous()
    assert y.unique().tolist() == list(range(source.classes))
    pixels, labels = stored(tmp_path)
    assert y[: len(pixels)].tolist() == list(labels)
    mean, deviation = (np.reshape(values, (-1, 1, 1)) for values in (source.mean, source.deviation))
    assert np.allclose(x[: len(pixels)], (pixels / 255 - mean) / deviation, atol=1e-5)


def test_published_shapes_and_statistics():
    """Of the training images in 0 … 1, as torchvision's and PyTorch's own examples have them."""
    grey, colour = (1, 28, 28), (3, 32, 32)
    assert {name: kind().shape for name, (kind, *_) in KINDS.items()} == {
        **dict.fromkeys(("Cifar10", "Cifar100", "Svhn"), colour),
        **dict.fromkeys(("Mnist", "FashionMnist"), grey),
    }
    assert (Mnist.mean, Mnist.deviation) == ((0.1307,), (0.3081,))
    assert (FashionMnist.mean, FashionMnist.deviation) == ((0.2860,), (0.3530,))
    assert (Svhn.mean, Svhn.deviation) == ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970))


@pytest.mark.parametrize("name", KINDS)
def test_what_is_missing_or_damaged_is_named(name, tmp_path, monkeypatch):
    kind, write, _, file = KINDS[name]
    monkeypatch.setattr(FashionMnist, "packed", tmp_path / "no package")
    root = tmp_path / "data"
    population = Population(kind(root=str(root)), clients=2, participants=1)
    remedy = r"(unpack|put) .* or say download: true"
    with pytest.raises(ValueError, match=rf"{name}: there is no folder '{root}.*': {remedy}"):
        population.settle((0,))
    write(root)
    content = (root / file).read_bytes()
    (root / file).unlink()
    with pytest.raises(ValueError, match=rf"{name}: there is no file '{root / file}': {remedy}"):
        population.settle((0,))
    (root / file).write_bytes(content[: len(content) // 2])  # cut short, and not the published bytes
    with pytest.raises(ValueError, match=rf"{name}: {root}.* is not as published: .*; {remedy}"):
        population.settle((0,))


@pytest.fixture
def packed(tmp_path, monkeypatch):
    """A folder like the Debian package's, of a few images, that the class takes for it."""
    write_idx(tmp_path / "unpacked", "FashionMNIST")
    folder, digests = tmp_path / "package", {}
    folder.mkdir()
    for path in (tmp_path / "unpacked" / "FashionMNIST" / "raw").iterdir():
        (folder / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        digests[path.name] = sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(FashionMnist, "packed", folder)
    monkeypatch.setattr(FashionMnist, "contents", digests)
    return folder


def test_the_package_s_files_are_read_where_the_root_has_none(packed, tmp_path):
    theirs = FashionMnist(root=str(tmp_path / "nothing")).load(0, 2)
    ours = FashionMnist(root=str(tmp_path / "unpacked")).load(0, 2)
    assert torch.equal(theirs.x, ours.x)
    assert torch.equal(theirs.y, ours.y)
    (packed / "train-labels-idx1-ubyte.gz").unlink()
    assert torch.equal(FashionMnist(root=str(tmp_path / "unpacked")).load(0, 2).x, ours.x)  # the root's come first
    with pytest.raises(
        ValueError, match=r"no file '.*labels-idx1-ubyte.gz': .* install Debian's dataset-fashion-mnist a"
    ):
        FashionMnist().load(0, 2)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda content: content[: len(content) // 2], "ended before"),
        (lambda content: b"no gzip" + content, "Not a gzipped file"),
        (lambda content: content[:-8] + bytes(8), "CRC check failed"),
        (lambda content: gzip.compress(gzip.decompress(content)[:-1] + b"\0"), "another version"),
    ],
)
def test_damaged_files_of_the_package_are_refused(damage, reason, packed):
    path = packed / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(
        ValueError, match=rf"{path} is not as published: .*{reason}.* Debian's dataset-fashion-mnist again"
    ):
        FashionMnist().load(0, 2)


@pytest.mark.slow
@needs_fashion_mnist
def test_the_real_fashion_mnist(tmp_path):
    """60,000 + 10,000 images, 7,000 of each class, whose training part has the published mean and deviation."""
    x, y, *_ = FashionMnist(root=str(tmp_path)).load(0, 2)
    assert (x.shape, y.bincount().tolist()) == ((70_000, 1, 28, 28), [7_000] * 10)
    assert x[:60_000].mean().item() == pytest.approx(0, abs=1e-3)
    assert x[:60_000].std().item() == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(
    ("kind", "values", "sentence"),
    [
        ("images", np.zeros((60, 20, 20), np.uint8), r"images must be \[1, 28, 28\], each with a label, got \[72,"),
        ("labels", np.full(60, 11, np.uint8), r"labels must lie in 0 … 9, got 0 … 11"),
        ("labels", np.zeros(59, np.uint8), r"images must be .*, each with a label"),
    ],
)
def test_what_no_checksum_guards_is_looked_at(kind, values, sentence, tmp_path):
    write_idx(tmp_path, "MNIST")
    parts = ("train", "t10k") if kind == "images" else ("train",)
    for part in parts:
        array = values if part == "train" else values[:12]
        head = struct.pack(f">i{array.ndim}i", 2048 + array.ndim, *array.shape)
        (tmp_path / "MNIST" / "raw" / f"{part}-{kind}-idx{array.ndim}-ubyte").write_bytes(head + array.tobytes())
    with pytest.raises(ValueError, match=sentence):
        Mnist(root=str(tmp_path)).load(0, 2)


def test_digits_are_those_of_scikit_learn_with_and_without_its_file(monkeypatch):
    from sklearn.datasets import load_digits

    theirs = load_digits()
    for file in (images.DIGITS_FILE, "no such file"):
        monkeypatch.setattr(images, "DIGITS_FILE", file)
        pixels, labels = images.digits_table()
        assert np.array_equal(pixels, theirs.images)
        assert np.array_equal(labels, theirs.target)
