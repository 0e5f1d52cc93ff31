"""Differences by seed: as scipy computes them, with Holm's adjustment, and with the caution that few seeds ask for."""

import numpy as np
import pytest
from scipy import stats

from flstudy.reporting.ranking import Findings
from flstudy.reporting.sections.comparison import compare, compare_study, comparison_cells, holm
from flstudy.reporting.sections.standings import compare_studies, standing_cells
from flstudy.study import load_study


def seeds(values):
    return dict(enumerate(values))


def test_a_pair_is_the_paired_t_test():
    rng = np.random.default_rng(3)
    world = rng.normal(0.8, 0.05, 6)  # what a seed does to all
    a, b = world + rng.normal(0.01, 0.01, 6), world + rng.normal(0, 0.01, 6)
    (pair,) = compare({"a": seeds(a), "b": seeds(b)}, higher=a.mean() > b.mean())
    assert (pair.first, pair.second, pair.seeds) == ("a", "b", 6)
    difference = a - b
    error = difference.std(ddof=1) / np.sqrt(6)
    t = difference.mean() / error
    assert pair.difference == pytest.approx(difference.mean())
    assert pair.p == pytest.approx(2 * stats.t.sf(abs(t), 5))
    half = stats.t.ppf(0.975, 5) * error
    assert (pair.low, pair.high) == pytest.approx((difference.mean() - half, difference.mean() + half))
    # The seeds' own scatter is five times the algorithms': unpaired it would drown the difference.
    assert pair.p < stats.ttest_ind(a, b).pvalue


