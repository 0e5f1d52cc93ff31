"""Initial models of sessions (device sessions: Chang et al. 2025, Alg. 1), for every algorithm unchanged.

Sessions s count from 1, w^(s) is the model at the end of session s, P the number of pilot sessions:

    w_pilot = mean of w^(1) … w^(P)                               eq. (16), or an exponential average, eq. (30)
    G_s = (w after V rounds from w_pilot on a sample of s's devices) - w_pilot         for s > P, eq. (17)
    μ_z = softmax_z(-R d(G_s, G_z));   w ← Σ_z μ_z w^(z)          for s > P + 1, over z = P + 1 … s - 1, eq. (18), (19)

Laws: R = 0 is `Average`; R → ∞ takes the model of the session whose gradient is nearest; a world of one session is the
algorithm alone.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from flstudy.algorithms import Layout
from flstudy.controllers.controller import Moment, ProbeRounds, Restarting
from flstudy.hyper import hyper
from flstudy.population import Event
from flstudy.user_error import UserError


class SessionModels(NamedTuple):
    """Sessions' last models and gradients, oldest first; the gradients of `Average` are empty."""

    pilots: Tensor  # [P so far, *x]
    models: Tensor  # [sessions after the pilots, *x]
    gradients: Tensor  # [of the same sessions and of this one, *x]


@dataclass(frozen=True, kw_only=True)
class Average(Restarting):
    """Average initial model (Chang et al. 2025): sessions start from the mean of earlier final models, not pilots'."""

    citations: ClassVar[tuple[str, ...]] = ("chang2025",)

    pilots: int = hyper(1, "[1, 1e3]")
    """P, number of pilot sessions at the beginning; they only train."""
    history: int | None = hyper(None, "[1, 1e6]")
    """H, latest sessions that are remembered; null remembers all."""

    def init(self, server: Any) -> SessionModels:
        """Return an empty memory of sessions."""
        nothing = server.x.new_empty((0, *server.x.shape))
        return SessionModels(nothing, nothing, nothing)

    def check(self, sessions: int) -> None:
        """Check the number of sessions: the second one after the pilots is the first to start from a model of its own.

        Raises:
            UserError: there are too few sessions for one.
        """
        if sessions < self.pilots + 2:
            raise UserError(
                f"{type(self).__name__}: there must be pilots + 2 = {self.pilots + 2} sessions or more, got "
                f"{sessions}: raise rounds, shorten the sessions (population.availability) or lower pilots"
            )

    def weights(self, state: SessionModels, layout: Layout) -> Tensor:
        """Return μ [sessions remembered]."""
        count = len(state.models)
        return state.models.new_full((count,), 1 / count)

    def before_round(
        self, state: SessionModels, server: Any, moment: Moment
    ) -> tuple[SessionModels, Any, Event | None]:
        """Start a session from the mean of remembered models, if there are any."""
        if not moment.begins or not len(state.models):
            return state, server, None
        x = torch.tensordot(self.weights(state, moment.layout), state.models, 1)
        return state, *self.restarted(server, x, moment, "initial model")

    def after_round(
        self, state: SessionModels, server: Any, losses: Tensor, moment: Moment
    ) -> tuple[SessionModels, Any, Event | None]:
        """Remember the model with which a session ends, not its losses [J]."""
        if not moment.ends:
            return state, server, None
        if moment.session < self.pilots:
            return state._replace(pilots=torch.cat([state.pilots, server.x[None]])), server, None
        state = state._replace(models=torch.cat([state.models, server.x[None]]))
        return self.forget(state, moment.layout), server, None

    def forget(self, state: SessionModels, layout: Layout) -> SessionModels:
        """Keep at most ``history`` sessions."""
        if self.history is None or len(state.models) <= self.history:
            return state
        return state._replace(models=state.models[-self.history :])


