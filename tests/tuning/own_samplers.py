"""Samplers of a user's own: one that remembers in its own memory, one that learns from what was told."""

import random

from optuna.samplers import BaseSampler
from optuna.trial import TrialState


class Alone(BaseSampler):
    """What both have in common: keys are drawn one by one."""

    def infer_relative_search_space(self, study, trial):
        return {}

    def sample_relative(self, study, trial, search_space):
        return {}


class Counting(Alone):
    """Every draw depends on how many there were, and on how many trials it heard the end of."""

    def __init__(self, seed=0):
        self.draws, self.ends, self.seed = 0, 0, seed

    def sample_independent(self, study, trial, name, distribution):
        self.draws += 1
        share = (0.37 * self.draws + 0.11 * self.ends + 0.01 * self.seed) % 1.0
        if hasattr(distribution, "choices"):
            return distribution.choices[int(share * len(distribution.choices))]
        return distribution.low + share * (distribution.high - distribution.low)

    def after_trial(self, study, trial, state, values):
        self.ends += state is not TrialState.FAIL


class Climbing(Alone):
    """Draws beside the best trial, with a generator of its own; it knows running trials, too."""

    def __init__(self, seed=0):
        self.rng = random.Random(seed)

    def sample_independent(self, study, trial, name, distribution):
        if hasattr(distribution, "choices"):
            return self.rng.choice(distribution.choices)
        share = self.rng.random() ** (1 + sum(t.state is TrialState.RUNNING for t in study.get_trials(deepcopy=False)))
        ended = [t for t in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)) if name in t.params]
        centre = max(ended, key=lambda t: t.values[0]).params[name] if ended else distribution.high
        return centre + share * (distribution.low - centre)
