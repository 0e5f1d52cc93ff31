"""A scheduler that judges trials before the last drift is told at once, and no shipped study has one."""

from pathlib import Path

import pytest

from flstudy.config import load
from flstudy.config.composition import quick_check
from flstudy.config.schema import class_names
from flstudy.config.shipped import configs
from flstudy.config.starter import Choice, starter
from flstudy.reproduction.plan import read_paper
from flstudy.tuning.plan import drift_warnings

CONFIGS = Path(__file__).parents[2] / "tune_configs"
PAPERS = sorted(path.parent.name for path in CONFIGS.glob("*/reproduction.yaml"))
RAY_S = "ray.tune.schedulers.AsyncHyperBandScheduler"


def warned(**changes):
    return drift_warnings(load(CONFIGS / "quick.yaml", changes, command="tune"))


@pytest.mark.parametrize(
    ("scheduler", "values", "first", "way_out"),
    [
        ("Asha", {"grace_rounds": 10}, 10, "raise study.scheduler.grace_rounds beyond it"),
        ("Asha", {"grace_rounds": 30}, 30, "raise study.scheduler.grace_rounds beyond it"),
        ("HyperBand", {"grace_rounds": 5}, 5, "raise study.scheduler.grace_rounds beyond it"),
        ("MedianStopping", {"grace_rounds": 12}, 12, "raise study.scheduler.grace_rounds beyond it"),
        (RAY_S, {}, 1, "let it begin later"),
    ],
)
def test_every_scheduler_that_judges_before_the_drift_is_told(scheduler, values, first, way_out):
    keys = {f"study.scheduler.{name}": value for name, value in values.items()}
    (line,) = warned(**{"study.scheduler": scheduler, **keys})
    name = "RayScheduler" if scheduler == RAY_S else scheduler
    assert line.startswith(f"warning: {name} judges trials in round {first}, before the drift in round 31")
    assert way_out in line


def test_population_based_training_is_told():
    changes = {"study.scheduler": "Pbt", "study.scheduler.every": 15, "study.sampler": "RandomSearch"}
    (line,) = warned(**changes)
    assert "Pbt judges trials in round 15, before the drift in round 31" in line


def test_the_last_of_several_drifts_within_the_run_counts():
    drift = {"population.drift": "RecurrentDrift", "population.drift.round": 11, "population.drift.back": 41}
    (line,) = warned(**drift)
    assert "judges trials in round 40, before the drift in round 41" in line
    assert warned(**drift, **{"study.scheduler.grace_rounds": 41}) == []
    late = {"population.drift": "IncrementalDrift", "population.drift.round": 39, "population.drift.every": 30}
    assert warned(**late) == []  # the increments from round 69 on never come


def test_a_rung_between_two_evaluations_judges_at_the_later_one():
    assert warned(**{"study.scheduler.grace_rounds": 30, "evaluate_every": 4}) == []  # in round 32
    (line,) = warned(**{"study.scheduler.grace_rounds": 30, "evaluate_every": 3})
    assert "in round 30" in line


def test_without_a_scheduler_or_a_drift_there_is_nothing_to_tell():
    assert warned(**{"study.scheduler": None}) == []
    assert warned(**{"study.scheduler.grace_rounds": 10, "population.drift": None}) == []


def judged(path, options=()):
    """What is told of a study; one that has no scheduler or no drift is not built, which some need large files for."""
    values = quick_check(path, options)
    if values["study"]["scheduler"] is None or values["population"]["drift"] is None:
        return []
    return drift_warnings(load(path, options=options, command="tune"))


@pytest.mark.parametrize("path", configs(), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_no_shipped_config_judges_before_its_drift(path):
    assert judged(path) == []


@pytest.mark.slow
@pytest.mark.parametrize("paper", PAPERS)
def test_no_world_of_a_paper_judges_before_its_drift(paper):
    for world in read_paper(paper, CONFIGS).worlds:
        for options in [(), *world.variants.values()]:
            assert judged(world.config, [*world.options, *options]) == [], world.name


@pytest.mark.parametrize("rounds", [4, 30, 60, 101])
@pytest.mark.parametrize("drift", class_names("population.drift"))
def test_a_study_of_init_judges_beyond_its_drift(drift, rounds, tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(starter(Choice(drift=drift, rounds=rounds)))
    config = load(path, command="tune")
    assert config.drift_rounds()
    assert drift_warnings(config) == []
