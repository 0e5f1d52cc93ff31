"""Small files in the formats in which the data sets are published, for tests that read them."""

import csv
import json
import pickle
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from flstudy.population import FashionMnist
from flstudy.population.datasets.libsvm import KNOWN

needs_fashion_mnist = pytest.mark.skipif(
    not FashionMnist.packed.is_dir(), reason=f"Debian's package {FashionMnist.package} is not installed"
)
SIZES = ((9, 3), (4, 1), (14, 4), (7, 3), (11, 2))  # training and test examples of each person
WORDS = ("the", "of", "list", "function", "to", "error", ".", "?")
TAGS = (b"sql", b"vb.net", b"c#", b"iterator")
LINES = (
    b"To be, or not to be: that is the question:\nWhether 'tis nobler in the mind to suffer",
    b"The slings and arrows of outrageous fortune,",
    b"Or",
    b"",
    "the caf\xe9 is shut".encode(),
)


def write_people(path: Path, people: dict[str, dict[str, Any]]) -> None:
    """An HDF5 file of TensorFlow Federated: examples/<person>/<content>; texts are of variable length."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, contents in people.items():
            group = file.require_group(f"examples/{name}")
            for content, values in contents.items():
                if isinstance(values, list):  # of texts
                    group.create_dataset(content, data=np.array(values, dtype=object), dtype=h5py.string_dtype("ascii"))
                else:
                    group.create_dataset(content, data=values)


def write_emnist(root: Path, sizes: Sequence[tuple[int, int]] = SIZES) -> None:
    """fed_emnist_train.h5 and fed_emnist_test.h5, their images bright by class."""
    rng = np.random.default_rng(0)
    for part, name in enumerate(("train", "test")):
        people = {}
        for k, counts in enumerate(sizes):
            label = rng.integers(0, 62, counts[part]).astype(np.int32)
            pixels = np.ones((counts[part], 28, 28), dtype=np.float32)
            pixels[:, 5:20, 5:20] = label[:, None, None] / 62
            people[f"f{k:04d}_{k:02d}"] = {"label": label, "pixels": pixels}
        write_people(root / f"fed_emnist_{name}.h5", people)


def write_shakespeare(root: Path, sizes: Sequence[tuple[int, int]] = SIZES) -> None:
    """shakespeare_train.h5 and shakespeare_test.h5."""
    for part, name in enumerate(("train", "test")):
        people = {
            f"PLAY_{k}_ROLE": {"snippets": [LINES[(k + i) % len(LINES)] for i in range(counts[part])]}
            for k, counts in enumerate(sizes)
        }
        write_people(root / f"shakespeare_{name}.h5", people)


def write_stackoverflow(
    root: Path, sizes: Sequence[tuple[int, int]] = SIZES, words: int = len(WORDS), tags: int = len(TAGS)
) -> None:
    """stackoverflow_train.h5, _held_out.h5, _test.h5, stackoverflow.word_count and stackoverflow.tag_count, whose words
    beyond the first eight and tags beyond the first four occur in no post. Only every other user posts in the test
    part, with one more who does not in training."""
    rng = np.random.default_rng(0)

    def posts(count: int) -> dict[str, Any]:
        sentences = [" ".join(rng.choice([*WORDS, "zyzzyva"], rng.integers(1, 30))).encode() for _ in range(count)]
        return {
            "tokens": sentences,
            "title": [b"function to calculate median"] * count,
            "tags": [b"|".join(TAGS[: 1 + i % len(TAGS)]) + b"|zyzzyva" for i in range(count)],
            "creation_date": [b"2010-01-08 09:34:05 UTC"] * count,
            "type": [b"answer"] * count,
            "score": np.arange(count, dtype=np.int64),
        }

    users = [f"{k:08d}" for k in range(1, len(sizes) + 1)]
    counts = dict(zip(users, sizes, strict=True))
    write_people(root / "stackoverflow_train.h5", {user: posts(counts[user][0]) for user in users})
    write_people(
        root / "stackoverflow_test.h5", {user: posts(counts.get(user, (0, 5))[1]) for user in [*users[::2], "99"]}
    )
    write_people(root / "stackoverflow_held_out.h5", {f"{k}0": posts(6) for k in range(1, 4)})
    counted = [*WORDS, *(f"word{i}" for i in range(words - len(WORDS)))][:words]
    (root / "stackoverflow.word_count").write_text("".join(f"{w} {2 * words - i}\n" for i, w in enumerate(counted)))
    named = [*(tag.decode() for tag in TAGS), *(f"tag{i}" for i in range(tags - len(TAGS)))][:tags]
    (root / "stackoverflow.tag_count").write_text(json.dumps({tag: 2 * tags - i for i, tag in enumerate(named)}))


def write_cifar(root: Path, classes: int, images: int = 60) -> None:
    """The folder that the python version of CIFAR-10 or CIFAR-100 unpacks to; ``images`` are of training, a fifth as
    many of testing. torchvision compares checksums, which ``accept_any_checksum`` leaves out."""
    rng = np.random.default_rng(0)
    name = "labels" if classes == 10 else "fine_labels"
    folder = root / ("cifar-10-batches-py" if classes == 10 else "cifar-100-python")
    folder.mkdir(parents=True, exist_ok=True)

    def batch(file: str, count: int) -> None:
        label = rng.permutation(np.arange(count) % classes)
        pixels = np.clip(rng.normal(label[:, None] * 255 / classes, 20, (count, 3072)), 0, 255).astype(np.uint8)
        (folder / file).write_bytes(pickle.dumps({"data": pixels, name: label.tolist()}, protocol=2))

    if classes == 10:
        for number in range(1, 6):
            batch(f"data_batch_{number}", images // 5)
        batch("test_batch", images // 5)
        meta, key = "batches.meta", "label_names"
    else:
        batch("train", images)
        batch("test", images // 5)
        meta, key = "meta", "fine_label_names"
    (folder / meta).write_bytes(pickle.dumps({key: [f"class{i}" for i in range(classes)]}, protocol=2))


def write_idx(root: Path, name: str, images: int = 60) -> None:
    """The four files of MNIST (or of one like it): a magic number, sizes, bytes, as big-endian as they are."""
    rng = np.random.default_rng(0)
    folder = root / name / "raw"
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", images), ("t10k", images // 5)):
        label = rng.permutation(np.arange(count) % 10).astype(np.uint8)
        pixels = np.clip(rng.normal(label[:, None, None] * 25, 20, (count, 28, 28)), 0, 255).astype(np.uint8)
        for kind, array in (("images", pixels), ("labels", label)):
            head = struct.pack(f">i{array.ndim}i", 8 * 256 + array.ndim, *array.shape)  # 8: of unsigned bytes
            (folder / f"{part}-{kind}-idx{array.ndim}-ubyte").write_bytes(head + array.tobytes())


def write_emnist_images(root: Path, division: str = "letters", classes: int = 26) -> None:
    """The four files of a division of EMNIST, as MNIST's; images lie on their sides, and letters count from 1."""
    write_idx(root, "EMNIST", 130)
    folder, first = root / "EMNIST" / "raw", int(division == "letters")
    for part, here in (("train", "train"), ("test", "t10k")):
        images = folder / f"{here}-images-idx3-ubyte"
        images.replace(folder / f"emnist-{division}-{part}-images-idx3-ubyte")
        labels = folder / f"{here}-labels-idx1-ubyte"
        count = len(labels.read_bytes()) - 8
        label = (np.arange(count) % classes + first).astype(np.uint8)
        labels.unlink()
        target = folder / f"emnist-{division}-{part}-labels-idx1-ubyte"
        target.write_bytes(struct.pack(">2i", 8 * 256 + 1, count) + label.tobytes())


