"""Stack Overflow with tags: bags of words and tags as published, and what is refused."""

import json
from collections import Counter

import h5py
import numpy as np
import pytest
import torch

from flstudy.population import StackOverflowTags
from flstudy.population.datasets.tags import by_tag, most_frequent_tags

from . import on_disk
from .on_disk import SIZES, TAGS, WORDS


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    root = tmp_path_factory.mktemp("tagged")
    on_disk.write_stackoverflow(root)
    return root


def dataset(root, **more):
    return StackOverflowTags(**{"root": str(root), "vocabulary": len(WORDS), "tags": len(TAGS), **more})


def test_bags_and_tags_are_those_of_the_file(files):
    """Reddi et al. 2021: a bag is the mean of one-hot words of sentence and title, unknown ones in the mean; targets
    are the known tags."""
    source = dataset(files, parts=["train"], length=60)
    loaded = source.load(0, 5)
    vocabulary = [line.split()[0] for line in (files / "stackoverflow.word_count").read_text().splitlines()]
    place, expected = 0, []
    with h5py.File(files / "stackoverflow_train.h5") as file:
        for person in file["examples"].values():
            for sentence, title, tags in zip(person["tokens"], person["title"], person["tags"], strict=True):
                words = (sentence + b" " + title).decode().split()
                counted = Counter(words)
                expected.append([counted[word] / len(words) for word in vocabulary])
                known_tags = [TAGS.index(tag) for tag in tags.split(b"|") if tag in TAGS]
                assert [tag for tag in loaded.y[place].tolist() if tag >= 0] == known_tags
                place += 1
    assert place == len(loaded.y) == sum(train for train, _ in SIZES)
    counts = torch.nn.functional.one_hot(loaded.x, source.tokens).sum(1).double()
    shares = counts[:, 1 : len(vocabulary) + 1] / counts[:, 1:].sum(1, keepdim=True)
    assert np.abs(shares.numpy() - np.array(expected)).max() < 1e-15
    assert (counts[:, -1] > 0).any()  # unknown words
    assert loaded.y.shape[1] == 5


def test_posts_without_a_known_tag_are_left_out_and_long_texts_cut():
    person = {
        "tokens": np.array([b"a b", b"a a c", b"a"], dtype=object),
        "title": np.array([b"c", b"b a", b""], dtype=object),
        "tags": np.array([b"y|x|x", b"nothing", b"z|y"], dtype=object),
    }
    x, y = by_tag(person, 2, {b"a": 1, b"b": 2}, {b"x": 0, b"y": 1})
    assert x.tolist() == [[1, 2], [1, 0]]
    assert y.tolist() == [[1, 0, -1, -1, -1], [1, -1, -1, -1, -1]]
    x, _ = by_tag(person, 4, {b"a": 1, b"b": 2}, {b"x": 0, b"y": 1})
    assert x.tolist() == [[1, 2, 3, 0], [1, 0, 0, 0]]
    x, y = by_tag({name: column[1:2] for name, column in person.items()}, 4, {b"a": 1}, {b"x": 0})
    assert (x.shape, y.shape) == ((0, 4), (0, 5))


def test_the_published_sizes():
    source = StackOverflowTags()
    assert (source.shape, source.classes, source.tokens) == ((64,), 500, 10_002)


def test_tags_are_numbered_by_their_counts():
    assert most_frequent_tags({"a": 1, "b": 3, "c": 3}, 2) == {b"b": 0, b"c": 1}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (json.dumps({"sql": 3}), "it has 1 tags, but tags is 4"),
        (json.dumps(["sql"]), "it must hold one JSON object of tags and their counts"),
        ("sql 3\n", "Expecting value"),
    ],
)
def test_another_tag_count_is_refused(content, sentence, tmp_path):
    on_disk.write_stackoverflow(tmp_path)
    (tmp_path / "stackoverflow.tag_count").write_text(content)
    with pytest.raises(ValueError, match=rf"StackOverflowTags: .*tag_count is not as published: {sentence}"):
        dataset(tmp_path).load(0, 2)
    (tmp_path / "stackoverflow.tag_count").unlink()
    with pytest.raises(ValueError, match=r"StackOverflowTags: there is no file '.*stackoverflow.tag_count': set root"):
        dataset(tmp_path).load(0, 2)


@pytest.mark.parametrize(
    ("contents", "sentence"),
    [
        ({"tags": np.array([b"x|y|z|u|v|w"], dtype=object)}, "a post has at most 5 tags, got b'x"),
        ({"tags": np.array([b"x", b"y"], dtype=object)}, "contents must be as many as each other, got .*'tags': 2"),
        ({"title": np.array([3])}, "texts must be bytes, got int"),
    ],
)
def test_contents_of_another_kind_are_refused(contents, sentence):
    person = {name: np.array([value], dtype=object) for name, value in
              {"tokens": b"a", "title": b"b", "tags": b"x"}.items()}  # fmt: skip
    with pytest.raises(ValueError, match=sentence):
        by_tag(
            {**person, **contents}, 4, {b"a": 1}, {tag: i for i, tag in enumerate([b"x", b"y", b"z", b"u", b"v", b"w"])}
        )


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"tags": 0}, r"StackOverflowTags: tags must lie in \[1, 1e6\], got 0"),
        ({"length": 0}, r"StackOverflowTags: length must lie in \[1, 1e5\], got 0"),
        ({"parts": []}, "StackOverflowTags: parts must be one or more different ones"),
    ],
)
def test_bad_values_are_refused(more, sentence):
    with pytest.raises(ValueError, match=sentence):
        StackOverflowTags(**more)
