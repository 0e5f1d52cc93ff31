"""Accuracy against what was sent for it: hand-made studies, read from tables and from the figure's own axes."""

from typing import NamedTuple

import numpy as np
import pytest

from flstudy.reporting import write_report
from flstudy.reporting.ranking import Findings
from flstudy.reporting.sections.traffic import (
    ASSUMED,
    MEASURED,
    accuracy_levels,
    traffic_cells,
    traffic_figure,
    traffic_of,
)
from flstudy.study import load_study
from flstudy.study.records import RecordWriter

N = 100.0  # bytes of a model, times the devices of a round
RISING = np.array([[0.1, 0.3, 0.5, 0.7], [0.2, 0.4, 0.6, 0.8]])


class Record(NamedTuple):
    round: int
    metrics: dict[str, list[float]]


def curves(down: float, up: float, level: float = 0.0) -> dict[str, np.ndarray]:
    """Of two seeds over four rounds."""
    metrics = {"test/accuracy": RISING + level, "valid/accuracy": RISING + level}
    return metrics | {
        "traffic/down_bytes": np.full((2, 4), down * N),
        "traffic/up_bytes": np.full((2, 4), up * N),
    }


@pytest.fixture
def study(tmp_path, write_study, trial):
    def make(sent: dict[str, tuple[float, float, float]], **more):
        trials = [trial(str(place), name, 0.9 - place / 100, rounds=4) for place, name in enumerate(sent)]
        trial_curves = {str(place): curves(*amounts) for place, amounts in enumerate(sent.values())}
        folder = write_study(tmp_path / "s", trials, curves=trial_curves, seeds=[0, 1], rounds=4, **more)
        return Findings(results=load_study(folder))

    return make


def test_the_unit_is_fedavg_s_round_and_the_costs_are_table_2_s(study):
    findings = study({"FedAvg": (1, 1, 0.0), "DirectJointAdaptivity": (2, 1, 0.1), "Mime": (3, 2, 0.1)})
    traffic = traffic_of(findings)
    assert traffic.unit == MEASURED
    assert {line.algorithm: line.total for line in traffic.curves} == pytest.approx(
        {"FedAvg": 4.0, "DirectJointAdaptivity": 6.0, "Mime": 10.0}
    )
    direct = next(line for line in traffic.curves if line.algorithm == "DirectJointAdaptivity")
    np.testing.assert_allclose(direct.sent, [[1.5, 3.0, 4.5, 6.0]] * 2)
    np.testing.assert_allclose(direct.until(0.6), [4.5, 4.5])  # 0.2 0.4 0.6 0.8 and 0.3 0.5 0.7 0.9
    np.testing.assert_allclose(direct.until(0.85), [np.nan, 6.0])


def test_without_fedavg_its_round_is_two_models(study):
    findings = study({"DirectJointAdaptivity": (2, 1, 0.0), "FedAda2": (1, 1, 0.0), "LocalOnly": (0, 0, 0.0)})
    traffic = traffic_of(findings)
    assert traffic.unit == ASSUMED
    assert {line.algorithm: line.total for line in traffic.curves} == {"DirectJointAdaptivity": 6.0, "FedAda2": 4.0}


def test_rounds_without_an_evaluation_count_into_the_next_one(tmp_path, write_study, trial):
    trials = [trial("0", "FedAvg", 0.9, rounds=4), trial("1", "Mime", 0.8, rounds=4)]
    folder = write_study(tmp_path / "s", trials, curves={"0": curves(1, 1)}, seeds=[0, 1], rounds=4)
    with RecordWriter(folder / "records" / "1.parquet", [0, 1]) as writer:
        for r in range(1, 5):
            metrics = {name: list(values[:, r - 1]) for name, values in curves(3, 2).items()}
            sent = {name: values for name, values in metrics.items() if name.startswith("traffic/")}
            writer.append(Record(r, metrics if r % 2 == 0 else sent))
    mime = traffic_of(Findings(results=load_study(folder))).curves[1]
    np.testing.assert_allclose(mime.sent, [[5.0, 10.0]] * 2)


def test_the_table_says_what_was_sent_until_levels_between_the_worst_and_the_best(study):
    findings = study({"FedAvg": (1, 1, 0.0), "Mime": (3, 2, 0.1)})
    traffic = traffic_of(findings)
    assert accuracy_levels(traffic) == pytest.approx([0.75, 0.8, 0.85])  # peaks: 0.75 and 0.85
    cells = traffic_cells(traffic)
    assert cells.header == ("Algorithm", "75 %", "80 %", "85 %", "Whole run")
    rows = {row[0]: row[1:] for row in cells.rows}
    assert rows["FedAvg"] == ("4.0 (1/2)", "4.0 (1/2)", "never", "4")
    assert rows["Mime"] == ("10.0 ± 0.0", "10.0 ± 0.0", "10.0 (1/2)", "10")


def test_the_figure_has_a_line_for_each_algorithm_in_its_colour(study):
    findings = study({"FedAvg": (1, 1, 0.0), "Mime": (3, 2, 0.1)})
    (axes,) = traffic_figure(traffic_of(findings), findings.looks).axes
    lines = {line.get_label(): line for line in axes.lines}
    np.testing.assert_allclose(lines["Mime"].get_xdata(), [2.5, 5.0, 7.5, 10.0])
    np.testing.assert_allclose(lines["Mime"].get_ydata(), 100 * (RISING + 0.1).mean(0))
    assert lines["FedAvg"].get_color() != lines["Mime"].get_color()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["Mime", "FedAvg"]  # as they end
    assert "rounds of FedAvg" in axes.get_xlabel()


def test_where_all_send_the_same_rounds_say_it(study):
    findings = study({"FedAvg": (1, 1, 0.0), "FedAdam": (1, 1, 0.1)})
    assert traffic_of(findings) is None


@pytest.mark.slow
def test_the_report_has_it(study):
    findings = study({"FedAvg": (1, 1, 0.0), "Mime": (3, 2, 0.1)})
    written = write_report(findings.results.folder.path)
    page = written.page_path.read_text()
    assert "Traffic until an accuracy (test) is first reached, in rounds of FedAvg" in page
    assert "Bits sent, down and up, in rounds of FedAvg" in page
    assert "Traffic until" in written.latex_path.read_text()
    assert written.values["bits"] == {"FedAvg": {"rounds_of_fedavg": 4.0}, "Mime": {"rounds_of_fedavg": 10.0}}
