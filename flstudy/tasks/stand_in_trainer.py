"""Stand-in for the Trainer of a module that is called without one: what holds there it tells, the rest it refuses."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NoReturn

from flstudy.user_error import UserError

Runs = Literal["mapped", "one by one", "under a trainer"]
EXECUTORS: dict[Runs, str] = {"one by one": "sequential", "under a trainer": "trainer"}

OPERATORS = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
    *("radd", "rsub", "rmul", "rtruediv", "rfloordiv", "rmod", "rpow", "rmatmul"),
    *("neg", "pos", "abs", "round", "lt", "le", "gt", "ge", "eq", "ne", "hash", "bool", "int", "float", "index"),
    *("len", "iter", "getitem", "contains", "format", "str"),
)


class NeedsExecutor(UserError):
    """Error of a module that does what only another executor can follow.

    Args:
        name: of the module's class.
        does: what the module does, a verb first.
        runs: how it can be run instead.
    """

    def __init__(self, name: str, does: str, runs: Runs) -> None:
        super().__init__(f"task: {name} {does}, which this executor cannot follow: set executor: {EXECUTORS[runs]}")
        self.does, self.runs = does, runs


class Unavailable:
    """Value that is not known: it may be handed on, and is refused where anything is done with it.

    Args:
        refuse: raises the error.
    """

    def __init__(self, refuse: Callable[[], NoReturn]) -> None:
        self.__dict__["_refuse"] = refuse

    def __getattr__(self, name: str) -> Any:
        """Refuse to give an attribute, but for those by which Python asks what an object is."""
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        """Refuse to be an argument of torch's functions."""
        values = [*args, *(kwargs or {}).values()]
        next(value for value in values if isinstance(value, cls))._refuse()
        raise AssertionError


def refused(self: Unavailable, *_: Any) -> NoReturn:
    """Refuse an operator: raise the error of the value's ``refuse``; AssertionError where that raises none."""
    self._refuse()
    raise AssertionError


for _operator in OPERATORS:
    setattr(Unavailable, f"__{_operator}__", refused)


class StandInTrainer:
    """Stand-in that a module is attached to while executors call it. In lanes, where many devices take a step at once,
    it knows neither round nor step; where one device trains after another it does.

    Args:
        name: of the module's class.

    Attributes:
        epoch: the round, from 0, as a Trainer of the federation counts; None in lanes.
        step: local steps that the device has taken in this fit; None in lanes, and in evaluations.
        batch: number of the batch in the local epoch; None likewise.
    """

    logger, loggers = None, ()
    global_rank = local_rank = 0
    world_size = 1
    is_global_zero = True

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch: int | None = None
        self.step: int | None = None
        self.batch: int | None = None

    @contextmanager
    def at(self, epoch: int | None, step: int | None = None, batch: int | None = None) -> Iterator["StandInTrainer"]:
        """Let the module know round, step and batch, each from 0, for a while: as long as one device trains or is
        measured."""
        before = self.epoch, self.step, self.batch
        self.epoch, self.step, self.batch = epoch, step, batch
        try:
            yield self
        finally:
            self.epoch, self.step, self.batch = before

    @property
    def current_epoch(self) -> int:
        """The round, from 0."""
        return self._known("reads self.current_epoch", self.epoch)

    @property
    def global_step(self) -> int:
        """Local steps that the device has taken in this fit."""
        return self._known("reads self.global_step", self.step)

    @property
    def batch_idx(self) -> Any:
        """Number of the batch in the local epoch, or a value that is refused where it is used."""
        if self.batch is not None or self.epoch is not None:
            return self.batch or 0
        return Unavailable(lambda: self.refuse("reads batch_idx", "one by one"))

    def _known(self, does: str, value: int | None) -> int:
        if value is None:
            self.refuse(does, "one by one")
        return value

    def refuse(self, does: str, runs: Runs = "under a trainer") -> NoReturn:
        """Raise NeedsExecutor for a module that reads what is not there."""
        raise NeedsExecutor(self.name, does, runs)

    def __getattr__(self, name: str) -> Any:
        """Refuse everything else that a Trainer has."""
        if name.startswith("__"):
            raise AttributeError(name)
        self.refuse(f"reads self.trainer.{name}")
