"""A small federation for the self-checks, and two ways to run a method on it."""

FEATURES, CLASSES = 4, 3
SIZE = FEATURES * CLASSES + CLASSES
LOCAL = {"classes": CLASSES, "lr": 0.3}


def data(rng, n):
    """n examples that carry no signal: the identities hold whatever the data."""
    return rng.normal(size=(n, FEATURES)), rng.integers(0, CLASSES, n)


def make_device(rng, client, n=10, epochs=2, batch=4):
    """A device whose epochs are fresh shuffles of its n examples; the last minibatch may be short."""
    x, y = data(rng, n)
    orders = [rng.permutation(n) for _ in range(epochs)]
    batches = [[(x[o[i : i + batch]], y[o[i : i + batch]]) for i in range(0, n, batch)] for o in orders]
    return {"client": client, "size": n, "batches": batches, "valid": data(rng, 5), "train": (x, y)}


def play(method, x, cohort, hyper, rounds=3):
    """The state after some rounds with the same cohort."""
    state = method.init(x, {**LOCAL, **hyper})
    for _ in range(rounds):
        state = method.round(state, cohort, {**LOCAL, **hyper})
    return state


def steps(method, x, deltas, hyper):
    """The state after server steps with the given mean updates."""
    state = method.init(x, hyper)
    for delta in deltas:
        state = method.step(state, delta, hyper)
    return state
