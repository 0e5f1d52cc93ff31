"""Tables as people have them: owners of any numbers, labels of any two values, gaps, and devices that are too small."""

import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from flstudy import Population
from flstudy.algorithms import FedAvg
from flstudy.config import ConfigError, load
from flstudy.population import InMemory, TableFile
from flstudy.tasks import Logistic

from ...worlds import run

COUNT, CLIENTS = 60, 5
RNG = np.random.default_rng(0)
X = RNG.normal(size=(COUNT, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)
OWNER = np.arange(COUNT) % CLIENTS


def frame(**changes):
    columns = {"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "label": Y, "client": OWNER, **changes}
    return pd.DataFrame({name: column for name, column in columns.items() if column is not None})


def with_gap(column, row=7):
    values = list(column)
    values[row] = None
    return values


def settled(data, **changes):
    return Population(data, **{"clients": CLIENTS, "participants": 2, **changes}).settle((0,))


@pytest.mark.parametrize(
    "owners",
    [OWNER, OWNER + 1, 101 * (OWNER + 1), OWNER - 2, 10**12 + OWNER, OWNER.astype(float), [f"h{k}" for k in OWNER]],
    ids=["from 0", "from 1", "101 to 505", "below 0", "large", "floats", "names"],
)
@pytest.mark.parametrize("form", [lambda table: table, pa.Table.from_pandas], ids=["pandas", "arrow"])
def test_owners_are_devices_whatever_their_numbers(owners, form):
    population, expected = settled(form(frame(client=owners))), settled(frame())
    for device, plain in zip(population.members[0], expected.members[0], strict=True):
        assert all(np.array_equal(rows, plain[split]) for split, rows in device.items())


def test_owners_may_be_the_index_of_a_frame():
    population, expected = settled(frame().set_index("client")), settled(frame())
    for device, plain in zip(population.members[0], expected.members[0], strict=True):
        assert all(np.array_equal(rows, plain[split]) for split, rows in device.items())
    assert InMemory(frame(patient=np.arange(COUNT)).set_index("patient")).shape == (3,)


def test_one_error_tells_all_that_is_wrong():
    owners = np.where(np.arange(COUNT) < 2, 3000, 10 * (OWNER + 1))
    sentence = (
        r"clients must be 6, the number of owners that the data set names, got 5; device 5 \(2\) has fewer than 3 "
        r"examples \(train, valid, test\): leave such devices out"
    )
    with pytest.raises(ValueError, match=sentence):
        settled(frame(client=owners))


def test_devices_that_are_too_small_are_listed():
    owners = np.concatenate([np.arange(30), np.full(COUNT - 30, 30)])
    with pytest.raises(
        ValueError, match=r"devices 0 \(1\), 1 \(1\), .* 7 \(1\) and 22 more have fewer than 3 examples"
    ):
        settled(frame(client=owners), clients=31)


GAPS = {"null": None, "nan": float("nan")}


@pytest.mark.parametrize("form", [lambda table: table, pa.Table.from_pandas], ids=["pandas", "arrow"])
@pytest.mark.parametrize("column", ["a", "label", "client"])
def test_missing_values_are_refused_with_column_and_row(column, form):
    values = {"a": X[:, 0], "label": Y, "client": [f"h{k}" for k in OWNER]}[column]
    sentence = f"column '{column}' must have a value in every row, got none in row 8: drop or fill"
    with pytest.raises(ValueError, match=sentence):
        InMemory(form(frame(**{column: with_gap(values)})))


@pytest.mark.parametrize("values", [["no", "yes"], ["", "yes"]], ids=["null", "empty"])
def test_a_name_that_is_missing_is_no_class(values):
    names = [values[1] if k % 2 else "no" for k in range(COUNT)]
    names[7] = None if values[0] else ""
    with pytest.raises(ValueError, match="column 'label' must have a value in every row, got none in row 8"):
        InMemory(frame(label=names))


def test_a_missing_array_among_arrays_is_told():
    images = [np.zeros(4) for _ in range(COUNT)]
    images[7] = None
    with pytest.raises(ValueError, match="column 'image' must have a value in every row, got none in row 8"):
        InMemory(pd.DataFrame({"image": images, "label": Y}))


def test_missing_numbers_of_inputs_get_the_mean_or_zero():
    holed = frame(a=with_gap(X[:, 0]))
    for missing, value in (("mean", np.delete(X[:, 0].astype(np.float64), 7).mean()), ("zero", 0.0)):
        data = InMemory(holed, missing=missing)
        assert data.examples.x[7, 0] == pytest.approx(value, rel=1e-6)
        others = torch.arange(COUNT) != 7
        assert torch.equal(data.examples.x[others], torch.from_numpy(X)[others])
    with pytest.raises(ValueError, match="column 'label' must have a value in every row"):
        InMemory(frame(label=with_gap(Y)), missing="zero")
    with pytest.raises(ValueError, match="column 'a' must have a value in every row, got none in row 1 and 59 more"):
        InMemory(frame(a=np.full(COUNT, np.nan)), missing="mean")


@pytest.mark.parametrize("kind", [np.int64, np.float64])
def test_integers_that_single_precision_does_not_hold_are_refused(kind):
    times = (1_700_000_000 + np.arange(COUNT)).astype(kind)
    with pytest.raises(ValueError, match=r"column 'when' must hold integers up to 16777216, .* got 1700000059"):
        InMemory(frame(when=times))


@pytest.mark.parametrize("values", [(-1, 1), (1, 3), (10**9, 10**9 + 1), (0, 5), (1, 2)])
def test_labels_of_two_values_are_classes_and_that_is_told(values):
    with pytest.warns(UserWarning, match=f"labels {values[0]} and {values[1]} are numbered 0 and 1"):
        data = InMemory(frame(label=np.array(values)[Y]))
    assert data.classes == 2
    assert data.examples.y.tolist() == Y.tolist()


def test_labels_that_are_numbered_from_0_stay_as_they_are():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert InMemory(frame()).examples.y.tolist() == Y.tolist()
        assert InMemory(frame(label=OWNER)).examples.y.tolist() == OWNER.tolist()
    with pytest.raises(ValueError, match="labels must be integers from 0, real numbers or names, got -1"):
        InMemory(frame(label=OWNER - 1))


ARRAYS = {
    "arrays": (X, Y),
    "a list of arrays": [X, Y],
    "tensor and array": (torch.from_numpy(X), Y),
    "array and tensor": (X, torch.from_numpy(Y)),
    "array and list": (X, Y.tolist()),
    "names": (X, np.array(["no", "yes"])[Y]),
}


@pytest.mark.parametrize("form", ARRAYS)
def test_arrays_are_populations(form):
    data = InMemory(ARRAYS[form])
    assert torch.equal(data.examples.x, torch.from_numpy(X))
    assert data.examples.y.tolist() == Y.tolist()
    assert data.classes == 2


def part(device):
    return tuple(torch.from_numpy(values[device == OWNER]) for values in (X, Y))


SETS = {
    "data sets": lambda device: TensorDataset(*part(device)),
    "loaders": lambda device: DataLoader(TensorDataset(*part(device)), batch_size=4, shuffle=True),
    "frames": lambda device: frame(client=None)[device == OWNER],
}


@pytest.mark.parametrize("form", SETS)
def test_a_list_with_a_data_set_for_each_client_is_a_population(form):
    population = settled([SETS[form](device) for device in range(CLIENTS)])
    for device in range(CLIENTS):
        rows = np.concatenate([*population.members[0][device].values()])
        assert sorted(population.store.x[rows, 0].tolist()) == sorted(X[device == OWNER, 0].tolist())
    trained = run(FedAvg(lr=0.1), 1, population=population, task=Logistic((3,), 2), evaluate=True)
    assert "valid/accuracy" in trained.record.metrics


CONFIG = """
task: {task}
population:
  dataset: {{class_path: TableFile, init_args: {{file: rows.csv, root: {root}, missing: {missing}}}}}
  clients: 5
  participants: 2
algorithm: FedAvg
rounds: 1
"""


def config_of(folder, table, task="Logistic", missing="refuse"):
    table.to_csv(folder / "rows.csv", index=False)
    (folder / "own.yaml").write_text(CONFIG.format(task=task, root=folder, missing=missing))
    return load(folder / "own.yaml")


def test_a_file_s_missing_numbers_are_filled_as_its_config_says(tmp_path):
    holed = frame(a=with_gap(X[:, 0]))
    with pytest.raises(ConfigError, match=r"column 'a' must have a value .* or set missing: mean or zero"):
        config_of(tmp_path, holed)
    dataset = config_of(tmp_path, holed, missing="zero").parts.population.dataset
    assert dataset.load(0, CLIENTS).x[7, 0] == 0


def test_a_file_s_two_labels_are_the_same_when_it_is_prepared(tmp_path):
    frame(label=np.array([-1, 1])[Y]).to_csv(tmp_path / "rows.csv", index=False)
    data = TableFile(root=str(tmp_path), file="rows.csv")
    with pytest.warns(UserWarning, match="labels -1 and 1 are numbered 0 and 1"):
        originals = data.originals(tmp_path)
    assert originals.classes == 2
    assert np.bincount(np.concatenate([piece.y for piece in originals.pieces(0)])).tolist() == np.bincount(Y).tolist()
    with pytest.raises(ValueError, match="missing must be refuse or zero for a file that is prepared"):
        TableFile(root=str(tmp_path), file="rows.csv", missing="mean").originals(tmp_path)


def test_labels_that_are_real_numbers_mean_regression_and_a_classifier_says_so(tmp_path):
    with pytest.raises(
        ConfigError, match="Logistic needs classes, but the labels of TableFile are real numbers, which"
    ):
        config_of(tmp_path, frame(label=X[:, 1]))
