"""ε of a run, by dp-accounting."""

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from flstudy.privacy.privacy import Privacy
from flstudy.process_state import quiet_logger
from flstudy.user_error import UserError

MOST_NOISE, LEAST_NOISE = 2.0**20, 2.0**-6  # σ between which it is sought
STEP = 1e-3  # of the privacy losses' grid: ε moves in its fourth digit, at a tenth of the time of the library's 1e-4


class Sample(NamedTuple):
    """Sampling of a round's devices."""

    devices: int  # N that are there
    drawn: int  # |S| of them, under Poisson sampling in the mean


class Accountant:
    """Accountant of ε. Under ``fixed`` sampling the relation is "replace one device" (Wang et al. 2019, Theorem 27) and
    the sum's sensitivity 2 c, under ``poisson`` "add or remove one" (Mironov et al. 2019) and c.

    Args:
        privacy: the settings.

    Raises:
        UserError: if dp-accounting is not installed.
    """

    def __init__(self, privacy: Privacy) -> None:
        try:
            import dp_accounting
        except ImportError as error:
            raise UserError(
                "privacy: noise needs dp-accounting, which tells its ε: pip install dp-accounting"
            ) from error
        self.privacy, self._dp = privacy, dp_accounting
        self._known: dict[tuple[Sample, float], Any] = {}  # of one round: takes a tenth of a second to work out

    def epsilon(self, noise: float, rounds: Mapping[Sample, int]) -> float:
        """Return ε at δ after the given numbers of rounds of each kind.

        Args:
            noise: σ > 0; above 2^20, where the library's sums fail, ε is that of 2^20, which is no smaller.
            rounds: number of rounds by the sampling of their devices.
        """
        spent = {sample: count for sample, count in sorted(rounds.items()) if count > 0}
        if not spent:
            return 0.0
        noise = min(noise, MOST_NOISE)
        return self._of_losses(noise, spent) if self.privacy.accountant == "pld" else self._of_orders(noise, spent)

    def solve(self, target: float, rounds: Mapping[Sample, int]) -> float:
        """Return the least σ, to a thousandth of it, with which these rounds stay within the target.

        Raises:
            UserError: if no σ up to 2^20 does.
        """
        self.reach(target, rounds)
        noise = 1.0
        while self.epsilon(noise, rounds) > target:
            noise *= 2
        while noise > LEAST_NOISE and self.epsilon(noise / 2, rounds) <= target:
            noise /= 2
        low, high = noise / 2, noise
        while high - low > 1e-3 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if self.epsilon(middle, rounds) <= target else (middle, high)
        return high

    def reach(self, target: float, rounds: Mapping[Sample, int]) -> None:
        """Raise UserError if no σ up to 2^20 keeps these rounds within the target."""
        if self.epsilon(MOST_NOISE, rounds) > target:
            raise UserError(
                f"privacy: target_epsilon = {target:g} is out of reach in {sum(rounds.values())} rounds at δ = "
                f"{self.privacy.delta:g}, whatever the noise: raise it, or plan fewer rounds or participants"
            )

    def _of_orders(self, noise: float, rounds: Mapping[Sample, int]) -> float:
        total = sum(count * self._order_by_order(sample, noise) for sample, count in rounds.items())
        return float(self._dp.rdp.compute_epsilon(self._fresh().orders, total, self.privacy.delta)[0])

    def _order_by_order(self, sample: Sample, noise: float) -> Any:
        """Return the Rényi divergences of one round; they add up over rounds, which the library's class does not
        show."""
        if (sample, noise) not in self._known:
            accountant = self._fresh()
            with quiet_logger("absl", logging.ERROR):  # its warnings of orders left out cost tightness, never truth
                accountant.compose(self.event(sample, noise))
            self._known[sample, noise] = accountant.rdp
        return self._known[sample, noise]

    def _fresh(self) -> Any:
        relation = self._dp.NeighboringRelation
        fixed = self.privacy.sampling == "fixed"
        chosen = relation.REPLACE_ONE if fixed else relation.ADD_OR_REMOVE_ONE
        return self._dp.rdp.RdpAccountant(self.privacy.orders, chosen)

    def event(self, sample: Sample, noise: float) -> Any:
        """Return a round as dp-accounting names it; the noise multiplier is relative to the sensitivity."""
        devices, drawn = sample
        if self.privacy.sampling == "fixed":
            return self._dp.SampledWithoutReplacementDpEvent(devices, drawn, self._dp.GaussianDpEvent(noise / 2))
        return self._dp.PoissonSampledDpEvent(drawn / devices, self._dp.GaussianDpEvent(noise))

    def _of_losses(self, noise: float, rounds: Mapping[Sample, int]) -> float:
        from dp_accounting.pld import privacy_loss_distribution as pld

        whole = None
        for sample, count in rounds.items():
            if (sample, noise) not in self._known:
                self._known[sample, noise] = pld.from_gaussian_mechanism(
                    noise,
                    value_discretization_interval=STEP,
                    sampling_prob=sample.drawn / sample.devices,
                    neighboring_relation=self._dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
                )
            part = self._known[sample, noise].self_compose(count)
            whole = part if whole is None else whole.compose(part)
        assert whole is not None
        return float(whole.get_epsilon_for_delta(self.privacy.delta))
