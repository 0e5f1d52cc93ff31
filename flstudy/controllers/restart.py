"""Restarts at given rounds."""

from dataclasses import dataclass
from typing import Any, ClassVar

from flstudy.controllers.controller import Moment, Restarting
from flstudy.hyper import hyper
from flstudy.population import Event
from flstudy.user_error import UserError


@dataclass(frozen=True, kw_only=True)
class Restart(Restarting):
    """Restart of the server at given rounds: the simplest answer to a drift whose time is known."""

    citations: ClassVar[tuple[str, ...]] = ()

    rounds: list[int] = hyper(domain="[1, 1e6]")
    """Rounds (from 1) that begin with the first model."""
    keep_model: bool = False
    """Only what surrounds the model begins anew (``state``), not the model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.rounds:
            raise UserError("Restart: rounds must be one or more numbers, got none")

    def init(self, server: Any) -> Any:
        """Return the first model."""
        return server.x

    def before_round(self, state: Any, server: Any, moment: Moment) -> tuple[Any, Any, Event | None]:
        """Restart in a round that is one of ``rounds``."""
        if moment.number not in self.rounds:
            return state, server, None
        return state, *self.restarted(server, server.x if self.keep_model else state, moment, "restart")
