"""How often a report calls two algorithms different that are not: thousands of simulated studies.

Every configuration of both algorithms has the same true quality. A trial's value is that quality, plus what its seeds'
worlds do to everybody, plus its own noise; the search keeps the best mean of each algorithm on validation, and the
comparison looks at the test score of the chosen ones. More draws of noise make a better best: without new seeds the
algorithm with the larger search wins by luck.
"""

import numpy as np
import pytest

from flstudy.reporting.sections.comparison import compare
from flstudy.study import Status, StudyFolder, StudyResults, Trial

STUDIES, SEEDS, NEW = 800, 3, 5
LEVEL = 0.05
CONFIG = {"rounds": 1, "seeds": list(range(SEEDS)), "study": {"objective": {"metric": "valid/accuracy", "mode": "max"}}}


def simulate(rng, trials, better=0.0, confirm=0):
    """Seed by seed the test scores of the chosen trials of one study. ``trials``: of each algorithm; ``better``: true
    lead of the first; ``confirm``: trials of each that are trained again."""
    scores: dict[int, dict[int, float]] = {}
    entries = []

    def train(algorithm, seeds, world, **more):
        """Valid and test score of a trial share its noise: the model is the same."""
        noise = rng.normal(0, 0.02, len(seeds))
        valid, test = (world + noise + rng.normal(0, 0.005, len(seeds)) for _ in range(2))
        lead = better if algorithm == "A" else 0.0
        number = len(entries)
        scores[number] = dict(zip(seeds, (0.7 + lead + test).tolist(), strict=True))
        value = float(0.7 + lead + valid.mean())
        entries.append(
            Trial(number=number, algorithm=algorithm, status=Status.FINISHED, rounds=1, objective=value, **more)
        )

    worlds = rng.normal(0, 0.05, SEEDS)
    for algorithm, count in trials.items():
        for _ in range(count):
            train(algorithm, range(SEEDS), worlds)
    if confirm:
        fresh = rng.normal(0, 0.05, NEW)
        for algorithm in trials:
            candidates = [entry for entry in entries if entry.algorithm == algorithm]
            for entry in sorted(candidates, key=lambda entry: -entry.objective)[:confirm]:
                train(algorithm, range(100, 100 + NEW), fresh, stage="confirm", confirms=entry.number)
    results = StudyResults(folder=StudyFolder("simulated"), config=CONFIG, trials=tuple(entries), events=())
    return {best.trial.algorithm: scores[best.reported_trial.number] for best in results.best}


def share_different(trials, studies=STUDIES, seed=0, **more):
    rng = np.random.default_rng(seed)
    verdicts = []
    for _ in range(studies):
        (pair,) = compare(simulate(rng, trials, **more), higher=True)
        verdicts.append((pair.verdict == "different") * (1 if pair.first == "A" else -1))
    return np.array(verdicts)


# With three confirmations of the one and one of the other the better of three wins by a little luck again (6 % of 600
# studies, nearly all in its favour): the comparison says so in a note.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("trials", "confirm"), [({"A": 16, "B": 16}, 1), ({"A": 16, "B": 16}, 3), ({"A": 64, "B": 1}, 1)]
)
def test_confirmed_on_new_seeds_equals_are_rarely_called_different(trials, confirm):
    share = (share_different(trials, confirm=confirm) != 0).mean()
    assert share <= LEVEL + 3 * np.sqrt(LEVEL * (1 - LEVEL) / STUDIES)


@pytest.mark.slow
def test_without_confirmation_the_larger_search_wins_by_luck():
    """A method of 64 trials beside a baseline with its defaults: 15 % instead of 5 %, all in favour of the former."""
    verdicts = share_different({"A": 64, "B": 1})
    assert 0.12 < (verdicts != 0).mean() < 0.20
    assert (verdicts == -1).sum() == 0


@pytest.mark.slow
def test_without_confirmation_equal_searches_are_fair():
    """Both are flattered alike, and the best of many differ less than any two: fewer than 5 %."""
    assert (share_different({"A": 16, "B": 16}) != 0).mean() < LEVEL


@pytest.mark.slow
def test_a_better_algorithm_is_found():
    verdicts = share_different({"A": 16, "B": 16}, studies=300, better=0.08, confirm=1)
    assert (verdicts == 1).mean() > 0.9
    assert (verdicts == -1).sum() == 0
