"""Runs with privacy: what the server sees, what is logged, and what a resume gives."""

import itertools
import math
from collections import Counter

import pytest
import torch

from flstudy.algorithms import FedAda2, FedAdam, FedAvg, FedDyn, Inbox, Mime, Scaffold
from flstudy.controllers import Average, Controller, DynamicInitialModel
from flstudy.federation.private_aggregator import PrivateAggregator
from flstudy.population import AlternatingGroups
from flstudy.privacy import Accountant, AdaptiveClip, Privacy, Sample

from ..worlds import DEVICES, difference, drifting, measured, run, state, world

SEEDS = (3, 44)
NOISY = Privacy(clip=0.05, noise=2.0, delta=1e-3, orders=[2.0, 8.0], adaptive_clip=AdaptiveClip(count_noise=4.0))
POISSON = {"sampling": "poisson", "participants": 2}


def average(**changes):
    return FedAvg(**{"lr": 0.3, "weighting": "uniform", **changes})


class Spy(Controller):
    """Keeps the losses that it is told."""

    def init(self, server):
        self.losses = []
        return ()

    def after_round(self, state, server, losses, moment):
        self.losses.append(losses)
        return state, server, None


class Uploads:
    """Stands where the aggregator does and keeps what comes in and goes out."""

    def __init__(self, monkeypatch):
        self.seen, call = [], PrivateAggregator.__call__

        def record_uploads(aggregator, inbox, round):
            aggregated = call(aggregator, inbox, round)
            self.seen.append((inbox, aggregated))
            return aggregated

        monkeypatch.setattr(PrivateAggregator, "__call__", record_uploads)


@pytest.mark.parametrize("privacy", [Privacy(), Privacy(clip=1e12), Privacy(clip=1e12, sampling="poisson")])
def test_without_noise_and_with_a_bound_that_nobody_meets_nothing_changes(privacy):
    algorithm = FedAdam(lr=0.3, weighting="examples")
    plain = run(algorithm, 2, seeds=SEEDS, initial="seeded")
    same = run(algorithm, 2, seeds=SEEDS, initial="seeded", privacy=privacy)
    assert difference(state(plain), state(same)) == 0
    assert ("privacy/clip" in same.record.metrics) == (privacy.clip is not None)
    assert "privacy/epsilon" not in same.record.metrics


def test_clipping_bounds_every_device_and_is_told(monkeypatch):
    uploads = Uploads(monkeypatch)
    module = run(Scaffold(lr=0.3), 2, seeds=SEEDS, initial="seeded", privacy=Privacy(clip=0.5))
    for (before, after), record in zip(uploads.seen, module.records, strict=True):
        sent_norms, clipped_norms = (torch.cat(list(inbox.uploads), -1).norm(dim=-1) for inbox in (before, after))
        assert (clipped_norms <= 0.5 * (1 + 1e-15)).all()
        torch.testing.assert_close(clipped_norms, sent_norms.clamp(max=0.5))
        assert record.metrics["privacy/clipped_share"] == pytest.approx((sent_norms > 0.5).double().mean(1).tolist())
        assert record.metrics["privacy/clip"] == [0.5, 0.5]


@pytest.mark.parametrize("algorithm", [average(), FedDyn(lr=0.3), Scaffold(lr=0.3), FedAda2(weighting="uniform")])
def test_the_server_sees_the_noisy_mean_and_nothing_else(monkeypatch, algorithm):
    uploads = Uploads(monkeypatch)
    module = run(algorithm, 2, seeds=SEEDS, privacy=Privacy(clip=0.2, noise=0.01, orders=[4.0]))
    for before, after in uploads.seen:
        for sent, seen in zip(before.uploads, after.uploads, strict=True):
            assert (seen == seen[:, :1]).all()
            assert seen.shape == sent.shape
        norm = torch.cat(list(before.uploads), -1).norm(dim=-1, keepdim=True)
        for s in range(len(SEEDS)):
            mine = Inbox(*(torch.utils._pytree.tree_map(lambda leaf, s=s: leaf[s], part) for part in after))
            for leaf, mean, total in zip(before.uploads, mine.mean(), mine.sum(), strict=True):
                plain = (leaf[s] * (0.2 / norm[s]).clamp(max=1)).mean(0)
                noise = (mean - plain) / (0.01 * 0.2 / DEVICES)
                assert 0.7 < float(noise.std()) < 1.3  # 89 coordinates: four standard errors
                torch.testing.assert_close(total, DEVICES * mean)
    assert module.record.metrics["privacy/noise"] == [0.01, 0.01]


