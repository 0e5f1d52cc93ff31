"""One round of a federation as a pure function of all replicas at once, the same for real and for probe rounds."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flstudy.algorithms import Algorithm, Inbox, Job, Round
from flstudy.controllers import ProbeRounds
from flstudy.execution import Fit, ModelEvaluator, Scores
from flstudy.execution.parts import (
    PartResult,
    PartWork,
    RoundPart,
    TestRows,
    cohort_parts,
    merge_devices,
    merge_fits,
    train_part,
)
from flstudy.execution.places import Rows
from flstudy.execution.trace_cache import TraceCache
from flstudy.federation.asked_devices import axes, stacked
from flstudy.federation.blocks import CollectedUploads, FirstRows, PreparedRows, first_rows
from flstudy.federation.evaluation import Evaluation
from flstudy.federation.private_aggregator import PrivateRound
from flstudy.population import Batches, Cohort, Population

Divide = Callable[[Tensor, int | None, int], Sequence[RoundPart]]
"""Function that divides a round's jobs into parts. It takes the jobs' steps [S, J] and the most jobs of a replica that
train at once (None: all). Its last argument is the number of neighbouring jobs, those of one device, that stay in one
part."""


class RoundResult(NamedTuple):
    """Result of a round."""

    cohort: Cohort  # as it was trained: jobs with their models, batches as many as the method asked for
    fit: Fit  # without models where it was played in blocks
    inbox: Any  # as the server saw it: an `Inbox`, or in blocks `Totals`
    diagnostics: dict[str, Tensor]  # the algorithm's own, [S] each
    down: Tensor  # [S, 1] bytes that each job received, its survey included
    up: Tensor  # [S, 1] bytes that it sent
    local_scores: Scores | None = None  # [S, D] of the participants' local models, where they were measured meanwhile


def play_round(
    server: Any,
    *,
    rows: Rows,
    cohort: Cohort,
    algorithm: Algorithm,
    evaluation: Evaluation,
    fit: Callable[..., Any],
    aggregate: PrivateRound | None = None,
    block: int | None = None,
    divide: Divide | None = None,
    tests: Callable[[Cohort], TestRows] | None = None,
) -> tuple[Any, RoundResult]:
    """Play a round: the server asks and prepares, devices train, the server steps.

    Args:
        server: before the round, leaves [S, ...].
        rows: of the jobs' devices.
        cohort: the work, a line for each job.
        algorithm: as it is in this round.
        evaluation: answers the server's survey.
        fit: an executor's; of one that trains in several places its ``train``.
        aggregate: turns the uploads into what the server may see; None: it sees them.
        block: most jobs of a replica at once; None: all.
        divide: how an executor divides the jobs among several places; None: it trains in one.
        tests: examples by which to measure the local models of the cohort's jobs, where these do not stay.

    Returns:
        The server after it, and what happened.
    """
    steps, together = cohort.batches.steps, algorithm.jobs_per_device
    arguments: dict[str, Any] = {"rows": rows, "cohort": cohort, "algorithm": algorithm}
    arguments |= {"evaluation": evaluation, "aggregate": aggregate}
    if divide is not None:
        return play_parts(server, parts=divide(steps, block, together), train=fit, tests=tests, **arguments)
    if block is not None and steps.shape[1] > block:
        parts, train = cohort_parts(steps, block, together), partial(train_here, fit, evaluation.evaluator)
        return play_parts(server, parts=parts, train=train, tests=tests, **arguments)
    return play_whole(server, fit=fit, **arguments)


def play_whole(
    server: Any,
    *,
    rows: Rows,
    cohort: Cohort,
    algorithm: Algorithm,
    evaluation: Evaluation,
    fit: Callable[..., Fit],
    aggregate: PrivateRound | None,
) -> tuple[Any, RoundResult]:
    """Play a round as `play_round` does, with all jobs at once."""
    states = rows.gather(None)
    server, states, cohort, survey_traffic = survey_and_prepare(server, states, cohort, algorithm, evaluation)
    local_fit = fit(algorithm, server, states, cohort.jobs, cohort.batches)
    rows.scatter(None, local_fit.clients)
    inbox, after, diagnostics = end_round(server, cohort, algorithm, local_fit, aggregate, evaluation.trace_cache)
    return after, RoundResult(cohort, local_fit, inbox, diagnostics, *traffic(survey_traffic, local_fit))


def play_parts(
    server: Any,
    *,
    rows: Rows,
    cohort: Cohort,
    algorithm: Algorithm,
    evaluation: Evaluation,
    train: Callable[[Callable[[RoundPart], PartWork], Sequence[RoundPart], Rows], Iterable[PartResult]],
    aggregate: PrivateRound | None,
    parts: Sequence[RoundPart],
    tests: Callable[[Cohort], TestRows] | None,
) -> tuple[Any, RoundResult]:
    """Play a round as `play_round` does, but train its jobs part by part.

    Only the sums of the uploads are kept, unless the method reads each upload.

    Args:
        server, rows, cohort, algorithm, evaluation, aggregate, tests: as in `play_round`.
        train: called with a function from a part to its work, the parts, and the rows; returns each part's result.
        parts: the division of the jobs.
    """
    jobs, x = cohort.jobs.client.shape[1], stacked(server.x)[:, 0]
    states = rows.gather(None) if algorithm.prepares_rows else first_rows(algorithm, x, jobs)
    server, states, cohort, survey_traffic = survey_and_prepare(server, states, cohort, algorithm, evaluation, parts)
    rows = PreparedRows(rows, states) if algorithm.prepares_rows else rows
    weights = torch.vmap(algorithm.weights)(cohort.sizes.to(x.dtype))
    work = RoundWork(server, cohort, algorithm, weights, aggregate, None if tests is None else tests(cohort))
    collected, results = CollectedUploads(weights, cohort.jobs.model), list[PartResult]()
    for part, result in zip(parts, train(work.of, parts, rows), strict=True):
        collected.add(part, result.uploads)
        results.append(result._replace(uploads=(), rows=()))
        del result  # and with it the uploads
    local_fit = merge_fits([result.fit for result in results], parts, cohort.jobs.client.shape)
    inbox: Any = collected.inbox()
    within = merge_devices(parts, [result.within for result in results])
    if aggregate is not None and within is not None:
        inbox = aggregate.release(inbox, within)
    after, diagnostics = step_and_diagnose(algorithm, server, inbox, cohort.round)
    local_scores = None if work.tests is None else merge_scores(parts, results)
    return after, RoundResult(cohort, local_fit, inbox, diagnostics, *traffic(survey_traffic, local_fit), local_scores)


class RoundWork(NamedTuple):
    """Work of a round that is trained in parts."""

    server: Any  # leaves [S, ...]
    cohort: Cohort
    algorithm: Algorithm
    weights: Tensor  # p [S, J]
    aggregate: PrivateRound | None
    tests: TestRows | None

    def of(self, part: RoundPart) -> PartWork:
        """Return the work of a part."""
        jobs, batches, weights = part.of((self.cohort.jobs, self.cohort.batches, self.weights))
        return PartWork(
            algorithm=self.algorithm,
            servers=part.of_servers(self.server),
            jobs=jobs,
            batches=batches,
            weights=weights,
            models=stacked(self.server.x).shape[1],
            clip=None if self.aggregate is None else self.aggregate.clip(part),
            tests=None if self.tests is None else self.tests.of(part),
        )


def merge_scores(parts: Sequence[RoundPart], results: Sequence[PartResult]) -> Scores:
    """Merge the scores of parts' devices into those of all devices [S, D]."""
    columns = zip(*(result.scores for result in results), strict=True)  # type: ignore[misc]
    return Scores(*(merge_devices(parts, column) for column in columns))


