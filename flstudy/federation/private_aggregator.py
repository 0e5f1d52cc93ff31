"""Private aggregation between the devices and the server: clipping, noise and their privacy accounting."""

import math
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flstudy import pytree
from flstudy.algorithms import Algorithm, Inbox
from flstudy.algorithms.parts.signatures import Totals
from flstudy.controllers import Controller
from flstudy.execution.parts import ClipBound, RoundPart
from flstudy.population import Population
from flstudy.population.streams import torch_seed
from flstudy.privacy import Accountant, Privacy, Sample, clipped, draws, moved, noisy_mean, split
from flstudy.user_error import UserError


class PrivateAggregator:
    """Aggregator that turns the devices' uploads into what the server may see of them.

    With noise, every upload is replaced by the noisy mean of all, so that any use that the server makes of them is
    private. The mean of the uploads is then the noisy mean, and their sum is the noisy mean times a count. The count is
    |S|, the number of devices. Under Poisson sampling it is the expectation q N, since |S| is private too. The noise of
    a round is a pure function of (seed, round).

    Args:
        privacy: the settings; null changes nothing.
        algorithm: the method.
        controllers: what acts around rounds.
        seeds: of the replicas.

    Raises:
        UserError: for a method or a controller to which devices tell more than their uploads.
    """

    def __init__(
        self, privacy: Privacy | None, algorithm: Algorithm, controllers: Sequence[Controller], seeds: Sequence[int]
    ) -> None:
        self.privacy = None if privacy is None or privacy.clip is None else privacy
        self.private = self.privacy is not None and self.privacy.private
        self.seeds, self.jobs_per_device = tuple(seeds), algorithm.jobs_per_device
        self.metrics: dict[str, list[float]] = {}  # of the last round
        self.noise = 0.0 if privacy is None else privacy.noise
        if self.privacy is not None:
            self.privacy.admits(algorithm)
        if not self.private:
            return
        for controller in controllers:
            if controller.watches:
                raise UserError(
                    f"privacy: {type(controller).__name__} decides by the devices' losses, which no noise covers; use "
                    "another controller, or privacy without noise"
                )
            if type(controller).probe_rounds is not Controller.probe_rounds:
                raise UserError(
                    f"privacy: {type(controller).__name__} plays probe rounds, whose uploads no noise covers; use "
                    "another controller, or privacy without noise"
                )

    def meets(self, population: Population) -> None:
        """Raise UserError if the population draws its devices in another way than is accounted for, or lets them train
        on each other's examples."""
        if self.private and population.data_stream is not None and population.data_stream.pooled:
            raise UserError(
                "privacy: it promises to hide a device's examples, but population.data_stream draws from everybody's, "
                "so that others upload what they learn of them: set population.data_stream.source to device"
            )
        if self.private and population.selection is not None:
            raise UserError(
                f"privacy: ε counts on devices that are drawn alike, but population.selection is "
                f"{type(population.selection).__name__}: set it to null, or privacy without noise"
            )
        if self.private and self.privacy is not None and self.privacy.sampling != population.sampling:
            raise UserError(
                f"privacy: sampling must be the population's, {population.sampling}, got {self.privacy.sampling}: set "
                "privacy.sampling or population.sampling"
            )

    def foresee(self, population: Population, rounds: int) -> None:
        """Warn and refuse as `start` would in a new run, before any example is read.

        Raises:
            UserError: if no run of these rounds keeps to the target, or the clipping bound's noise has no share left.
        """
        self.meets(population)
        if not self.private or self.privacy is None:
            return
        self._population, self._samples, self._epsilons = population, list[Sample](), dict[int, float]()
        self._warn(self.privacy)
        self.account: Accountant | None = None
        if self.privacy.target_epsilon is not None:
            self.account = Accountant(self.privacy)
            if self.privacy.solve:
                self.account.reach(self.privacy.target_epsilon, self._sample_counts(rounds))
            else:
                self._reach(self.privacy.target_epsilon)
        if not self.privacy.solve:
            split(self.noise, self._count_noise)

    def start(self, population: Population, rounds: int | None, saved: dict[str, Any] | None) -> None:
        """Start before the first round, or before the first after a checkpoint.

        Args:
            population: the devices and their data, settled.
            rounds: planned; null or negative: nobody knows.
            saved: the checkpoint.

        Raises:
            UserError: if the target is out of reach, or the checkpoint's rounds had other noise.
        """
        self._population, self._samples, self._epsilons = population, list[Sample](), dict[int, float]()
        self.meets(population)
        was = None if saved is None else saved.get("privacy") or {"noise": 0.0}
        if self.privacy is None:
            if was is not None and was["noise"] > 0:
                raise UserError(f"privacy: the checkpoint's rounds had noise = {was['noise']:g}, but this run has none")
            return
        assert self.privacy.clip is not None
        self.clip = torch.full((len(self.seeds),), self.privacy.clip, dtype=torch.float64)
        if was is not None and "clip" in was and self.privacy.adaptive_clip is not None:
            self.clip = torch.tensor(was["clip"], dtype=torch.float64)
        self.account = Accountant(self.privacy) if self.private else None
        if was is not None:
            if was["noise"] != self.privacy.noise and not (self.privacy.solve and was["noise"] > 0):
                raise UserError(
                    f"privacy: the checkpoint's rounds had noise = {was['noise']:g}, which this run must keep, got "
                    f"{self.privacy.noise:g}"
                )
            self.noise = was["noise"]
            assert saved is not None
            done, target = saved["record"][0], self.privacy.target_epsilon
            if not self.allows(done) and (rounds is None or not 0 <= rounds <= done):
                raise UserError(
                    f"privacy: round {done + 1} would spend {self.epsilon(done + 1):.4g}, more than target_epsilon = "
                    f"{target:g}: the checkpoint's run is at its end; raise the target, or start anew with more noise"
                )
        elif self.account is not None:
            self._plan(self.account, self.privacy, rounds)
        self._multiplier = split(self.noise, self._count_noise)

    def _plan(self, account: Accountant, privacy: Privacy, rounds: int | None) -> None:
        """Choose σ if that is asked for, and refuse a target out of reach."""
        self._warn(privacy)
        target = privacy.target_epsilon
        if target is None:
            return
        if privacy.solve:
            if rounds is None or rounds < 1:
                raise UserError("privacy: solve needs to know the rounds, got none planned: set max_epochs")
            self.noise = account.solve(target, self._sample_counts(rounds))
        self._reach(target)

    def _warn(self, privacy: Privacy) -> None:
        """Warn of a δ that promises nothing."""
        if privacy.delta >= 1 / self._population.clients:
            warnings.warn(
                f"privacy.delta = {privacy.delta:g} is not below 1 / N = {1 / self._population.clients:g}: such a "
                "promise allows to give away one device's data whole",
                stacklevel=3,
            )

    def _reach(self, target: float) -> None:
        """Raise UserError if the first round exceeds the target."""
        if self.epsilon(1) > target:
            raise UserError(
                f"privacy: target_epsilon = {target:g} is out of reach: one round with noise = {self.noise:g} spends "
                f"{self.epsilon(1):.4g}; raise noise or target_epsilon"
            )

    # ---- rounds ------------------------------------------------------------------------------------------------------

    def of(self, round: int) -> "PrivateRound | None":
        """Return the private aggregation of a round (from 1); None without privacy."""
        return None if self.privacy is None else PrivateRound(self, round)

    def __call__(self, inbox: Inbox, round: int) -> Inbox:
        """Return the uploads as the server sees them in a round (from 1), leaves [S, J, ...]."""
        if self.privacy is None:
            return inbox
        uploads, within = clipped(inbox.uploads, self.clip, self.jobs_per_device)
        released: Inbox = self.release(inbox._replace(uploads=uploads), within, round)
        return released

    def release(self, inbox: Any, within: Tensor, round: int) -> Any:
        """Return the clipped uploads as the server sees them, and update the metrics and the clipping bound.

        Args:
            inbox: an `Inbox` or `Totals` of clipped uploads.
            within: [S, D] whether each device's upload was within the bound before it was clipped.
            round: the round's number, from 1.
        """
        assert self.privacy is not None
        bound, within = self.clip, within.cpu()
        extra, count = torch.zeros_like(bound), float(within.shape[1])
        if self.private:
            # Of totals the sum, which is that of one upload.
            uploads = pytree.tree_map(lambda u: u[:, None], inbox.total) if summed(inbox) else inbox.uploads
            normal, extra = draws(uploads, [torch_seed(seed, f"privacy {round - 1}") for seed in self.seeds])
            count = float(self._sample(round).drawn)
            if self._population.drawn(round) == 0:  # who works nevertheless does not count
                uploads, within = pytree.tree_map(lambda leaf: leaf[:, :0], uploads), within[:, :0]
            mean = noisy_mean(uploads, normal, self._multiplier * bound, count)
            inbox = self._mean_inbox(inbox, mean, int(count))
        share = within.double().mean(1) if within.shape[1] else torch.ones_like(bound)
        self.metrics = {"privacy/clip": bound.tolist(), "privacy/clipped_share": (1 - share).tolist()}
        if self.private:
            spent = {"privacy/noise": self.noise, "privacy/epsilon": self.epsilon(round)}
            self.metrics |= {name: [value] * len(self.seeds) for name, value in spent.items()}
        if self.privacy.adaptive_clip is not None:
            self.clip = moved(bound, within, self.privacy.adaptive_clip, self._count_noise * extra, count)
        return inbox

    @staticmethod
    def _mean_inbox(inbox: Any, mean: Any, rows: int) -> Any:
        """Return an inbox, or totals, of ``rows`` uploads, each of which is the mean."""
        replicas = len(inbox.weights)
        weights = inbox.weights.new_full((replicas, rows), 1 / rows)
        model = inbox.model.new_zeros(replicas, rows)
        if summed(inbox):
            alone, total = pytree.tree_map(lambda u: u[:, None], mean), pytree.tree_map(lambda u: u * rows, mean)
            return Totals(alone, total, weights, model)
        same = pytree.tree_map(lambda leaf: leaf[:, None].expand(-1, rows, *leaf.shape[1:]), mean)
        return Inbox(same, weights, model)

    def hidden(self, losses: Tensor) -> Tensor:
        """Return the jobs' losses [S, J] as controllers may see them: not at all where there is noise."""
        return torch.full_like(losses, math.nan) if self.private else losses

    # ---- account -----------------------------------------------------------------------------------------------------

    @property
    def _count_noise(self) -> float:
        """Noise σ_b on the count of unclipped uploads."""
        assert self.privacy is not None
        settings = self.privacy.adaptive_clip
        if settings is None or not self.private:
            return math.inf if settings is None else 0.0
        return self._population.participants / 20 if settings.count_noise is None else settings.count_noise

    def _sample(self, round: int) -> Sample:
        """Return the sampling of a round's devices."""
        population = self._population
        if population.sampling == "poisson":
            return Sample(population.clients, population.participants)
        return Sample(population.fewest(round), population.drawn(round))

    def _sample_counts(self, rounds: int) -> Counter[Sample]:
        """Return the counts of the ways in which the first rounds draw their devices."""
        self._samples += [self._sample(round) for round in range(len(self._samples) + 1, rounds + 1)]
        return Counter(self._samples[:rounds])

    def epsilon(self, rounds: int) -> float:
        """Return ε (for the settings' δ) after ``rounds`` rounds: a pure function of their number."""
        assert self.account is not None
        if rounds not in self._epsilons:
            self._epsilons[rounds] = self.account.epsilon(self.noise, self._sample_counts(rounds))
        return self._epsilons[rounds]

    def allows(self, rounds: int) -> bool:
        """Return whether another round after ``rounds`` keeps to the target."""
        target = None if self.privacy is None else self.privacy.target_epsilon
        return target is None or self.epsilon(rounds + 1) <= target

    def state_dict(self) -> dict[str, Any] | None:
        """Return the noise and clipping bounds that a resume needs."""
        return None if self.privacy is None else {"noise": self.noise, "clip": self.clip.tolist()}


class PrivateRound(NamedTuple):
    """Private aggregation in one round."""

    aggregator: PrivateAggregator
    round: int

    def __call__(self, inbox: Inbox) -> Inbox:
        """Return all uploads as the server sees them, leaves [S, J, ...]."""
        return self.aggregator(inbox, self.round)

    def clip(self, part: RoundPart) -> ClipBound:
        """Return the bound by which a part's uploads are clipped where it is trained."""
        return ClipBound(part.of_servers(self.aggregator.clip), self.aggregator.jobs_per_device)

    def release(self, inbox: Any, within: Tensor) -> Any:
        """Return the clipped uploads as the server sees them, given which devices' were ``within`` [S, D] the bound."""
        return self.aggregator.release(inbox, within, self.round)


def summed(inbox: Any) -> bool:
    """Return whether only the sums of uploads are there."""
    return isinstance(inbox, Totals)