@dataclass(frozen=True, kw_only=True)
class DynamicInitialModel(Average):
    """Dynamic initial model (Chang et al. 2025): sessions start from models of earlier ones with similar gradients.

    Differs: the paper's similarity is ``l2``; its tables come from code that normalises every tensor's gradient,
    averages the distances over tensors and leaves biases out: ``per_tensor_normalised``, where R is on another scale.
    In that code the gradient rounds use half of the learning rate and session P + 1 starts from the very first model;
    here as in the paper.
    """

    citations: ClassVar[tuple[str, ...]] = ("chang2025",)

    scale: float = hyper(10.0, "[0, 1e12]")
    """R: the larger it is, the more sessions with similar gradients outweigh others."""
    gradient_rounds: int = hyper(1, "[1, 1e6]")
    """V, rounds from the pilot model by which a session's gradient is measured."""
    gradient_devices: int | None = hyper(None, "[1, 1e6]")
    """Devices that take part in each of these rounds; null: as many as in any round."""
    similarity: Literal["l2", "per_tensor_normalised", "cosine"] = "l2"
    """d of two gradients; per_tensor_normalised lies in [0, 2], cosine is 1 - cos."""
    pilot: Literal["mean", "ema"] = "mean"
    """Whether the pilot model is the mean of the pilot sessions' or their exponential average."""
    decay: float = hyper(0.5, "(0, 1)")
    """β of ema: the share of what came before."""
    retention: Literal["recent", "diverse"] = "recent"
    """Which sessions are forgotten: the oldest, or the one whose gradient is nearest to another's."""

    def pilot_model(self, state: SessionModels) -> Tensor:
        """Return w_pilot [*x]: eq. (16), or eq. (30), whose weights β^(P-1), (1 - β) β^(P-1-s) for s = 1 … P - 1 add up
        to 1."""
        count = len(state.pilots)
        if self.pilot == "mean":
            return state.pilots.mean(0)
        age = torch.arange(count - 1, -1, -1, dtype=state.pilots.dtype, device=state.pilots.device)
        weight = (1 - self.decay) * self.decay**age
        weight[0] = self.decay ** (count - 1)
        return torch.tensordot(weight, state.pilots, 1)

    def probe_rounds(self, state: SessionModels, server: Any, moment: Moment) -> ProbeRounds | None:
        """Return V rounds from the pilot model, with which every session after the pilots begins."""
        if not moment.begins or moment.session < self.pilots:
            return None
        return ProbeRounds(self.pilot_model(state), self.gradient_rounds, self.gradient_devices)

    def before_round(
        self, state: SessionModels, server: Any, moment: Moment
    ) -> tuple[SessionModels, Any, Event | None]:
        """Remember G_s, then start from the weighted mean."""
        if moment.probed is not None:
            gradient = moment.probed - self.pilot_model(state)
            state = state._replace(gradients=torch.cat([state.gradients, gradient[None]]))
        return super().before_round(state, server, moment)

    def weights(self, state: SessionModels, layout: Layout) -> Tensor:
        """Return μ [sessions remembered], eq. (19); the last gradient is this session's."""
        distance = self.distances(state.gradients[:-1], state.gradients[-1], layout)
        return torch.softmax(-self.scale * distance, 0)

    def distances(self, gradients: Tensor, to: Tensor, layout: Layout) -> Tensor:
        """Return d [Z] of gradients [Z, *x] to one [*x]."""
        if self.similarity == "l2":
            return (gradients - to).flatten(1).norm(dim=1)
        if self.similarity == "cosine":
            return 1 - torch.cosine_similarity(gradients.flatten(1), to.flatten()[None], dim=1)
        ours, theirs = gradients.split(layout.sizes, -1), to.split(layout.sizes, -1)
        apart = [
            (normalize(gradient.flatten(1), dim=1) - normalize(target.flatten(), dim=0)).norm(dim=1)
            for name, gradient, target in zip(layout.names, ours, theirs, strict=True)
            if not name.endswith("bias")
        ]
        return torch.stack(apart).mean(0)

    def forget(self, state: SessionModels, layout: Layout) -> SessionModels:
        """Keep at most ``history`` sessions, the most different ones where asked."""
        if self.history is None or len(state.models) <= self.history:
            return state
        drop = 0
        if self.retention == "diverse":
            apart = torch.stack([self.distances(state.gradients, gradient, layout) for gradient in state.gradients])
            apart.fill_diagonal_(torch.inf)
            drop = int(apart.min(1).values.argmin())  # of the two nearest, the older
        keep = [place for place in range(len(state.models)) if place != drop]
        return state._replace(models=state.models[keep], gradients=state.gradients[keep])