def traffic(survey_traffic: tuple[Tensor, Tensor], fit: Fit) -> tuple[Tensor, Tensor]:
    """Return the bytes [S, 1] that each job received and sent, those of its survey, [S] each, included."""
    survey_down, survey_up = survey_traffic
    return survey_down[:, None] + fit.down, survey_up[:, None] + fit.up


def train_here(
    fit: Callable[..., Fit],
    evaluator: ModelEvaluator,
    work: Callable[[RoundPart], PartWork],
    parts: Sequence[RoundPart],
    rows: Rows,
) -> Iterator[PartResult]:
    """Train parts one after another, by an executor's fit."""
    for part in parts:
        result = train_part(fit, evaluator, work(part), rows.gather(part))
        rows.scatter(part, result.rows)
        yield result


def survey_and_prepare(
    server: Any,
    states: Any,
    cohort: Cohort,
    algorithm: Algorithm,
    evaluation: Evaluation,
    parts: Sequence[RoundPart] = (),
) -> tuple[Any, Any, Cohort, tuple[Tensor, Tensor]]:
    """Survey the devices where the method asks them, then call its ``prepare``, which assigns models to jobs.

    Args:
        server: the server's state, leaves [S, ...].
        states: the rows of client state, leaves [S, J, ...].
        cohort, algorithm, evaluation: as in `play_round`.
        parts: the division of the jobs; empty where all train at once.

    Returns:
        The server's state and the rows after ``prepare``, the cohort with the jobs' models and steps, and the survey's
        bytes per job: [S] down and [S] up.
    """
    this_round = cohort.round if algorithm.oracle else cohort.round._replace(concepts=None)
    survey = surveyed = None
    if algorithm.asks is not None:
        survey, surveyed = collect_answers(server, cohort, algorithm, evaluation, parts)
    server, states, jobs, concepts, steps = evaluation.trace_cache(
        "plan",
        algorithm,
        partial(assign_work, algorithm),
        server,
        states,
        survey,
        cohort.jobs,
        this_round,
        cohort.batches.steps,
    )
    batches = cohort.batches if concepts is None else cohort.batches._replace(concept=concepts)
    batches = cut_batches(batches, steps)
    cohort = cohort._replace(jobs=jobs, batches=batches, round=this_round)
    return server, states, cohort, survey_bytes(survey, surveyed, algorithm.global_models(server))


