"""Master-FL's figures, read from their own axes, of trials whose controller was really run."""

import numpy as np
import pytest

from flstudy.algorithms import FedOmd
from flstudy.controllers import BlockSchedule, MasterFL, Rate
from flstudy.population import RepeatedDrift
from flstudy.reporting.ranking import Findings
from flstudy.reporting.sections.restarts import (
    NamedRun,
    RestartSection,
    Span,
    controller_log,
    loss_figure,
    reachable_figure,
    spans,
)
from flstudy.study import load_study

from ..worlds import logistic, run, world

ROUNDS, SEEDS = 40, (0, 44)


@pytest.fixture(scope="module")
def module():
    controller = MasterFL(rounds=ROUNDS, rho_hat_scale=2e-3, loss_max=1.4)
    population = world(drift=RepeatedDrift(rounds=[20]), batch_size=33, epochs=1)
    method = FedOmd(lr=1.0, mirror="euclidean")
    return run(method, ROUNDS, population=population, task=logistic(), seeds=SEEDS, controllers=[controller])


@pytest.fixture
def results(module, tmp_path, write_study, trial):
    names = ("loss", "best", "instance_order", "block_order")
    names = (*(f"controller/{name}" for name in names), "detector/restarted")
    values = {name: np.array([r.metrics[name] for r in module.records]).T.tolist() for name in names}
    accuracy = [[0.5] * ROUNDS] * 2
    curves = {"1": {**values, "test/accuracy": accuracy, "test/loss": accuracy}, "2": {"test/loss": accuracy}}
    counts = {
        f"detector/{name}": 1.0 for name in ("detections", "false_alarms", "restarts_block", "restarts_detection")
    }
    trials = [trial("1", "FedOmd", 0.9, rounds=ROUNDS, metrics=counts), trial("2", "FedProx", 0.5, rounds=ROUNDS)]
    events = [(20, "drift to concept 1")]
    return load_study(write_study(tmp_path / "s", trials, curves=curves, events=events, rounds=ROUNDS, seeds=SEEDS))


@pytest.mark.slow
def test_instances_are_found_again_from_the_records(module, results):
    trial = results.trials[0]
    for replica, seed in enumerate(SEEDS):
        seen = controller_log(results, trial, replica)
        instances = spans(seed, {}, seen)
        covering = {number: [s for s in instances if s.first <= number <= s.last] for number in range(1, ROUNDS + 1)}
        assert all(
            min(covering[number]).order == order for number, order in enumerate(seen.order.tolist(), 1)
        )  # the shortest one ran
        assert instances[0] == Span(BlockSchedule(seed, 0, 0, Rate()).order, 1, 1)
    assert controller_log(results, results.trials[1]) is None


@pytest.mark.slow
def test_figure_2_shows_f_and_u_above_the_instances(results):
    above, below = reachable_figure(results, results.trials[0]).axes
    drawn = {line.get_label(): line for line in above.lines if not line.get_label().startswith("_")}
    seen = controller_log(results, results.trials[0])
    np.testing.assert_allclose(drawn["F, loss of the round"].get_ydata(), seen.loss)
    np.testing.assert_allclose(drawn["U, said to be reachable"].get_ydata(), seen.best)
    assert drawn["drift"].get_xdata()[0] == 20
    thin = [c for c in below.collections if c.get_linewidth()[0] == 1.0]
    assert len(thin) == len(spans(SEEDS[0], {}, seen))
    assert reachable_figure(results, results.trials[1]) is None


@pytest.mark.slow
def test_figure_3_tells_detections_from_whole_blocks(results):
    rows = [NamedRun("one", results, results.trials[0]), NamedRun("other", results, results.trials[1])]
    first, second = loss_figure(rows).axes
    assert [line.get_label() for line in first.lines] == ["one", "other", "drift"]
    seen = controller_log(results, results.trials[0])
    marks = {c.get_label(): [segment[0][0] for segment in c.get_segments()] for c in second.collections}
    for cause, label in ((1, "restart after a whole block"), (2, "restart after a detection")):
        assert marks.get(label, []) == seen.rounds[seen.restarted == cause].tolist()
    assert set(seen.restarted) == {0, 1, 2}
    assert loss_figure([NamedRun("x", results, results.trials[0])], "no/metric") is None


@pytest.mark.slow
def test_the_page_has_a_section_where_a_controller_restarts(results, tmp_path, write_study, trial):
    section = RestartSection().of_study(Findings(results=results))
    assert [row[0] for row in section.tables[0].rows] == ["FedOmd"]
    assert len(section.pictures) == 2
    plain = load_study(write_study(tmp_path / "plain", [trial("1", "FedAvg", 0.9)]))
    assert RestartSection().of_study(Findings(results=plain)) is None
