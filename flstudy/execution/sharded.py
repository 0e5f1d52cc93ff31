"""A round's jobs over several places: Ray actors on a CPU's cores and on other machines, threads on the accelerators of
this one.

One process drives. Each place has an executor of its own with the task and the examples, is told everything else in
every round, and trains some of the jobs. Sums of uploads come back; rows stay where they were trained.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from flstudy.algorithms import Algorithm, Job
from flstudy.execution.actors import actor_places
from flstudy.execution.compile_policy import CompilePolicy
from flstudy.execution.context import TrainingContext
from flstudy.execution.executor import Executor, Fit
from flstudy.execution.parts import PartResult, PartWork, RoundPart, balanced_parts, cohort_parts
from flstudy.execution.places import DeviceThread, Modes, Place, Rows
from flstudy.execution.programs import Programs
from flstudy.execution.select import make_executor
from flstudy.population import Batches
from flstudy.run_settings import Compile

START_S = 20.0  # until actors train, Ray's start included: 18 to 35 measured on two busy cores


class Sharded(Executor):
    """An executor in each of several places, among which the jobs of a round are divided by their steps. Its results
    are those of one place but for the rounding of lanes that train together; dropout draws other masks.

    ``auto`` trains in one place until that has chosen how, then in all of them once the rounds ahead pay for their
    start, and goes back where rounds do not become faster.

    Args:
        name: of the executor.
        context: task and examples, where the run's models are.
        devices: those of one machine, one for each place; of a CPU's, each is an actor.
        compile: as for one.
        max_lanes: most lanes that train at once in one place.
        nodes: machines, each with as many places.
    """

    def __init__(
        self,
        name: str,
        context: TrainingContext,
        devices: Sequence[torch.device],
        compile: Compile,
        max_lanes: int | None = None,
        nodes: int = 1,
    ) -> None:
        self.make, self.context = partial(make_named, name, compile, max_lanes), context
        self.devices, self.nodes, self.kind = devices, nodes, devices[0].type
        self.here = self.make(context)  # what cannot be is refused now
        self.maps = self.here.maps
        self.places: list[Place] = []
        self._made: list[dict[str, Any]] = []  # choices of places
        self._auto = name == "auto"
        self._spread: bool | None = None if self._auto else True  # None: not decided
        self._policy, self._settled, self._steps = CompilePolicy(), False, 0.0
        if self._spread:
            self._start()

    @property
    def spreads(self) -> bool:
        """Return whether the next round is trained by `train` in all places, and not by `fit` in this one."""
        return bool(self._spread)

    def _start(self) -> None:
        count = len(self.devices) * self.nodes
        if self.kind == "cpu" or self.nodes > 1:
            self.places = actor_places(self.make, self.context, self.kind, len(self.devices), self.nodes)
        else:
            self.places = [DeviceThread(self.make, self.context, device) for device in self.devices]
        self._made = [{} for _ in range(count)]

    def fit(self, algorithm: Algorithm, servers: Any, clients: Any, jobs: Job, batches: Batches) -> Fit:
        done = self.here.fit(algorithm, servers, clients, jobs, batches)
        self._steps = float(done.steps.sum())
        return done

    def parts(self, steps: Tensor, block: int | None, together: int) -> list[RoundPart]:
        """Divide jobs of ``steps`` [S, J] into parts for the places in turn, where each machine trains at most
        ``block`` of a replica at once."""
        most = None if block is None else max(block // together, 1) * together * self.nodes
        if most is None or steps.shape[1] <= most:
            return balanced_parts(steps, len(self.places), together)
        work = steps.sum(0, keepdim=True)  # a place takes jobs, whatever the replicas
        return [
            RoundPart(1, [wave.rows[row] for row in part.rows])
            for wave in cohort_parts(steps, most, together)
            for part in balanced_parts(work[:, wave.rows], len(self.places), together)
        ]

    def train(
        self, seeds: Sequence[int], work: Callable[[RoundPart], PartWork], parts: Sequence[RoundPart], rows: Rows
    ) -> list[PartResult]:
        """Train the parts of a round; returns the result of each.

        Args:
            seeds: of dropout masks: one for all replicas, or each one's.
            work: that of a part.
            parts: as divided by `parts`.
            rows: of the jobs' devices.
        """
        claims = []
        for number, part in enumerate(parts):
            part_seeds = seeds if part.axis or len(seeds) == 1 else [seeds[replica] for replica in part.rows]
            place, modes = self.places[number % len(self.places)], Modes.here(self.kind, number, part_seeds)
            claims.append((place, place.begin(modes, work(part), rows, part)))
        results = [place.end(claim) for place, claim in claims]
        for (place, _), part, result in zip(claims, parts, results, strict=True):
            place.keep(rows, part, result)
        self._steps = sum(float(result.fit.steps.sum()) for result in results)
        return results

    def weigh(self, seconds: float, rounds_left: float) -> bool:
        """Choose for all places as the first one decides by its seconds; ``auto`` also whether to train in one place or
        in all. The arguments are those of `Executor.weigh`."""
        if self._spread and not self._policy.open:
            return self._weigh_places(seconds, rounds_left)
        if self._spread:
            if self._policy.lost(seconds, self._steps):
                self._withdraw()
            return not self._policy.open
        self._settled = self._settled or self.here.weigh(seconds, rounds_left)
        if self._settled and self._spread is None:
            cost = START_S if self.kind == "cpu" or self.nodes > 1 else 0.0
            if self._policy.pays(seconds, self._steps, rounds_left, 1 - 1 / (len(self.devices) * self.nodes), cost):
                self._spread_out()
        return self._settled and self._spread is False

    def _spread_out(self) -> None:
        """Train in all places from now on, as this one has chosen to."""
        self._spread = True
        self._start()
        chosen = self.here.choices()
        if chosen.get("executor") == "threads":  # a place has one core
            chosen["executor"] = "sequential"
        self._choose([chosen] * len(self.places))

    def _withdraw(self) -> None:
        """Train in this place alone, which turned out to be as fast. Rows may lie in the others until the run ends."""
        self._spread = False

    def _weigh_places(self, seconds: float, rounds_left: float) -> bool:
        settled: bool = self.places[0].ask("weigh", seconds, rounds_left)
        self._made = [place.ask("choices") for place in self.places]
        first = self._made[0]
        self._choose([chosen and {**chosen, **first, "max_lanes": chosen["max_lanes"]} for chosen in self._made])
        return settled

    def _choose(self, choices: Sequence[dict[str, Any]]) -> None:
        self._made = [dict(place_choices) for place_choices in choices]
        for place, place_choices in zip(self.places, choices, strict=True):
            if place_choices:
                place.ask("choose", place_choices)

    def loops(self) -> Programs | None:
        return None if self._spread else self.here.loops()

    def choices(self) -> dict[str, Any]:
        """Return the choices of every place; of ``auto`` also those of this one, and whether it trains in all."""
        if self._spread and self.places:
            self._made = [place.ask("choices") for place in self.places]
        here = {**self.here.choices(), "spread": self._spread} if self._auto else {}
        return {**here, "places": self._made}

    def choose(self, choices: dict[str, Any]) -> None:
        """Choose as the checkpoint's run did; with another number of places, all like its first."""
        place_choices = choices.get("places") or [choices]
        if self._auto:
            self.here.choose(of_one_place(choices))
            self._spread = choices.get("spread", "places" in choices or None)
            self._settled = self._spread is not None
            if self._spread:
                self._start()
        if self._spread:
            count = len(self.places)
            self._choose(place_choices if len(place_choices) == count else list(place_choices[:1]) * count)

    def close(self, orderly: bool = True) -> None:
        """End the places; their choices stay known."""
        places, self.places = self.places, []
        for place in places:
            place.close(orderly)


def make_named(name: str, compile: Compile, max_lanes: int | None, context: TrainingContext) -> Executor:
    """Return `make_executor` with its context last, for other processes."""
    return make_executor(name, context, compile, max_lanes)


def of_one_place(choices: dict[str, Any]) -> dict[str, Any]:
    """Return a checkpoint's choices for an executor that is alone."""
    place_choices: list[dict[str, Any]] = choices.get("places") or [choices]
    return choices if "spread" in choices else place_choices[0]
