"""Tiny ImageNet: its files in order, grey ones in colour, decoded once and again when they change."""

import os
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from flstudy import Population
from flstudy.algorithms import FedAvg
from flstudy.population import TinyImageNet
from flstudy.population.datasets import tinyimagenet
from flstudy.tasks import Logistic

from ...worlds import run
from .on_disk import write_tiny_imagenet


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    root = tmp_path_factory.mktemp("published")
    write_tiny_imagenet(root)
    return root


@pytest.fixture
def files(published, tmp_path):
    """Files of one's own to damage, with no decoded copy beside them."""
    shutil.copytree(published / "tiny-imagenet-200", tmp_path / "tiny-imagenet-200")
    return tmp_path


@pytest.fixture
def decoded(monkeypatch):
    """Names of the files that have been decoded."""
    names, decode = [], TinyImageNet.decode
    monkeypatch.setattr(TinyImageNet, "decode", lambda self, file: names.append(file) or decode(self, file))
    return names


def source(root):
    return TinyImageNet(root=str(root))


@pytest.mark.slow
def test_images_are_pooled_normalised_and_labelled_in_alphabetic_order(files):
    data = source(files)
    x, y, owner, *_ = data.load(0, 5)
    assert owner is None
    assert (x.shape, x.dtype, y.dtype) == ((440, 3, 64, 64), torch.float32, torch.int64)
    assert (data.shape, data.classes) == ((3, 64, 64), 200)
    assert y[:400].tolist() == [label for label in range(200) for _ in range(2)]
    folder = files / "tiny-imagenet-200"
    names = sorted((folder / "wnids.txt").read_text().split())
    lines = [line.split("\t") for line in (folder / "val/val_annotations.txt").read_text().splitlines()]
    assert y[400:].tolist() == [names.index(name) for _, name, *_ in lines]
    mean, deviation = (np.reshape(values, (3, 1, 1)) for values in (data.mean, data.deviation))
    pixels = x.numpy() * deviation + mean
    for index, file in ((1, f"train/{names[0]}/images/{names[0]}_1.JPEG"), (439, "val/images/val_39.JPEG")):
        stored = np.asarray(Image.open(folder / file))
        assert stored.shape == (64, 64, 3)
        assert np.allclose(pixels[index].transpose(1, 2, 0), stored / 255, atol=1e-5)
    levels = (pixels * 255).mean((2, 3))  # [D, 3]
    assert np.allclose(levels[y.numpy() == 150][1], (150, 105, 128), atol=3)
    assert np.allclose(levels[300], 150, atol=3)  # the first of class 150 is grey


@pytest.mark.slow
def test_images_are_decoded_once(files, decoded):
    first = source(files).load(0, 5)
    assert len(decoded) == 440
    decoded_copy = np.load(files / "tiny-imagenet-200.npy", mmap_mode="r")
    assert (decoded_copy.dtype, decoded_copy.size) == (np.uint8, 32 + 440 * 3 * 64 * 64)
    again = source(files).load(1, 7)
    assert len(decoded) == 440
    assert torch.equal(first.x, again.x)
    assert torch.equal(first.y, again.y)
    assert sorted(os.listdir(files)) == ["tiny-imagenet-200", "tiny-imagenet-200.npy"]


def change(files):
    """Another image in place of one."""
    path = files / "tiny-imagenet-200/val/images/val_7.JPEG"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(path, format="JPEG")


def drop(files):
    """One image of each class less."""
    for folder in (files / "tiny-imagenet-200/train").iterdir():
        next((folder / "images").glob("*_1.JPEG")).unlink()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "images"),
    [
        (change, 440),
        (drop, 240),
        (lambda files: (files / "tiny-imagenet-200.npy").write_bytes(b"nonsense"), 440),
        (lambda files: os.truncate(files / "tiny-imagenet-200.npy", 10_000), 440),
        (lambda files: np.save(files / "tiny-imagenet-200.npy", np.zeros((440, 3, 64, 64), np.uint8)), 440),
        (lambda files: (files / "tiny-imagenet-200.npy").unlink(), 440),
    ],
    ids=["changed", "fewer", "nonsense", "cut", "another", "absent"],
)
def test_a_copy_that_does_not_match_is_made_anew(spoil, images, files, decoded):
    before = source(files).load(0, 5)
    decoded.clear()
    spoil(files)
    after = source(files).load(0, 5)
    assert (len(decoded), len(after.x)) == (images, images)
    decoded.clear()
    assert torch.equal(source(files).load(0, 5).x, after.x)
    assert not decoded
    assert torch.equal(before.x, after.x) == (spoil not in (change, drop))


def test_a_copy_that_cannot_be_written_costs_time_only(files, decoded, monkeypatch):
    def refuse(*_):
        raise PermissionError("read-only")

    monkeypatch.setattr(tinyimagenet.os, "replace", refuse)
    with pytest.warns(UserWarning, match=r"TinyImageNet: .*tiny-imagenet-200.npy cannot be written \(read-only\)"):
        x = source(files).load(0, 5).x
    assert len(x) == len(decoded) == 440
    assert os.listdir(files) == ["tiny-imagenet-200"]  # nothing half written


@pytest.mark.slow
def test_two_rounds_from_the_files(published):
    data = source(published)
    module = run(
        FedAvg(lr=0.01),
        2,
        population=Population(data, clients=5, participants=3),
        task=Logistic(data.shape, data.classes),
        evaluate=True,
        precision="32-true",
    )
    assert np.isfinite(module.record.metrics["test/loss"]).all()


def first_class(files):
    return sorted((files / "tiny-imagenet-200/train").iterdir())[0]


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (
            lambda folder: shutil.rmtree(folder),
            r"there is no folder '.*-200': unpack tiny-imagenet-200.zip",
        ),
        (lambda folder: (folder / "wnids.txt").unlink(), r"there is no file '.*wnids.txt': unpack"),
        (lambda folder: (folder / "wnids.txt").write_text("n01443537\n"), "wnids.txt must name 200 .*, names 1"),
        (lambda folder: shutil.rmtree(folder / "train" / "n01443537"), r"there is no folder '.*/n01443537/images'"),
        (
            lambda folder: (folder / "train/n01443537/images/n01443537_1.JPEG").unlink(),
            "train/n01443537/images holds 1 JPEG files where other classes have 2",
        ),
        (lambda folder: (folder / "val/images/val_3.JPEG").unlink(), r"there is no file '.*/val/images/val_3.JPEG'"),
        (
            lambda folder: (folder / "val/val_annotations.txt").write_text("val_0.JPEG\tn0\n"),
            r"line 1 of val/val_annotations.txt must be a file and its class, got 'val_0.JPEG\\tn0'",
        ),
        (
            lambda folder: (folder / "val/images/val_3.JPEG").write_bytes(b"\xff\xd8\xff"),
            r"not as published: val/images/val_3.JPEG is no image that can be read: .*; unpack",
        ),
        (
            lambda folder: Image.new("RGB", (32, 64)).save(folder / "val/images/val_3.JPEG"),
            "val/images/val_3.JPEG must be 64×64, is 32×64",
        ),
    ],
)
def test_what_is_missing_or_damaged_is_named(spoil, sentence, files):
    assert first_class(files).name == "n01443537"
    spoil(files / "tiny-imagenet-200")
    with pytest.raises(ValueError, match=rf"^TinyImageNet: .*{sentence}"):
        source(files).load(0, 2)
