"""Rules between a config's parts, which no single value can break, checked on the objects that are built of them."""

import math
from dataclasses import fields
from typing import Any, NamedTuple

from flstudy.algorithms import Algorithm
from flstudy.config.errors import ConfigError
from flstudy.config.sections import Settings, StudySection
from flstudy.config.values import arm_key
from flstudy.controllers import Controller, Schedule
from flstudy.execution.trees import take
from flstudy.federation import Coordinator
from flstudy.federation.blocks import job_bytes
from flstudy.federation.candidates import refuse_candidates
from flstudy.federation.controller_runner import check_horizons
from flstudy.federation.module_metrics import cannot_know
from flstudy.federation.own_parts import refuse_copies_without_buffers
from flstudy.federation.private_aggregator import PrivateAggregator
from flstudy.metrics.drift import Recovery
from flstudy.metrics.dynamic_regret import DynamicRegret, Regret
from flstudy.metrics.measure import Measure
from flstudy.metrics.panel import Panel
from flstudy.metrics.registry import METRICS, refuse_unmeasured
from flstudy.metrics.run_summary import CURVES, RunSummary
from flstudy.metrics.wireless import Wireless
from flstudy.population import Population
from flstudy.privacy import Privacy
from flstudy.tasks.own_optimizer import RULE_KEYS, by_own_optimizer
from flstudy.user_error import UserError


class Parts(NamedTuple):
    """The objects of one run."""

    population: Population
    task: Any  # LightningModule
    algorithm: Algorithm
    controller: Controller | None
    schedule: Schedule | None
    measure: Measure | None
    wireless: Wireless | None
    regret: Regret | None
    privacy: Privacy | None
    evaluation: Panel | None
    coordinator: Coordinator


def check_parts(parts: Parts, settings: Settings, recovery: Recovery, study: StudySection | None) -> None:
    """Raise UserError, in one sentence, for parts that do not go together.

    Args:
        parts: of a run.
        settings: the config's keys at the top.
        recovery: its recovery section.
        study: its study section; None for a single run, of which less is asked.
    """
    population, drift, rounds = parts.population, parts.population.drift, settings.rounds
    if drift is not None:
        drift.check(population.clients, rounds)
        drift.tables(population.dataset.shape, population.dataset.classes)
    if population.availability is not None:
        population.availability.check(population.clients, rounds)
    if parts.evaluation is not None:
        parts.evaluation.check(population.clients, settings.evaluate_every)
    if parts.controller is not None:
        try:
            (controller,) = check_horizons([parts.controller], parts.schedule, population, rounds)
            controller.init(take(first_server(parts), 0))
        except ValueError as error:
            raise ConfigError(f"controller: {error}") from error
    first_server(parts)  # which an optimizer of the server may refuse
    try:
        parts.algorithm.meets(1 if drift is None else drift.concepts)
    except ValueError as error:
        raise ConfigError(f"algorithm: {error}") from error
    run = parts.coordinator.run
    refuse_candidates(run.algorithm, population)
    refuse_copies_without_buffers(run.algorithm)
    check_privacy(parts, settings, in_study=study is not None)
    check_rule_keys(parts, settings, study)
    if study is None:
        return
    if (nodes := settings.num_nodes) > 1:
        raise ConfigError(f"num_nodes must be 1 in a study, whose trials take one machine, got {nodes}: leave it out")
    devices, cores = settings.devices, study.resources.cpu
    if settings.accelerator == "cpu" and devices > max(cores, 1):
        raise ConfigError(
            f"study.resources.cpu must be >= devices ({devices}), got {cores:g}: raise it, or lower devices"
        )
    measured = parts.coordinator.measures(population, rounds)
    for place, objective in enumerate([study.objective, *study.objectives]):
        where = f"study.objectives[{place - 1}].metric" if place else "study.objective.metric"
        if not cannot_know(parts.coordinator.task_function, objective.metric):
            refuse_unmeasured(objective.metric, measured, where)
    chooses = study.objective.selection_metric
    if chooses not in measured and not cannot_know(parts.coordinator.task_function, chooses):
        raise study.objective.without_counterpart()
    for name in study.constraints:
        if not cannot_know(parts.coordinator.task_function, name):
            refuse_unmeasured(name, measured, "study.constraints")
    check_evaluations(population, settings, study, recovery)


