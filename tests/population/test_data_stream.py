"""Training examples that arrive anew in every round."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from flstudy.algorithms import FedAvg, FedDriftEager, Flash
from flstudy.federation.private_aggregator import PrivateAggregator
from flstudy.metrics.optimum import RoundLoss
from flstudy.population import FreshDraws
from flstudy.population.streams import random_bits
from flstudy.privacy import Privacy

from ..worlds import DEVICES, SEEDS, difference, drifting, logistic, measured, run, state, world

POOL = np.arange(5000) * 3 + 1


def arriving(**changes):
    return drifting(**{"data_stream": FreshDraws(mean=12, deviation=4), **changes})


@pytest.mark.slow
def test_sizes_are_distributed_as_asked_and_no_example_comes_twice():
    draws = FreshDraws()
    sizes = []
    for number in range(1, 101):
        for device in range(20):
            rows = draws.draw(7, number, device, POOL)
            assert len(np.unique(rows)) == len(rows)
            assert np.isin(rows, POOL).all()
            sizes.append(len(rows))
    error = 200 / np.sqrt(len(sizes))
    assert abs(np.mean(sizes) - 1000) < 3 * error
    assert abs(np.std(sizes) - 200) < 3 * error / np.sqrt(2)
    counts = np.bincount((np.concatenate([draws.draw(7, n, 0, POOL) for n in range(1, 401)]) - 1) // 3, minlength=5000)
    rate = counts.sum() / 5000
    assert abs(counts.std() - np.sqrt(rate * (1 - rate / 400))) < 0.1 * np.sqrt(rate)  # every example alike


def test_sizes_are_cut_to_what_there_is():
    assert len(FreshDraws(mean=1000, deviation=0).draw(0, 1, 0, POOL[:30])) == 30
    assert len(FreshDraws(mean=0.1, deviation=0).draw(0, 1, 0, POOL)) == 1
    assert len(FreshDraws(mean=12.6, deviation=0).draw(0, 1, 0, POOL)) == 13


@pytest.mark.parametrize("source", ["everybody", "device"])
def test_what_arrives_is_a_function_of_seed_round_and_device(source):
    draws = FreshDraws(mean=8, deviation=3, source=source)
    population, other = (arriving(data_stream=replace(draws)).settle(SEEDS) for _ in range(2))
    alone = arriving(data_stream=replace(draws), participants=DEVICES).settle((44,))
    for index in (3, 0, 7, 3):
        cohort = population.cohort(index + 1)
        for s, line in enumerate(cohort.jobs.client.tolist()):
            for j, k in enumerate(line):
                rows = population.device_data.held(s, k, "train", index + 1)
                pool = np.concatenate([device["train"] for device in population.members[s]])
                source_rows = pool if source == "everybody" else population.members[s][k]["train"]
                assert set(rows.tolist()) <= set(source_rows.tolist())
                assert int(cohort.sizes[s, j]) == len(rows) == len(set(rows.tolist()))
                read = cohort.batches.rows[s, j][cohort.batches.epoch[s, j].cumsum(0) == 0]
                assert set(read[read >= 0].tolist()) <= set(rows.tolist())
                per_epoch = -(-len(rows) // 4)
                first = cohort.batches.rows[s, j, :per_epoch]
                assert sorted(first[first >= 0].tolist()) == sorted(rows.tolist())  # an epoch reads all of them once
                assert int(cohort.jobs.per_epoch[s, j]) == per_epoch
    for index in (0, 5):
        for k in range(DEVICES):
            assert (
                alone.device_data.held(0, k, "train", index + 1).tolist()
                == other.device_data.held(1, k, "train", index + 1).tolist()
            )
            for split in ("valid", "test"):
                same = other.device_data.held(1, k, split, index + 1) == other.members[1][k][split]
                assert same.all()
    assert sorted(population.device_data.held(0, 1, "train", 1)) != sorted(
        population.device_data.held(0, 1, "train", 2)
    )
    assert sorted(population.device_data.held(0, 1, "train", 1)) != sorted(
        population.device_data.held(1, 1, "train", 1)
    )


def test_probe_rounds_read_what_the_round_has_brought():
    population = arriving(participants=DEVICES).settle((0,))
    held = [set(population.device_data.held(0, k, "train", 3).tolist()) for k in range(DEVICES)]
    for probe in (0, 1, 2):
        cohort = population.cohort(3, probe)
        assert [set(rows[rows >= 0].tolist()) for rows in cohort.batches.rows[0]] == held


def test_weights_follow_what_was_drawn():
    population = arriving()
    module = run(FedAvg(lr=0.1), 1, population=population)
    cohort = population.cohort(1)
    deltas = [
        run(FedAvg(lr=0.1), 1, population=population, executor=name).server.x for name in ("sequential", "threads")
    ]
    assert difference(deltas, [module.server.x] * 2) <= 1e-12
    weights = FedAvg(lr=0.1).weights(cohort.sizes[0].double())
    assert weights.tolist() == pytest.approx((cohort.sizes[0] / cohort.sizes[0].sum()).tolist())
    assert cohort.sizes[0].tolist() != [len(population.members[0][k]["train"]) for k in cohort.jobs.client[0].tolist()]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [Flash(lr=0.1, gamma=0.05), FedDriftEager(lr=0.1, models=3, delta=0.0)])
def test_a_run_goes_on_bit_for_bit(algorithm, tmp_path):
    def go(rounds, folder, **more):
        saving = ModelCheckpoint(folder, every_n_epochs=1, save_top_k=-1, filename="{epoch}")
        fit = {"enable_checkpointing": True, "default_root_dir": folder}
        more = {"seeds": (0, 44), "callbacks": [saving], "fit": fit, "evaluate": True, **more}
        return run(algorithm, rounds, population=arriving(participants=3), **more)

    whole = go(6, tmp_path)
    resumed = go(6, tmp_path, ckpt_path=str(tmp_path / "epoch=2.ckpt"))
    assert [record.round for record in resumed.records] == [4, 5, 6]
    assert difference(state(whole), state(resumed)) == 0
    names = [name for name in whole.record.metrics if not name.startswith("time/")]
    assert torch.equal(measured(whole, *names)[3:], measured(resumed, *names))


def test_the_loss_that_is_asked_for_is_of_what_was_drawn():
    population = arriving(drift=None, participants=DEVICES).settle((0,))
    round_loss = RoundLoss(population, logistic(), l2=0.1)
    sizes = [int(population.cohort(index + 1).sizes.sum()) for index in (0, 1)]
    assert [len(round_loss.batch(index + 1, 0).y) for index in (0, 1)] == sizes
    assert float(round_loss.optimum(1).loss) != float(round_loss.optimum(2).loss)  # another round, another minimum
    still = world(participants=DEVICES).settle((0,))
    assert float(RoundLoss(still, logistic(), l2=0.1).optimum(2).loss) > 0


def test_invalid_settings_of_fresh_draws_are_refused():
    for settings, sentence in (
        ({"mean": 0}, "mean must lie in (0, 1e12], got 0"),
        ({"deviation": -1}, "deviation must lie in [0, 1e12], got -1"),
        ({"mean": float("nan")}, "mean must lie in (0, 1e12], got nan"),
        ({"source": "all"}, "source must be one of everybody, device, got 'all'"),
    ):
        with pytest.raises(ValueError, match=re.escape(sentence)):
            FreshDraws(**settings)


def test_examples_of_others_cannot_be_hidden():
    aggregator = PrivateAggregator(Privacy(clip=1.0, noise=1.0), FedAvg(lr=0.1, weighting="uniform"), (), (0,))
    with pytest.raises(ValueError, match=r"set population\.data_stream\.source to device"):
        aggregator.meets(arriving())
    aggregator.meets(arriving(data_stream=FreshDraws(source="device")))


def test_the_stream_is_its_own():
    names = {int(random_bits(0, purpose, 1, 2)) for purpose in ("arrivals", "batches", "participation", "split")}
    assert len(names) == 4
