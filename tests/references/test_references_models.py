"""Self-checks of the methods with several models: who chooses what, who drifts, where models go, what merges."""

import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from . import fedavg, feddrift, feddrifteager, fedyogi, hypcluster, local, localonly, oracle, problem
from .cases import CLASSES, LOCAL, SIZE, play


def shifted(device, by=1):
    """The device with other names for its labels."""
    other = {**device}
    for name in ("valid", "train"):
        other[name] = (device[name][0], (device[name][1] + by) % CLASSES)
    other["batches"] = [[(x, (y + by) % CLASSES) for x, y in epoch] for epoch in device["batches"]]
    return other


def labelled(cohort, x0, by=0):
    """The devices with the labels that x0 gives their inputs, so that its error is 0 (or 1 with other names)."""
    named = []
    for device in cohort:
        inputs = device["train"][0]
        y = (problem.log_softmax(x0, inputs, CLASSES).argmax(axis=1) + by) % CLASSES
        named.append({**device, "train": (inputs, y)})
    return named


def test_hypcluster_trains_what_fits_best_and_leaves_the_rest(rng, cohort):
    models = rng.normal(size=(3, SIZE))
    before = [[problem.example_losses(m, *device["train"], CLASSES).mean() for m in models] for device in cohort]
    state = play(hypcluster, models, cohort, {"models": 3}, rounds=1)
    assert state["chosen"] == {k: int(np.argmin(line)) for k, line in enumerate(before)}
    for i in range(3):
        mine = [device for device in cohort if state["chosen"][device["client"]] == i]
        expected = play(fedavg, models[i], mine, {}, rounds=1)["x"] if mine else models[i]
        np.testing.assert_array_equal(state["x"][i], expected)
    assert len(set(state["chosen"].values())) < 3  # somebody's model stayed


def test_hypcluster_from_equal_models_never_parts(x0, cohort):
    state = play(hypcluster, np.tile(x0, (2, 1)), cohort, {"models": 2}, rounds=1)
    assert set(state["chosen"].values()) == {0}  # ties go to the lowest number


def test_a_drift_is_a_rise_beyond_delta_since_the_last_look(x0, cohort):
    still = {**LOCAL, "lr": 1e-300, "delta": 0.5}  # nobody moves: the error of a device is 0 or 1 by its labels
    right, wrong = labelled(cohort, x0), labelled(cohort, x0, by=1)
    state = feddrifteager.round(feddrifteager.init(x0, still), wrong, still)
    assert not state["opened"]  # nothing to compare with at the first look
    assert state["rows"] == {0: (1.0,), 1: (1.0,), 2: (1.0,)}
    state = feddrifteager.round(state, right, still)
    assert not state["opened"]  # a fall
    assert state["rows"] == {0: (0.0,), 1: (0.0,), 2: (0.0,)}
    exactly = feddrifteager.round(state, [right[0], *wrong[1:]], {**still, "delta": 1.0})
    assert not exactly["opened"]  # a rise of 1 is not above 1
    state = feddrifteager.round(state, [right[0], *wrong[1:]], still)
    assert state["opened"] == [1]
    assert state["chosen"] == {0: 0, 1: 1, 2: 1}  # one new model for both
    assert state["rows"] == {0: (0.0,), 1: (1.0,), 2: (1.0,)}  # remembered by those who drifted too
    np.testing.assert_array_equal(state["x"][1], state["x"][0])
    state = feddrifteager.round(state, [right[0], *wrong[1:]], still)
    assert not state["opened"]
    assert state["chosen"] == {0: 0, 1: 0, 2: 0}  # equals: the lowest number


def test_nobody_looks_between_two_looks(x0, cohort):
    still = {**LOCAL, "lr": 1e-300, "delta": 0.5, "every": 3}
    right, wrong = labelled(cohort, x0), labelled(cohort, x0, by=1)
    state, opened = feddrifteager.init(x0, still), []
    for now in (right, wrong, wrong, wrong, right, wrong, right, right, wrong, wrong):
        state = feddrifteager.round(state, now, still)
        opened.append(bool(state["opened"]))
        assert state["rows"][0][0] == [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0][len(opened) - 1]
    assert [i + 1 for i, new in enumerate(opened) if new] == [4, 10]