def check_evaluations(population: Population, settings: Settings, study: StudySection, recovery: Recovery) -> None:
    """Raise ConfigError where evaluations are too rare to compute a metric that a study compares, whatever the curve.

    Such a metric describes a whole run, for example its recovery from a drift.
    """
    rounds, every = settings.rounds, settings.evaluate_every
    goals = [study.objective.metric, *(goal.metric for goal in study.objectives), *study.constraints]
    goals = [name for name in goals if name in METRICS and METRICS[name].measured == "run" and name.startswith(CURVES)]
    if not goals:
        return
    drifts = [event.round for event in population.drifts(rounds)]
    sessions = [event.round for event in population.sessions(rounds)]
    level = RunSummary(drifts, rounds, sessions, recovery)
    for round in {*range(every, rounds, every), rounds}:
        level.add(round, {f"{prefix}accuracy": [1.0] for prefix in CURVES})
    figures = level.figures()
    for name in goals:
        if not math.isfinite(figures.get(name, [math.nan])[0]):
            events = sorted({*drifts, *sessions})
            raise ConfigError(
                f"evaluate_every must let {name} be told, got {every}: there are too few evaluations before or after "
                f"what happens in round {', '.join(map(str, events))}; lower it, or name another metric"
            )


def check_rule_keys(parts: Parts, settings: Settings, study: StudySection | None) -> None:
    """Raise ConfigError for hyper-parameters of a device rule that is not used, since devices step by the task's own
    optimizer: fixed to other values than their defaults, or searched."""
    if not by_own_optimizer(parts.task, settings.local_optimizer):
        return
    searched = set[str]()
    if study is not None:
        arms = study.arms.values()
        searched = {*study.search, *(arm_key(key) for arm in arms for key in arm.search or ())}
    if searched & {"local_optimizer", "task"}:
        return
    where = f"devices step by {type(parts.task).__name__}.configure_optimizers"
    for field in fields(parts.algorithm):
        key = f"algorithm.{field.name}"
        if field.name not in RULE_KEYS:
            continue
        if key in searched:
            raise ConfigError(f"study.search.{key} would change nothing, since {where}: search an argument of the task")
        if (value := getattr(parts.algorithm, field.name)) != field.default:
            raise ConfigError(
                f"{key} must be left out, since {where}, got {value:g}: give the task an argument for it, or set "
                "local_optimizer: rule"
            )


def check_privacy(parts: Parts, settings: Settings, *, in_study: bool) -> None:
    """Raise UserError for a private run that cannot be, or for a study whose trials would end early."""
    privacy, rounds = parts.privacy, settings.rounds
    aggregator = PrivateAggregator(privacy, parts.algorithm, parts.coordinator.controllers, list(settings.seeds))
    aggregator.foresee(parts.population, rounds)
    if not in_study or privacy is None or privacy.target_epsilon is None or privacy.solve:
        return
    aggregator.start(parts.population, rounds, None)
    if not aggregator.allows(rounds - 1):
        raise UserError(
            f"privacy.target_epsilon = {privacy.target_epsilon:g} would end trials before round {rounds} (ε = "
            f"{aggregator.epsilon(rounds):.4g}), and a study compares whole runs: set privacy.solve in place of "
            "privacy.noise, or lower rounds"
        )


def first_server(parts: Parts) -> Any:
    """Return the server's state of a run's algorithm, leaves [1, ...], with models of zeros."""
    run = parts.coordinator.run
    return run.first_servers(run.no_models()[:1])


def check_measures(parts: Parts, population: Population) -> None:
    """Raise UserError for a regret or a radio cell that cannot be measured in the first round of a settled
    population; where that comes later, the rounds before are kept."""
    run = parts.coordinator.run
    if parts.regret is not None:
        DynamicRegret(parts.regret, population, parts.task).optimum(1)
    if parts.wireless is not None:
        layout = run.task_function.layout
        sent = job_bytes(run.algorithm, first_server(parts), layout)
        clients, batch_size = population.cohort(1).jobs.client, population.plan.batch_size
        amounts = {"down": 8 * sent.down, "up": 8 * sent.up, "steps": 1, "batch_size": batch_size}
        parts.wireless.costs(population.seeds, 1, clients, **amounts, parameters=layout.n)


def check_work(algorithm: Algorithm, population: Population) -> None:
    """Raise ConfigError for a warm-up that no device of a settled population ever ends."""
    warmup = getattr(algorithm, "warmup", 0)
    largest = max(int(devices.counts[:, 0].max()) for devices in population.members)
    steps = population.plan.longest(largest)
    if warmup > steps:
        raise ConfigError(
            f"algorithm.warmup must be <= {steps}, the most steps that a device takes in a round, got {warmup}: its "
            "learning rate would never be reached; lower it, or lengthen the work (population.epochs or steps)"
        )
