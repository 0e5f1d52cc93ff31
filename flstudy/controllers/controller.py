"""What changes the server's state around rounds and works with any algorithm."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from flstudy.population import Event


class Controller(Protocol):
    """Sees one replica's server state. Its own state is a tree of tensors, checkpointed with the run."""

    def init(self, server: Any) -> Any:
        """The controller's state before the first round."""

    def before_round(self, state: Any, server: Any, index: int) -> tuple[Any, Any, Event | None]:
        """(state, server, event) with which round ``index`` (from 0) starts."""

    def after_round(self, state: Any, server: Any, losses: Tensor, index: int) -> tuple[Any, Any, Event | None]:
        """(state, server, event) after the round, given the jobs' mean training losses [J]."""


class Start(NamedTuple):
    """A server's first state."""

    server: Any


class Restart:
    """Starts the server anew at given rounds: the simplest answer to a drift whose time is known.

    Args:
        rounds: rounds (from 1) that begin with the initial server state; device rows are kept.
        keep_model: restart only what surrounds the model (moments, control variates), not the model.
    """

    def __init__(self, rounds: Sequence[int], keep_model: bool = False) -> None:
        if not rounds or min(rounds) < 1:
            raise ValueError(f"Restart: rounds must be one or more numbers ≥ 1, got {list(rounds)}")
        self.rounds, self.keep_model = frozenset(rounds), keep_model

    def init(self, server: Any) -> Start:
        """Remembers the first state."""
        return Start(server)

    def before_round(self, state: Start, server: Any, index: int) -> tuple[Start, Any, Event | None]:
        """Restarts where asked."""
        if index + 1 not in self.rounds:
            return state, server, None
        fresh = state.server._replace(x=server.x) if self.keep_model else state.server
        return state, fresh, Event(index + 1, "restart")

    def after_round(self, state: Start, server: Any, losses: Tensor, index: int) -> tuple[Start, Any, Event | None]:
        """Nothing to do."""
        return state, server, None
