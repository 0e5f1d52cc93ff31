"""Dynamic regret beside the rate of its bound: min(√(L T), Δ^⅓ T^⅔ + √T), Master-FL's eq. (38)."""

import numpy as np
import pytest

from flstudy.reproduction.figures import regret_figure, regret_rate
from flstudy.reproduction.values import variant_speakers
from flstudy.study import load_study

from ..reporting.conftest import make_study, make_trial

ROUNDS = 10


@pytest.mark.parametrize(
    ("changes", "variation", "rate"),
    [(0, 0.0, 10**0.5), (1, 0.5, 10**0.5), (9, 0.001, 0.009 ** (1 / 3) * 10 ** (2 / 3) + 10**0.5)],
    ids=["no change", "one", "many small ones"],
)
def test_the_rate_is_that_of_the_theorem(tmp_path, changes, variation, rate):
    moved = [0.0] * (ROUNDS - changes) + [variation] * changes
    curves = {
        "test/accuracy": [[0.5] * ROUNDS] * 2,
        "regret/dynamic": [np.arange(1.0, ROUNDS + 1).tolist()] * 2,
        "world/variation": [moved] * 2,
        "world/drift": [np.cumsum(moved).tolist()] * 2,
    }
    study = make_study(tmp_path / "study", [make_trial("0", "FedAvg", 0.5)], curves={"0": curves})
    rows = variant_speakers({"FedAvg, T 10": load_study(study)})
    assert regret_rate(rows["FedAvg, T 10"]) == pytest.approx([rate] * 2)
    (points,) = regret_figure(rows).axes[0].collections
    assert points.get_label() == "FedAvg"
    assert points.get_offsets().tolist() == [pytest.approx([rate, ROUNDS])]
    assert regret_figure({}) is None