def collect_answers(
    server: Any, cohort: Cohort, algorithm: Algorithm, evaluation: Evaluation, parts: Sequence[RoundPart]
) -> tuple[Tensor, Tensor]:
    """Return the answers [S, J, M, ...] of a round's devices to the survey, and which models [S, M] it is about.

    In the place of every gradient stands the mean of all by the method's weights, since servers use no more of them.
    """
    number, concepts = int(cohort.round.number[0]), cohort.batches.concept
    if algorithm.asks != "gradient":
        return evaluation.ask(server, cohort.devices, concepts, number)
    weights = torch.vmap(algorithm.weights)(cohort.sizes.to(server.x.dtype))
    whole = not parts or parts[0].axis == 0
    mean: Any = 0
    for part in [None] if whole else parts:
        devices, under, p = (
            values if part is None else part.of(values) for values in (cohort.devices, concepts, weights)
        )
        answer, surveyed = evaluation.ask(server, devices, under, number)
        mean = mean + torch.einsum("sj,sj...->s...", p.to(answer), answer)
    return mean[:, None].expand(-1, concepts.shape[1], *mean.shape[1:]), surveyed


def assign_work(
    algorithm: Algorithm, server: Any, states: Any, survey: Tensor | None, jobs: Job, this_round: Round, steps: Tensor
) -> tuple[Any, Any, Job, Tensor | None, Tensor]:
    """Return the results of the method's ``prepare``, ``concepts`` and ``workload`` for all replicas.

    Args:
        algorithm: as it is in this round.
        server: leaves [S, ...].
        clients: the devices' rows, leaves [S, J, ...].
        survey: [S, J, M] answers, or [S, J, 1, n] gradients; None without a survey.
        jobs: leaves [S, J].
        world: the round as the algorithm sees it.
        steps: [S, J] that the world plans.

    Returns:
        The server's state, the rows, the jobs with their models, the concepts [S, J] and the steps [S, J]. Concepts are
        those under which an oracle's jobs read their data; None for any other method.
    """
    round_axes = axes(this_round)
    prepare = torch.vmap(algorithm.prepare, in_dims=(0, 0, None if survey is None else 0, 0, round_axes))
    server, states, model = prepare(server, states, survey, jobs, this_round)
    concepts = None
    if algorithm.oracle:
        concepts = torch.vmap(algorithm.concepts, in_dims=(0, round_axes))(model, this_round)
    jobs = jobs._replace(model=model)
    return server, states, jobs, concepts, torch.vmap(algorithm.workload)(server, jobs, steps)


def cut_batches(batches: Batches, steps: Tensor) -> Batches:
    """Return the plan cut down to ``steps`` [S, J]."""
    if torch.equal(steps, batches.steps):
        return batches
    real = torch.arange(batches.epoch.shape[-1], device=steps.device) < steps[..., None]
    return batches._replace(steps=steps, epoch=torch.where(real, batches.epoch, 0))


