"""Devices' adaptive optimizers: torch.optim as twins, SM3 between its bounds, delays, warm-up, what costs no state."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flstudy.algorithms import Layout
from flstudy.algorithms.parts.adaptive import adaptive, axis_maxima, axis_minimum, exact, sm3
from flstudy.algorithms.parts.algorithm import rule_memory

from ..references import adaptive as reference
from ..worlds import difference

SHAPES = ((4, 3), (4,), (2, 3, 2), ())
LAYOUT = Layout.of((str(number), torch.empty(shape)) for number, shape in enumerate(SHAPES))
FLAT = Layout.of([("a", torch.empty(LAYOUT.n))])
ACCUMULATORS = {
    "exact": lambda beta2: exact(beta2),
    "SM3-I": lambda beta2: sm3(beta2, "I"),
    "SM3-II": lambda beta2: sm3(beta2, "II"),
}


def gradients(count: int, seed: int = 3) -> torch.Tensor:
    """[count, n] of very different sizes, some coordinates exactly 0."""
    rng = torch.Generator().manual_seed(seed)
    g = torch.randn(count, LAYOUT.n, generator=rng, dtype=torch.float64)
    return g * torch.exp(torch.randn(LAYOUT.n, generator=rng, dtype=torch.float64)) * (g.abs() > 0.1)


def path(rule, grads, layout=LAYOUT, x=None, per_epoch=None):
    """The parameters after every step."""
    x = torch.ones(layout.n, dtype=torch.float64) if x is None else x
    state, seen = rule.init(x, layout), []
    if per_epoch is not None:
        state = state._replace(per_epoch=torch.tensor(float(per_epoch), dtype=x.dtype))
    for g in grads:
        step, state = rule.update(g, state, x)
        x = x - step
        seen.append(x)
    return torch.stack(seen)


def torch_path(optimizer, grads):
    """The same of a ``torch.optim``."""
    w = torch.ones(LAYOUT.n, dtype=torch.float64, requires_grad=True)
    optimizer, seen = optimizer([w]), []
    for g in grads:
        w.grad = g.clone()
        optimizer.step()
        seen.append(w.detach().clone())
    return torch.stack(seen)


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("eps", [1e-10, 1e-3])
def test_adagrad_is_torch_s(decay, eps):
    ours = path(adaptive(0.2, exact(), eps=eps, weight_decay=decay), gradients(30))
    assert difference(ours, torch_path(lambda w: torch.optim.Adagrad(w, lr=0.2, eps=eps, weight_decay=decay),
                                       gradients(30))) <= 1e-12  # fmt: skip


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.9), (0.5, 0.7)])
def test_corrected_adam_is_torch_s(decay, betas):
    rule = adaptive(
        0.2, exact(betas[1]), beta1=betas[0], beta2=betas[1], eps=1e-8, weight_decay=decay, bias_correction=True
    )
    twin = torch_path(lambda w: torch.optim.Adam(w, lr=0.2, betas=betas, eps=1e-8, weight_decay=decay), gradients(30))
    assert difference(path(rule, gradients(30)), twin) <= 1e-12


CHANGES = {
    "plain": {},
    "every third step": {"delay": 3},
    "corrected": {"bias_correction": True},
    "corrected, every third step": {"bias_correction": True, "delay": 3, "weight_decay": 0.1},
    "every second epoch": {"delay": 2, "delay_unit": "epoch"},
    "corrected, every second epoch": {"delay": 2, "delay_unit": "epoch", "bias_correction": True},
    "warm-up": {"warmup": 7},
    "gated": {"eps_s": 2.0},
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("beta2", [None, 0.9])
@pytest.mark.parametrize("kind", ACCUMULATORS)
def test_rules_equal_their_transcriptions(kind, beta2, change):
    beta1, grads = 0.0 if beta2 is None else 0.8, gradients(14)
    options = {"eps": 0.01, "beta1": beta1, "beta2": beta2, **CHANGES[change]}
    ours = path(adaptive(0.2, ACCUMULATORS[kind](beta2), **options), grads, per_epoch=4 if "epoch" in change else None)
    optimizer = reference.Optimizer(
        0.2, reference.cover(SHAPES) if kind != "exact" else None, per_epoch=4, **options, version=kind[4:]
    )
    x = np.ones(LAYOUT.n)
    for k, g in enumerate(grads.numpy(), start=1):
        x = x - optimizer.step(g, x)
        assert difference(ours[k - 1], x) <= 1e-12


def test_the_changes_matter():
    plain = path(adaptive(0.2, sm3(), eps=0.01), gradients(14))
    for change in ("every third step", "every second epoch", "warm-up", "gated"):
        other = path(adaptive(0.2, sm3(), eps=0.01, **CHANGES[change]), gradients(14),
                     per_epoch=4 if "epoch" in change else None)  # fmt: skip
        assert difference(plain, other) > 1e-3, change
    frozen = path(adaptive(0.2, sm3(), eps=0.01, **CHANGES["gated"]), gradients(14))
    assert difference(frozen[-1], frozen[-2]) == 0 < difference(frozen[0], torch.ones_like(frozen[0]))


@pytest.mark.parametrize("kind", ACCUMULATORS)
@pytest.mark.parametrize("unit", ["step", "epoch"])
def test_a_delay_of_one_is_none_and_longer_ones_carry_the_accumulator(kind, unit):
    plain = path(adaptive(0.2, ACCUMULATORS[kind](0.9), beta2=0.9), gradients(9))
    delayed = path(adaptive(0.2, ACCUMULATORS[kind](0.9), beta2=0.9, delay=1, delay_unit=unit), gradients(9))
    assert torch.equal(plain, delayed)
    rule, x = adaptive(0.2, ACCUMULATORS[kind](None), delay=3), torch.zeros(LAYOUT.n, dtype=torch.float64)
    state, held = rule.init(x, LAYOUT), []
    for g in gradients(7):
        state = rule.update(g, state, x)[1]
        held.append(state.moment)
    for skipped, last in ((1, 0), (2, 0), (4, 3), (5, 3)):
        assert difference(held[skipped], held[last]) == 0
    assert difference(held[3], held[0]) > 0.1
    at_updates = ACCUMULATORS[kind](None)
    expected = at_updates.start(x, LAYOUT)
    for g in gradients(7)[::3]:
        expected = at_updates.update(expected, g)[1]
    assert difference(held[-1], expected) == 0


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([None, 0.0, 0.5, 0.99]), st.integers(1, 12),
       st.lists(st.integers(1, 4), min_size=0, max_size=4))  # fmt: skip
def test_sm3_ii_lies_between_the_exact_moment_and_sm3_i(seed, beta2, steps, shape):
    layout = Layout.of([("w", torch.empty(shape)), ("b", torch.empty(3))])
    rng = torch.Generator().manual_seed(seed)
    kinds = {kind: make(beta2) for kind, make in ACCUMULATORS.items()}
    zeros = torch.zeros(layout.n, dtype=torch.float64)
    states = {kind: accumulator.start(zeros, layout) for kind, accumulator in kinds.items()}
    for _ in range(steps):
        g = torch.randn(layout.n, generator=rng, dtype=torch.float64) * 10 ** torch.randn(1, generator=rng).double()
        v = {}
        for kind, accumulator in kinds.items():
            v[kind], states[kind] = accumulator.update(states[kind], g)
        slack = 1 + 1e-12
        assert (v["exact"] <= v["SM3-II"] * slack).all()
        assert (v["SM3-II"] <= v["SM3-I"] * slack).all()
        assert difference(v["SM3-I"][-3:] / v["exact"][-3:], torch.ones(3)) <= 1e-12  # of the vector


def test_slices_by_hand():
    w = torch.tensor([[1.0, 5.0], [2.0, 3.0]])
    rows, columns = axis_maxima(w)
    assert (rows.tolist(), columns.tolist()) == ([5.0, 3.0], [2.0, 5.0])
    assert axis_minimum((rows, columns)).tolist() == [[2.0, 5.0], [2.0, 3.0]]
    assert axis_maxima(w[0])[0].tolist() == [1.0, 5.0]


@pytest.mark.parametrize("version", ["I", "II"])
def test_sm3_started_at_a_moment_bounds_it_and_keeps_vectors(version):
    v = gradients(1)[0] ** 2
    accumulator = sm3(version=version)
    state = accumulator.start(v, LAYOUT)
    bound = torch.cat([axis_minimum(mu).reshape(-1) for mu in state])
    assert (bound >= v).all()
    assert difference(bound[12:16], v[12:16]) == 0  # the vector
    assert difference(bound[-1], v[-1]) == 0  # the number
    assert [len(mu) for mu in state] == [2, 1, 3, 1]


def test_what_is_off_keeps_nothing():
    n, layout = LAYOUT.n, LAYOUT

    def numbers(accumulator, **options):
        return rule_memory(adaptive(0.1, accumulator, **options), layout, torch.float64) // 8

    covers = (4 + 3) + 4 + (2 + 3 + 2) + 1
    assert numbers(exact()) == n
    assert numbers(exact(0.9), beta1=0.9, beta2=0.9) == 2 * n
    assert numbers(exact(0.9), beta1=0.9, beta2=0.9, bias_correction=True) == 2 * n + 1
    assert numbers(exact(0.9), beta1=0.9, beta2=0.9, bias_correction=True, delay=2) == 2 * n + 2
    assert numbers(sm3()) == covers
    assert numbers(sm3(), warmup=3) == covers + 1
    assert numbers(sm3(version="I"), delay=2, delay_unit="epoch") == covers + 2
    assert numbers(sm3(version="II"), delay=2) == covers + 1 + n  # its last v
    assert numbers(exact(), bias_correction=True) == n  # sums have no bias
