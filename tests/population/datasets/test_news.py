"""AG's News: words by how frequent they are, padded and cut, and files that are not as published."""

from collections import Counter

import numpy as np
import pytest
import torch

from flstudy import Population
from flstudy.algorithms import FedAvg
from flstudy.population import AgNews
from flstudy.population.dataset_cache import key
from flstudy.tasks import FastText

from ...worlds import run
from .on_disk import write_ag_news

LINES = (  # the words of on_disk.NEWS, by hand
    "wall st bears claw back reuters reuters short sellers wall street s dwindling band of cynics",
    "giddy phelps touches gold the 39 swimmer won the judges said",
    "café of the north the talks",
    "",
)
TEXTS = [line.split() for line in LINES]


@pytest.fixture
def files(tmp_path):
    write_ag_news(tmp_path)
    return tmp_path


def source(root, **more):
    return AgNews(root=str(root), **{"vocabulary": 5, "length": 12, **more})


def test_words_are_numbered_by_how_frequent_they_are_in_training(files):
    x, y, owner, *_ = source(files).load(0, 5)
    assert owner is None
    assert (x.shape, x.dtype, y.dtype) == ((72, 12), torch.int64, torch.int64)
    train = [TEXTS[index % 4] for index in range(59)] + [["only", "in", "train", "the", "the"]]
    test = [TEXTS[index % 4] for index in range(11)] + [["only", "in", "test", "the", "the"]]
    counts = Counter(word for words in train for word in words)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[:5]
    assert ranked[0] == "the"
    for line, words in zip(x.tolist(), [*train, *test], strict=True):
        numbers = [ranked.index(word) + 1 if word in ranked else 6 for word in words[:12]]
        assert line == numbers + [0] * (12 - len(numbers))
    assert y.tolist() == [(2, 1, 0, 3)[i % 4] for i in range(59)] + [0] + [(2, 1, 0, 3)[i % 4] for i in range(11)] + [0]
    assert int(x.max()) == 6 == source(files).tokens - 1


def test_the_default_has_the_paper_s_30522_numbers():
    data = AgNews()
    assert (data.tokens, data.shape, data.classes) == (30_522, (128,), 4)
    assert len({key(AgNews(**more), (0,), 5) for more in ({}, {"vocabulary": 7}, {"length": 9})}) == 3


def test_two_rounds_from_the_files(files):
    data = source(files)
    task = FastText(data.shape, data.classes, data.tokens, embedding=4)
    population = Population(data, clients=5, participants=3)
    module = run(FedAvg(lr=0.1), 2, population=population, task=task, evaluate=True, precision="32-true")
    assert np.isfinite(module.record.metrics["test/loss"]).all()


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("train.csv", None, r"there is no file '.*/ag_news_csv/train.csv': unpack ag_news_csv.tgz"),
        ("test.csv", None, r"there is no file '.*/ag_news_csv/test.csv': unpack"),
        ("test.csv", b"", r"test.csv is not as published: it is empty; unpack"),
        ("train.csv", b'"1","a","b"\n"5","c","d"\n', "train.csv is .*: row 2 must be a class 1 … 4, a title and a de"),
        ("train.csv", b'"1","title"\n', r"row 1 must be .*, got '1,title'; unpack"),
        ("train.csv", b'"1","caf\xe9","b"\n', "train.csv is not as published: .*codec can't decode"),
    ],
)
def test_what_is_missing_or_damaged_is_named(name, content, sentence, files):
    path = files / "ag_news_csv" / name
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^AgNews: .*{sentence}"):
        source(files).load(0, 2)


def test_bad_values_are_refused(files):
    with pytest.raises(ValueError, match=r"AgNews: vocabulary must lie in \[1, 1e6\], got 0"):
        AgNews(vocabulary=0)
    with pytest.raises(ValueError, match=r"AgNews: length must lie in \[1, 1e5\], got 0"):
        AgNews(length=0)
    different = len({word for words in TEXTS for word in words} | {"only", "in", "train"})
    with pytest.raises(
        ValueError, match=rf"vocabulary must be ≤ {different}, the different words of .*train.csv, got 99"
    ):
        source(files, vocabulary=99).load(0, 2)
    with pytest.raises(ValueError, match=rf"there is no folder '{files / 'absent' / 'ag_news_csv'}'"):
        source(files / "absent").load(0, 2)
