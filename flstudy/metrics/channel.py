"""The radio channel between a base station and its devices: distance, path loss, shadowing, fading.

References: Chang et al., Communication-Efficient Federated Learning under Dynamic Device Arrival and Departure ("device
sessions"), App. A; 3GPP TR 38.901, Table 7.4.1-1 (UMi street canyon, line of sight). All that is drawn is a pure
function of the names of its stream, so that a device's channel never depends on who else takes part.
"""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flstudy.population.streams import random_bits

LIGHT = 3e8  # m/s, as both references round it
BLOCK = 32  # slots that one product with a triangular matrix advances


def distances(seed: Any, device: Any, nearest: float, radius: float) -> NDArray[np.float64]:
    """Return the horizontal distances [m] of devices that are scattered evenly over the area of a ring, of density
    2d / (R² − d_min²) on [d_min, R] (device sessions, eq. (22)).

    Args:
        seed: of the replica; an int or an array that broadcasts with ``device``.
        device: likewise.
        nearest: d_min, m.
        radius: R, m.
    """
    share = (random_bits(seed, "position", device) >> np.uint64(11)) * 2.0**-53
    return np.sqrt(nearest**2 + share * (radius**2 - nearest**2))


def breakpoint_distance(carrier: float, base_height: float, user_height: float, environment_height: float) -> float:
    """Return d'_BP [m] = 4 (h_BS − h_E)(h_UT − h_E) f_c / c (TR 38.901, Table 7.4.1-1, note 1).

    Args:
        carrier: f_c, GHz.
        base_height: h_BS, m.
        user_height: h_UT, m.
        environment_height: h_E, m.
    """
    return 4 * (base_height - environment_height) * (user_height - environment_height) * carrier * 1e9 / LIGHT


def path_loss(
    distance: Any, carrier: float, base_height: float, user_height: float, environment_height: float
) -> NDArray[np.float64]:
    """Return the path loss [dB] of UMi street canyon, line of sight (TR 38.901, Table 7.4.1-1; device sessions, eq.
    (35)-(37)).

    The ``distance`` is horizontal, m; the others are those of `breakpoint_distance`.
    """
    flat, height = np.asarray(distance, dtype=np.float64), base_height - user_height
    straight = np.log10(np.hypot(flat, height))
    turn = breakpoint_distance(carrier, base_height, user_height, environment_height)
    common = 32.4 + 20 * math.log10(carrier)
    near = common + 21 * straight
    far = common + 40 * straight - 9.5 * math.log10(turn**2 + height**2)
    return np.where(flat <= turn, near, far)


def correlation(speed: float, carrier: float, slot: float) -> float:
    """Return ρ = J_0(2π f_d τ) of a device's fading from slot to slot, f_d = v f_c / c (device sessions, App. A-A3).

    Args:
        speed: v, m/s.
        carrier: f_c, GHz.
        slot: τ, s.
    """
    doppler = speed * carrier * 1e9 / LIGHT
    phase = torch.tensor(2 * math.pi * doppler * slot, dtype=torch.float64)
    return min(float(torch.special.bessel_j0(phase)), 1.0)  # a rounding error must not take 1 − ρ² below 0


def shadowing(seed: Any, number: Any, device: Any, repeat: int = 0) -> NDArray[np.float64]:
    """Return [...]: the standard normal shadowing, to be scaled by σ [dB], of devices [...] in a round ``number``."""
    return normals(random_bits(seed, "shadowing", number, repeat, device))[0].double().numpy() * math.sqrt(2)


def normals(words: NDArray[np.uint64]) -> tuple[Tensor, Tensor]:
    """Return the real and imaginary parts, each [...] in float32, of CN(0, 1) from words [...] of 64 random bits (Box
    and Muller 1958)."""
    radius = torch.from_numpy((words >> np.uint64(40)).astype(np.float32) + np.float32(0.5))
    radius = radius.mul_(2.0**-24).log_().neg_().sqrt_()
    angle = torch.from_numpy((words & np.uint64(0xFFFFFF)).astype(np.float32)).mul_(2 * math.pi * 2.0**-24)
    return angle.cos() * radius, angle.sin_() * radius


class Fading:
    """Rayleigh fading of L devices, a first-order Gauss-Markov process: h[0] ~ CN(0, 1) and
    h[n] = ρ h[n−1] + √(1 − ρ²) e[n] (device sessions, eq. (23)).

    Args:
        seed: [L] of each device's replica.
        number: round.
        device: [L].
        rho: ρ in [−1, 1].
        repeat: which of the exchanges within the round.
    """

    def __init__(
        self, seed: NDArray[np.int64], number: int, device: NDArray[np.int64], rho: float, repeat: int = 0
    ) -> None:
        self.seed, self.number, self.device, self.rho, self.repeat = seed, number, device, rho, repeat
        self.slot = 0  # of the last power that was told
        self.last = self._noise(slice(None), 0, 1)[..., 0]  # [2, L], h there

    def powers(self, which: NDArray[np.int64], count: int) -> Tensor:
        """Return |h[n]|² [K, count] of the next slots of the devices at places ``which`` [K]; nobody left out can come
        back."""
        noise = self._noise(which, self.slot + 1, count)
        h = gauss_markov(noise, self.rho, self.last[:, torch.from_numpy(which)])
        self.last[:, torch.from_numpy(which)] = h[..., -1]
        self.slot += count
        return h[0].square() + h[1].square()

    def _noise(self, which: Any, first: int, count: int) -> Tensor:
        """Return e [2, devices, count] in float64: real and imaginary parts."""
        seed, device = self.seed[which, None], self.device[which, None]
        words = random_bits(seed, "fading", self.number, self.repeat, device, np.arange(first, first + count))
        return torch.stack(normals(words)).double()


def gauss_markov(noise: Tensor, rho: float, before: Tensor) -> Tensor:
    """Return h [..., N] with h[n] = ρ h[n−1] + √(1 − ρ²) e[n], of which BLOCK slots are one product with a triangular
    matrix.

    Args:
        noise: e [..., N], N ≥ 1.
        rho: ρ in [−1, 1].
        before: [...], h before the first slot.
    """
    length = noise.shape[-1]
    whole = noise if length % BLOCK == 0 else torch.nn.functional.pad(noise, (0, -length % BLOCK))
    blocks = whole.unflatten(-1, (-1, BLOCK))
    lag = np.arange(BLOCK)[None, :] - np.arange(BLOCK)[:, None]
    weights = np.where(lag >= 0, float(rho) ** np.maximum(lag, 0), 0) * math.sqrt(1 - rho**2)
    h = blocks @ torch.from_numpy(weights).to(noise.dtype)  # as if every block began at 0
    decay = torch.from_numpy(float(rho) ** np.arange(1, BLOCK + 1)).to(noise.dtype)
    for block in h.unbind(-2):  # views of h
        block.addcmul_(before[..., None], decay)
        before = block[..., -1]
    return h.flatten(-2)[..., :length]