@pytest.mark.parametrize(
    ("used", "stars", "taken", "owner", "until", "where"),
    [
        ([5, -1, 5, -1], {0}, set(), [-1] * 4, [0] * 4, 1),  # free places first, the lowest
        ([5, -1, 5, -1], {0}, {1}, [-1] * 4, [0] * 4, 3),
        ([5, 3, 4, 3], {0}, set(), [-1] * 4, [0] * 4, 1),  # then the least recently used, the lowest of equals
        ([5, 3, 4, 3], {1, 3}, set(), [-1] * 4, [0] * 4, 2),  # nobody's m*
        ([5, 3, 4, 3], {0}, set(), [-1, 7, -1, 7], [0, 6, 0, 7], 1),  # of round 6: place 3 is still 7's alone
        ([5, 3, 4, 3], {0, 2}, set(), [-1, 7, -1, 8], [0, 7, 0, 7], None),
        ([5], {0}, set(), [-1], [0], None),
    ],
)
def test_where_a_new_model_goes(used, stars, taken, owner, until, where):
    state = {"used": np.array(used), "owner": np.array(owner), "until": np.array(until)}
    assert feddrifteager.place(state, stars, taken, 6, {"models": len(used)}) == where


def test_a_new_model_copies_the_best_of_the_first_or_is_a_draw(rng, x0, cohort):
    hyper = {**feddrifteager.OWN, "models": 3}
    state = feddrifteager.init(rng.normal(size=(3, SIZE)), hyper)
    copied = feddrifteager.opened(state, 2, 0, hyper)
    np.testing.assert_array_equal(copied["x"][2], state["x"][0])
    state["x"][2] = 0.0  # a place that was used before
    drawn = feddrifteager.opened(state, 2, 0, {**hyper, "new_model": "random"})
    np.testing.assert_array_equal(drawn["x"][2], state["draws"][2])
    assert not np.allclose(drawn["x"][2], drawn["x"][0])


def test_isolation_and_what_follows(x0, cohort):
    still = {**LOCAL, "lr": 1e-300, "delta": 0.5, "every": 1, "isolation": 2, "merge_delta": 0.0}
    right, wrong = labelled(cohort, x0), labelled(cohort, x0, by=1)
    state = feddrift.round(feddrift.init(x0, still), right, still)
    state = feddrift.round(state, [right[0], *wrong[1:]], still)
    assert state["opened"] == [1, 2]  # one for each, in the order of the devices
    assert state["chosen"] == {0: 0, 1: 1, 2: 2}
    state = feddrift.round(state, right, still)  # still alone, though all models are equal
    assert (state["chosen"], state["merged"]) == ({0: 0, 1: 1, 2: 2}, [])
    assert state["rows"] == {0: (0.0,), 1: (1.0,), 2: (1.0,)}  # who trains alone does not look
    assert state["count"].tolist()[:3] == [5, 2, 2]
    state = feddrift.round(state, right, still)  # everybody's now; equals: the lowest
    assert (state["chosen"], state["merged"]) == ({0: 0, 1: 0, 2: 0}, [])


def test_distances_by_hand():
    surveyed = {3: {0: 0.25, 1: 0.5, 4: 0.0}, 5: {0: 0.75, 1: 0.125, 4: 0.0}, 8: {0: 0.25, 1: 1.0, 4: 0.0}}
    d = feddrift.distances(surveyed, {3: 0, 5: 1, 8: 0}, [0, 1])
    # L_00 = .25, L_11 = .125, L_01 = .75, L_10 = (.5 + 1) / 2
    assert d[0, 1] == d[1, 0] == max(0.75 - 0.25, 0.75 - 0.125)
    assert d[0, 0] == 0.0
    better = feddrift.distances({3: {0: 0.5, 1: 0.25}, 5: {0: 0.5, 1: 0.5}}, {3: 0, 5: 1}, [0, 1])
    assert better[0, 1] == 0.0  # not below


