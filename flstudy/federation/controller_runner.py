"""Runner of controllers, each of which sees one replica at a time; and the algorithm as a schedule has it."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from flstudy.algorithms import Algorithm, Layout
from flstudy.controllers import Controller, Moment, ProbeRounds, Schedule
from flstudy.execution.trees import leaves, stack, take
from flstudy.federation.run_state import RunState
from flstudy.population import Event, Population
from flstudy.user_error import UserError


class ControllerRunner:
    """Runner of a run's controllers.

    Args:
        controllers: as they are configured.
        algorithm: the method.
        layout: of the model.
        population: the devices and their data, settled.
        state: of the run; it holds the controllers' states, and the rows that an event may restart or forget.
        schedule: of the devices' learning rate; None: the rate is constant.
        draw: returns a new initial model, shaped like the server's x, for a seed and a name.
    """

    def __init__(
        self,
        controllers: Sequence[Controller],
        algorithm: Algorithm,
        layout: Layout,
        population: Population,
        state: RunState,
        schedule: Schedule | None = None,
        *,
        draw: Callable[[int, str], Tensor],
    ) -> None:
        self.controllers, self.algorithm, self.layout, self.population = controllers, algorithm, layout, population
        self.state, self.schedule, self.draw = state, schedule, draw

    def start(self, rounds: int | None) -> None:
        """Make every controller's first state, in a run of ``rounds`` rounds; None where nobody knows how many.

        Raises:
            UserError: from a controller that makes no sense in this world, or a schedule without an end.
        """
        configured, self.rounds = self.controllers, rounds
        self.controllers = check_horizons(configured, self.schedule, self.population, rounds)
        unchanged = all(controller is other for controller, other in zip(configured, self.controllers, strict=True))
        self.takes_horizon = not unchanged or (self.schedule is not None and self.schedule.rounds is None)
        server = self.state.server
        self.replicas = len(leaves(server)[0])
        first = [[c.init(take(server, s)) for s in range(self.replicas)] for c in self.controllers]
        self.state.controllers = [stack(states) for states in first]

    def scheduled(self, round: int) -> Algorithm:
        """Return the algorithm as it is in a round (from 1)."""
        if self.schedule is None:
            return self.algorithm
        session = self.population.session_rounds(round, self.rounds) if self.schedule.rounds is None else None
        return self.schedule.at(self.algorithm, self.population.age(round), session)

    def before(self, server: Any, round: int, play: Callable[[ProbeRounds], Tensor]) -> tuple[Any, list[Event]]:
        """Return the server's state with which a round starts, and the controllers' events.

        Args:
            server: the server's state, leaves [S, ...].
            round: the round's number, from 1.
            play: plays probe rounds from a model x [S, ...], and returns the model at their end.
        """
        probed: list[Tensor | None] = []
        for controller, state in zip(self.controllers, self.state.controllers, strict=True):
            moment = self._moment(round, 0)
            requests = [controller.probe_rounds(take(state, s), take(server, s), moment) for s in range(self.replicas)]
            wanted = [request for request in requests if request is not None]
            probed.append(play(wanted[0]._replace(x=stack([request.x for request in wanted]))) if wanted else None)
        return self._hook("before_round", server, round, probed, None)

    def after(self, server: Any, losses: Tensor, weights: Tensor, round: int) -> tuple[Any, list[Event]]:
        """Return the server's state after the round (from 1), and the controllers' events.

        Args:
            server: the server's state, leaves [S, ...].
            losses: [S, J] of the jobs, as `PrivateAggregator.hidden` shows them.
            weights: [S, J] of the jobs.
            round: the round's number, from 1.
        """
        return self._hook("after_round", server, round, [None] * len(self.controllers), (losses, weights))

    def metrics(self) -> dict[str, list[float]]:
        """Return the metrics of the round by the controllers, a value per replica."""
        states = zip(self.controllers, self.state.controllers, strict=True)
        lines = [[controller.metrics(take(state, s)) for s in range(self.replicas)] for controller, state in states]
        return {name: [float(values[name]) for values in line] for line in lines for name in line[0]}

    def _hook(
        self, hook: str, server: Any, round: int, probed: Sequence[Tensor | None], jobs: tuple[Tensor, ...] | None
    ) -> tuple[Any, list[Event]]:
        events = []
        for place, (controller, played) in enumerate(zip(self.controllers, probed, strict=True)):
            states, servers = [], []
            for s in range(self.replicas):
                moment = self._moment(round, s)._replace(probed=None if played is None else played[s])
                seen: tuple[Tensor, ...] = ()
                if jobs is not None:
                    moment, seen = moment._replace(weights=jobs[1][s]), (jobs[0][s],)
                state, after, event = getattr(controller, hook)(
                    take(self.state.controllers[place], s), take(server, s), *seen, moment
                )
                states.append(state)
                servers.append(after)
                if event is not None:
                    events.append(event)
                    self._heed(event, s, after.x)
            self.state.controllers[place], server = stack(states), stack(servers)
        return server, events

    def _heed(self, event: Event, replica: int, x: Tensor) -> None:
        """Restart or forget the devices' rows as an event says; x is the server's after it."""
        if event.rows == "restart":
            self.state.bank.restart(self.algorithm, replica, x.view(-1, x.shape[-1])[0])
        elif event.rows == "forget":
            self.state.bank.forget(replica)

    def _moment(self, round: int, replica: int) -> Moment:
        session, seed = self.population.session(round), self.population.seeds[replica]
        return Moment(
            number=round,
            session=session,
            begins=round == 1 or self.population.session(round - 1) != session,
            ends=self.population.session(round + 1) != session,
            algorithm=self.algorithm,
            layout=self.layout,
            seed=seed,
            draw=partial(self.draw, seed),
        )


def check_horizons(
    controllers: Sequence[Controller], schedule: Schedule | None, population: Population, rounds: int | None
) -> list[Controller]:
    """Return the controllers as planned for a run of ``rounds`` rounds (None: nobody knows how many), checked.

    Raises:
        UserError: from a controller that makes no sense in this world, or a schedule without an end.
    """
    if schedule is not None and schedule.rounds is None and rounds is None:
        raise UserError(f"{type(schedule).__name__}: rounds must be given, since the run has no end: set max_epochs")
    planned = [controller.planned(rounds) for controller in controllers]
    if rounds is not None:
        for controller in planned:
            controller.check(population.session(rounds) + 1)
    return planned
