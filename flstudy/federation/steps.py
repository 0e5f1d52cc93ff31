"""What the server does before and after the local fits of a round, for all replicas; and probe rounds."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from flstudy.algorithms import Algorithm, Inbox, Round
from flstudy.controllers import ProbeRounds
from flstudy.execution import Executor, Fit
from flstudy.federation.evaluation import Evaluation, axes, stacked
from flstudy.population import Batches, Cohort, Population


def prepare(
    algorithm: Algorithm, evaluation: Evaluation, server: Any, cohort: Cohort, clients: Any
) -> tuple[Any, Cohort, Any, tuple[Tensor, Tensor]]:
    """Ask the devices, if the method does, and let the server say who trains which model.

    Returns:
        The server's state, the cohort with its models, the rows, and what asking cost: bytes down and up [S] of a job.
    """
    world = cohort.round if algorithm.oracle else cohort.round._replace(concepts=None)
    survey = asked = None
    if algorithm.asks is not None:
        round = int(cohort.round.number[0])
        survey, asked = evaluation.ask(server, cohort.jobs, cohort.batches.concept, round)
    mapped = torch.vmap(algorithm.prepare, in_dims=(0, 0, None if survey is None else 0, 0, axes(world)))
    server, clients, model = mapped(server, clients, survey, cohort.jobs, world)
    batches = cohort.batches
    if algorithm.oracle:
        concepts = torch.vmap(algorithm.concepts, in_dims=(0, axes(world)))(model, world)
        batches = batches._replace(concept=concepts)
    jobs = cohort.jobs._replace(model=model)
    batches = shortened(batches, torch.vmap(algorithm.workload)(server, jobs, batches.steps))
    cohort = cohort._replace(jobs=jobs, batches=batches, round=world)
    return server, cohort, clients, surveyed(survey, asked, server.x)


def shortened(batches: Batches, steps: Tensor) -> Batches:
    """The plan cut down to so many steps [S, J]."""
    if torch.equal(steps, batches.steps):
        return batches
    real = torch.arange(batches.epoch.shape[-1], device=steps.device) < steps[..., None]
    return batches._replace(steps=steps, epoch=torch.where(real, batches.epoch, 0))


def surveyed(survey: Tensor | None, asked: Tensor | None, x: Tensor) -> tuple[Tensor, Tensor]:
    """Bytes down and up [S] of a job's survey [S, J, M, ...]: the models [S, M] that it is asked about, but for the one
    that it is sent to train, and what it tells of each; x [S, ..., n] is the server's."""
    if survey is None or asked is None:
        nothing = torch.zeros(len(x), dtype=torch.float64)
        return nothing, nothing
    models = asked.sum(1).double().cpu()
    return (models - 1) * x.shape[-1] * x.element_size(), models * survey[0, 0, 0].numel() * x.element_size()


def received(algorithm: Algorithm, cohort: Cohort, fit: Fit) -> Inbox:
    """The uploads as they come, leaves [S, J, ...]."""
    weights = torch.vmap(algorithm.weights)(cohort.sizes.to(fit.loss.dtype))
    return Inbox(fit.uploads, weights, cohort.jobs.model)


def step(algorithm: Algorithm, server: Any, inbox: Inbox, round: Round) -> Any:
    """The server's state after the round, given the uploads as it sees them."""
    return torch.vmap(algorithm.server_step, in_dims=(0, 0, axes(round)))(server, inbox, round)


class Exchange(NamedTuple):
    """What travelled in a round of all replicas."""

    clients: Tensor  # [S, J] device of each job
    down: Tensor  # [S, 1] bytes that each job received
    up: Tensor  # [S, 1] bytes that it sent
    steps: Tensor  # [S, J]


def play_probe_rounds(
    wanted: ProbeRounds | None,
    algorithm: Algorithm,
    executor: Executor,
    evaluation: Evaluation,
    population: Population,
    round: int,
) -> tuple[Tensor | None, list[Exchange]]:
    """Play probe rounds, whose x is [S, ...], before a round.

    Returns:
        The model that it comes to, and what travelled in each of its rounds.
    """
    if wanted is None:
        return None, []
    layout = evaluation.survey.task_function.layout
    server = torch.vmap(lambda x: algorithm.server_init(x, layout))(wanted.x)
    exchanges = []
    for number in range(1, wanted.rounds + 1):
        cohort = (
            population.cohort(round, number, wanted.devices).to(evaluation.device).repeated(algorithm.jobs_per_device)
        )
        rows = torch.vmap(algorithm.client_init)(stacked(server.x)[:, 0])
        clients = pytree.tree_map(
            lambda leaf, jobs=cohort.jobs.client.shape[1]: leaf[:, None].expand(-1, jobs, *leaf.shape[1:]), rows
        )
        server, cohort, clients, sizes = prepare(algorithm, evaluation, server, cohort, clients)
        fit = executor.fit(algorithm, server, clients, cohort.jobs, cohort.batches)
        server = step(algorithm, server, received(algorithm, cohort, fit), cohort.round)
        down, up = (size[:, None] + sent for size, sent in zip(sizes, (fit.down, fit.up), strict=True))
        exchanges.append(Exchange(cohort.jobs.client, down, up, fit.steps))
    return server.x, exchanges


def travelled(metrics: dict[str, list[float]], exchanges: Sequence[Exchange]) -> None:
    """Add to a round's bytes what its probe rounds sent."""
    for way in ("down", "up"):
        more = [(getattr(exchange, way) * exchange.clients.shape[1]).flatten() for exchange in exchanges]
        sent = torch.tensor(metrics[f"traffic/{way}_bytes"], dtype=torch.float64)
        metrics[f"traffic/{way}_bytes"] = sum(more, sent).tolist()
