"""What a round costs in a radio cell, against numbers by hand, plain loops and the laws of the channel."""

import math

import numpy as np
import pytest
import torch

from flstudy.metrics.channel import (
    Fading,
    breakpoint_distance,
    correlation,
    distances,
    gauss_markov,
    normals,
    path_loss,
    shadowing,
)
from flstudy.metrics.wireless import Costs, Wireless
from flstudy.population.streams import random_bits

from ..worlds import difference

MAST = (3.5, 10.0, 1.5, 1.0)  # carrier, heights
RHO = correlation(10, 3.5, 0.5e-3)
CELL = Wireless(complexity=91.04)


def some(cell=CELL, seeds=(0,), number=3, clients=None, **work):
    """The costs of a round, of 20 devices and a small model by default."""
    clients = [list(range(20))] * len(seeds) if clients is None else clients
    work = {"down": 32 * 10_000, "up": 32 * 10_000, "steps": 5, "batch_size": 128, "parameters": 10_000, **work}
    return cell.costs(seeds, number, clients, **work)


def same(costs: Costs, other: Costs) -> bool:
    return all(np.array_equal(mine, theirs) for mine, theirs in zip(costs, other, strict=True))


# ---- path loss and places ------------------------------------------------------------------------------------------


def test_the_breakpoint_of_the_papers_cell():
    assert breakpoint_distance(*MAST) == pytest.approx(210.0, rel=1e-12)


@pytest.mark.parametrize(
    ("distance", "loss"),
    [
        (10.0, 66.761033),  # 32.4 + 21 · 1.118080 + 20 · 0.544068: d_3D = √(10² + 8.5²), lg 3.5
        (100.0, 85.314189),  # 32.4 + 21 · 2.001563 + 20 · 0.544068
        (240.0, 94.371778),  # 32.4 + 40 · 2.380483 + 20 · 0.544068 - 9.5 · 4.645150: lg(210² + 8.5²)
        (250.0, 95.080076),  # 32.4 + 40 · 2.398191 + 20 · 0.544068 - 9.5 · 4.645150
    ],
)
def test_path_loss_by_hand(distance, loss):
    assert float(path_loss(distance, *MAST)) == pytest.approx(loss, abs=1e-5)


def test_path_loss_does_not_jump_at_the_breakpoint_but_steepens():
    turn = breakpoint_distance(*MAST)
    below, at, above = path_loss([turn - 1e-6, turn, turn + 1e-6], *MAST)
    assert below == pytest.approx(at, abs=1e-6)
    assert above == pytest.approx(at, abs=1e-6)
    assert (above - at) / (at - below) == pytest.approx(40 / 21, rel=1e-3)


def test_devices_lie_evenly_over_the_ring():
    placed = np.sort(distances(5, np.arange(100_000), 10, 250))
    assert placed[0] >= 10
    assert placed[-1] <= 250
    expected = (placed**2 - 10**2) / (250**2 - 10**2)  # the distribution function of 2d / (R² - d_min²)
    gap = np.abs(expected - np.arange(1, len(placed) + 1) / len(placed)).max()
    assert gap < 1.63 / math.sqrt(len(placed))  # Kolmogorov's bound at 1 %


def test_a_gain_is_path_loss_and_shadowing_in_decibels():
    device = np.arange(8)
    loss = path_loss(distances(2, device, 10, 250), *MAST) + 4 * shadowing(2, 7, device)
    assert np.allclose(-10 * np.log10(CELL.gains(2, 7, device)), loss)


def test_shadowing_is_standard_normal_and_new_in_every_round():
    drawn = np.stack([shadowing(1, number, np.arange(50_000)) for number in range(2)])
    assert abs(drawn.mean()) < 4 / math.sqrt(drawn.size)
    assert drawn.std() == pytest.approx(1, abs=4 / math.sqrt(2 * drawn.size))
    assert abs(np.corrcoef(drawn)[0, 1]) < 4 / math.sqrt(50_000)
    assert np.array_equal(drawn[1], shadowing(1, 1, np.arange(50_000)))


