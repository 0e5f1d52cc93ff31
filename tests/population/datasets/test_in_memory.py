"""Own data in the forms that libraries give them: each is read as the same examples, owners and splits are kept."""

import lightning as L
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest
import torch
import yaml
from PIL import Image
from torch.utils.data import DataLoader, Dataset, TensorDataset

from flstudy import Population
from flstudy.algorithms import FedAvg
from flstudy.population import InMemory, TableFile
from flstudy.tasks import Logistic

from ...worlds import run

COUNT, CLIENTS = 48, 4
RNG = np.random.default_rng(1)
X = RNG.normal(size=(COUNT, 3)).astype(np.float32)
Y = RNG.integers(0, 3, COUNT)
owned = np.arange(COUNT) % CLIENTS
split_of = np.array(["train", "train", "train", "valid", "test", "train"])[np.arange(COUNT) // CLIENTS % 6]
PAIR = (torch.from_numpy(X), torch.from_numpy(Y))
COLUMNS = {f"f{i}": X[:, i] for i in range(3)} | {"label": Y, "client": owned, "split": split_of}
SAID = {"train": "train", "valid": "validation", "test": "test"}


def table(**changes):
    return pa.table({name: pa.array(column) for name, column in {**COLUMNS, **changes}.items() if column is not None})


def population(dataset, **changes):
    return Population(dataset, **{"clients": CLIENTS, "participants": 2, "batch_size": 4, **changes})


def settled(dataset, **changes):
    return population(dataset, **changes).settle((0, 44))


def inputs(population, replica, device, split):
    """What a device holds, in an order of its own."""
    rows = population.members[replica][device][split]
    return {tuple(line) for line in population.store.x[rows].tolist()}, len(rows)


def expected(device, split):
    mine = X[(owned == device) & (split_of == split)]
    return {tuple(line) for line in mine.tolist()}, len(mine)


class Hub:
    """What Hugging Face's ``Dataset`` looks like from outside: rows that are mappings."""

    def __init__(self, rows):
        self.rows, self.column_names = rows, list(rows[0])

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]

    def __getitems__(self, indices):
        return [self.rows[index] for index in indices]


def hub(where=slice(None), **renamed):
    return Hub([{"features": x.tolist(), "label": int(y), "client": f"clinic {k}"}
                for x, y, k in zip(X[where], Y[where], owned[where], strict=True)])  # fmt: skip


class Module(L.LightningDataModule):
    """One as Lightning's documentation writes them."""

    def setup(self, stage):
        self.sets = {name: TensorDataset(*(part[split_of == name] for part in PAIR)) for name in SAID}

    def train_dataloader(self):
        return DataLoader(self.sets["train"], batch_size=5, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.sets["valid"], batch_size=5)

    def test_dataloader(self):
        return DataLoader(self.sets["test"], batch_size=5)


BY_CLIENT = [
    tuple(TensorDataset(*(part[(owned == k) & (split_of == name)] for part in PAIR)) for name in SAID)
    for k in range(CLIENTS)
]


@pytest.mark.parametrize(
    "make_data",
    [
        lambda folder: table(),
        lambda folder: table(client=np.array([f"clinic {k}" for k in owned])),
        lambda folder: table().to_pandas(),
        lambda folder: {SAID[name]: hub(split_of == name) for name in SAID},
        lambda folder: BY_CLIENT,
        lambda folder: [[tuple(subset.tensors) for subset in three] for three in BY_CLIENT],
        lambda folder: InMemory(
            table(label=None, client=None, ward=owned, kind=Y), label="kind", client="ward", inputs=["f0", "f1", "f2"]
        ),
        lambda folder: written(folder, "rows.csv"),
        lambda folder: written(folder, "rows.parquet"),
        lambda folder: written(folder, "rows.arrow"),
    ],
    ids=["arrow", "names", "pandas", "hub", "sets", "tensors", "columns", "csv", "parquet", "file"],
)
def test_owners_and_splits_are_kept(make_data, tmp_path):
    world = settled(make_data(tmp_path))
    assert world.dataset.shape == (3,)
    assert world.dataset.classes == 3
    for replica in range(2):
        for device in range(CLIENTS):
            for split in SAID:
                assert inputs(world, replica, device, split) == expected(device, split)


def written(folder, name):
    writers = {"csv": pa.csv.write_csv, "parquet": pa.parquet.write_table, "arrow": pa.feather.write_feather}
    writers[name.partition(".")[2]](table(), folder / name)
    return TableFile(file=name, root=str(folder))


def test_a_data_module_s_three_sets_are_divided_by_a_partition_and_kept_apart():
    for partition in (None, [list(range(k, (split_of == "train").sum(), CLIENTS)) for k in range(CLIENTS)]):
        world = settled(Module(), partition=partition)
        for split in SAID:
            held = [inputs(world, 0, device, split) for device in range(CLIENTS)]
            assert set.union(*(rows for rows, _ in held)) == {tuple(line) for line in X[split_of == split].tolist()}
            assert sum(size for _, size in held) == (split_of == split).sum()
            assert min(size for _, size in held) > 0
    first = {tuple(line) for line in X[split_of == "train"][::CLIENTS].tolist()}
    assert inputs(world, 0, 0, "train")[0] == first  # lists number the training examples


