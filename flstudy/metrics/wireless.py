"""Costs of a round for devices in a radio cell: seconds and joules of downlink, local computation and uplink.

Reference: Chang et al., Communication-Efficient Federated Learning under Dynamic Device Arrival and Departure ("device
sessions"), section VI, eq. (20)-(28), Table I and App. A; the path loss is 3GPP TR 38.901's (Table 7.4.1-1).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from flstudy.hyper import Configurable, hyper
from flstudy.metrics.channel import BLOCK, Fading, correlation, distances, path_loss, shadowing
from flstudy.user_error import UserError

Floats = NDArray[np.float64]
CHUNK = 2**15  # fading values that are drawn at once: they and what follows from them stay in a core's cache
NAMES = ("wireless/latency_s", "wireless/energy_j", "wireless/initialization_s", "wireless/initialization_j")
"""Names of a round's metrics."""
MOST_SLOTS = 10**8  # that a transmission may take, 14 hours of the paper's


class Costs(NamedTuple):
    """Costs of an exchange of models for L devices of S replicas; a device with several jobs is one of the L."""

    replicas: int  # S
    replica: NDArray[np.int64]  # [L], in order
    device: NDArray[np.int64]  # [L]
    down_s: Floats  # [L], seconds that the device received
    computation_s: Floats  # [L]
    up_s: Floats  # [L], seconds that it sent
    communication_j: Floats  # [L], joules of receiving and sending
    computation_j: Floats  # [L]

    @property
    def seconds(self) -> Floats:
        """Sum [L] over the phases, of each device."""
        return self.down_s + self.computation_s + self.up_s

    @property
    def joules(self) -> Floats:
        """Sum [L] over the phases, of each device."""
        return self.communication_j + self.computation_j

    @property
    def latency(self) -> Floats:
        """Seconds [S]: the server waits for the slowest device."""
        slowest = np.zeros(self.replicas)
        np.maximum.at(slowest, self.replica, self.seconds)
        return slowest

    @property
    def energy(self) -> Floats:
        """Joules [S] of all devices together; the server's own are not counted."""
        return np.bincount(self.replica, self.joules, self.replicas).astype(np.float64)