def test_holm_by_hand():
    # Holm (1979): the smallest times 4, the next times 3, ...; never less than the one before, at most 1.
    np.testing.assert_allclose(holm(np.array([0.01, 0.04, 0.03, 0.005])), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(holm(np.array([0.6, 0.5])), [1.0, 1.0])
    np.testing.assert_allclose(holm(np.array([np.nan, 0.02])), [np.nan, 0.02])  # one that cannot be told counts not
    assert holm(np.array([])).size == 0


def test_only_an_adjusted_p_says_different():
    noise = np.random.default_rng(7).normal(0, 1, (4, 8))
    values = {name: seeds(noise[i]) for i, name in enumerate("abcd")}
    values["a"] = seeds(noise[0] + 10)
    pairs = compare(values, higher=True)
    assert len(pairs) == 6
    assert {pair.first for pair in pairs if pair.verdict == "different"} == {"a"}
    assert sum(pair.p < 0.05 for pair in pairs) == 4  # one of them by chance
    np.testing.assert_allclose([pair.adjusted for pair in pairs], holm(np.array([pair.p for pair in pairs])))
    assert all((pair.verdict == "different") == (pair.adjusted < 0.05) for pair in pairs)


def test_fewer_than_three_seeds_cannot_tell():
    (pair,) = compare({"a": seeds([0.9, 0.91]), "b": seeds([0.1, 0.11])}, higher=True)
    assert pair.verdict == "cannot tell"
    assert pair.difference == pytest.approx(0.8)
    assert np.isnan([pair.p, pair.low, pair.high, pair.adjusted]).all()
    (pair,) = compare({"a": {0: 0.9, 1: 0.8}, "b": {7: 0.1, 8: 0.2}}, higher=True)
    assert (pair.verdict, pair.seeds) == ("cannot tell", 0)


def test_only_seeds_with_two_finite_values_count():
    a, b = {0: 0.5, 1: 0.6, 2: 0.7, 3: np.nan, 5: 0.9}, {0: 0.4, 1: 0.45, 2: 0.65, 3: 0.1, 4: 0.3}
    (pair,) = compare({"a": a, "b": b}, higher=True)
    assert pair.seeds == 3
    assert pair.p == pytest.approx(stats.ttest_rel([0.5, 0.6, 0.7], [0.4, 0.45, 0.65]).pvalue)


def test_equal_and_shifted_values_have_an_answer():
    (pair,) = compare({"a": seeds([0.5, 0.6, 0.7]), "b": seeds([0.5, 0.6, 0.7])}, higher=True)
    assert (pair.verdict, pair.p, pair.difference) == ("not shown", 1.0, 0.0)
    (pair,) = compare({"a": seeds([1.0, 2.0, 3.0]), "b": seeds([0.0, 1.0, 2.0])}, higher=True)
    assert (pair.verdict, pair.difference) == ("different", 1.0)


def test_a_lower_loss_comes_first():
    (pair,) = compare({"a": seeds([3, 4, 5.1]), "b": seeds([1, 2, 3])}, higher=False)
    assert (pair.first, pair.second) == ("b", "a")
    assert pair.difference < 0


def test_a_study_is_compared_on_test_figures_of_the_new_seeds(searched):
    study = Findings(results=load_study(searched))
    comparison = compare_study(study)
    assert comparison.metric == "test/accuracy"
    assert list(comparison.values) == ["Flash", "FedYogi", "FedAvg"]
    assert list(comparison.values["Flash"]) == [101, 102, 103, 104, 105]
    flash, yogi = (np.array(list(comparison.values[name].values())) for name in ("Flash", "FedYogi"))
    np.testing.assert_allclose(flash, study.ranking.rows[0].final)
    assert comparison.pairs[0].p == pytest.approx(stats.ttest_rel(flash, yogi).pvalue)
    assert [pair.verdict for pair in comparison.pairs] == ["different"] * 3  # four points apart, noise of half a point
    assert comparison.notes == ()
    cells = comparison_cells(comparison)
    assert cells.rows[0][0] == "Flash - FedYogi"
    assert cells.rows[0][-1] == "different: Flash is better"
    assert len(comparison_cells(comparison, 2).rows) == 2  # with the leader only


def test_without_confirmation_the_comparison_says_what_it_is_worth(drifting):
    comparison = compare_study(Findings(results=load_study(drifting)))
    assert [pair.verdict for pair in comparison.pairs] == ["cannot tell"]  # two seeds
    assert any("Compared on the seeds of the search, which chose these trials" in note for note in comparison.notes)
    assert any("fewer than 3 seeds" in note for note in comparison.notes)


def test_different_numbers_of_confirmations_are_told(tmp_path, write_study, confirmed):
    trials = confirmed([0.9, 0.8, 0.7], [0.8, 0.7, 0.6])
    curves = {name: np.full((5, 10), 0.5) for name in "345"}
    study = Findings(results=load_study(write_study(tmp_path / "s", trials, curves=curves)))
    (note,) = compare_study(study).notes
    assert note.startswith("Different numbers of trials were confirmed (A 2, B 1)")


def test_an_algorithm_without_records_is_left_out_with_a_note(tmp_path, write_study, trial):
    trials = [trial("0", "A", 0.9), trial("1", "B", 0.8)]
    study = Findings(results=load_study(write_study(tmp_path / "s", trials, curves={"1": [[0.5] * 10] * 2})))
    comparison = compare_study(study)
    assert list(comparison.values) == ["B"]
    assert comparison.pairs == ()
    assert comparison.notes[0] == "A: trial 0 has no test/accuracy in its records, so it is not compared."


def world(tmp_path, write_study, trial, name, levels, **config):
    """A study in which every algorithm has one trial, of five seeds around its level."""
    trials = [trial(str(i), algorithm, level) for i, (algorithm, level) in enumerate(levels.items())]
    offsets = np.array([-0.02, -0.01, 0.0, 0.01, 0.02])
    noise = np.random.default_rng(len(name)).normal(0, 0.001, (len(levels), 5))
    curves = {
        str(i): {"test/accuracy": np.repeat((level + offsets + noise[i])[:, None], 10, 1)}
        for i, level in enumerate(levels.values())
    }
    folder = write_study(tmp_path / name, trials, curves=curves, seeds=range(5), **config)
    return Findings(results=load_study(folder))


def test_ranks_over_worlds_and_friedman(tmp_path, write_study, trial):
    levels = [
        {"A": 0.9, "B": 0.8, "C": 0.7},
        {"A": 0.6, "B": 0.5, "C": 0.55},
        {"A": 0.4, "B": 0.45, "C": 0.3},
        {"A": 0.8, "B": 0.7, "C": 0.6, "D": 0.9},
    ]
    studies = [world(tmp_path, write_study, trial, f"w{i}", world_levels) for i, world_levels in enumerate(levels)]
    standings = compare_studies(studies)
    assert standings.metric == "test/accuracy"
    rows = [
        (standing.algorithm, standing.mean_rank, standing.wins, standing.worlds) for standing in standings.standings
    ]
    assert rows == [("A", 1.25, 3, 4), ("B", 2.0, 1, 4), ("C", 2.75, 0, 4)]
    means = [[comparison.mean(name) for comparison in standings.comparisons] for name in "ABC"]
    expected = stats.friedmanchisquare(*means)
    assert standings.friedman == pytest.approx((expected.statistic, expected.pvalue))
    # by hand: 12/(n k (k+1)) Σ R² - 3 n (k+1) with rank sums 5, 8, 11 of n = 4 worlds and k = 3
    assert standings.friedman[0] == pytest.approx(12 / (4 * 3 * 4) * (25 + 64 + 121) - 3 * 4 * 4)
    assert standings.notes == ("Without a result in every study, and so without a rank: D.",)
    cells = standing_cells(standings)
    assert cells.header == ("Algorithm", "Mean\nrank", "Wins", "w0", "w1", "w2", "w3")
    assert cells.rows[0][:3] == ("A", "1.25", "3 of 4")
    assert (0, 3) in cells.best
    assert (1, 5) in cells.best  # B won the third


def test_two_worlds_have_ranks_and_no_test(tmp_path, write_study, trial):
    studies = [world(tmp_path, write_study, trial, name, {"A": 0.9, "B": 0.8}) for name in ("one", "two")]
    standings = compare_studies(studies)
    assert [standing.wins for standing in standings.standings] == [2, 0]
    assert standings.friedman is None
    assert standings.notes == (
        "Friedman's test needs at least 3 studies and 3 algorithms that all of them have; here are 2 and 2.",
    )


def test_studies_of_different_objectives_are_refused(tmp_path, write_study, trial):
    by_accuracy = world(tmp_path, write_study, trial, "one", {"A": 0.9})
    by_loss = world(
        tmp_path, write_study, trial, "two", {"A": 0.9}, study={"objective": {"metric": "valid/loss", "mode": "min"}}
    )
    with pytest.raises(
        ValueError,
        match=r"^studies in one report must have the same objective, got valid/accuracy \(max\) in one and "
        r"valid/loss \(min\) in two: report them one by one$",
    ):
        compare_studies([by_accuracy, by_loss])
