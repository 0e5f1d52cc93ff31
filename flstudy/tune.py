"""One trial of a study for other searches: a trainable for a ``ray.tune.Tuner``, an objective for an
``optuna.Study``. Both train by `flstudy.tuning.trial.run_trial`, as a study's own workers do.

    tuner = ray.tune.Tuner(
        flstudy.tune.trainable("study.yaml"),
        param_space={"algorithm.lr": ray.tune.loguniform(1e-3, 1)},
        tune_config=ray.tune.TuneConfig(metric="valid/accuracy", mode="max", num_samples=8),
    )
    optuna.create_study(direction="maximize").optimize(flstudy.objective("study.yaml"), n_trials=20)
"""

import contextlib
import functools
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flstudy.config import ConfigError, load, nearest
from flstudy.config.config import Config
from flstudy.config.errors import shown
from flstudy.config.reading import dotted
from flstudy.config.registry import ROOTS
from flstudy.config.schema import class_names
from flstudy.config.values import check_value, classes_in, nodes_of_key, resolved
from flstudy.studies import Study
from flstudy.study import Domain, Space, Status, Trial
from flstudy.study.objectives import objective_values, objectives_of, violations
from flstudy.study.space import key_checker
from flstudy.tuning.files import TrialFiles, Write
from flstudy.tuning.history import snapshot_rounds
from flstudy.tuning.proposals import algorithm_of
from flstudy.tuning.samplers import CONSTRAINTS, STATUS
from flstudy.tuning.trial import run_trial
from flstudy.tuning.worker import STATE, state_checkpoint
from flstudy.user_error import UserError

if TYPE_CHECKING:
    import lightning as L
    import optuna

Source = str | os.PathLike[str] | Config | Study
"""A config file, or a config or study that was made of one."""
_FIXED = ("study", "run", "store")  # sections that are no trial's


def config_from(source: Source) -> Config:
    """Return the checked config of a file or a study."""
    if isinstance(source, Study):
        return source.config
    return source if isinstance(source, Config) else load(Path(source), command="tune")


# ---- Ray Tune ----------------------------------------------------------------------------------------------------


def trainable(
    config: Source, param_space: Mapping[str, Any] | None = None, *, checkpoint_every: int = 1
) -> Callable[[dict[str, Any]], None]:
    """Return a trainable for a ``ray.tune.Tuner`` of your own, with any searcher and scheduler.

    Every evaluation is a report: all metrics by their names, such as ``valid/accuracy`` (mean over seeds), and beside
    them ``objective``, ``round`` (a scheduler's ``time_attr``) and ``status``; with it goes a checkpoint, from which a
    trial goes on that a scheduler paused, that took over another's state (population-based training), or whose
    experiment was restored. A diverged trial reports the worst value; one that raised fails.

    Args:
        config: the config to train; a trial's values override its own.
        param_space: the Tuner's, to have its keys and the ends of its domains checked now rather than by each trial
            before its first round. Keys are dotted, ``algorithm.lr`` or ``algorithm.init_args.lr``, or nested; a key of
            another algorithm than the trial's is left out.
        checkpoint_every: evaluations from one checkpoint to the next.

    Raises:
        ConfigError: in one sentence, for a config or a key that there is not, or a value outside its domain.
    """
    if checkpoint_every < 1:
        raise ConfigError(f"checkpoint_every must be >= 1 evaluations, got {checkpoint_every}")
    base = config_from(config)
    base.rehearse()
    if param_space is not None:
        check_space(base, param_space)
    base = base.with_overrides({"study.snapshot_s": 1e6})  # Ray keeps the checkpoints
    beside = str(Path(base.path).absolute().parent)

    def train(params: dict[str, Any]) -> None:
        if beside not in sys.path:
            sys.path.append(beside)  # the user's own modules
        train_under_ray(base, params, checkpoint_every)

    train.__name__ = Path(base.path).stem
    return train


