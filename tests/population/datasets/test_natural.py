"""Data sets of people: read as published, chosen, pooled and divided; what is missing or wrong is said."""

import json

import h5py
import numpy as np
import pytest
import torch

from flstudy import Population
from flstudy.algorithms import FedAvg
from flstudy.population import Emnist, Shakespeare, StackOverflow
from flstudy.population.dataset_cache import key
from flstudy.population.datasets.text import CHARACTERS, by_character, by_word
from flstudy.tasks import Logistic, Lstm

from ...worlds import run
from . import on_disk
from .on_disk import SIZES, WORDS

KINDS = {
    "Emnist": (Emnist, on_disk.write_emnist, {}),
    "Shakespeare": (Shakespeare, on_disk.write_shakespeare, {"length": 20}),
    "StackOverflow": (StackOverflow, on_disk.write_stackoverflow, {"vocabulary": len(WORDS)}),
}
HELD = {"Emnist": [12, 5, 18, 10, 13], "StackOverflow": [12, 4, 18, 7, 13]}  # examples of each person


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with all files, which no test changes."""
    root = tmp_path_factory.mktemp("published")
    for _, write, _ in KINDS.values():
        write(root)
    return root


def dataset(name, root, **more):
    cls, _, arguments = KINDS[name]
    return cls(root=str(root), **{**arguments, **more})


@pytest.mark.parametrize("name", KINDS)
def test_two_rounds_from_the_files(name, files):
    source = dataset(name, files)
    population = Population(source, clients=5, participants=3, batch_size=4).settle((0,))
    cohort = population.cohort(1)
    assert cohort.jobs.client.shape == (1, 3)
    assert population.store.x.shape[1:] == source.shape
    assert all(len(device[split]) >= 1 for device in population.members[0] for split in ("train", "valid", "test"))
    task = Logistic if name == "Emnist" else Lstm
    module = run(FedAvg(lr=0.1), 2, population=population, task=task(source.shape, source.classes), evaluate=True)
    assert np.isfinite(module.record.metrics["test/loss"]).all()
    assert 0 <= module.record.metrics["test/accuracy"][0] <= 1


@pytest.mark.parametrize("name", KINDS)
def test_people_are_chosen_alike_for_all_seeds_and_only_they_are_read(name, files):
    everybody, some = dataset(name, files).load(0, 5), dataset(name, files).load(0, 2)
    assert torch.equal(some.x, dataset(name, files).load(9, 2).x)
    sizes = everybody.owner.bincount()
    assert sizes.tolist() == HELD.get(name, sizes.tolist())
    assert torch.equal(everybody.owner, everybody.owner.sort().values)
    pairs = {tuple(dataset(name, files, selection=s).load(0, 2).owner.bincount().tolist()) for s in range(12)}
    assert len(pairs) > 4
    everyone = [everybody.y[everybody.owner == k] for k in range(5)]
    for k in range(2):
        assert any(torch.equal(some.y[some.owner == k], y) for y in everyone)


@pytest.mark.parametrize("name", KINDS)
def test_a_device_has_at_most_the_largest_number_of_examples(name, files):
    capped, whole = dataset(name, files, largest=6).load(0, 5), dataset(name, files).load(0, 5)
    assert capped.owner.bincount().tolist() == whole.owner.bincount().clamp(max=6).tolist()
    for k in range(5):
        mine = whole.x[whole.owner == k].flatten(1).tolist()
        assert all(line in mine for line in capped.x[capped.owner == k].flatten(1).tolist())


def test_people_with_fewer_than_three_examples_are_nobody_s_devices(tmp_path):
    on_disk.write_emnist(tmp_path, [(9, 3), (1, 1), (2, 1)])
    assert Emnist(root=str(tmp_path)).load(0, 2).owner.bincount().tolist() == [12, 3]
    with pytest.raises(ValueError, match=r"clients must be ≤ 2, the people with 3 or more examples in .*, got 3"):
        Emnist(root=str(tmp_path)).load(0, 3)


def test_emnist_is_as_published(files):
    loaded = Emnist(root=str(files)).load(0, 5)
    with h5py.File(files / "fed_emnist_train.h5") as train, h5py.File(files / "fed_emnist_test.h5") as test:
        people = [[part["examples"][person] for part in (train, test)] for person in sorted(train["examples"])]
        for k, parts in enumerate(people):
            mine = loaded.owner == k
            assert loaded.y[mine].tolist() == [label for part in parts for label in part["label"]]
            assert np.array_equal(loaded.x[mine][:, 0], np.concatenate([part["pixels"] for part in parts]))
    assert (loaded.x.dtype, loaded.y.dtype) == (torch.float32, torch.int64)


def test_characters_are_cut_into_pieces_with_what_follows():
    x, y = by_character(np.array([b"abcde", b"", b"ab\xe9"], dtype=object), 3)
    a, b, c, d, e = (CHARACTERS.index(letter) + 1 for letter in "abcde")
    unknown, begin, end = 87, 88, 89
    assert x.tolist() == [[begin, a, b], [d, e, end], [begin, end, 0], [begin, a, b]]
    assert y.tolist() == [[a, b, c], [e, end, -1], [end, -1, -1], [a, b, unknown]]  # and a lone end, left out
    assert len(CHARACTERS) == len(set(CHARACTERS)) == 86
    assert Shakespeare().classes == 90
    assert Shakespeare().shape == (80,)


def test_sentences_are_words_between_marks():
    vocabulary = {b"the": 1, b"list": 2}
    unknown, begin, end = 3, 4, 5
    x, y = by_word(np.array([b"the list", b"the old list of", b"list the list"], dtype=object), 3, vocabulary)
    assert x.tolist() == [[begin, 1, 2], [begin, 1, unknown], [begin, 2, 1]]
    assert y.tolist() == [[1, 2, end], [1, unknown, 2], [2, 1, 2]]
    x, y = by_word(np.array([b"the"], dtype=object), 4, vocabulary)
    assert (x.tolist(), y.tolist()) == ([[begin, 1, end, 0]], [[1, end, -1, -1]])
    assert StackOverflow().classes == 10_004
    assert StackOverflow().shape == (20,)


def test_parts_of_stack_overflow(files):
    held_out = dataset("StackOverflow", files, parts=["held_out"]).load(0, 3)
    assert held_out.owner.bincount().tolist() == [6, 6, 6]
    train = dataset("StackOverflow", files, parts=["train"]).load(0, 5)
    assert train.owner.bincount().tolist() == [train for train, _ in SIZES]
    loaded = dataset("StackOverflow", files).load(0, 5)
    assert int(loaded.x.max()) <= len(WORDS) + 3 == dataset("StackOverflow", files).classes - 1
    assert (loaded.y == len(WORDS) + 1).any()  # zyzzyva


def test_examples_are_kept_by_what_was_asked_for(files):
    keys = {key(dataset("StackOverflow", files, **more), (0,), 5) for more in ({}, {"selection": 1}, {"largest": 4})}
    assert None not in keys
    assert len(keys) == 3
    assert key(Emnist(), (0,), 5) == key(Emnist(), (44,), 5)


@pytest.mark.parametrize("name", KINDS)
def test_a_missing_folder_or_file_is_named(name, tmp_path, files):
    absent = tmp_path / "absent"
    with pytest.raises(ValueError, match=rf"{name}: there is no folder '{absent}': set root to .*TensorFlow Federated"):
        dataset(name, absent).load(0, 2)
    for path in files.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    last = dataset(name, tmp_path).files()[-1]
    (tmp_path / last).unlink()
    with pytest.raises(ValueError, match=rf"{name}: there is no file '{tmp_path / last}'"):
        Population(dataset(name, tmp_path), clients=2, participants=1).settle((0,))


@pytest.mark.parametrize("name", KINDS)
def test_a_file_with_something_else_is_refused(name, tmp_path):
    _, write, _ = KINDS[name]
    write(tmp_path)
    source, first = dataset(name, tmp_path), dataset(name, tmp_path).files()[0]
    on_disk.write_people(tmp_path / first, {"somebody": {"else": np.zeros(3)}})
    with pytest.raises(ValueError, match=rf"{name}: .*{first} is not as published: examples/somebody has no '"):
        source.load(0, 1)
    with h5py.File(tmp_path / first, "w") as file:
        file["other"] = 1
    with pytest.raises(ValueError, match=r"it has no group 'examples' with one group per person; set root"):
        source.load(0, 1)
    (tmp_path / first).write_text(json.dumps({"users": []}))
    with pytest.raises(ValueError, match="it is no HDF5 file that can be read"):
        source.load(0, 1)


@pytest.mark.parametrize(
    ("contents", "sentence"),
    [
        ({"label": np.arange(4), "pixels": np.zeros((4, 28, 27))}, r"pixels must be \[4, 28, 28\].*got \[4, 28, 27\]"),
        ({"label": np.arange(4), "pixels": np.zeros((3, 28, 28))}, r"pixels must be \[4, 28, 28\], as many as labels"),
        ({"label": np.arange(4) + 60, "pixels": np.zeros((4, 28, 28))}, r"labels must lie in 0 … 61, got 60 … 63"),
    ],
)
def test_images_of_another_kind_are_refused(contents, sentence, tmp_path):
    for name in Emnist().files():
        on_disk.write_people(tmp_path / name, {"f0000_14": contents})
    with pytest.raises(ValueError, match=rf"examples/f0000_14: {sentence}"):
        Emnist(root=str(tmp_path)).load(0, 1)


def test_text_that_is_none_is_refused(tmp_path):
    for name in Shakespeare().files():
        on_disk.write_people(tmp_path / name, {"ROLE": {"snippets": np.arange(4)}})
    with pytest.raises(ValueError, match="examples/ROLE: texts must be bytes, got int64"):
        Shakespeare(root=str(tmp_path)).load(0, 1)


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("the 9\nof 8\n", "it has 2 words, but vocabulary is 8"),
        ("the 9\nof\n", r"line 2 must be a new word and its count, got b'of\\n'"),
        ('{"the": 9}\n', "line 1 must be a new word and its count"),
        ("the 9\nthe 8\n", "line 2 must be a new word and its count"),
    ],
)
def test_words_are_judged_line_by_line(lines, sentence, tmp_path):
    on_disk.write_stackoverflow(tmp_path)
    (tmp_path / "stackoverflow.word_count").write_text(lines)
    with pytest.raises(ValueError, match=rf"StackOverflow: .*word_count is not as published: {sentence}"):
        dataset("StackOverflow", tmp_path).load(0, 2)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Emnist(selection=-1), r"Emnist: selection must lie in \[0, 2e9\], got -1"),
        (lambda: Emnist(largest=2), r"Emnist: largest must lie in \[3, 1e6\], got 2"),
        (lambda: Shakespeare(length=0), r"Shakespeare: length must lie in \[1, 1e5\], got 0"),
        (lambda: StackOverflow(vocabulary=0), r"StackOverflow: vocabulary must lie in \[1, 1e6\], got 0"),
        (lambda: StackOverflow(length=0), r"StackOverflow: length must lie in \[1, 1e5\], got 0"),
        (lambda: StackOverflow(parts=[]), r"parts must be one or more different ones, got \[\]"),
        (lambda: StackOverflow(parts=["test", "test"]), "parts must be one or more different ones"),
    ],
)
def test_bad_values_are_refused(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()
