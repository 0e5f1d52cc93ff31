"""Files of the LIBSVM collection: written by scikit-learn, packed or not, and what is no such file."""

import bz2
import re

import numpy as np
import pytest
from sklearn.datasets import dump_svmlight_file

from flstudy.population import LibSvm, Population


def written(folder, name, labels, features, scale, rng):
    x = np.where(rng.random((len(labels), features)) < 0.2, rng.random((len(labels), features)), 0).round(4) * scale
    dump_svmlight_file(x, np.asarray(labels), str(folder / name), zero_based=False)
    return x


def test_covtype_packed_as_it_is_published(tmp_path):
    rng = np.random.default_rng(0)
    x = written(tmp_path, "covtype.scale", [1, 7, 3, 2, 2, 5], 54, 1.0, rng)
    (tmp_path / "covtype.scale.bz2").write_bytes(bz2.compress((tmp_path / "covtype.scale").read_bytes()))
    (tmp_path / "covtype.scale").unlink()
    data = LibSvm(root=str(tmp_path))
    examples = data.load(0, 2)
    assert (data.shape, data.classes) == ((54,), 7)
    assert examples.y.tolist() == [0, 6, 2, 1, 1, 4]
    np.testing.assert_allclose(examples.x.numpy(), x, rtol=1e-6)
    assert examples.owner is None


def test_mnist_pools_its_two_files_and_pixels_lie_in_0_1(tmp_path):
    rng = np.random.default_rng(0)
    first = written(tmp_path, "mnist", rng.integers(0, 10, 30), 780, 255, rng)
    other = written(tmp_path, "mnist.t", rng.integers(0, 10, 10), 780, 255, rng)
    population = Population(LibSvm(name="mnist", root=str(tmp_path)), clients=4, participants=2).settle((0,))
    np.testing.assert_allclose(population.store.x.numpy(), np.concatenate([first, other]) / 255, rtol=1e-5)
    assert float(population.store.x.max()) <= 1


def test_what_is_no_such_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=re.escape("name must be one of covtype, mnist, got 'a9a'")):
        LibSvm(name="a9a")
    with pytest.raises(ValueError, match="there is no folder"):
        LibSvm(root=str(tmp_path / "none")).load(0, 2)
    with pytest.raises(ValueError, match=r"there is no file .*mnist'"):
        LibSvm(name="mnist", root=str(tmp_path)).load(0, 2)
    rng = np.random.default_rng(0)
    for name, labels, features, message in (
        ("labels", [1, 8], 54, r"labels must be 1 … 7, got \[8.0\]"),
        ("wide", [1, 2], 60, "n_features"),
    ):
        written(tmp_path, name, labels, features, 1.0, rng)
        with pytest.raises(ValueError, match=f"{name} is not as published: .*{message}"):
            LibSvm(root=str(tmp_path), file=name).load(0, 2)
    (tmp_path / "text").write_text("1 nothing\n")
    with pytest.raises(ValueError, match="text is not as published"):
        LibSvm(root=str(tmp_path), file="text").load(0, 2)
