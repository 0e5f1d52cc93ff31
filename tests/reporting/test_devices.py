"""The section on single devices: quantiles by hand, and silence where nothing was kept."""

import numpy as np
import pytest

from flstudy.reporting import write_report
from flstudy.reporting.ranking import Findings
from flstudy.reporting.sections.devices import DevicesSection, device_lines
from flstudy.study import load_study
from flstudy.study.device_results import write_device_results

SEEDS = (0, 44)


@pytest.fixture
def study(tmp_path, write_study, trial):
    """Two algorithms' best trials; the first one's results by device were kept."""
    trials = [trial(0, "FedAvg", 0.8), trial(1, "Flash", 0.7)]
    curves = {number: np.full((2, 10), 0.75) for number in (0, 1)}
    folder = write_study(tmp_path / "digits", trials, curves=curves, seeds=SEEDS)
    rng = np.random.default_rng(1)
    accuracy = rng.random(2 * 11)
    (folder / "models").mkdir()
    columns = {"seed": np.repeat(SEEDS, 11), "device": np.tile(np.arange(11), 2), "test/accuracy": accuracy}
    write_device_results(columns, folder / "models" / "0.parquet")
    return folder, accuracy.reshape(2, 11)


def test_quantiles_are_those_of_each_seed_s_devices(study):
    folder, accuracy = study
    findings = Findings(results=load_study(folder))
    lines = device_lines(findings)
    assert list(lines) == ["FedAvg"]
    np.testing.assert_allclose(lines["FedAvg"].values[:, ::10], 100 * np.sort(accuracy, 1))
    content = DevicesSection().of_study(findings)
    assert content is not None
    (cells,) = content.tables
    ordered = 100 * np.sort(accuracy, 1).mean(0)
    assert list(cells.rows[0]) == ["FedAvg", *(f"{ordered[place]:.3g}" for place in (1, 5, 9))]


def test_it_is_on_the_page_where_results_were_kept(study):
    folder, _ = study
    assert "How do the devices differ?" in write_report(folder).page_path.read_text()
    path = folder / "models" / "0.parquet"
    path.write_bytes(path.read_bytes()[:40])
    page = write_report(folder).page_path.read_text()
    assert "How do the devices differ?" not in page
    assert "0.parquet is damaged" in page


def test_the_best_device_of_a_loss_is_the_one_with_the_least(tmp_path, write_study, trial):
    losses = np.linspace(0.1, 2.1, 11)
    config = {"study": {"objective": {"metric": "valid/loss", "mode": "min"}}}
    curves = {0: {"test/loss": np.full((1, 10), 1.0), "valid/loss": np.full((1, 10), 1.0)}}
    folder = write_study(tmp_path / "s", [trial(0, "FedAvg", 1.0)], curves=curves, seeds=(0,), **config)
    (folder / "models").mkdir()
    columns = {"seed": np.zeros(11, dtype=int), "device": np.arange(11), "test/loss": losses}
    write_device_results(columns, folder / "models" / "0.parquet")
    lines = device_lines(Findings(results=load_study(folder)))
    np.testing.assert_allclose(lines["FedAvg"].values[0, ::10], losses[::-1])
