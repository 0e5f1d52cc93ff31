"""Local training alone (FLASH, Panchal et al. 2023, "Local only"): nothing is sent, nobody averages.

    device: v_i ← SGD from v_i, which starts at the common initial model and is kept

Laws: no traffic; a device's model does not depend on the other devices.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from flstudy.algorithms.parts.algorithm import Algorithm
from flstudy.algorithms.parts.signatures import Inbox, Job, Layout, Local, Round


class Server(NamedTuple):
    x: Tensor  # [n] the initial model, for ever


class Client(NamedTuple):
    v: Tensor  # [n] v_i


class Nothing(NamedTuple):
    """Empty message or upload."""


@dataclass(frozen=True, kw_only=True)
class LocalOnly(Algorithm):
    """Local training alone (FLASH's baseline, Panchal et al. 2023): each device uses its own model; nothing is sent."""

    citations: ClassVar[tuple[str, ...]] = ()

    personalized: ClassVar[bool] = True
    sent_models: ClassVar[tuple[str, ...]] = ()

    def server_init(self, x: Tensor, layout: Layout) -> Server:
        return Server(x)

    def client_init(self, x: Tensor) -> Client:
        return Client(x)

    def broadcast(self, server: Server, job: Job) -> Any:
        return Nothing()

    def local_start(self, msg: Any, client: Client, layout: Layout) -> Local:
        return Local(client.v, self.device_rule().init(client.v, layout), client.v.new_zeros(()))

    def local_end(self, local: Local, msg: Any, client: Client) -> tuple[Any, Client]:
        return Nothing(), Client(local.y)

    def server_step(self, server: Server, inbox: Inbox, round: Round) -> Server:
        return server

    def deployed(self, server: Server, client: Client) -> Tensor:
        return client.v
