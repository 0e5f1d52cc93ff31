"""Which method a running study calls the leader: none before its lead is more than noise."""

import numpy as np
import pytest

from flstudy.config import Objective
from flstudy.study import StudyFolder, load_study
from flstudy.tuning.leader import Lead

from ..reporting.conftest import make_study, make_trial

NOISE = np.array([0.02, -0.01, 0.0, -0.02, 0.01])
CASES = {
    "ahead": ({"A": 0.9 + NOISE, "B": 0.8 + NOISE[::-1]}, "A leads on valid/accuracy by more than noise"),
    "noise": ({"A": 0.9 + NOISE, "B": 0.9 + NOISE[::-1] - 0.001}, "no method leads by more than noise: A is beside B"),
    "ahead of one": (
        {"A": 0.9 + NOISE, "B": 0.8 + NOISE[::-1], "C": 0.9 + NOISE[::-1] - 0.001},
        "no method leads by more than noise: A is beside C",
    ),
    "many": (
        {name: 0.9 + np.roll(NOISE, place) for place, name in enumerate("ABCDE")},
        "no method leads by more than noise: A is beside B, C, D and 1 more",
    ),
    "two seeds": ({"A": [0.9, 0.9], "B": [0.1, 0.1]}, "too few seeds to tell which method leads on valid/accuracy"),
    "alone": ({"A": 0.9 + NOISE}, ""),
}


@pytest.mark.parametrize(("values", "sentence"), CASES.values(), ids=list(CASES))
def test_a_method_leads_only_by_more_than_noise(tmp_path, values, sentence):
    trials = [make_trial(str(n), name, float(np.mean(ends))) for n, (name, ends) in enumerate(values.items())]
    curves = {
        str(n): {"valid/accuracy": np.repeat(np.array(ends)[:, None], 10, 1)} for n, ends in enumerate(values.values())
    }
    seeds = range(len(values["A"]))
    folder = make_study(tmp_path / "s", trials, curves=curves, seeds=seeds)
    assert Lead(StudyFolder(folder), Objective()).sentence(load_study(folder).best) == sentence


def test_a_method_whose_records_are_elsewhere_is_left_out(tmp_path):
    folder = make_study(tmp_path / "s", [make_trial("0", "A", 0.9), make_trial("1", "B", 0.8)])
    assert Lead(StudyFolder(folder), Objective()).sentence(load_study(folder).best) == ""