# ---- fading --------------------------------------------------------------------------------------------------------


def test_the_papers_correlation_of_slots():
    assert pytest.approx(0.966697, abs=5e-7) == RHO
    assert correlation(0, 3.5, 0.5e-3) == 1


@pytest.mark.parametrize("rho", [RHO, 0.0, -0.3, 1.0])
@pytest.mark.parametrize("length", [1, 31, 32, 33, 500])
def test_the_product_with_a_triangular_matrix_is_the_plain_recursion(rho, length):
    noise = torch.from_numpy(np.random.default_rng(length).standard_normal((2, 3, length)))
    before = torch.tensor([[0.3, -1.0, 2.0], [1.0, 0.5, -0.1]], dtype=torch.float64)
    h, plain = before, []
    for n in range(length):
        h = rho * h + math.sqrt(1 - rho**2) * noise[..., n]
        plain.append(h)
    assert difference(gauss_markov(noise, rho, before), torch.stack(plain, -1)) <= 1e-12


def test_fading_is_rayleigh_and_forgets_as_rho_says():
    real, imaginary = (
        part.double() for part in normals(random_bits(9, "fading", np.arange(200)[:, None], np.arange(4000)))
    )
    h = gauss_markov(torch.stack((real, imaginary)), RHO, torch.stack((real, imaginary))[..., 0])
    h = torch.complex(h[0], h[1])
    power = h.abs().square()
    effective = h.numel() * (1 - RHO) / (1 + RHO)  # samples that are as good as independent
    assert float(power.mean()) == pytest.approx(1, abs=4 / math.sqrt(effective))
    assert float((power > 1).double().mean()) == pytest.approx(math.exp(-1), abs=4 * 0.5 / math.sqrt(effective))
    for lag in (1, 5, 20):
        measured = (h[:, lag:] * h[:, :-lag].conj()).mean()
        assert abs(measured - RHO**lag) < 4 / math.sqrt(effective)


def test_fading_told_in_pieces_is_fading_told_at_once():
    def begun():
        return Fading(np.array([0, 0, 1]), 4, np.array([2, 5, 2]), RHO)

    everyone = np.arange(3)
    whole, pieces = begun().powers(everyone, 300), begun()
    in_pieces = [pieces.powers(everyone, 100), pieces.powers(everyone, 50), pieces.powers(np.array([0, 2]), 150)]
    assert difference(whole[:, :150], torch.cat(in_pieces[:2], 1)) <= 1e-12
    assert difference(whole[[0, 2], 150:], in_pieces[2]) <= 1e-12


# ---- rates and slots -----------------------------------------------------------------------------------------------


def test_a_rate_by_hand():
    down, up = CELL.snr(1e-10, 1e6)  # noise: -174 dBm/Hz + 60 dB Hz = -114 dBm = 3.98107e-15 W
    assert float(up) == pytest.approx(0.2e-10 / 3.98107e-15, rel=1e-5)
    assert float(down) == pytest.approx(100 * up)
    assert 1e6 * math.log2(1 + up) == pytest.approx(12.29490e6, rel=1e-5)


def test_slots_are_those_of_a_plain_loop():
    costs = some(seeds=(0, 8), clients=[[3, 1, 4], [1, 5, 9]], down=3e6, up=2e6)
    band, noise = 100e6 / 3, 10**-17.4 / 1000
    for lane in range(6):
        seed, device = (0, 8)[costs.replica[lane]], costs.device[[lane]]
        gain = float(CELL.gains(seed, 3, device)[0])
        power = Fading(np.array([seed]), 3, device, RHO).powers(np.array([0]), 2000)[0].tolist()
        for sender, amount, seconds in ((20.0, 3e6, costs.down_s[lane]), (0.2, 2e6, costs.up_s[lane])):
            sent, slots = 0.0, 0
            while sent < amount:
                sent += band * math.log2(1 + sender * gain * power[slots] / (noise * band)) * 0.5e-3
                slots += 1
            assert seconds == pytest.approx(slots * 0.5e-3)
            assert slots > 1


