"""FedDrift-Eager (Jothimurugesan et al. 2023, Alg. 1): devices whose loss jumps get another global model together.

With l_c(m) what participant c measures of model m on its training data, over the models in use:

    m* = argmin_m l_c(m);   c drifts iff l_c(m*) - l_c' > δ;   l_c' ← l_c(m*)   (every ``every`` rounds)
    who drifts trains a new model, the same for all, which starts as a copy of the first one's m*; others train m*
    every model is averaged by itself; if all M are taken by others, nobody gets a new one

Laws: δ = ∞ is FedAvg.
Differs: devices train on present data only, for the past is gone; the authors keep what each model was trained on. Only
participants can signal. Errors for losses and recycling the least recently used model are the authors' code; FLASH's
text starts a new model from scratch: ``new_model``.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from flstudy.algorithms.parts.clustered import Clustered, own_model
from flstudy.algorithms.parts.signatures import Inbox, Job, Layout, Round
from flstudy.hyper import hyper

NEVER = -1


class Server(NamedTuple):
    x: Tensor  # [M, n]
    fresh: Tensor  # [M, n] where new models start from, if not from a copy
    used: Tensor  # [M] last round in which a model was used, NEVER for a free one
    rounds: Tensor  # [M] device-rounds that trained it
    owner: Tensor  # [M] the device that trains it alone, -1 for everybody's
    until: Tensor  # [M] the round from which it is everybody's


class Client(NamedTuple):
    previous: Tensor  # [] l_c'; ∞ before the first measurement


@dataclass(frozen=True, kw_only=True)
class FedDriftEager(Clustered):
    """FedDrift-Eager (Jothimurugesan et al. 2023): one new global model for all devices that drift in a round."""

    citations: ClassVar[tuple[str, ...]] = ("jothimurugesan2023",)
    measures: ClassVar[tuple[str, ...]] = (*Clustered.measures, "server/models")
    prepares_rows: ClassVar[bool] = True
    copies_models: ClassVar[bool] = True

    models: int = hyper(4, "[1, 1e3]")
    """M, most models at once."""
    delta: float = hyper(0.1, "[0, inf]")
    """δ, the rise of a device's measure that counts as a drift. The authors: .04 to .2."""
    every: int = hyper(1, "[1, 1e6]")
    """Rounds between two checks for drifts; the papers' time step."""
    signal: Literal["error", "loss"] = "error"
    """Measure of drifts: 1 - accuracy (the authors' code) or loss (the paper)."""
    new_model: Literal["copy", "random"] = "copy"
    """A new model starts from the best existing one, or from a draw of its own."""

    @property
    def starts(self) -> int:
        return self.models if self.new_model == "random" else 1

    @property
    def asks(self) -> Literal["loss", "error"]:
        return self.signal

    def server_init(self, x: Tensor, layout: Layout) -> Server:
        x = super().server_init(x, layout).x
        number = torch.arange(len(x), device=x.device)
        used = torch.where(number == 0, 0, NEVER)
        return Server(x, x, used, torch.zeros_like(used), torch.full_like(used, -1), torch.zeros_like(used))

    def server_restarted(self, server: Any, x: Tensor, layout: Layout) -> Any:
        return super().server_restarted(server, x, layout)._replace(fresh=server.fresh)

    def client_init(self, x: Tensor) -> Client:
        return Client(x.new_full((), torch.inf))

    def client_restarted(self, client: Client, x: Tensor) -> Client:
        """Forget l_c': the loss of a new model x [n] beside the last model's says nothing of a drift."""
        return self.client_init(x)

    def in_use(self, server: Server) -> Tensor:
        return (server.used != NEVER) & (server.owner < 0)

    def choose(self, server: Server, survey: Tensor, jobs: Job, round: Round) -> Tensor:
        alone = jobs.client[:, None] == server.owner
        return torch.where(alone.any(-1), alone.to(torch.int64).argmax(-1), survey.argmin(-1))

    def prepare(self, server: Any, clients: Any, survey: Tensor, jobs: Job, round: Round) -> tuple[Any, Any, Tensor]:
        model = self.choose(server, survey, jobs, round)
        looks = (jobs.client[:, None] != server.owner).all(-1) & ((round.number - 1) % self.every == 0)
        low = survey.min(-1).values
        server, model = self.open(server, model, looks & (low - clients.previous > self.delta), jobs, round)
        return server, Client(torch.where(looks, low, clients.previous)), model

    def open(self, server: Any, model: Tensor, drifted: Tensor, jobs: Job, round: Round) -> tuple[Any, Tensor]:
        """Return new models for the devices that drifted [J]: the server and the model [J] that each job trains."""
        first = own_model(model, drifted.to(torch.int64).argmax())
        server, here = self.add(server, first, drifted.any(), self.taken(server, model), round)
        return server, torch.where(drifted & here.any(), here.to(torch.int64).argmax(), model)

    def taken(self, server: Server, model: Tensor) -> Tensor:
        """Return [M]: models that must stay, since a device of this round uses them, ``model`` [J], or one trains them
        alone."""
        number = torch.arange(self.models, device=model.device)
        return (model == number[:, None]).any(1) | (server.owner >= 0)

    def add(self, server: Any, source: Tensor, wanted: Tensor, taken: Tensor, round: Round) -> tuple[Any, Tensor]:
        """Return a new model, if ``wanted`` [] and one is not ``taken`` [M]: the server, and where it is, [M] bool.

        It starts from the model with the number ``source`` [], or from a draw of its own.
        """
        place = torch.where(taken, torch.iinfo(torch.int64).max, server.used).argmin()
        here = (torch.arange(self.models, device=place.device) == place) & wanted & ~taken
        start = server.fresh if self.new_model == "random" else own_model(server.x, source)
        x, used = torch.where(here[:, None], start, server.x), torch.where(here, round.number, server.used)
        return server._replace(x=x, used=used, rounds=torch.where(here, 0, server.rounds)), here

    def server_step(self, server: Any, inbox: Inbox, round: Round) -> Any:
        trained = inbox.trained(self.models).to(server.rounds.dtype)
        return (
            super()
            .server_step(server, inbox, round)
            ._replace(
                used=torch.where(trained > 0, round.number, server.used),
                rounds=server.rounds + trained,
                owner=torch.where(server.until <= round.number + 1, -1, server.owner),
            )
        )

    def diagnostics(self, before: Any, after: Any, inbox: Inbox) -> dict[str, Tensor]:
        return {**super().diagnostics(before, after, inbox), "models": (after.used != NEVER).sum().to(after.x.dtype)}