@pytest.mark.parametrize("limit", [0.05, 0.2, 0.4, 0.6, 2.0])
def test_clusters_are_scipy_s_complete_linkage(rng, limit):
    sizes = set()
    for _ in range(20):
        upper = np.triu(rng.uniform(size=(6, 6)), 1)
        d = upper + upper.T
        groups = feddrift.clusters(d, list(range(6)), limit)
        twin = fcluster(linkage(squareform(d), "complete"), limit, "distance")
        theirs = {tuple(np.flatnonzero(twin == label)) for label in twin}
        assert {tuple(sorted(group)) for group in groups} == theirs
        sizes.add(len(groups))
    assert sizes == {1} if limit == 2.0 else len(sizes) > 1


def test_of_equal_distances_the_lowest_numbers_join():
    d = {(i, j): 0.0 if i == j else 0.5 for i in (1, 4, 6) for j in (1, 4, 6)}
    d[4, 6] = d[6, 4] = 0.9
    assert feddrift.clusters(d, [1, 4, 6], 0.5) == [[1, 4], [6]]


def test_merging_weighs_by_device_rounds(rng):
    state = feddrift.init(rng.normal(size=SIZE), {"models": 4})
    state["x"][:] = rng.normal(size=(4, SIZE))
    state |= {"used": np.array([4, 7, 7, 6]), "count": np.array([9, 3, 0, 5])}
    after, chosen = feddrift.merge(state, [[0], [1, 3, 2]], {10: 0, 11: 3, 12: 2, 13: 1})
    np.testing.assert_allclose(after["x"][1], (3 * state["x"][1] + state["x"][2] + 5 * state["x"][3]) / 9, rtol=1e-13)
    np.testing.assert_array_equal(after["x"][0], state["x"][0])
    assert after["used"].tolist() == [4, 7, -1, -1]
    assert after["count"].tolist() == [9, 8, 0, 0]
    assert chosen == {10: 0, 11: 1, 12: 1, 13: 1}


def both(device, concept=0):
    """A device that knows its labels under two concepts."""
    under = [device, shifted(device)]
    return {**under[concept], "under": under, "concept": concept}


def test_the_oracle_of_the_present_trains_what_somebody_lives_under(x0, cohort):
    hyper = {**LOCAL, "server_lr": 0.1, "ahead": False}
    state = oracle.round(oracle.init(x0, hyper), [both(device) for device in cohort], hyper)
    np.testing.assert_array_equal(state["x"][1], x0)
    assert state["t"].tolist() == [1, 0]
    mixed = oracle.round(state, [both(cohort[0]), both(cohort[1], 1), both(cohort[2], 1)], hyper)
    expected = play(fedyogi, x0, [shifted(device) for device in cohort[1:]], {"server_lr": 0.1}, rounds=1)
    np.testing.assert_array_equal(mixed["x"][1], expected["x"])
    assert mixed["t"].tolist() == [2, 1]


def test_alone_is_sgd_that_goes_on(x0, cohort):
    state = play(localonly, x0, cohort, {}, rounds=2)
    for device in cohort:
        twice = {**device, "batches": device["batches"] * 2}
        np.testing.assert_array_equal(
            state["rows"][device["client"]][0], local.train(x0, twice, local.settings(LOCAL)).y
        )
    np.testing.assert_array_equal(state["x"], x0)


def test_rounds_do_not_change_the_state_they_are_given(rng, x0, cohort):
    lively = {"models": 3, "delta": 0.0, "every": 1}
    for method, more in (
        (hypcluster, {"models": 3}),
        (feddrifteager, lively),
        (feddrift, {**lively, "isolation": 1, "merge_delta": np.inf}),
        (oracle, {}),
        (localonly, {}),
    ):
        hyper = {**LOCAL, **more}
        start = rng.normal(size=(3, SIZE)) if method is hypcluster else x0
        state = method.init(start, hyper)
        for number in range(4):
            devices = [both(device, number % 2) for device in cohort]
            copies = {name: np.copy(value) for name, value in state.items() if isinstance(value, np.ndarray)}
            rows = {client: tuple(map(np.copy, row)) for client, row in state.get("rows", {}).items()}
            after = method.round(state, devices, hyper)
            assert all(np.array_equal(state[name], value) for name, value in copies.items())
            for client, row in rows.items():
                assert all(np.array_equal(a, b) for a, b in zip(row, state["rows"][client], strict=True))
            state = after
        assert np.max(state["t"]) == 4
