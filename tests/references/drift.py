"""Concept drift as in FLASH (Panchal et al. 2023), section 5.1, and its two drift measures.

Rounds count from 1; a drift at round s means that round s is the first to see the new concept.
`concepts` are 0 (old) and 1 (new); the new concept is the old one with labels swapped in pairs.
"""

import numpy as np


def swap_table(classes):
    """table[y] of the new concept: i <-> i + 1 for i = 0, 2, ...; the last label of an odd count stays."""
    table = np.arange(classes)
    for i in range(0, classes - 1, 2):
        table[i], table[i + 1] = i + 1, i
    return table


def relabel(y, concepts, classes):
    """Labels under each example's (or device's, by broadcasting) concept: a lookup table[concept, y]."""
    return np.stack([np.arange(classes), swap_table(classes)])[concepts, y]


def sudden(r, start, devices):
    """(1) All devices change at the same round."""
    return np.full(devices, int(r >= start))


def incremental(r, start, ranks, every=100, share=0.2):
    """(2) From `start` on, `share` more of the devices change every `every` rounds, the first group at `start`.

    `ranks` [N] is the order in which devices change: a permutation of 0..N-1. The number that has changed is
    share * N * groups, rounded half up, where groups = floor((r - start) / every) + 1.
    """
    groups = (r - start) // every + 1 if r >= start else 0
    changed = np.floor(min(1.0, share * groups) * len(ranks) + 0.5 + 1e-9)
    return (np.asarray(ranks) < changed).astype(int)


def recurrent(r, start, back, devices):
    """(3) All devices change at `start`, and return to the first concept at `back`."""
    return np.full(devices, int(start <= r < back))


def dip(rounds, accuracy, first, last):
    """Eq. (4): dip(r1, r2) = min {acc_g(r) : r in [r1, r2]}, over the rounds that were evaluated."""
    rounds = np.asarray(rounds)
    return float(np.asarray(accuracy)[(rounds >= first) & (rounds <= last)].min())


def trailing_mean(a, window):
    """Mean of the last `window` values up to each one; of fewer at the beginning."""
    return np.array([np.mean(a[max(0, i - window + 1) : i + 1]) for i in range(len(a))])


def recovery(rounds, accuracy, drift, until=None, window=1, tolerance=0.01, steady=1):
    """'Rounds till Recovery ... to reach a steady state after a concept drift', which the paper leaves unquantified.

    Here: min {back, settled}, over the evaluations with drift <= round < until (the next drift; None: the end):
        back     = min {r : s(q) >= b - tolerance for every q >= r} - drift
        settled  = min {r : |s(q) - l| <= tolerance for every q >= r} - drift
    s(r): mean of the last `window` of them up to r; b: mean of the last `steady` evaluations before the drift; l: mean
    of the last `steady` before `until`, from none of which but the first it can be settled. None where neither comes.
    """
    before = [a for r, a in zip(rounds, accuracy, strict=True) if r < drift]
    after = [(r, a) for r, a in zip(rounds, accuracy, strict=True) if r >= drift and (until is None or r < until)]
    smooth = trailing_mean([a for _, a in after], window)

    def first(good, candidates):
        begun = [i for i in candidates if all(map(good, smooth[i:]))]
        return [after[i][0] - drift for i in begun[:1]]

    b, last = before[-steady:], [a for _, a in after[-steady:]]
    back = first(lambda s: s >= np.mean(b) - tolerance - 1e-12, range(len(after))) if b else []
    near = range(len(after) - steady + 1) if len(last) == steady else []
    return min([*back, *first(lambda s: abs(s - np.mean(last)) <= tolerance + 1e-12, near)], default=None)