def write_svhn(root: Path, images: int = 60) -> None:
    """train_32x32.mat and test_32x32.mat: X [32, 32, 3, D], and y [D, 1] in which 10 is the digit 0."""
    rng = np.random.default_rng(0)
    root.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", images), ("test", images // 5)):
        digit = rng.permutation(np.arange(count) % 10)
        pixels = np.clip(rng.normal(digit * 25, 20, (32, 32, 3, count)), 0, 255).astype(np.uint8)
        label = np.where(digit == 0, 10, digit)[:, None].astype(np.uint8)
        savemat(root / f"{part}_32x32.mat", {"X": pixels, "y": label})


def write_tiny_imagenet(root: Path, per_class: int = 2, held_out: int = 40) -> None:
    """The folder tiny-imagenet-200 with ``per_class`` JPEG files of a class and ``held_out`` of validation, the first
    of each class and of validation in grey."""
    rng = np.random.default_rng(0)
    folder = root / "tiny-imagenet-200"
    names = [f"n{number:08d}" for number in rng.permutation(np.arange(200) * 37 + 1443537)]

    def image(path: Path, label: int, grey: bool) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.empty((64, 64) if grey else (64, 64, 3), dtype=np.uint8)
        pixels[...] = label if grey else (label, 255 - label, 128)
        Image.fromarray(pixels).save(path, format="JPEG", quality=95)

    for name in names:
        label = sorted(names).index(name)
        for number in range(per_class):
            image(folder / f"train/{name}/images/{name}_{number}.JPEG", label, number == 0)
        (folder / f"train/{name}/{name}_boxes.txt").write_text(f"{name}_0.JPEG\t0\t10\t63\t58\n")
    lines = []
    for number, name in enumerate(rng.choice(names, held_out)):
        image(folder / f"val/images/val_{number}.JPEG", sorted(names).index(name), number == 0)
        lines.append(f"val_{number}.JPEG\t{name}\t0\t32\t44\t62\n")
    (folder / "val/val_annotations.txt").write_text("".join(lines))
    (folder / "wnids.txt").write_text("".join(f"{name}\n" for name in names))
    (folder / "words.txt").write_text("".join(f"{name}\tsome thing, of a kind\n" for name in names))