def test_lists_of_each_client_s_examples():
    lists = [[0, 1, 2, 3], [10, 11, 12], list(range(20, 30)), np.arange(40, 46)]
    world = settled(PAIR, partition=lists)
    for device, rows in enumerate(lists):
        held = [set(world.members[0][device][split].tolist()) for split in SAID]
        assert set.union(*held) == set(np.asarray(rows).tolist())
        assert sum(map(len, held)) == len(rows)


def test_a_split_that_nobody_made_is_taken_from_the_training_examples():
    """Hugging Face's usual two."""
    world = settled({"train": hub(split_of == "train"), "test": hub(split_of == "test")}, valid=0.25)
    for device in range(CLIENTS):
        assert inputs(world, 0, device, "test") == expected(device, "test")
        rows, size = inputs(world, 0, device, "train")
        held, valid_size = inputs(world, 0, device, "valid")
        assert rows | held == expected(device, "train")[0]
        assert not rows & held
        assert valid_size == round(0.25 * (size + valid_size))


def test_rows_of_images_and_labels_with_names():
    images = [Image.fromarray(np.full((4, 5, 3), 51 * k, dtype=np.uint8)) for k in range(6)]
    data = InMemory(Hub([{"image": image, "label": name} for image, name in zip(images, "babbab", strict=True)]))
    assert data.shape == (3, 4, 5)
    assert data.examples.x[2].unique().item() == pytest.approx(0.4)
    assert data.examples.y.tolist() == [1, 0, 1, 1, 0, 1]


def row(k):
    """Values of the k-th row: two inputs, of which one is of integers, and a label."""
    return torch.tensor([k, 0.5]), torch.tensor([k, k + 1, 7]), k % 3


ROWS = {
    "mappings": lambda a, b, y: {"a": a, "words": b, "label": y},
    "nested mappings": lambda a, b, y: {"inputs": {"a": a, "words": b}, "target": {"label": y}},
    "mappings of tuples": lambda a, b, y: {"inputs": (a, b), "y": y},
    "three values": lambda a, b, y: (a, b, y),
    "a tuple and a label": lambda a, b, y: ((a, b), y),
    "a mapping and a label": lambda a, b, y: ({"a": a, "words": b}, y),
}


@pytest.mark.parametrize("shape", ROWS)
def test_batches_have_the_shape_that_a_dataloader_gives(shape):
    rows = [ROWS[shape](*row(k)) for k in range(9)]
    data = InMemory(rows)
    assert data.examples.y.tolist() == [k % 3 for k in range(9)]
    expected = next(iter(DataLoader(rows, batch_size=9)))
    torch.testing.assert_close(data.form(data.examples.x, data.examples.y), expected, rtol=0, atol=0)


def test_a_loader_s_own_collate_function_makes_the_batches():
    class Module(L.LightningDataModule):
        def train_dataloader(self):
            def collate(rows):
                return {"text": torch.stack([a for a, _, _ in rows]), "label": torch.tensor([y for *_, y in rows])}

            return DataLoader([row(k) for k in range(9)], batch_size=3, collate_fn=collate)

    data = InMemory(Module())
    batch = data.form(data.examples.x, data.examples.y)
    assert {name: tuple(value.shape) for name, value in batch.items()} == {"text": (9, 2), "label": (9,)}


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([((1.0, 2.0), (0, 1))] * 4, "label must name a column, got 'label': there are 0.0, 0.1, 1.0, 1.1"),
        (
            [{"a": {"y": 0}, "b": {"y": 1}, "x": 1.0}] * 4,
            "label must name .*: there are a.y, b.y, x",
        ),
        ([{1: 2.0, "label": 0}] * 4, "the keys of a row must be names, got 1"),
        ([{"a": 1.0, "id": 2**24 + 1, "label": 0}] * 4, "'id' must hold integers up to 16777216, .* got 16777217"),
        ([("text", 1.0, 0)] * 4, "dataset must be a flstudy dataset, .* of mappings or tuples of numbers"),
    ],
)
def test_rows_without_a_meaning_are_refused(rows, sentence):
    with pytest.raises(ValueError, match=sentence):
        InMemory(rows)


def test_integers_beside_others_are_refused_in_half_precision():
    """The number of a word would be that of another."""
    data = InMemory([ROWS["mappings"](*row(k)) for k in range(9)])
    with pytest.raises(ValueError, match="'words' holds integers, which bfloat16 does not: set precision to 32-true"):
        data.form(data.examples.x.bfloat16(), data.examples.y)


def test_a_run_on_own_splits_trains():
    module = run(FedAvg(lr=0.1), 2, population=population(table()), task=Logistic((3,), 3), evaluate=True, seeds=(0, 1))
    assert {"valid/accuracy", "test/accuracy"} <= set(module.record.metrics)