@dataclass(frozen=True, kw_only=True)
class Wireless(Configurable):
    """Radio cell whose devices share its band (OFDMA) and whose up- and downlink take turns (TDD).

    The defaults are device sessions' Table I. Devices stay at one distance for a whole run, a pure function of
    (seed, device); shadowing is drawn anew in every round, and so is fading, which then moves from slot to slot: both
    are pure functions of (seed, round, device). (In a round of seconds a device at 10 m/s leaves the 10 m over which
    shadowing is alike, TR 38.901, Table 7.5-6.) As eq. (26) has it, downlink and uplink each begin at slot 1 of one
    and the same fading.

    Args:
        bandwidth: W, bandwidth of the system, Hz.
        share: whether the participants of a round ``split`` the band equally, W / K, or ``each`` has all of it. The
            paper calls W both the system's (Table I) and a device's (eq. (24)); its latencies need the split.
        carrier: f_c, carrier frequency, GHz, in TR 38.901's [0.5, 100].
        base_height: h_BS, height of the base station, m.
        user_height: h_UT, height of devices, m.
        environment_height: h_E, effective height of the environment, m; below both.
        nearest: d_min, least distance of a device, m; TR 38.901 begins at 10.
        radius: R, radius of the cell, m; TR 38.901 ends at 5000.
        shadowing: σ_SF, standard deviation of shadowing, dB.
        speed: v, speed of devices, m/s; 0 leaves the fading as it is for the whole round.
        slot: τ, length of a slot, s.
        noise: N_0, density of the noise, dBm/Hz.
        server_power: power with which the server sends, W.
        device_power: power with which a device sends, W.
        circuit_power: power of a device that receives, W.
        frequency: f_k, clock frequency of a device's processor, Hz.
        efficiency: χ, FLOPs per cycle of a device's processor.
        capacitance: ξ_k, effective capacitance of a device's chip: a cycle takes ξ_k f_k² joules.
        complexity: φ, FLOPs per parameter and example. Table I's: 2.00 for logistic regression, 91.04 SVHN's CNN, 6.50
            CIFAR's ResNet-18, 27.69 TinyImageNet's network. Those that can be checked count a forward pass only. Eq.
            (27) means backward passes too, about three times as much: 6 for a dense layer.
        initialization: whether the rounds that a session's initial model takes (V of device sessions, Algorithm 1) are
            ``charged`` or ``free``. The paper's Table VII charges the proposed method for one round where it takes
            1 + V.
    """

    bandwidth: float = hyper(100e6, "(0, 1e12]")
    share: Literal["split", "each"] = "split"
    carrier: float = hyper(3.5, "[0.5, 100]")
    base_height: float = hyper(10.0, "(0, 150]")
    user_height: float = hyper(1.5, "(0, 22.5]")
    environment_height: float = hyper(1.0, "[0, 22.5)")
    nearest: float = hyper(10.0, "[10, 5000)")
    radius: float = hyper(250.0, "(10, 5000]")
    shadowing: float = hyper(4.0, "[0, 20]")
    speed: float = hyper(10.0, "[0, 1e6]")
    slot: float = hyper(0.5e-3, "(0, 1e12]")
    noise: float = hyper(-174.0, "[-250, 0]")
    server_power: float = hyper(20.0, "(0, 1e12]")
    device_power: float = hyper(0.2, "(0, 1e12]")
    circuit_power: float = hyper(0.1, "[0, 1e12]")
    frequency: float = hyper(1e9, "(0, 1e12]")
    efficiency: float = hyper(8.0, "(0, 1e12]")
    capacitance: float = hyper(1e-28, "[0, 1]")
    complexity: float = hyper(2.0, "[0, 1e12]")
    initialization: Literal["charged", "free"] = "charged"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nearest >= self.radius:
            raise UserError(f"Wireless: nearest must lie below radius ({self.radius} m), got {self.nearest}")
        if self.environment_height >= min(self.base_height, self.user_height):
            raise UserError(
                f"Wireless: environment_height must lie below base_height ({self.base_height} m) and user_height "
                f"({self.user_height} m), got {self.environment_height}"
            )

    def costs(
        self,
        seeds: Sequence[int],
        number: int,
        clients: Any,
        *,
        down: Any,
        up: Any,
        steps: Any,
        batch_size: int,
        parameters: int,
        repeat: int = 0,
    ) -> Costs:
        """Return the costs of one exchange of models: devices receive, compute and send.

        Args:
            seeds: of the S replicas.
            number: round, ≥ 0.
            clients: [S, J], the device of every job; the jobs of one device add up.
            down: bits that each job receives; a number, [J], [S, 1] or [S, J].
            up: bits that it sends, likewise.
            steps: that it computes, likewise.
            batch_size: examples per step.
            parameters: of the model.
            repeat: 0 for the round itself, 1 to V for the rounds that a session's initial model takes before it; each
                has its own shadowing and fading.

        Raises:
            UserError: if an amount is negative or not finite, or a device would need more than 10⁸ slots.
        """
        jobs = np.asarray(clients, dtype=np.int64)
        if jobs.ndim != 2 or len(jobs) != len(seeds) or not jobs.size:
            raise UserError(f"clients must have shape [{len(seeds)}, J], one row per seed, got {list(jobs.shape)}")
        if jobs.min() < 0:
            raise UserError(f"clients must be devices ≥ 0, got {jobs.min()}")
        people = int(jobs.max()) + 1
        lanes, job = np.unique(jobs + people * np.arange(len(seeds))[:, None], return_inverse=True)
        replica, device = lanes // people, lanes % people
        amounts = {"down": down, "up": up, "steps": steps}
        bits_down, bits_up, steps_done = (self._summed(name, amount, jobs, job) for name, amount in amounts.items())

        taking_part = np.bincount(replica)[replica]
        band = self.bandwidth / taking_part if self.share == "split" else np.full(len(lanes), self.bandwidth)
        seed = np.asarray(seeds, dtype=np.int64)[replica]
        gain = self.gains(seed, number, device, repeat)
        fading = Fading(seed, number, device, correlation(self.speed, self.carrier, self.slot), repeat)
        slots = self._slots(np.stack((bits_down, bits_up)), gain, band, fading)
        down_s, up_s = slots * self.slot

        cycles = parameters * self.complexity * steps_done * batch_size / self.efficiency
        return Costs(
            replicas=len(seeds),
            replica=replica,
            device=device,
            down_s=down_s,
            computation_s=cycles / self.frequency,  # eq. (27)
            up_s=up_s,
            communication_j=self.circuit_power * down_s + self.device_power * up_s,  # eq. (42)
            computation_j=self.capacitance * cycles * self.frequency**2,  # eq. (28)
        )

    def metrics(self, training: Costs, initialization: Sequence[Costs] = ()) -> dict[str, list[float]]:
        """Return a round's metrics by name, a value per replica.

        Args:
            training: of the round itself.
            initialization: of the V rounds before it, where a session begins.

        Returns:
            ``wireless/latency_s`` and ``wireless/energy_j``, with those V rounds where they are ``charged``; and
            ``wireless/initialization_s`` and ``wireless/initialization_j``, theirs alone, charged or not.
        """
        extra_s = np.sum([exchange.latency for exchange in initialization], axis=0) + np.zeros(training.replicas)
        extra_j = np.sum([exchange.energy for exchange in initialization], axis=0) + np.zeros(training.replicas)
        charged = self.initialization == "charged"
        latency, energy = training.latency + charged * extra_s, training.energy + charged * extra_j
        return {name: values.tolist() for name, values in zip(NAMES, (latency, energy, extra_s, extra_j), strict=True)}

    def gains(self, seed: Any, number: int, device: Any, repeat: int = 0) -> Floats:
        """Return ψ [...], the linear gain of path loss and shadowing (eq. (21)), of devices; the arguments are ints or
        arrays [...]."""
        distance = distances(seed, device, self.nearest, self.radius)
        loss = path_loss(distance, self.carrier, self.base_height, self.user_height, self.environment_height)
        return 10 ** (-(loss + self.shadowing * shadowing(seed, number, device, repeat)) / 10)

    def snr(self, gain: Any, band: Any) -> Floats:
        """Return the mean signal-to-noise ratios P ψ / (N_0 W) [2, ...] of downlink and uplink, from ψ and a band of W
        Hz."""
        density = 10 ** (self.noise / 10) / 1000  # W/Hz
        powers = self.server_power, self.device_power
        return np.stack([power * np.asarray(gain) / (density * band) for power in powers])

    def _slots(self, amounts: Floats, gain: Floats, band: Floats, fading: Fading) -> Floats:
        """Return the least numbers of slots [2, L] in which bits [2, L] pass (eq. (26)), of rates as in eq. (24) and
        (25)."""
        snr = self.snr(gain, band)
        with np.errstate(all="ignore"):  # infinity is refused below
            needed = amounts / (band * self.slot)  # the sum of log2(1 + SNR |h|²) that sends them
            longest = (needed * math.log(2) / np.log1p(snr)).max()  # fading makes it more: the logarithm is concave
        if not longest <= MOST_SLOTS:
            raise UserError(
                f"Wireless: a device needs {longest:.0e} slots of {self.slot} s, more than {MOST_SLOTS:.0e}: raise "
                "Wireless.bandwidth or the powers, or lower Wireless.radius or the size of the model"
            )
        goal, strength = torch.from_numpy(needed), torch.from_numpy(snr)
        slots, sent = torch.zeros_like(goal), torch.zeros_like(goal)
        waiting = np.flatnonzero((needed > 0).any(0))
        while waiting.size:
            count = BLOCK * min(max(CHUNK // (BLOCK * waiting.size), 2), 128)
            power = fading.powers(waiting, count)
            lane = torch.from_numpy(waiting)
            rate = (strength[:, lane, None] * power).add_(1).log_().div_(math.log(2))
            total = rate.cumsum(-1).add_(sent[:, lane, None])
            short = total < goal[:, lane, None]
            slots[:, lane] += short.sum(-1)
            sent[:, lane] = total[..., -1]
            waiting = waiting[short[..., -1].any(0).numpy()]
        return (slots + (goal > 0)).numpy()  # the slot in which the last bit passes

    @staticmethod
    def _summed(name: str, amount: Any, jobs: NDArray[np.int64], job: NDArray[np.int64]) -> Floats:
        """Return the sum per device [L] over its jobs [S, J]."""
        values = np.broadcast_to(np.asarray(amount, dtype=np.float64), jobs.shape)
        if not (np.isfinite(values).all() and values.min() >= 0):
            raise UserError(f"{name} must be finite numbers ≥ 0, got {values.min()} to {values.max()}")
        return np.bincount(job.ravel(), values.ravel()).astype(np.float64)