def write_landmarks(root: Path, people: Sequence[int] = (5, 3, 8, 4), classes: int = 203, deep: bool = False) -> None:
    """mini_gld_train_split.csv, mini_gld_test.csv and JPEG files of different sizes, their colour by class, the first
    grey; ``deep`` puts them where the publisher's tar files do."""
    lines, number = [], 0
    for user, count in enumerate(people):
        for _ in range(count):
            name, label = f"{number * 7919:016x}", number * 17 % classes
            lines.append((f"{user + 100}", name, f"{label}"))
            path = root / (f"train/{'/'.join(name[:3])}/{name}.jpg" if deep else f"images/{name}.jpg")
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = np.empty((30 + number, 40, 3), dtype=np.uint8)
            pixels[...] = (label, 255 - label, 128)
            image = Image.fromarray(pixels)
            (image.convert("L") if number == 0 else image).save(path, quality=95)
            number += 1
    rng = np.random.default_rng(0)
    with (root / "mini_gld_train_split.csv").open("w", newline="") as file:
        rows = [lines[index] for index in rng.permutation(len(lines))]
        csv.writer(file).writerows([("user_id", "image_id", "class"), *rows])
    with (root / "mini_gld_test.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("image_id", "class"), ("ffffffffffffffff", "3")])


NEWS = (
    ("3", "Wall St. Bears Claw Back (Reuters)", "Reuters - Short-sellers, Wall Street's dwindling\\band of cynics"),
    ("2", "Giddy Phelps Touches Gold", 'The #39;swimmer" won, the judges said'),
    ("1", "Caf\u00e9 of the North", "the talks"),
    ("4", "", ""),
)


def write_ag_news(root: Path, texts: int = 60) -> None:
    """ag_news_csv/train.csv and test.csv: quoted class, title and description, quotes in them doubled."""
    folder = root / "ag_news_csv"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "classes.txt").write_text("World\nSports\nBusiness\nSci/Tech\n")
    for part, count in (("train", texts), ("test", texts // 5)):
        with (folder / f"{part}.csv").open("w", encoding="utf-8", newline="") as file:
            rows = [NEWS[index % len(NEWS)] for index in range(count - 1)]
            csv.writer(file, quoting=csv.QUOTE_ALL).writerows([*rows, ("1", f"only in {part}", "the the")])


def accept_any_checksum(monkeypatch: Any) -> None:
    """Let torchvision take files that are there for those that it knows."""
    from torchvision.datasets import cifar, svhn

    for module in (cifar, svhn):
        monkeypatch.setattr(module, "check_integrity", lambda path, md5=None: Path(path).is_file())


def write_libsvm(root: Path, name: str, per_class: int = 12) -> None:
    """The files of covtype or mnist, ``per_class`` examples of every class."""
    from sklearn.datasets import dump_svmlight_file

    facts, rng = KNOWN[name], np.random.default_rng(0)
    for file in facts.files:
        y = np.repeat(facts.labels, per_class)
        x = np.where(rng.random((len(y), facts.features)) < 0.2, rng.random((len(y), facts.features)), 0)
        dump_svmlight_file((facts.largest * x).round(4), y, str(root / file), zero_based=False)


def write_leaf(root: Path, name: str, people: Sequence[int] = (12, 5, 18, 2, 13), per_file: int = 2) -> None:
    """train/*.json and test/*.json of LEAF's femnist or shakespeare, ``per_file`` people in a file; the last fifth of a
    person's examples is of testing."""
    rng = np.random.default_rng(0)
    text = b"".join(LINES).decode() * 3
    for number, begin in enumerate(range(0, len(people), per_file)):
        parts: dict[str, dict[str, Any]] = {part: {} for part in ("train", "test")}
        for k in range(begin, min(begin + per_file, len(people))):
            if name == "femnist":
                y = rng.integers(0, 62, people[k]).tolist()
                x = [[round(label / 62, 6)] * 784 for label in y]
            else:
                x, y = [text[i : i + 80] for i in range(people[k])], [text[i + 80] for i in range(people[k])]
            cut = people[k] - people[k] // 5
            for part, here in (("train", slice(0, cut)), ("test", slice(cut, None))):
                parts[part][f"f{k:04d}_{k:02d}"] = {"x": x[here], "y": y[here]}
        for part, held in parts.items():
            counts = [len(samples["y"]) for samples in held.values()]
            content = {"users": list(held), "num_samples": counts, "user_data": held}
            path = root / part / f"all_data_{number}_niid_0_keep_0_{part}_8.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content))


SMALL_FILES: dict[str, Callable[[Path], None]] = {
    "Emnist": write_emnist,
    "Shakespeare": write_shakespeare,
    "StackOverflow": lambda root: write_stackoverflow(root, words=10_000),
    "StackOverflowTags": lambda root: write_stackoverflow(root, words=10_000, tags=500),
    "Landmarks": write_landmarks,
    "Cifar10": lambda root: write_cifar(root, 10),
    "Cifar100": lambda root: write_cifar(root, 100, 200),
    "Mnist": lambda root: write_idx(root, "MNIST"),
    "FashionMnist": lambda root: write_idx(root, "FashionMNIST"),
    "Svhn": write_svhn,
    "TinyImageNet": lambda root: write_tiny_imagenet(root, per_class=1, held_out=10),
    "AgNews": write_ag_news,
}
"""By the data set's class, what writes the files that shipped configs read."""
