"""Starting anew at given rounds."""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from flstudy.controllers.controller import Controller, Moment
from flstudy.population import Event


class Start(NamedTuple):
    """A server's first state."""

    server: Any


class Restart(Controller):
    """Starts the server anew at given rounds: the simplest answer to a drift whose time is known.

    Args:
        rounds: rounds (from 1) that begin with the initial server state; device rows are kept.
        keep_model: restart only what surrounds the model (moments, control variates), not the model.
    """

    citations: ClassVar[tuple[str, ...]] = ()

    def __init__(self, rounds: Sequence[int], keep_model: bool = False) -> None:
        if not rounds or min(rounds) < 1:
            raise ValueError(f"Restart: rounds must be one or more numbers ≥ 1, got {list(rounds)}")
        self.rounds, self.keep_model = frozenset(rounds), keep_model

    def init(self, server: Any) -> Start:
        """Remembers the first state."""
        return Start(server)

    def before_round(self, state: Start, server: Any, moment: Moment) -> tuple[Start, Any, Event | None]:
        """Restarts where asked."""
        if moment.number not in self.rounds:
            return state, server, None
        fresh = state.server._replace(x=server.x) if self.keep_model else state.server
        return state, fresh, Event(moment.number, "restart")