def test_many_chunks_of_slots_are_counted_as_a_plain_sum_counts_them():
    costs = some(clients=[[7]], down=0, up=1e8, cell=Wireless(bandwidth=1e6))  # more slots than one chunk has
    snr = CELL.snr(CELL.gains(0, 3, np.array([7])), 1e6)[1]
    power = Fading(np.array([0]), 3, np.array([7]), RHO).powers(np.array([0]), 40_000)[0].numpy()
    slots = np.searchsorted(np.cumsum(np.log2(1 + snr * power)) * 1e6 * 0.5e-3, 1e8) + 1
    assert slots > 3 * 4096
    assert costs.up_s[0] == pytest.approx(slots * 0.5e-3)
    assert costs.down_s[0] == 0


def test_without_motion_the_fading_stays():
    costs = some(Wireless(speed=0), clients=[[0]], down=1e6, up=1e8)
    power = float(Fading(np.array([0]), 3, np.array([0]), 0.5).last.square().sum())
    rates = [1e8 * math.log2(1 + float(snr[0]) * power) for snr in CELL.snr(CELL.gains(0, 3, np.array([0])), 1e8)]
    assert costs.down_s[0] == pytest.approx(math.ceil(1e6 / (rates[0] * 0.5e-3)) * 0.5e-3)
    assert costs.up_s[0] == pytest.approx(math.ceil(1e8 / (rates[1] * 0.5e-3)) * 0.5e-3)


# ---- computation and sums ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "complexity", "seconds"), [(667_178, 91.04, 4.8592), (21_730_056, 27.69, 48.1364)]
)
def test_computation_by_hand(parameters, complexity, seconds):
    cell = Wireless(complexity=complexity)
    costs = some(cell, clients=[[0]], down=0, up=0, parameters=parameters)
    assert costs.latency[0] == pytest.approx(parameters * complexity * 5 * 128 / (1e9 * 8))
    assert costs.latency[0] == pytest.approx(seconds, abs=5e-4)
    assert costs.energy[0] == pytest.approx(1e-28 * seconds * 1e9 * 1e18, rel=1e-3)  # ξ, cycles, f²


def test_latency_is_the_slowest_devices_and_energy_everybodys():
    costs = some(seeds=(0, 1), steps=[list(range(1, 21)), [5] * 20])
    seconds, joules = costs.seconds.reshape(2, 20), costs.joules.reshape(2, 20)
    assert costs.latency.tolist() == seconds.max(1).tolist()
    assert costs.energy == pytest.approx(joules.sum(1))
    assert np.allclose(costs.seconds, costs.down_s + costs.computation_s + costs.up_s)
    assert np.allclose(costs.communication_j, 0.1 * costs.down_s + 0.2 * costs.up_s)
    assert np.allclose(costs.computation_s[:20] / costs.computation_s[0], range(1, 21))


def test_jobs_of_one_device_add_up_and_it_counts_once():
    apart = some(clients=[[4, 4, 7, 7]], down=1e6, up=[1e6, 2e6, 3e6, 4e6], steps=[[1, 2, 3, 4]])
    together = some(clients=[[4, 7]], down=2e6, up=[3e6, 7e6], steps=[[3, 7]])
    assert same(apart, together)


# ---- streams -------------------------------------------------------------------------------------------------------


def test_costs_are_those_of_their_names():
    assert same(some(), some())
    for other in (some(seeds=(1,)), some(number=4), some(repeat=1)):
        assert not np.array_equal(some().up_s, other.up_s)


def test_a_device_stays_where_it_is_and_its_shadow_does_not():
    near = Wireless(shadowing=0)
    assert np.array_equal(near.gains(0, 3, np.arange(5)), near.gains(0, 4, np.arange(5)))
    assert not np.array_equal(CELL.gains(0, 3, np.arange(5)), CELL.gains(0, 4, np.arange(5)))


