"""Direct joint adaptivity (FedAda², Lee et al. 2024, sec. 4 and 6): the server's preconditioner starts the devices'.

    server: send x and v, its own second moment, as it is, whatever the two optimizers are
    device: v, or for SM3 the largest v of each axis slice, is where its second moment starts;   the rest is ``joint``'s
    x and v travel down, Δ up: 3 n numbers

Laws: while v is 0, as in round 1 with ``v_init: zero``, it is JointAdaptivity.
Differs: in the authors' code vectors, such as biases, start at 0 under SM3; here at v, as all else does. It counts the
steps of the bias corrections from the number of the round, with m from 0; a v from the server has no such bias, so
``client_bias_correction`` is refused.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from flstudy.algorithms.jointadaptivity import JointAdaptivity
from flstudy.algorithms.parts.signatures import Job, Layout, Local, State
from flstudy.user_error import UserError


@dataclass(frozen=True, kw_only=True)
class DirectJointAdaptivity(JointAdaptivity):
    """Direct joint adaptivity (Lee et al. 2024): adaptive devices start from an adaptive server's second moment."""

    citations: ClassVar[tuple[str, ...]] = ("lee2024",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.client_bias_correction:
            raise UserError(
                "DirectJointAdaptivity: client_bias_correction must be false: the devices' v starts at the server's, "
                "not at 0; set it to false, or take JointAdaptivity"
            )

    def broadcast(self, server: State, job: Job) -> Any:
        return super().broadcast(server, job)._replace(v=server.v)

    def local_start(self, msg: Any, client: State, layout: Layout) -> Local:
        local = super().local_start(msg, client, layout)
        moment = self.accumulator(self.client_optimizer).start(msg.v, layout)
        return local._replace(rule=local.rule._replace(moment=moment))