def survey_bytes(survey: Tensor | None, surveyed: Tensor | None, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the bytes [S] that a job receives and the bytes [S] that it sends for its survey; 0 without a survey.

    A job receives the models that it is asked about, except for the one that it is sent to train anyway. It sends its
    answer for each of them.

    Args:
        survey: [S, J, M, ...] the jobs' answers.
        surveyed: [S, M] whether the survey is about a model.
        x: [S, ..., n] the server's models.
    """
    if survey is None or surveyed is None:
        nothing = torch.zeros(len(x), dtype=torch.float64)
        return nothing, nothing
    models = surveyed.sum(1).double().cpu()
    return (models - 1) * x.shape[-1] * x.element_size(), models * survey[0, 0, 0].numel() * x.element_size()


def end_round(
    server: Any,
    cohort: Cohort,
    algorithm: Algorithm,
    fit: Fit,
    aggregate: PrivateRound | None,
    trace_cache: TraceCache,
) -> tuple[Any, Any, dict[str, Tensor]]:
    """End a round: return the uploads as the server sees them, its state after them, and the diagnostics [S].

    Args:
        server: after ``prepare``, leaves [S, ...].
        cohort: as it was trained.
        algorithm: as it is in this round.
        fit: its uploads have leaves [S, J, ...].
        aggregate: turns the uploads into what the server may see; None: it sees them.
        trace_cache: replays the computation where that is faster.
    """
    if aggregate is None:
        arguments = server, cohort.sizes, fit.loss.new_empty(0), fit.uploads, cohort.jobs.model, cohort.round
        end = partial(end_round_without_privacy, algorithm)
        return trace_cache("close", algorithm, end, *arguments)  # type: ignore[no-any-return]
    inbox, step = aggregate(make_inbox(algorithm, cohort, fit)), partial(step_and_diagnose, algorithm)
    return inbox, *trace_cache("step", algorithm, step, server, inbox, cohort.round)


def make_inbox(algorithm: Algorithm, cohort: Cohort, fit: Fit) -> Inbox:
    """Return the uploads as they come, leaves [S, J, ...]."""
    return weigh_uploads(algorithm, cohort.sizes.to(fit.loss.dtype), fit.uploads, cohort.jobs.model)


def weigh_uploads(algorithm: Algorithm, sizes: Tensor, uploads: Any, model: Tensor) -> Inbox:
    """Return the uploads, leaves [S, J, ...], with their weights, of jobs whose devices hold ``sizes`` [S, J] examples
    and which trained ``model`` [S, J]."""
    return Inbox(uploads, torch.vmap(algorithm.weights)(sizes), model)


def step_server(algorithm: Algorithm, server: Any, inbox: Inbox, this_round: Round) -> Any:
    """Return the server's state after the round, given the uploads as it sees them."""
    return torch.vmap(algorithm.server_step, in_dims=(0, 0, axes(this_round)))(server, inbox, this_round)


def step_and_diagnose(
    algorithm: Algorithm, server: Any, inbox: Inbox, this_round: Round
) -> tuple[Any, dict[str, Tensor]]:
    """Return the server's state after the round, and the algorithm's diagnostics [S]."""
    after = step_server(algorithm, server, inbox, this_round)
    return after, torch.vmap(algorithm.diagnostics)(server, after, inbox)


def end_round_without_privacy(
    algorithm: Algorithm, server: Any, sizes: Tensor, like: Tensor, uploads: Any, model: Tensor, this_round: Round
) -> tuple[Inbox, Any, dict[str, Tensor]]:
    """Return the inbox, the server's state after the round, and the diagnostics; for a round without privacy.

    The devices' sizes [S, J] are converted to the dtype of ``like`` [...]; ``model`` [S, J] says which model each job
    trained, and uploads have leaves [S, J, ...].
    """
    inbox = weigh_uploads(algorithm, sizes.to(like.dtype), uploads, model)
    return inbox, *step_and_diagnose(algorithm, server, inbox, this_round)


def play_probe_rounds(
    wanted: ProbeRounds,
    *,
    round: int,
    population: Population,
    algorithm: Algorithm,
    evaluation: Evaluation,
    fit: Callable[..., Any],
    block: int | None = None,
    divide: Divide | None = None,
) -> tuple[Tensor, list[RoundResult]]:
    """Play probe rounds from a model x [S, ...] with devices of a round (from 1) and the algorithm in its first state.

    Returns:
        The model [S, ...] that they come to, and the result of each; nothing else of them stays.
    """
    layout = evaluation.evaluator.task_function.layout
    server = torch.vmap(lambda x: algorithm.server_init(x, layout))(wanted.x)
    results = []
    for number in range(1, wanted.rounds + 1):
        cohort = population.cohort(round, number, wanted.devices).to(evaluation.device)
        cohort = cohort.repeated(algorithm.jobs_per_device)
        server, result = play_round(
            server,
            rows=FirstRows(algorithm, stacked(server.x)[:, 0], cohort.jobs.client.shape[1]),
            cohort=cohort,
            algorithm=algorithm,
            evaluation=evaluation,
            fit=fit,
            block=block,
            divide=divide,
        )
        results.append(result)
    return server.x, results
