"""What a trial reserves, and how many of them fit where."""

import pytest

from flstudy.config import ConfigError
from flstudy.config.sections import Resources
from flstudy.tuning.resources import check_fit, check_local, ray_bundle, refuse_none, trials_that_fit

SMALL = {"CPU": 4.0, "memory": 8e9}
LARGE = {"CPU": 16.0, "GPU": 2.0, "memory": 64e9, "accelerator_type:T4": 1.0, "big": 1.0}


def test_a_trial_is_one_bundle_of_rays():
    asked = Resources(cpu=2, gpu=0.5, memory=1e9, accelerator_type="T4", custom={"big": 1.0})
    assert ray_bundle(asked) == {"CPU": 2, "GPU": 0.5, "memory": 1e9, "big": 1.0, "accelerator_type:T4": 0.001}
    assert ray_bundle(Resources(cpu=0)) == {"CPU": 0.0}


@pytest.mark.parametrize(
    ("asked", "fits"),
    [
        *[(Resources(cpu=3), 6), (Resources(cpu=0.5), 40), (Resources(cpu=1, gpu=0.25), 8)],
        *[(Resources(memory=5e9), 13), (Resources(accelerator_type="T4"), 16), (Resources(custom={"big": 0.5}), 2)],
        (Resources(cpu=0, custom={"none": 1.0}), 0),
    ],
)
def test_trials_are_counted_node_by_node(asked, fits):
    assert trials_that_fit(asked, [SMALL, LARGE]) == fits


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (Resources(cpu=17), r"study.resources.cpu must lie in \[0, 16\], what a node .* has, got 17: lower it"),
        (Resources(gpu=3), r"study.resources.gpu must lie in \[0, 2\]"),
        (Resources(accelerator_type="A100"), r"accelerator_type must be a kind that a node has \(T4\), got A100"),
        (Resources(custom={"huge": 1.0}), r"study.resources.custom.huge must lie in \[0, 0\]"),
    ],
)
def test_what_no_node_has_is_refused(monkeypatch, asked, sentence):
    monkeypatch.setattr("flstudy.tuning.resources.grows", lambda: False)
    with pytest.raises(ConfigError, match=sentence):
        check_fit(asked, [SMALL, LARGE], pytest.fail)


def test_a_trial_that_reserves_nothing_is_refused():
    with pytest.raises(ConfigError, match=r"study.resources.cpu must be > 0 where a trial reserves nothing else, got"):
        refuse_none(Resources(cpu=0))
    for some in ({"gpu": 0.5}, {"memory": 1e9}, {"custom": {"big": 1.0}}, {"accelerator_type": "T4"}):
        refuse_none(Resources(cpu=0, **some))


def test_what_no_node_has_together_is_refused(monkeypatch):
    monkeypatch.setattr("flstudy.tuning.resources.grows", lambda: False)
    with pytest.raises(ConfigError, match="on one node together, and none has CPU 8, small 1"):
        check_fit(Resources(cpu=8, custom={"small": 1.0}), [SMALL | {"small": 1.0}, LARGE], pytest.fail)


def test_a_cluster_that_grows_is_waited_for(monkeypatch):
    monkeypatch.setattr("flstudy.tuning.resources.grows", lambda: True)
    messages = []
    check_fit(Resources(cpu=32), [SMALL], messages.append)
    assert messages == [
        "study.resources.cpu must lie in [0, 4], what a node of this machine or cluster has, got 32: "
        "trials wait until the cluster has grown by such a node"
    ]


def test_this_machine_is_asked_before_ray_starts():
    check_local(Resources(cpu=1, memory=1e9), gpus=0)
    check_local(Resources(gpu=1, accelerator_type="T4"), gpus=1)  # which kind it is, Ray says later
    for asked in (
        Resources(gpu=1),
        Resources(cpu=1e5),
        Resources(custom={"big": 1.0}),
        Resources(accelerator_type="T4"),
    ):
        with pytest.raises(ConfigError):
            check_local(asked, gpus=0)