def train_under_ray(config: Config, params: Mapping[str, Any], checkpoint_every: int = 1) -> None:
    """Train a config with a trial's values, and report to Ray Tune.

    Raises:
        RuntimeError: the trial failed, with its own message.
    """
    import torch
    from ray import tune

    context = tune.get_context()
    resources = context.get_trial_resources()
    torch.set_num_threads(max(1, int(resources.required_resources.get("CPU", 1))))
    overrides = overrides_of(config, params)
    trial = Trial(number=0, algorithm=algorithm_of(config, overrides), overrides=overrides)
    place, restored = Path(context.get_trial_dir()).absolute(), tune.get_checkpoint()
    stop: SystemExit | None = None
    reports = 0

    def report(trial: Trial, save: Write | None) -> bool:
        nonlocal stop, reports
        if stop is not None or trial.status is Status.FAILED:
            return False
        due = reports % checkpoint_every == 0 or trial.status is Status.FINISHED
        reports += 1
        progress = {"objective": trial.objective, "round": trial.rounds, "status": str(trial.status)}
        try:
            with state_checkpoint(save if due and not trial.is_broken else None) as checkpoint:
                tune.report({**trial.metrics, **progress}, checkpoint=checkpoint)
        except SystemExit as exit:  # how Ray says that the trial was stopped
            stop = exit
            return False
        return True

    with restored.as_directory() if restored is not None else contextlib.nullcontext() as folder:
        resume = None if folder is None else Path(folder) / STATE
        if resume is not None and snapshot_rounds(resume) >= config.rounds:
            return  # it had done all rounds
        run_trial(
            config, trial, report=report, files=TrialFiles(place / "records.parquet", place / "snapshot.ckpt"),
            resume=resume,
        )  # fmt: skip
    if stop is not None:
        raise stop
    if trial.status is Status.FAILED:
        raise RuntimeError(trial.error)


