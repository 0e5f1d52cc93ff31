"""The registry and what runs log: the same names, refused before a run that will not measure them."""

import subprocess
import sys

import pytest

from flstudy.algorithms import FedAvg, FedOmd, Flash
from flstudy.controllers import MasterFL
from flstudy.metrics.dynamic_regret import Regret
from flstudy.metrics.measure import WorstDevices, measured_names
from flstudy.metrics.registry import (
    METRICS,
    NEEDS,
    Metric,
    find,
    is_fraction,
    mean_over_replicas,
    measured_by,
    refuse_unmeasured,
    register,
)
from flstudy.metrics.run_summary import RunSummary
from flstudy.metrics.wireless import Wireless
from flstudy.population import RepeatedDrift, ScheduledAvailability
from flstudy.privacy import Privacy
from flstudy.tasks import Logistic
from tests.tiers import in_tiers

from ..laws.cases import steady
from ..worlds import CLASSES, FEATURES, run, shipped, world

ROUNDS = 4


def logged(algorithm, population, **coordinator):
    """Names of a run's metrics, its summary's included, and what was promised."""
    module = run(algorithm, ROUNDS, population=population, evaluate=True, **coordinator)
    events = ([event.round for event in of(ROUNDS)] for of in (population.drifts, population.sessions))
    summary = RunSummary(next(events), ROUNDS, next(events))
    for record in module.records:
        summary.add(record.round, record.metrics)
    return {*module.record.metrics, *summary.figures()}, set(module.measures(population, ROUNDS))


def everything():
    """A run that meets every condition but privacy's, which its detector does not bear."""
    sessions = ScheduledAvailability(schedule={device: [(1, 0)] for device in range(6)}, starts=[3])
    return {
        "population": world(drift=RepeatedDrift(rounds=[2]), availability=sessions),
        "task": Logistic((FEATURES,), CLASSES, l2=0.1),
        "controllers": [MasterFL(rounds=ROUNDS, lr="algorithm", rho_hat_scale=1e-3)],
        "wireless": Wireless(),
        "regret": Regret(tolerance=1e-3),
        "measure": WorstDevices(),
    }


@pytest.mark.parametrize("name", in_tiers(sorted(shipped()), sorted(shipped())[::3]))
def test_every_algorithm_logs_what_it_names(name):
    algorithm = steady(name)
    logs, promised = logged(algorithm, world(drift=RepeatedDrift(rounds=[2])))
    assert logs == promised <= set(METRICS)
    assert {measure for measure in logs if measure.startswith("server/")} == set(algorithm.measures)


@pytest.mark.slow
def test_every_condition_adds_its_metrics():
    logs, promised = logged(Flash(), **everything())
    assert logs == promised <= set(METRICS)
    private = Privacy(clip=1.0, noise=1.0, orders=[2.0])
    logs, promised = logged(FedAvg(weighting="uniform"), world(), privacy=private)
    assert logs == promised <= set(METRICS)


def test_nothing_is_described_that_no_run_logs():
    measures = {name for kind in (*shipped().values(), MasterFL) for name in kind.measures}
    measures |= {*measured_names(WorstDevices())}
    assert {name for name, metric in METRICS.items() if metric.needs == ("own",)} == measures
    assert set(measured_by(NEEDS, measures)) == set(METRICS)
    assert {need for metric in METRICS.values() for need in metric.needs} == set(NEEDS)


def test_an_unknown_name_gets_the_nearest():
    assert find("valid/dip").is_fraction
    with pytest.raises(ValueError, match=r"unknown metric 'test/acuracy': did you mean 'test/accuracy'\?"):
        find("test/acuracy")
    assert not is_fraction("somebody/else")


def test_what_a_run_does_not_measure_is_refused_with_its_reason():
    measured = measured_by(["correctness", "losses"], FedOmd.measures)
    refuse_unmeasured("valid/accuracy", measured)
    reason = r"study.objective.metric must be .* got 'test/dip', which needs .* and a drift within the rounds"
    with pytest.raises(ValueError, match=reason):
        refuse_unmeasured("test/dip", measured, "study.objective.metric")
    with pytest.raises(ValueError, match=r"'wireless/latency_s', which needs a radio cell \(wireless\)"):
        refuse_unmeasured("wireless/latency_s", measured)


def test_metrics_of_a_user_s_own_may_be_described():
    mine = Metric("controller/mine", "Mine", "fraction", "max", "Of the test.")
    try:
        assert register(mine) is find("controller/mine")
        assert "controller/mine" in measured_by([], ["controller/mine"])
        with pytest.raises(ValueError, match="already described"):
            register(Metric("controller/mine", "Other", "", None, ""))
    finally:
        del METRICS["controller/mine"]
    assert measured_by([], ["controller/mine"])[-1] == "controller/mine"


def test_a_mean_over_replicas_is_rounded_once():
    assert mean_over_replicas([0.1] * 10) == 0.1
    assert str(mean_over_replicas([1.0, float("nan")])) == "nan"


def test_the_registry_needs_neither_torch_nor_numpy():
    code = "import sys, flstudy.metrics.registry; print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
