"""Base classes of controllers, which change the server's state around rounds and work with any algorithm."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self

from torch import Tensor

from flstudy.algorithms import Algorithm, Layout
from flstudy.hyper import Configurable
from flstudy.population import Event


class Moment(NamedTuple):
    """Time in the world at which a controller is asked, and what it may use."""

    number: int  # of the round, from 1
    session: int  # from 0
    begins: bool  # the session begins with this round
    ends: bool  # and ends with it
    algorithm: Algorithm  # the one that runs
    layout: Layout  # of the model's tensors
    seed: int  # of the replica
    draw: Callable[[str], Tensor]  # by name, a model as building the task draws it: [n] or [M, n], as the server's x
    probed: Tensor | None = None  # [n] or [M, n], what probe rounds that were asked for came to
    weights: Tensor | None = None  # [J] p of the jobs in the server's mean, after a round


class ProbeRounds(NamedTuple):
    """Federated rounds that are played from a model, with the devices of this round, and then forgotten: the algorithm
    is in its first state, and no device's row is touched."""

    x: Tensor  # [n] or [M, n], as the server's x
    rounds: int
    devices: int | None = None  # how many take part; None: as many as in any round


class Controller(Configurable, ABC):
    """Controller of one replica's server state. Its own state is a tree of tensors, checkpointed with the run."""

    measures: ClassVar[tuple[str, ...]] = ()
    """Names of its own `metrics`, for `flstudy.metrics.registry`."""
    watches: ClassVar[bool] = False
    """Whether it decides by the devices' losses, and so cannot do without."""

    @property
    def draws(self) -> bool:
        """Return whether it draws models, for which it must be known how the task is built."""
        return False

    @abstractmethod
    def init(self, server: Any) -> Any:
        """Return the controller's state before the first round."""

    def planned(self, rounds: int | None) -> Self:
        """Return the controller for a run of ``rounds`` rounds (None: nobody knows how many), which are its horizon
        where it has none.

        Raises:
            UserError: for a controller that needs a horizon and has none.
        """
        return self

    def check(self, sessions: int) -> None:
        """Raise UserError if the controller makes no sense in a world of ``sessions`` sessions."""
        return

    def probe_rounds(self, state: Any, server: Any, moment: Moment) -> ProbeRounds | None:
        """Return the rounds to play before this one, None for none; the same for all replicas but for x."""
        return None

    def before_round(self, state: Any, server: Any, moment: Moment) -> tuple[Any, Any, Event | None]:
        """Return (state, server, event) with which the round starts."""
        return state, server, None

    def after_round(self, state: Any, server: Any, losses: Tensor, moment: Moment) -> tuple[Any, Any, Event | None]:
        """Return (state, server, event) after the round, given the jobs' mean training losses [J]."""
        return state, server, None

    def metrics(self, state: Any) -> dict[str, Tensor]:
        """Return the scalars [] of the last round, to be logged under these names."""
        return {}


@dataclass(frozen=True, kw_only=True)
class Restarting(Controller):
    """Controller that lets training go on from another model."""

    state: Literal["method", "fresh", "server", "keep"] = "method"
    """Treatment of the server's other state and of the devices' rows. method: as the algorithm says; most often moments
    begin anew, and what belongs to devices stays (SCAFFOLD's c and c_i). fresh: all begins anew, and every row is
    forgotten. server: the server's state begins anew, and the rows stay, as in the code of Chang et al.; this breaks
    c = mean c_i. keep: all stays but the model."""

    def restarted(self, server: Any, x: Tensor, moment: Moment, label: str) -> tuple[Any, Event]:
        """Return the server that goes on from x, [n] or [M, n], and the event."""
        if self.state == "keep":
            return server._replace(x=x), Event(moment.number, label)
        if self.state == "method":
            return moment.algorithm.server_restarted(server, x, moment.layout), Event(moment.number, label, "restart")
        rows: Literal["forget", "keep"] = "forget" if self.state == "fresh" else "keep"
        return moment.algorithm.server_init(x, moment.layout), Event(moment.number, label, rows)


class Detector(Controller):
    """Controller that detects drifts and may begin anew; runs log and sum up the metrics of all detectors alike."""

    @abstractmethod
    def detected(self, state: Any) -> Tensor:
        """Return []: 0 where the last round detected no drift, any other number otherwise."""

    @abstractmethod
    def restarted(self, state: Any) -> Tensor:
        """Return []: the cause for which the last round began anew: 0 it did not, 1 by schedule, 2 after a
        detection."""

    def metrics(self, state: Any) -> dict[str, Tensor]:
        return {"detector/detected": self.detected(state), "detector/restarted": self.restarted(state)}