def overrides_of(config: Config, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trial's values as overrides of a config: dotted keys, plain values; without those of keys that other
    classes have than the trial's.

    Raises:
        ConfigError: for a key that no class has, or that is no trial's.
    """
    values = {key: _plain(value) for key, value in dotted(params).items()}
    classes = {key: value for key, value in values.items() if key in ROOTS}
    _nodes_of(config, values, {root: [value] for root, value in classes.items()})
    has_key = key_checker(config)
    return {key: value for key, value in values.items() if key in classes or has_key(classes, key)}


def _nodes_of(
    config: Config, keys: Iterable[str], classes: Mapping[str, Sequence[Any]]
) -> dict[str, list[Mapping[str, Any]]]:
    """Return the schema's nodes of each key, one for each class that has it; ConfigError for a key that none has.

    Args:
        config: the config to search.
        keys: dotted.
        classes: by the keys that a trial chooses a class for, users' own among the choices.
    """
    chosen = {key: [path] for key, path in classes_in({**config.plain(), "study": None})}
    for root, values in classes.items():
        chosen[root] = [*class_names(root), *(resolved(root, value) for value in values if value is not None)]
    by_key = {}
    for key in keys:
        by_key[key], beside = nodes_of_key(key, chosen)
        if not by_key[key] or key.partition(".")[0] in _FIXED:
            beside = [name for name in beside if name not in _FIXED]
            raise ConfigError(f"param_space: unknown key {shown(key)}{nearest(key, beside)}")
    return by_key


def _plain(value: Any) -> Any:
    """Return a value that a searcher drew, without numpy's types."""
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value.item() if hasattr(value, "item") and not isinstance(value, type) else value


def check_space(config: Config, param_space: Mapping[str, Any]) -> None:
    """Raise ConfigError, in one sentence, for a key of a Ray search space that no trial could have, or whose domain's
    ends a config refuses. Values that a function draws are left to the trials."""
    values = dotted(param_space)
    domains = {key: converted for key, value in values.items() if (converted := _domain(value)) is not None}
    roots = {key: domain.options for key, domain in domains.items() if key in ROOTS}
    for key, key_nodes in _nodes_of(config, values, roots).items():
        for value in domains[key].extremes() if key in domains and key not in ROOTS else ():
            for node in key_nodes:
                check_value(f"param_space: {key}", value, node)
    for choices in roots.values():
        if any(isinstance(choice, Mapping) for choice in choices):
            return  # with arguments of their own: each trial checks its own
    try:
        if domains:
            Space(domains).validate(config)
    except ConfigError as error:
        raise ConfigError(str(error).replace("study.search.", "param_space: ")) from error


def _domain(value: Any) -> Domain | None:
    """Return a domain of Ray's as one of flstudy's with the same ends; None for a function's."""
    from ray.tune.search import sample

    if isinstance(value, Mapping) and "grid_search" in value:
        return Domain("choice", options=tuple(map(_plain, value["grid_search"])))
    if isinstance(value, sample.Categorical):
        return Domain("choice", options=tuple(map(_plain, value.categories)))
    if isinstance(value, sample.Integer):
        return Domain("randint", bounds=(value.lower, value.upper))
    if isinstance(value, sample.Float):
        ends = (value.lower, value.upper)
        return Domain("uniform", bounds=ends) if all(map(math.isfinite, ends)) else None
    return None if isinstance(value, sample.Domain) or callable(value) else Domain("choice", options=(_plain(value),))


def param_space(config: Source) -> dict[str, Any]:
    """Return the config's own ``study.search`` as a search space of Ray's."""
    from ray import tune

    space: dict[str, Any] = {}
    for key, domain in Space.of_study(config_from(config).study).widest().items():
        if domain.kind == "choice":
            space[key] = tune.choice(list(domain.options))
        elif domain.kind in ("randint", "lograndint"):
            space[key] = getattr(tune, domain.kind)(*map(int, domain.bounds))
        elif domain.kind == "quniform" and not _divides(domain.bounds[2], domain.extremes()):
            space[key] = tune.choice(domain.values(0))  # Ray's own draws multiples of q alone
        else:
            space[key] = getattr(tune, domain.kind)(*domain.extremes(), *domain.bounds[2:])
    return space


def _divides(q: float, ends: Sequence[float]) -> bool:
    """Return whether numbers are multiples of q."""
    return all(math.isclose(end / q, round(end / q)) for end in ends)


def model_of(result: Any) -> "L.LightningModule":
    """Return the task with the global model of a ``ray.tune.Result``'s last checkpoint, of the first seed; UserError
    where it has none."""
    from flstudy.federation import load_task

    if result.checkpoint is None:
        raise UserError("the result must have a checkpoint, got none: its trial ended before its first evaluation")
    with result.checkpoint.as_directory() as folder:
        return load_task(Path(folder) / STATE)


# ---- Optuna ------------------------------------------------------------------------------------------------------


def objective(config: Source) -> Callable[["optuna.Trial"], float | tuple[float, ...]]:
    """Return an objective for an ``optuna.Study`` of your own: ``study.optimize(objective("study.yaml"),
    n_trials=20)``.

    A trial's values are those of the config's ``study.search``; a pruner is asked after every evaluation but the last.
    User attributes: ``status``, ``rounds``, ``constraints`` and every metric's last value. A diverged trial has the
    worst value; one that raised raises. The study's direction must be that of the objective's mode.

    Raises:
        ConfigError: in one sentence, for a config or a search that cannot work.
    """
    base = config_from(config)
    space = Space.of_study(base.study)
    space.validate(base)
    base.rehearse()
    return functools.partial(_objective, base, space, key_checker(base))


def _objective(
    config: Config, space: Space, has_key: Callable[[Mapping[str, Any], str], bool], asked: "optuna.Trial"
) -> float | tuple[float, ...]:
    import optuna

    goals, section = objectives_of(config.study), config.study
    wanted = ["maximize" if goal.higher else "minimize" for goal in goals]
    if [direction.name.lower() for direction in asked.study.directions] != wanted:
        raise ConfigError(f"the study's directions must be {wanted}, as study.objective says: create it with these")
    overrides = space.suggest(asked, has_key)
    trial = Trial(number=asked.number, algorithm=algorithm_of(config, overrides), overrides=overrides)

    def report(trial: Trial, save: Write | None) -> bool:
        if trial.status is not Status.RUNNING or len(goals) > 1:
            return True
        asked.report(trial.objective, trial.rounds)
        return not asked.should_prune()

    run_trial(config, trial, report=report)
    attributes = {STATUS: str(trial.status), "rounds": trial.rounds, CONSTRAINTS: violations(section, trial.metrics)}
    for name, value in {**trial.metrics, **attributes}.items():
        asked.set_user_attr(name, value)
    if trial.status is Status.FAILED:
        raise RuntimeError(trial.error)
    if trial.status is Status.PRUNED:
        raise optuna.TrialPruned
    values = objective_values(section, trial.objective, trial.metrics, broken=trial.is_broken)
    return values if len(values) > 1 else values[0]
