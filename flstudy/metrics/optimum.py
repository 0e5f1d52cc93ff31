"""The loss that a round asks for, of any model, and the least that any model could have, by which regret is measured.

With F_n,t the mean loss over a device's training examples as they are labelled in round t, and p_n proportional to
their number (Ganguly & Aggarwal 2024, eq. 2 and 6), over the devices that take part:

    F_t(x) = Σ_n p_n F_n,t(x) + λ₁ ‖x‖₁ + λ/2 ‖x‖²
"""

from collections.abc import Hashable
from typing import Any, NamedTuple

import lightning as L
import numpy as np
import torch
from torch import Tensor

from flstudy.algorithms import Batch
from flstudy.population import Cohort, Population
from flstudy.tasks import Penalty, TaskFunction
from flstudy.tasks.findings import TO_DECLARE
from flstudy.user_error import UserError


class Optimum(NamedTuple):
    """A minimum of F_t for each of S replicas."""

    x: Tensor  # [S, n]
    loss: Tensor  # [S] F_t(x)
    slope: Tensor  # [S] ‖∇F_t(x)‖; with λ₁ > 0 of the shortest subgradient


class RoundLoss:
    """F_t of a world and a task, in double precision; dropout is off.

    Args:
        population: settled (`Population.settle`).
        task: with ``example_losses``.
        l2: λ, ≥ 0, in place of the task's own penalty; None: the task's. Without a penalty a minimum need not exist:
            separable data have an infimum of 0 at infinity.

    Raises:
        UserError: for a population that is not settled, a negative λ, or a task without losses of single examples.
    """

    def __init__(self, population: Population, task: L.LightningModule, l2: float | None = None) -> None:
        if not population.seeds:
            raise UserError("population: settle it first, population.settle(seeds)")
        if l2 is not None and not l2 >= 0:
            raise UserError(f"l2 must be ≥ 0, got {l2}")
        self.population = population
        self.task_function = TaskFunction(task).to(torch.device("cpu"), torch.float64)
        if not self.task_function.per_example:
            raise UserError(f"task: {type(task).__name__} has no losses of single examples; {TO_DECLARE}")
        self.penalty = self.task_function.regulariser if l2 is None else Penalty(l2=l2)
        # Not the task's parameters, which are another process's own: a resumed run finds the same.
        self.start = torch.zeros(self.task_function.layout.n, dtype=torch.float64)
        self._solved: dict[Hashable, tuple[Tensor, Tensor, Tensor]] = {}
        self._batches: dict[int, tuple[Hashable, Batch]] = {}  # of each replica the last one
        self._asked: tuple[int, Cohort] | None = None

    def batch(self, round: int, replica: int) -> Batch:
        """Return the examples [D, ...] of a replica's participants in a round (from 1), one device's after another's;
        the last round's are kept."""
        key = self.world(round, replica)
        if replica not in self._batches or self._batches[replica][0] != key:
            store, devices = self.population.store, self._devices(round, replica)
            lists = [self.population.device_data.held(replica, k, "train", round) for k in devices[0].tolist()]
            concept = devices[1].repeat_interleave(torch.tensor([len(rows) for rows in lists]))
            x, y = store.gather(torch.from_numpy(np.concatenate(lists))[:, None], concept)
            x, y = x.squeeze(1), y.squeeze(1)
            self._batches[replica] = key, Batch(x.double() if x.is_floating_point() else x, y)
        return self._batches[replica][1]

    def world(self, round: int, replica: int) -> Hashable:
        """Return the key of the loss of a round (from 1), equal for rounds that ask for the same."""
        client, concept = self._devices(round, replica)
        moment = self.population.device_data.moment("train", round)
        return replica, client.numpy().tobytes(), concept.numpy().tobytes(), moment

    def loss(self, round: int, x: Tensor) -> Tensor:
        """Return F_t [S, ...] of models x [S, ..., n] in a round (from 1)."""
        with torch.no_grad(), self.task_function.evaluating():
            losses = []
            for replica, models in enumerate(x.to("cpu", torch.float64)):
                batch = self.batch(round, replica)
                flat = [self._value(model, batch) for model in models.reshape(-1, models.shape[-1])]
                losses.append(torch.stack(flat).view(models.shape[:-1]))
            return torch.stack(losses)

    def optimum(self, round: int, tolerance: float = 1e-6, steps: int = 1000) -> Optimum:
        """Return a minimum in a round of a convex F_t, by L-BFGS (with an L1 penalty: L-BFGS-B) from 0;
        rounds that ask for the same are solved once.

        Args:
            round: its number, from 1.
            tolerance: of ‖∇F_t‖, > 0. F_t(x) - min F_t is at most that times the distance to a minimum, and with λ > 0
                at most tolerance² / 2λ.
            steps: most L-BFGS iterations.

        Raises:
            UserError: where the tolerance is not reached.
        """
        if not tolerance > 0:
            raise UserError(f"tolerance must be > 0, got {tolerance}")
        solved = []
        for replica in range(len(self.population.seeds)):
            key = self.world(round, replica)
            if key not in self._solved or float(self._solved[key][2]) > tolerance:
                self._solved[key] = self._solve(self.batch(round, replica), tolerance, steps)
            solved.append(self._solved[key])
        return Optimum(*(torch.stack(parts) for parts in zip(*solved, strict=True)))

    def _devices(self, round: int, replica: int) -> tuple[Tensor, Tensor]:
        """Return (clients [J], concepts [J]) of the round."""
        if self._asked is None or self._asked[0] != round:
            self._asked = round, self.population.cohort(round)
        cohort = self._asked[1]
        return cohort.jobs.client[replica], cohort.batches.concept[replica]

    def _value(self, x: Tensor, batch: Batch, penalty: Penalty | None = None) -> Tensor:
        penalty = self.penalty if penalty is None else penalty
        loss = self.task_function.fit(x, batch)
        return loss + penalty([x]) if penalty else loss

    def _solve(self, batch: Batch, tolerance: float, steps: int) -> tuple[Tensor, Tensor, Tensor]:
        with self.task_function.evaluating():
            solve = self._with_corners if self.penalty.l1 > 0 else self._smooth
            x, loss, slope = solve(batch, tolerance, steps)
        if not slope <= tolerance:
            raise UserError(
                f"optimum: ‖∇F‖ is {float(slope):.2g} after {steps} steps, above the tolerance {tolerance:g}: raise "
                "tolerance, steps or l2"
            )
        return x, loss, slope

    def _smooth(self, batch: Batch, tolerance: float, steps: int) -> tuple[Tensor, Tensor, Tensor]:
        x = self.start.clone().requires_grad_()
        solver = torch.optim.LBFGS(
            [x],
            max_iter=steps,
            max_eval=4 * steps,
            tolerance_grad=tolerance / x.numel() ** 0.5,  # of the largest entry
            tolerance_change=0.0,
            history_size=20,
            line_search_fn="strong_wolfe",
        )

        def closure() -> Tensor:
            solver.zero_grad()
            value = self._value(x, batch)
            value.backward()  # type: ignore[no-untyped-call]
            return value

        solver.step(closure)  # type: ignore[no-untyped-call]
        loss = closure().detach()
        assert x.grad is not None
        return x.detach(), loss, x.grad.norm()

    def _with_corners(self, batch: Batch, tolerance: float, steps: int) -> tuple[Tensor, Tensor, Tensor]:
        """Solve for x = u - v with u, v ≥ 0, whose ‖x‖₁ is the sum of both: smooth, with bounds."""
        from scipy.optimize import minimize  # a study dependency; the engine runs without it

        l1, n = self.penalty.l1, self.start.numel()
        smooth = self.penalty._replace(l1=0.0)

        def slopes(x: Tensor) -> tuple[Tensor, Tensor]:
            x = x.detach().requires_grad_()
            value = self._value(x, batch, smooth)
            (gradient,) = torch.autograd.grad(value, x)
            return value.detach(), gradient

        def split(parts: Any) -> tuple[float, Any]:
            u, v = torch.from_numpy(parts).view(2, n)
            value, gradient = slopes(u - v)
            both = torch.cat([l1 + gradient, l1 - gradient])
            return float(value) + l1 * float(parts.sum()), both.numpy()

        start = torch.cat([self.start.clamp(min=0), (-self.start).clamp(min=0)])
        options = {"maxiter": steps, "maxfun": 4 * steps, "maxcor": 20, "ftol": 0.0, "gtol": tolerance / (2 * n**0.5)}
        bounds = [(0.0, None)] * (2 * n)
        solution = minimize(split, start.numpy(), jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        u, v = torch.from_numpy(solution.x).view(2, n)
        x = u - v
        x = torch.where(x.abs() < options["gtol"], 0.0, x)  # what the solver takes for a bound that is reached
        loss, gradient = slopes(x)
        corner = gradient.sign() * (gradient.abs() - l1).clamp(min=0)
        slope = torch.where(x == 0, corner, gradient + l1 * x.sign()).norm()
        return x, loss + l1 * x.abs().sum(), slope


def shifts(population: Population, rounds: int) -> list[list[int]]:
    """Return the rounds t ≤ ``rounds`` (from 2) of each replica in which some device's concept is another than in t -
    1; where everybody takes part these are the L rounds of Definition 2."""
    concepts = torch.stack([population.concepts(round) for round in range(1, rounds + 1)])  # [T, S, N]
    changed = (concepts[1:] != concepts[:-1]).any(-1)
    return [(line.nonzero().flatten() + 2).tolist() for line in changed.T]
