"""Starting anew at given rounds."""

from dataclasses import dataclass
from typing import Any, ClassVar

from flstudy.controllers.controller import Controller, Moment
from flstudy.hyper import hyper
from flstudy.population import Event


@dataclass(frozen=True, kw_only=True)
class Restart(Controller):
    """Starts the server anew at given rounds: the simplest answer to a drift whose time is known."""

    citations: ClassVar[tuple[str, ...]] = ()

    rounds: list[int] = hyper(domain="[1, 1e6]")
    """Rounds (from 1) that begin with the initial server state; device rows are kept."""
    keep_model: bool = False
    """Restart only what surrounds the model (moments, control variates), not the model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.rounds:
            raise ValueError("Restart: rounds must be one or more numbers, got none")

    def init(self, server: Any) -> Any:
        """The server's first state."""
        return server

    def before_round(self, state: Any, server: Any, moment: Moment) -> tuple[Any, Any, Event | None]:
        """Restarts where asked."""
        if moment.number not in self.rounds:
            return state, server, None
        return state, state._replace(x=server.x) if self.keep_model else state, Event(moment.number, "restart")