def test_replicas_are_as_in_separate_calls():
    people = [[1, 2, 3], [9, 2, 5]]
    both = some(seeds=(6, 7), clients=people, up=5e7)
    for s, seed in enumerate((6, 7)):
        alone = some(seeds=(seed,), clients=[people[s]], up=5e7)
        assert both.latency[s] == alone.latency[0]
        assert both.energy[s] == pytest.approx(alone.energy[0], rel=1e-12)
        mine = both.replica == s
        assert np.array_equal(both.device[mine], alone.device)
        assert np.array_equal(both.up_s[mine], alone.up_s)


def test_who_else_takes_part_changes_a_device_only_through_its_share_of_the_band():
    whole = Wireless(share="each")
    assert some(whole, clients=[[3]]).seconds[0] == some(whole, clients=[[1, 2, 3]]).seconds[2]
    narrow = Wireless(bandwidth=100e6 / 3, share="each")
    assert same(some(clients=[[1, 2, 3]], cell=Wireless()), some(narrow, clients=[[1, 2, 3]]))


def test_more_bits_and_more_participants_take_longer():
    few, many = some(clients=[list(range(5))]), some(clients=[list(range(20))])
    assert (many.up_s[:5] > few.up_s).all()
    assert many.latency[0] > few.latency[0]
    more = some(up=2 * 32 * 10_000)
    assert (more.up_s > many.up_s).all()
    assert np.array_equal(more.down_s, many.down_s)
    assert (many.up_s >= many.down_s).all()  # the server sends with a hundred times the power
    assert many.up_s.sum() > many.down_s.sum()


# ---- the rounds of a session's initial model -----------------------------------------------------------------------


def test_initialization_is_charged_or_free_and_always_told():
    training, extra = some(seeds=(0, 1)), [some(seeds=(0, 1), repeat=v) for v in (1, 2)]
    charged, free = Wireless().metrics(training, extra), Wireless(initialization="free").metrics(training, extra)
    assert free["wireless/latency_s"] == training.latency.tolist()
    assert free["wireless/energy_j"] == training.energy.tolist()
    assert free["wireless/initialization_s"] == charged["wireless/initialization_s"]
    assert charged["wireless/initialization_s"] == pytest.approx(extra[0].latency + extra[1].latency)
    assert charged["wireless/initialization_j"] == pytest.approx(extra[0].energy + extra[1].energy)
    for what, unit in (("latency", "s"), ("energy", "j")):
        ours, theirs = (np.array(metrics[f"wireless/{what}_{unit}"]) for metrics in (charged, free))
        assert ours - theirs == pytest.approx(np.array(charged[f"wireless/initialization_{unit}"]))


def test_a_round_within_a_session_has_no_initialization():
    metrics = Wireless().metrics(some())
    assert metrics["wireless/initialization_s"] == metrics["wireless/initialization_j"] == [0.0]
    assert metrics["wireless/latency_s"] == some().latency.tolist()


# ---- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"bandwidth": 0}, "bandwidth must lie in"),
        ({"share": "half"}, "share must be one of split, each"),
        ({"initialization": "half"}, "initialization must be one of charged, free"),
        ({"carrier": 200}, "carrier must lie in"),
        ({"nearest": 300}, "nearest must lie below radius"),
        ({"environment_height": 2}, "environment_height must lie below"),
        ({"shadowing": -1}, "shadowing must lie in"),
    ],
)
def test_a_wrong_cell_is_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        Wireless(**settings)


@pytest.mark.parametrize(
    ("work", "words"),
    [
        ({"clients": [[1, 2], [3, 4]]}, "clients must have shape"),
        ({"clients": [[1, -2]]}, "clients must be devices"),
        ({"up": -1}, "up must be finite"),
        ({"steps": math.nan}, "steps must be finite"),
        ({"up": 1e18}, "a device needs .* slots"),
    ],
)
def test_wrong_work_is_refused(work, words):
    with pytest.raises(ValueError, match=words):
        some(**work)