@pytest.mark.parametrize(
    ("dataset", "changes", "message"),
    [
        (PAIR, {"partition": [[0, 1, 2], [2, 3, 4], [5, 6, 7], [8, 9, 10]]}, "2 stands in the lists of 0, 1"),
        (PAIR, {"partition": [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 9, 10]]}, "9 stands in the lists of 3, 3"),
        (PAIR, {"partition": [[0, 1, 2], [], [6, 7, 8], [9, 10, 11]]}, r"device 1 \(0\) has fewer than 3 examples"),
        (PAIR, {"partition": [[0, 1, 2], [3, 4, 48], [6, 7, 8], [9, 10, 11]]}, "numbered 0 … 47, got 48"),
        (PAIR, {"partition": [[0, 1, 2], [3, 4, 5]]}, "each of 4 clients, got 2: set clients: 2"),
        (PAIR, {"partition": [[0, 1, -2], [3, 4, 5]]}, "lists must lie in"),
        (table(), {"clients": 3}, "clients must be 4, the number of owners that the data set names, got 3"),
        (table(), {"clients": 5}, "clients must be 4, the number of owners that the data set names, got 5"),
        (table(split=np.where(owned == 2, "test", split_of)), {}, "device 2 has no example in the valid split"),
        (
            [(*three[1:], three[0]) if k else three for k, three in enumerate(BY_CLIENT)],
            {"clients": 5},
            "clients must be 4",
        ),
        (
            table(split=np.where(split_of + owned.astype(str) == "train2", "valid", split_of)),
            {},
            r"device 2 \(0\) has fewer than 1 example \(train\)",
        ),
        (table(label=None, kind=Y), {}, "label must name a column, got 'label': there are f0, f1, f2"),
        (table(split=np.full(COUNT, "held out")), {}, "must say train, valid or test, got 'held out'"),
        (
            table(f1=pa.array([None] * COUNT)),
            {},
            "column 'f1' must have .* got none in row 1 and 47 more",
        ),
        (table(f1=pa.array(["a"] * COUNT)), {}, "inputs must be columns of numbers, got 'f1'"),
        ({"train": PAIR, "test": (PAIR[0][:, :2], PAIR[1])}, {}, r"inputs of one shape, got \[\(2,\), \(3,\)\]"),
        ({"train": PAIR, "rest": PAIR}, {}, "dataset must be"),
    ],
)
def test_invalid_data_are_refused_in_one_sentence_before_the_first_round(dataset, changes, message):
    with pytest.raises(ValueError, match=message) as refusal:
        settled(dataset, **changes)
    assert len(str(refusal.value)) <= 200


def test_a_partition_of_the_user_s_own_that_returns_something_else():
    from flstudy.population import Partition

    class Odd(Partition):
        def __init__(self, owners):
            self.found = owners

        def assign(self, labels, clients, rng):
            return self.found

    for owners, message in [
        (np.zeros(3, dtype=np.int64), "48 integers, got int64"),
        (np.zeros(COUNT), "48 integers, got float64"),
        ([0] * COUNT, "48 integers, got list"),
        (np.full(COUNT, 7), "Odd names 7: set clients: 8"),
    ]:
        with pytest.raises(ValueError, match=message):
            settled(PAIR, partition=Odd(owners))


def test_a_table_file_in_a_config(tmp_path):
    from flstudy.config import ConfigError, load

    written(tmp_path, "rows.csv")
    dataset = {"class_path": "TableFile", "init_args": {"file": "rows.csv", "root": str(tmp_path)}}
    content = {"task": "Logistic", "algorithm": "FedAvg", "rounds": 1,
               "population": {"dataset": dataset, "clients": CLIENTS, "participants": 2}}  # fmt: skip
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(content))
    assert load(path).parameter_count == 3 * 3 + 3
    assert list(load(path).rehearse())  # its examples can be shared with workers
    dataset["init_args"]["file"] = "other.csv"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigError, match=r"there is no file .*other\.csv"):
        load(path)


class Augmented(Dataset):
    """Inputs with noise of their own in each reading."""

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return torch.as_tensor(X[index]) + torch.randn(3), Y[index]


class AugmentedRows(Augmented):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return {"values": x.tolist(), "label": int(y)}


class Transfers(Module):
    def on_after_batch_transfer(self, batch, dataloader_idx):
        return batch


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (
            Augmented,
            "example 0 of Augmented differs when it is read again, but examples are read once for all epochs: move",
        ),
        (AugmentedRows, "example 0 of AugmentedRows differs when it is read again"),
        (
            Transfers,
            "Transfers.on_after_batch_transfer would not be called, since examples are read once: move it to the L",
        ),
    ],
)
def test_what_differs_from_reading_to_reading_is_refused(data, sentence):
    with pytest.raises(ValueError, match=f"^dataset: {sentence}"):
        InMemory(data())
