"""A prepared copy of a data set gives the bits of the data set itself; what is not whole is never opened."""

import errno
import json
import multiprocessing
import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from flstudy import Population
from flstudy.algorithms import FedAvg
from flstudy.config import ConfigError
from flstudy.population import (
    AgNews,
    Cifar10,
    Cifar100,
    Dataset,
    Dirichlet,
    Emnist,
    EmnistImages,
    Examples,
    FashionMnist,
    FederatedParquet,
    Landmarks,
    LeafFemnist,
    LeafShakespeare,
    LibSvm,
    Mnist,
    Shakespeare,
    StackOverflow,
    StackOverflowTags,
    Svhn,
    TableFile,
    TinyImageNet,
)
from flstudy.population.datasets.base import Originals, Piece
from flstudy.population.datasets.federated_format import read_clients, read_metadata, seal, verify
from flstudy.preparation import prepare as preparation
from flstudy.preparation.prepare import prepare
from flstudy.tasks import Logistic, Lstm

from ..population.datasets import on_disk
from ..waiting import wait_until
from ..worlds import difference, run, state


def write_table(root, ending, *, client=True, split=False, named=False):
    """data.csv or data.parquet, its clients' rows in disorder."""
    rng, size = np.random.default_rng(0), 90
    columns = {f"f{i}": rng.normal(size=size).astype(np.float32) for i in range(3)}
    columns["label"] = rng.integers(0, 3, size)
    if named:
        columns["label"] = np.array(["cat", "dog", "emu"])[columns["label"]]
    if client:
        columns["client"] = np.array(["ann", "bob", "cyd", "dan", "eve"])[rng.permutation(np.arange(size) % 5)]
    if split:
        columns["split"] = np.array(["train", "train", "valid", "test"])[rng.integers(0, 4, size)]
    table = pa.table(columns)
    root.mkdir(parents=True, exist_ok=True)
    if ending == "csv":
        from pyarrow import csv

        csv.write_csv(table, root / "data.csv")
    else:
        parquet.write_table(table, root / "data.parquet")


def table_file(root, ending="csv", **how):
    return TableFile(root=str(root), file=f"data.{ending}")


