"""What settings and methods are refused, and in which words."""

import pytest

from flstudy.algorithms import Continuous, FedAvg, HypCluster, Mime, Oracle
from flstudy.privacy import AdaptiveClip, Privacy

from ..worlds import shipped, taken

WRONG = [
    ({"noise": 1.0}, r"noise = 1\.0 needs a bound of what one device can do, got clip = null: set clip"),
    ({"solve": True, "target_epsilon": 1.0}, r"solve needs a bound"),
    ({"adaptive_clip": AdaptiveClip()}, r"adaptive_clip needs a bound"),
    ({"clip": 0.0}, r"clip must lie in \(0, 1e12\], got 0\.0"),
    ({"clip": 1.0, "noise": -1.0}, r"noise must lie in \[0, 1e12\], got -1\.0"),
    ({"delta": 1.0}, r"delta must lie in \(0, 1\), got 1\.0"),
    ({"sampling": "some"}, r"sampling must be one of fixed, poisson, got 'some'"),
    ({"clip": 1.0, "noise": 1.0, "accountant": "pld"}, r"pld knows poisson sampling only, got fixed"),
    ({"clip": 1.0, "noise": 1.0, "orders": [1.0, 2.0]}, r"orders must be numbers > 1"),
    ({"clip": 1.0, "solve": True}, r"solve needs target_epsilon"),
    ({"clip": 1.0, "noise": 1.0, "solve": True, "target_epsilon": 1.0}, r"chooses noise itself, .* noise = 1\.0"),
    ({"clip": 1.0, "target_epsilon": 1.0}, r"target_epsilon = 1\.0 is out of reach without noise"),
]


@pytest.mark.parametrize(("settings", "message"), WRONG)
def test_wrong_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        Privacy(**settings)
    with pytest.raises(ValueError, match=r"AdaptiveClip: quantile must lie in \(0, 1\), got 1\.0"):
        AdaptiveClip(quantile=1.0)


REFUSED = [
    (Mime(), r"devices of Mime answer a survey \(gradient\)"),
    (HypCluster(), r"devices of HypCluster answer a survey \(loss\)"),
    (Oracle(), r"server of Oracle needs to know single devices' concepts"),
    (Continuous(distillation="glfc_rd", classes=4), r"server of Continuous needs to know single devices' uploads"),
    (FedAvg(), r"algorithm\.weighting must be uniform, .* got 'examples'"),
]


@pytest.mark.parametrize(("algorithm", "message"), REFUSED)
def test_methods_that_tell_more_than_a_mean_are_refused_where_there_is_noise(algorithm, message):
    with pytest.raises(ValueError, match=message):
        Privacy(clip=1.0, noise=1.0).admits(algorithm)
    Privacy(clip=1.0).admits(algorithm)
    Privacy().admits(algorithm)


def test_most_methods_are_admitted():
    private, names = Privacy(clip=1.0, noise=1.0), set()
    for name, method in shipped().items():
        algorithm = method(**taken(method, {"weighting": "uniform"}))
        if algorithm.asks is None and not algorithm.oracle and not algorithm.reads_each:
            private.admits(algorithm)
            names.add(name)
    assert {"FedAvg", "FedAda2", "Scaffold", "FedDyn", "FedDC", "FedNova", "Flash", "Ditto", "Continuous"} <= names
    assert not {"Mime", "MimeLite", "HypCluster", "FedDrift", "FedDriftEager", "Oracle"} & names