@pytest.mark.slow
def test_replicas_executors_and_resumes_agree(tmp_path):
    """Noise is a pure function of (seed, round), ε of the rounds done, and c is carried over: bit for bit."""
    population = drifting()
    arguments = {"privacy": NOISY, "initial": "seeded"}
    whole = run(average(), 4, seeds=SEEDS, population=population, **arguments)
    first = run(average(), 2, seeds=SEEDS, population=drifting(), fit={"default_root_dir": str(tmp_path)}, **arguments)
    first.trainer.save_checkpoint(tmp_path / "two.ckpt")
    resumed = run(average(), 4, seeds=SEEDS, population=drifting(), ckpt_path=str(tmp_path / "two.ckpt"), **arguments)
    assert difference(state(whole), state(resumed)) == 0
    names = ("privacy/epsilon", "privacy/clip", "privacy/clipped_share", "privacy/noise")
    assert torch.equal(measured(whole, *names)[2:], measured(resumed, *names))
    assert len(measured(whole, "privacy/clip").unique()) == 7  # all start from 0.05

    alone = run(average(), 4, seeds=SEEDS[1:], population=drifting(), **arguments)
    one_by_one = run(average(), 4, seeds=SEEDS, population=drifting(), executor="sequential", **arguments)
    assert difference(whole.server.x[1:], alone.server.x) < 1e-12
    assert difference(whole.server.x, one_by_one.server.x) < 1e-12
    assert torch.equal(measured(whole, *names)[:, :, 1:], measured(alone, *names))
    account = Accountant(NOISY)
    expected = [account.epsilon(2.0, {Sample(DEVICES, 4): t + 1}) for t in range(4)]
    assert measured(whole, "privacy/epsilon")[:, 0, 0].tolist() == expected
    assert all(a < b for a, b in itertools.pairwise(expected))

    for privacy, message in [
        (None, r"the checkpoint's rounds had noise = 2, but this run has none"),
        (Privacy(clip=1.0, noise=1.0), r"had noise = 2, which this run must keep, got 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            run(average(), 4, seeds=SEEDS, ckpt_path=str(tmp_path / "two.ckpt"), privacy=privacy)


def test_poisson_rounds_divide_by_the_expected_number_and_tell_nobodys_presence(monkeypatch):
    uploads, population = Uploads(monkeypatch), world(**POISSON)
    counts = [population.drawn(index + 1) for index in range(6)]
    assert len(set(counts)) > 2
    assert 0 in counts
    privacy = Privacy(clip=0.2, noise=1e-9, sampling="poisson", orders=[2.0])
    module = run(average(), 6, population=population, seeds=SEEDS, privacy=privacy)
    for drawn, (before, after) in zip(counts, uploads.seen, strict=True):
        assert before.weights.shape[1] == max(drawn, 1)
        assert after.weights.shape == (2, 2)
        norm = before.uploads.delta.norm(dim=-1, keepdim=True)
        total = (before.uploads.delta * (0.2 / norm).clamp(max=1)).sum(1) * (drawn > 0)
        torch.testing.assert_close(after.uploads.delta[:, 0], total / 2, rtol=0, atol=1e-8)
    assert module.record.metrics["privacy/epsilon"][0] == Accountant(privacy).epsilon(1e-9, {Sample(DEVICES, 2): 6})


def test_a_target_ends_the_run_or_chooses_the_noise(tmp_path):
    account = Accountant(NOISY)
    three = account.epsilon(2.0, {Sample(DEVICES, 4): 3})
    changes = {"clip": 0.05, "delta": 1e-3, "orders": [2.0, 8.0], "target_epsilon": three * 1.001}
    ended = run(average(), 9, population=drifting(), privacy=Privacy(noise=2.0, **changes), trained=True)
    assert ended.record.round == 3
    ended.trainer.save_checkpoint(tmp_path / "ended.ckpt")
    with pytest.raises(ValueError, match=r"round 4 would spend .*, more than target_epsilon = .*is at its end"):
        run(
            average(),
            9,
            population=drifting(),
            privacy=Privacy(noise=2.0, **changes),
            ckpt_path=str(tmp_path / "ended.ckpt"),
        )
    solved = run(average(), 3, population=drifting(), privacy=Privacy(solve=True, **changes))
    assert solved.record.round == 3
    (noise,), (spent,) = (solved.record.metrics[f"privacy/{name}"] for name in ("noise", "epsilon"))
    assert noise == pytest.approx(2.0, rel=2e-3)
    assert three * 0.995 < spent <= three * 1.001
    with pytest.raises(ValueError, match=r"out of reach: one round with noise = 0\.01 spends"):
        run(average(), 1, population=drifting(), privacy=Privacy(noise=0.01, **changes))


def test_what_is_refused_before_the_first_round():
    with pytest.raises(ValueError, match="devices of Mime answer a survey"):
        run(Mime(), 1, privacy=NOISY)
    with pytest.raises(ValueError, match=r"DynamicInitialModel plays probe rounds"):
        run(average(), 1, privacy=NOISY, controllers=[DynamicInitialModel()])
    with pytest.raises(ValueError, match=r"sampling must be the population's, fixed, got poisson"):
        run(average(), 1, privacy=Privacy(clip=1.0, noise=1.0, sampling="poisson"))
    with pytest.raises(ValueError, match=r"count_noise must be > noise / 2"):
        run(average(), 1, privacy=Privacy(clip=1.0, noise=1.0, adaptive_clip=AdaptiveClip(count_noise=0.1)))
    aggregator = PrivateAggregator(Privacy(clip=1.0, noise=1.0, delta=0.2, orders=[2.0]), average(), (), (0,))
    with pytest.warns(UserWarning, match=r"privacy\.delta = 0\.2 is not below 1 / N = 0\.166667"):
        aggregator.start(world().settle((0,)), 1, None)


def test_controllers_are_not_told_what_is_not_private():
    spy = Spy()
    population = drifting(availability=AlternatingGroups(rounds=1), participants=2)
    module = run(average(), 3, population=population, privacy=NOISY, controllers=[spy, Average()])
    assert len(spy.losses) == 3
    assert all(losses.isnan().all() for losses in spy.losses)
    assert math.isfinite(module.record.metrics["train/loss"][0])
    here = Counter(Sample(int(population.present(t + 1).sum()), 2) for t in range(3))
    assert module.record.metrics["privacy/epsilon"] == [Accountant(NOISY).epsilon(2.0, here)]