WORDS = {"vocabulary": len(on_disk.WORDS)}
KINDS = {  # how its files are written, the data set on them, devices (0: pooled)
    "Mnist": (lambda root: on_disk.write_idx(root, "MNIST"), Mnist, {}, 0),
    "FashionMnist": (lambda root: on_disk.write_idx(root, "FashionMNIST"), FashionMnist, {}, 0),
    "EmnistImages": (on_disk.write_emnist_images, EmnistImages, {"division": "letters"}, 0),
    "Cifar10": (lambda root: on_disk.write_cifar(root, 10), Cifar10, {}, 0),
    "Cifar100": (lambda root: on_disk.write_cifar(root, 100, 200), Cifar100, {}, 0),
    "Svhn": (on_disk.write_svhn, Svhn, {}, 0),
    "TinyImageNet": (lambda root: on_disk.write_tiny_imagenet(root, 1, 20), TinyImageNet, {}, 0),
    "Landmarks": (on_disk.write_landmarks, Landmarks, {"size": 16}, 3),
    "AgNews": (on_disk.write_ag_news, AgNews, {"vocabulary": 10, "length": 6}, 0),
    "covtype": (lambda root: on_disk.write_libsvm(root, "covtype"), LibSvm, {"name": "covtype"}, 0),
    "Emnist": (on_disk.write_emnist, Emnist, {"largest": 9}, 4),
    "Shakespeare": (on_disk.write_shakespeare, Shakespeare, {"length": 20}, 3),
    "StackOverflow": (on_disk.write_stackoverflow, StackOverflow, WORDS, 4),
    "StackOverflowTags": (on_disk.write_stackoverflow, StackOverflowTags, {**WORDS, "tags": 4, "length": 9}, 4),
    "LeafFemnist": (lambda root: on_disk.write_leaf(root, "femnist"), LeafFemnist, {}, 3),
    "LeafShakespeare": (lambda root: on_disk.write_leaf(root, "shakespeare"), LeafShakespeare, {}, 3),
    "a CSV with clients": (lambda root: write_table(root, "csv", named=True), TableFile, {"file": "data.csv"}, 5),
    "a Parquet with clients and splits": (
        lambda root: write_table(root, "parquet", split=True), TableFile, {"file": "data.parquet"}, 5,
    ),
    "a pooled CSV with splits": (
        lambda root: write_table(root, "csv", client=False, split=True), TableFile, {"file": "data.csv"}, 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_cohorts_and_batches_are_those_of_the_data_set_bit_for_bit(name, tmp_path, monkeypatch):
    write, kind, arguments, clients = KINDS[name]
    write(tmp_path)
    on_disk.accept_any_checksum(monkeypatch)
    original = kind(root=str(tmp_path), **arguments)
    metadata, is_new = prepare(original, tmp_path / "copy", part_bytes=20_000)
    assert is_new
    verify(tmp_path / "copy", metadata)
    copied = FederatedParquet(path=str(tmp_path / "copy"))
    assert (copied.shape, copied.classes, copied.tokens) == (original.shape, original.classes, original.tokens)
    assert metadata.pooled == (clients == 0)
    partition = None if clients or metadata.splits else Dirichlet(alpha=1.0, min_size=3)
    worlds = [
        Population(dataset, clients=clients or 4, participants=2, batch_size=4, partition=partition).settle((0, 44))
        for dataset in (original, copied)
    ]
    for round in (1, 2):
        first, second = (world.cohort(round) for world in worlds)
        assert torch.equal(first.jobs.client, second.jobs.client)
        assert torch.equal(first.sizes, second.sizes)
        for rows in ("rows", "valid"):
            both = [getattr(cohort.batches, rows) for cohort in (first, second)]
            assert torch.equal(both[0] >= 0, both[1] >= 0)
            real = both[0] >= 0
            read = [
                world.store.gather(table[real][:, None], torch.zeros(real.sum(), dtype=torch.int64))
                for world, table in zip(worlds, both, strict=True)
            ]
            for mine, theirs in zip(*read, strict=True):
                assert mine.dtype == theirs.dtype
                assert torch.equal(mine, theirs)


@pytest.mark.parametrize("name", ["FashionMnist", "Shakespeare"])
def test_a_run_from_parquet_is_the_run_from_memory(name, tmp_path):
    write, kind, arguments, clients = KINDS[name]
    write(tmp_path)
    original = kind(root=str(tmp_path), **arguments)
    prepare(original, tmp_path / "copy")
    ends = []
    for dataset in (original, FederatedParquet(path=str(tmp_path / "copy"))):
        torch.manual_seed(3)
        task = (Lstm if clients else Logistic)(dataset.shape, dataset.classes)
        population = Population(dataset, clients=3, participants=2, batch_size=4)
        module = run(
            FedAvg(lr=0.1), 2, seeds=(0, 44), population=population, task=task, evaluate=True, precision="32-true"
        )
        ends.append((state(module), {k: v for k, v in module.record.metrics.items() if not k.startswith("time/")}))
    assert difference(ends[0][0], ends[1][0]) == 0
    assert ends[0][1] == ends[1][1]


def test_a_folder_that_came_without_columns_makes_them(tmp_path):
    write_table(tmp_path, "csv")
    prepare(table_file(tmp_path), tmp_path / "copy")
    before = FederatedParquet(path=str(tmp_path / "copy")).load(0, 5)
    for path in (tmp_path / "copy" / "columns").iterdir():
        path.unlink()
    after = FederatedParquet(path=str(tmp_path / "copy")).load(0, 5)
    assert torch.equal(before.x, after.x)
    assert torch.equal(before.y, after.y)
    verify(tmp_path / "copy", read_metadata(tmp_path / "copy"))


def test_other_programs_read_samples_and_clients(tmp_path):
    write_table(tmp_path, "csv")
    (tmp_path / "speeds.csv").write_text(
        "id,speed\n" + "".join(f"{n},{i}.5\n" for i, n in enumerate(["eve", "dan", "cyd", "bob", "ann"]))
    )
    metadata, _ = prepare(table_file(tmp_path), tmp_path / "copy", attributes=tmp_path / "speeds.csv")
    table = read_clients(tmp_path / "copy", metadata)
    assert table.ids.to_pylist() == ["ann", "bob", "cyd", "dan", "eve"]
    assert table.attributes["speed"].to_pylist() == [4.5, 3.5, 2.5, 1.5, 0.5]
    samples = parquet.read_table(tmp_path / "copy" / "samples")
    assert samples.column("client").to_pylist() == [
        name for name in ("ann", "bob", "cyd", "dan", "eve") for _ in range(18)
    ]
    (tmp_path / "speeds.csv").write_text("id,speed\nbob,1\n")
    with pytest.raises(ConfigError, match=r"--attributes: .* has no row for client 'ann': give one for each client"):
        prepare(table_file(tmp_path), tmp_path / "other", attributes=tmp_path / "speeds.csv")


def test_nothing_is_done_twice_and_another_request_replaces(tmp_path):
    write_table(tmp_path, "csv")
    assert prepare(table_file(tmp_path), tmp_path / "copy")[1]
    assert not prepare(table_file(tmp_path), tmp_path / "copy")[1]
    write_table(tmp_path, "csv", named=True)
    assert prepare(table_file(tmp_path), tmp_path / "copy")[1]
    (tmp_path / "copy" / "columns" / "y.npy").unlink()
    assert prepare(table_file(tmp_path), tmp_path / "copy")[1]
    assert {path.name for path in tmp_path.iterdir()} == {"copy", "data.csv", ".copy.lock"}


# ---- killed, crowded, full ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Slow(Dataset):
    """Forty clients of twenty examples, a hundredth of a second each; a file may say before which one it waits."""

    folder: str
    shape, classes = (3,), 4

    def load(self, seed, clients):
        return Examples(torch.empty(0, 3), torch.empty(0), None)

    def originals(self, scratch):
        def pieces(start):
            for number in range(start, 40):
                with (Path(self.folder) / "asked").open("a") as file:
                    file.write(f"{number}\n")
                rng = np.random.default_rng(number)
                time.sleep(0.01)
                while number == self.held_at():
                    time.sleep(0.01)
                yield Piece(rng.normal(size=(20, 3)).astype(np.float32), rng.integers(0, 4, 20), f"c{number}")

        return Originals([Path(self.folder)], 40, pieces)

    def held_at(self) -> int | None:
        held = Path(self.folder) / "held_at"
        return int(held.read_text()) if held.is_file() else None


@pytest.fixture
def slow(tmp_path, monkeypatch):
    monkeypatch.setattr(preparation, "fingerprint_of", lambda files: "the same")
    return Slow(folder=str(tmp_path))


PART = 1000  # bytes: four clients


@pytest.mark.slow
@pytest.mark.parametrize("after", [8, 37])
def test_who_was_killed_goes_on_and_nothing_half_made_is_opened(after, tmp_path, slow):
    (tmp_path / "held_at").write_text(str(after))
    process = multiprocessing.get_context("fork").Process(
        target=prepare, args=(slow, tmp_path / "copy"), kwargs={"part_bytes": PART}
    )
    process.start()
    asked = tmp_path / "asked"
    wait_until(lambda: asked.is_file() and len(asked.read_text().splitlines()) > after, lambda: process.exitcode)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with pytest.raises(ValueError, match=r"there is no prepared data set in .*: make it with"):
        FederatedParquet(path=str(tmp_path / "copy")).load(0, 40)
    asked.unlink()
    (tmp_path / "held_at").unlink()
    metadata, _ = prepare(slow, tmp_path / "copy", part_bytes=PART)
    assert int(asked.read_text().split()[0]) >= after - 6  # what was whole is not done again
    verify(tmp_path / "copy", metadata)
    (tmp_path / "whole").mkdir()
    whole, _ = prepare(Slow(folder=str(tmp_path / "whole")), tmp_path / "whole" / "copy", part_bytes=PART)
    assert {name: file["sha256"] for name, file in metadata.files.items()} == {
        n: o["sha256"] for n, o in whole.files.items()
    }


@pytest.mark.slow
def test_of_two_processes_one_goes_on_and_the_other_says_so(tmp_path, slow):
    (tmp_path / "held_at").write_text("5")
    process = multiprocessing.get_context("fork").Process(target=prepare, args=(slow, tmp_path / "copy"))
    process.start()
    wait_until((tmp_path / "asked").is_file, lambda: process.exitcode)
    with pytest.raises(ConfigError, match=rf"copy is being prepared by process {process.pid} on .*: wait for its end"):
        prepare(slow, tmp_path / "copy")
    (tmp_path / "held_at").unlink()
    process.join()
    assert process.exitcode == 0
    assert not prepare(slow, tmp_path / "copy")[1]


def test_a_full_disk_leaves_the_copy_of_before(tmp_path, monkeypatch):
    write_table(tmp_path, "csv")
    before, _ = prepare(table_file(tmp_path), tmp_path / "copy")
    write_table(tmp_path, "csv", named=True)
    write, left = preparation.Hashed.write, [3]

    def full(self, block):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, block)

    monkeypatch.setattr(preparation.Hashed, "write", full)
    with pytest.raises(ConfigError, match=r"no room on the disk of .*: the copy of before is as it was; make room"):
        prepare(table_file(tmp_path), tmp_path / "copy")
    assert read_metadata(tmp_path / "copy") == before
    verify(tmp_path / "copy", before)
    monkeypatch.undo()
    assert prepare(table_file(tmp_path), tmp_path / "copy")[1]


# ---- bad input ---------------------------------------------------------------------------------------------------


@pytest.fixture
def copy(tmp_path):
    write_table(tmp_path, "csv")
    prepare(table_file(tmp_path), tmp_path / "copy")
    return tmp_path / "copy"


def rewritten(folder, **changes):
    content = json.loads((folder / "metadata.json").read_text())
    for key in ("format", "version", "checksum"):
        content.pop(key)
    (folder / "metadata.json").write_text(seal({**content, **changes}))


def edited(folder, old, new):
    (folder / "metadata.json").write_text((folder / "metadata.json").read_text().replace(old, new))


DAMAGE = {
    "an empty folder": (lambda f: (f / "metadata.json").unlink(), "there is no prepared data set in '.*': make it"),
    "cut metadata": (
        lambda f: (f / "metadata.json").write_text((f / "metadata.json").read_text()[:200]),
        r"metadata\.json is damaged: it is no JSON; prepare it again",
    ),
    "metadata of another hand": (
        lambda f: edited(f, '"classes": 3', '"classes": 4'),
        r"metadata\.json is damaged: its contents do not give its checksum; prepare it again",
    ),
    "another version": (
        lambda f: edited(f, '"version": 1', '"version": 7'),
        r"is of version 7 of Federated Parquet, and this flstudy reads version 1: prepare the data again",
    ),
    "another format": (
        lambda f: (f / "metadata.json").write_text('{"format": "zarr"}'),
        r"is not of Federated Parquet: its format must be 'federated parquet'; prepare it again",
    ),
    "a cut column": (
        lambda f: (f / "columns/x.npy").write_bytes((f / "columns/x.npy").read_bytes()[:-7]),
        r"x\.npy is damaged: .*; prepare it again",
    ),
    "another set's column": (
        lambda f: np.save(f / "columns/y.npy", np.zeros(7, np.int8)), r"y\.npy is damaged: it holds int8 \[7\], not",
    ),
    "cut clients": (
        lambda f: (f / "clients.parquet").write_bytes((f / "clients.parquet").read_bytes()[:-9]),
        r"clients\.parquet is damaged: its bytes do not give its checksum; prepare it again",
    ),
    "more clients than said": (lambda f: rewritten(f, clients=6), r"clients\.parquet is damaged: it has 5 clients"),
    "cut samples and no columns": (
        lambda f: [
            (f / "columns/x.npy").unlink(),
            (f / "samples/part-00000.parquet").write_bytes((f / "samples/part-00000.parquet").read_bytes()[:-9]),
        ],
        r"part-00000\.parquet is damaged: .*; prepare it again",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_folder_is_refused_in_a_sentence(name, copy):
    spoil, sentence = DAMAGE[name]
    spoil(copy)
    with pytest.raises(ValueError, match=sentence) as refused:
        Population(FederatedParquet(path=str(copy)), clients=5, participants=2).settle((0,))
    assert len(str(refused.value)) <= 200 + len(str(copy))


def test_what_only_a_checksum_shows(copy):
    content = bytearray((copy / "columns" / "x.npy").read_bytes())
    content[-5] ^= 1
    (copy / "columns" / "x.npy").write_bytes(content)
    with pytest.raises(ValueError, match=r"x\.npy is damaged: its bytes do not give its checksum; prepare it again"):
        verify(copy, read_metadata(copy))


def test_clients_with_too_few_examples_and_nulls(tmp_path):
    rows = "".join(f"{i}.0,{i % 2},{'ann' if i < 8 else 'bob'}\n" for i in range(10))
    (tmp_path / "data.csv").write_text("f,label,client\n" + rows)
    prepare(table_file(tmp_path), tmp_path / "copy")
    assert FederatedParquet(path=str(tmp_path / "copy")).load(0, 1).ranges.counts.tolist() == [[8, 0, 0]]
    with pytest.raises(ValueError, match=r"clients must be ≤ 1, the clients with 3 or more examples in .*copy, got 2"):
        FederatedParquet(path=str(tmp_path / "copy")).load(0, 2)
    (tmp_path / "nulls.csv").write_text("f,label,client\n1.0,0,1\n2.0,1,\n")
    with pytest.raises(ValueError, match=r"nulls\.csv: column 'client' must have a value in every row, got none in"):
        prepare(TableFile(root=str(tmp_path), file="nulls.csv"), tmp_path / "nulls")
    assert not (tmp_path / "nulls").exists()
    assert not (tmp_path / ".nulls.preparing").exists()


def test_mislabelled_files_are_refused_before_there_is_a_copy(tmp_path):
    on_disk.write_leaf(tmp_path, "femnist")
    path = sorted((tmp_path / "train").iterdir())[1]
    content = json.loads(path.read_text())
    content["user_data"]["f0002_02"]["y"][3] = 62
    path.write_text(json.dumps(content))
    with pytest.raises(
        ValueError, match=r"LeafFemnist: .*f0002_02: labels must lie in 0 … 61, got .* … 62; set root to"
    ):
        prepare(LeafFemnist(root=str(tmp_path)), tmp_path / "copy")
    path.write_text(path.read_text()[:1000])
    with pytest.raises(ValueError, match=rf"{re.escape(str(path))} is not as published: it is no JSON file of users"):
        prepare(LeafFemnist(root=str(tmp_path)), tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_images_of_emnist_stand_upright_and_letters_begin_at_0(tmp_path):
    on_disk.write_emnist_images(tmp_path)
    examples = EmnistImages(root=str(tmp_path), division="letters").load(0, 5)
    raw = np.frombuffer((tmp_path / "EMNIST/raw/emnist-letters-train-images-idx3-ubyte").read_bytes()[16:], np.uint8)
    first = (examples.x[0, 0] * 0.3317 + 0.1736) * 255
    assert np.allclose(first.numpy(), raw[:784].reshape(28, 28).T, atol=1e-3)
    assert (int(examples.y.min()), int(examples.y.max()), EmnistImages(division="byclass").classes) == (0, 25, 62)
    with pytest.raises(ValueError, match=r"unpack \(gunzip\) the files emnist-digits-\*"):
        EmnistImages(root=str(tmp_path), division="digits").load(0, 5)
