"""Google Landmarks by photographer, from the files of TensorFlow Federated: read, scaled, chosen, and refused."""

import numpy as np
import pytest
import torch

from flstudy import Population
from flstudy.algorithms import FedAvg
from flstudy.population import Landmarks
from flstudy.population.datasets.landmarks import DEVIATION, MEAN
from flstudy.tasks import Vit

from ...worlds import run
from .on_disk import write_landmarks


@pytest.mark.parametrize("deep", [False, True])
def test_people_hold_their_images(deep, tmp_path):
    write_landmarks(tmp_path, deep=deep)
    source = Landmarks(root=str(tmp_path), size=8)
    loaded = source.load(0, 4)
    assert (source.shape, source.classes) == ((3, 8, 8), 203)
    assert loaded.owner.bincount().tolist() == [5, 3, 8, 4]
    assert sorted(loaded.y.tolist()) == sorted(number * 17 % 203 for number in range(20))
    pixels = loaded.x * torch.tensor(DEVIATION).view(-1, 1, 1) + torch.tensor(MEAN).view(-1, 1, 1)
    colour = [0, 255, 128]
    for image, label in zip(pixels.mean((2, 3)) * 255, loaded.y.tolist(), strict=True):
        if label:  # the first one is grey
            assert np.abs(image.numpy() - [label, 255 - label, colour[2]]).max() < 4


def test_images_are_decoded_once_and_anew_when_they_change(tmp_path):
    write_landmarks(tmp_path)
    first = Landmarks(root=str(tmp_path), size=8).load(0, 4)
    (copy,) = tmp_path.glob("mini_gld_train_split-8-4-0.npy")
    written = copy.stat().st_mtime_ns
    again = Landmarks(root=str(tmp_path), size=8).load(5, 4)
    assert torch.equal(first.x, again.x)
    assert copy.stat().st_mtime_ns == written
    image = next((tmp_path / "images").iterdir())
    image.unlink()
    with pytest.raises(ValueError, match=rf"Landmarks: there is no file '{image}': set root to the folder"):
        Landmarks(root=str(tmp_path), size=8).load(0, 4)


def test_fewer_are_chosen_by_selection_among_people_with_three_images(tmp_path):
    write_landmarks(tmp_path, people=(5, 2, 8, 4, 1))
    sizes = {
        tuple(Landmarks(root=str(tmp_path), size=2, selection=s).load(0, 2).owner.bincount().tolist()) for s in range(9)
    }
    assert sizes == {(5, 8), (5, 4), (8, 4)}
    with pytest.raises(ValueError, match=r"clients must be ≤ 3, the people with 3 or more images in mini_gld.*, got 4"):
        Landmarks(root=str(tmp_path), size=2).load(0, 4)


def test_two_rounds_from_the_files(tmp_path):
    write_landmarks(tmp_path)
    source = Landmarks(root=str(tmp_path), size=8)
    population = Population(source, clients=4, participants=2, batch_size=4)
    module = run(FedAvg(lr=0.1), 2, population=population, task=Vit(source.shape, 203, patch=4), evaluate=True)
    assert np.isfinite(module.record.metrics["test/loss"]).all()


def test_a_missing_folder_or_mapping_is_named(tmp_path):
    absent = tmp_path / "absent"
    with pytest.raises(ValueError, match=rf"Landmarks: there is no folder '{absent}': set root .*TensorFlow Federated"):
        Landmarks(root=str(absent)).load(0, 2)
    with pytest.raises(ValueError, match=r"Landmarks: there is no file '.*federated_train.csv': set root"):
        Landmarks(root=str(tmp_path), mapping="federated_train.csv").load(0, 2)


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("image_id,class\nabc,1\n", r"mini_gld_train_split.csv has no column 'user_id', but \['image_id', 'class'\]"),
        (
            "user_id,image_id,class\n1,abc,203\n",
            r"line 2 of .* must be a person, .* class in 0 … 202, got \('1', 'abc'",
        ),
        ("user_id,image_id,class\n1,abc,1\n1,abc\n", "line 3 of mini_gld_train_split.csv must be a person, an image"),
    ],
)
def test_another_mapping_is_refused(lines, sentence, tmp_path):
    (tmp_path / "mini_gld_train_split.csv").write_text(lines)
    with pytest.raises(ValueError, match=rf"Landmarks: .* is not as published: {sentence}"):
        Landmarks(root=str(tmp_path)).load(0, 1)


def test_what_is_no_image_is_refused(tmp_path):
    write_landmarks(tmp_path)
    next((tmp_path / "images").iterdir()).write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"Landmarks: .*images/.*jpg is no image that can be read: .*; set root"):
        Landmarks(root=str(tmp_path), size=8).load(0, 4)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"size": 0}, r"Landmarks: size must lie in \[1, 1e4\], got 0"),
        ({"landmarks": 0}, r"Landmarks: landmarks must lie in \[1, 1e5\], got 0"),
        ({"selection": -1}, r"Landmarks: selection must lie in \[0, 2e9\], got -1"),
    ],
)
def test_bad_values_are_refused(more, sentence):
    with pytest.raises(ValueError, match=sentence):
        Landmarks(**more)
