"""Mime (Karimireddy et al. 2020, Alg. 1; 2021): MimeLite whose devices also correct their gradients, as SVRG does.

    server: c = mean_S ∇f_j(x), of the survey;   send x, s and c
    device: y ← y - η_ℓ U(∇f_i(y; ζ) - ∇f_i(x; ζ) + c, s)   K times;   the rest is MimeLite's

x, s and c travel down, ∇f_i(x) and Δ_i up: 5 n numbers, with Adam 6 n; every step takes two gradients.

Laws: after one step each all devices are in the same place, x - η_ℓ U(c, s), whatever their data.
Differs: as MimeLite; clipping is of either minibatch gradient.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from flstudy.algorithms.mimelite import MimeLite, Server
from flstudy.algorithms.parts.rules import clip, off
from flstudy.algorithms.parts.signatures import Batch, Gradient, Job, Local, State


@dataclass(frozen=True, kw_only=True)
class Mime(MimeLite):
    """Mime (Karimireddy et al. 2020; 2021): MimeLite whose local gradients are corrected as in SVRG."""

    citations: ClassVar[tuple[str, ...]] = ("karimireddy2020mime", "karimireddy2021")

    def broadcast(self, server: Server, job: Job) -> Any:
        return super().broadcast(server, job)._replace(c=server.c)

    def local_step(self, local: Local, batch: Batch, grad: Gradient, msg: Any, client: State) -> tuple[Local, Tensor]:
        (at_x, _), (at_y, loss) = grad(msg.x, batch), grad(local.y, batch)
        at_x = clip(at_x, self.clip_norm)
        at_x = at_x if off(self.weight_decay) else at_x + self.weight_decay * msg.x
        g = self.correct(clip(at_y, self.clip_norm) - at_x + msg.c, local.y, msg, client)
        step, rule = self.device_rule().update(g, local.rule, local.y)
        return Local(local.y - step, rule, local.steps + 1), loss
