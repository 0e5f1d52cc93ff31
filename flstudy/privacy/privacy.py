"""Differential privacy of a run's devices (McMahan et al. 2018; FedAda², Lee et al. 2024, sec. 6.1 and app. H.1)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from flstudy.algorithms import Algorithm
from flstudy.hyper import Configurable, hyper
from flstudy.user_error import UserError


@dataclass(frozen=True, kw_only=True)
class AdaptiveClip(Configurable):
    """Adaptive clipping (Andrew et al. 2021, Algorithm 1): a bound that follows the norms of uploads."""

    citations: ClassVar[tuple[str, ...]] = ("andrew2021",)

    quantile: float = hyper(0.5, "(0, 1)")
    """γ: the share of uploads that the bound is to leave as they are."""
    lr: float = hyper(0.2, "(0, 1e12]")
    """η_C of c ← c exp(-η_C (b̃ - γ)), b̃ being the noisy share of uploads within the bound."""
    count_noise: float | None = hyper(None, "(0, 1e12]")
    """σ_b, standard deviation of the noise in how many are within it; null is a twentieth of the participants."""


@dataclass(frozen=True, kw_only=True)
class Privacy(Configurable):
    """Client-level differential privacy (McMahan et al. 2018): clipped uploads, and Gaussian noise in their mean.

    The upload is the concatenation of all that a method uploads. The server is told nothing but its noisy mean, so the
    guarantee holds whatever the method does with it. It is about what leaves the server, that is the models; what a run
    logs for its researcher (losses, accuracies, ``privacy/clipped_share``) is measured without noise, and choosing
    among runs by it spends budget that no ε here counts. Noise is drawn from the run's seeds, so that runs can be made
    again: ε is a deployment's whose noise nobody can foretell.
    """

    citations: ClassVar[tuple[str, ...]] = ("mcmahan2018",)

    clip: float | None = hyper(None, "(0, 1e12]")
    """c, largest L2 norm of a device's upload; null does not clip. Of an upload that is not finite nothing is kept."""
    noise: float = hyper(0.0, "[0, 1e12]")
    """σ, noise multiplier: each coordinate of the sum of S uploads gets N(0, (σ c)²), that of their mean N(0, (σ c /
    S)²)."""
    sampling: Literal["fixed", "poisson"] = "fixed"
    """The population's sampling of devices. fixed: so many without replacement; neighbouring worlds differ in the data
    of one device, which moves the sum by up to 2 c. poisson: every device by itself; neighbouring worlds differ in
    whether one device is there, which moves the sum by c. The mean then is the sum over the expected number q N
    (McMahan et al. 2018)."""
    delta: float = hyper(1e-5, "(0, 1)")
    """δ of (ε, δ); to be below 1 / N."""
    accountant: Literal["rdp", "pld"] = "rdp"
    """Rényi divergences (Mironov 2017), or the privacy loss distribution, which is tighter and knows poisson only."""
    orders: list[float] | None = None
    """Rényi orders > 1 of which the best counts; null takes the accountant's."""
    target_epsilon: float | None = hyper(None, "(0, 1e12]")
    """Bound on ε; the run ends before the round that would exceed it."""
    solve: bool = False
    """Choose the least σ with which all planned rounds stay within target_epsilon, in place of noise."""
    adaptive_clip: AdaptiveClip | None = None
    """Let c, which then is the first round's, follow the uploads; null keeps it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip is None and (self.private or self.adaptive_clip is not None):
            what = "adaptive_clip" if not self.private else "solve" if self.solve else f"noise = {self.noise}"
            raise UserError(f"Privacy: {what} needs a bound of what one device can do, got clip = null: set clip")
        if self.accountant == "pld" and self.sampling != "poisson":
            raise UserError(
                "Privacy: accountant pld knows poisson sampling only, got fixed; set sampling: poisson (and the "
                "population's), or accountant: rdp"
            )
        if self.orders is not None and (self.accountant == "pld" or not self.orders or min(self.orders) <= 1):
            raise UserError(f"Privacy: orders must be numbers > 1 for the accountant rdp, got {self.orders}")
        if self.solve and (self.target_epsilon is None or self.noise > 0):
            raise UserError(
                "Privacy: solve needs target_epsilon and chooses noise itself, got target_epsilon = "
                f"{self.target_epsilon} and noise = {self.noise}"
            )
        if self.target_epsilon is not None and not self.private:
            raise UserError(
                f"Privacy: target_epsilon = {self.target_epsilon} is out of reach without noise: set noise, or solve"
            )

    @property
    def private(self) -> bool:
        """Return whether there is noise, and so an ε."""
        return self.noise > 0 or self.solve

    def admits(self, algorithm: Algorithm) -> None:
        """Raise UserError if a method's messages would tell more than a noisy mean does, or cannot be clipped."""
        if algorithm.newcomers == "mean":
            raise UserError(
                "privacy: with algorithm.newcomers: mean devices send parts as they are, which clipping would shrink: "
                "set algorithm.newcomers: initial"
            )
        if not self.private:
            return
        name = type(algorithm).__name__
        if algorithm.asks is not None:
            raise UserError(
                f"privacy: the devices of {name} answer a survey ({algorithm.asks}) before every round, which no noise "
                "covers; use a method without, or privacy without noise"
            )
        if algorithm.averages_buffers:
            raise UserError(
                "privacy: buffers: average uploads running statistics, which noise makes useless (a variance below 0): "
                "set buffers: local or freeze, or use GroupNorm"
            )
        if algorithm.oracle or algorithm.reads_each or algorithm.by_model:
            what = "concepts" if algorithm.oracle else "uploads"
            raise UserError(
                f"privacy: the server of {name} needs to know single devices' {what}, not only the noisy mean; use "
                "another method, or privacy without noise"
            )
        reads_each = type(algorithm).reads_each  # by a property of its own: for which hyper-parameters it reads them
        decides = isinstance(reads_each, property) and reads_each is not Algorithm.reads_each
        if not decides and "uploads" in type(algorithm).server_step.__code__.co_names:
            raise UserError(
                f"privacy: server_step of {name} reads inbox.uploads, but private servers see the noisy mean only: use "
                "inbox.mean(), or set reads_each = True and run it without noise"
            )
        if algorithm.weighting != "uniform":
            raise UserError(
                "privacy: algorithm.weighting must be uniform, since one device's share of the mean bounds what it can "
                f"do, got {algorithm.weighting!r}: set algorithm.weighting: uniform"
            )
