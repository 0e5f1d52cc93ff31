"""A LightningModule's own optimizer from ``configure_optimizers``, as far as a device's step can follow it."""

import copy
import warnings
from collections.abc import Mapping
from typing import Any

import lightning as L
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from flstudy.algorithms import Algorithm, Layout
from flstudy.algorithms.parts.module_rule import plain_class, rule_of, with_module_optimizer
from flstudy.algorithms.parts.torch_rule import Configured, Scheduled
from flstudy.run_settings import LocalOptimizer
from flstudy.tasks.module_steps import overrides
from flstudy.user_error import UserError

HOOKS = ("optimizer_step", "lr_scheduler_step", "configure_gradient_clipping")  # which only Lightning's own loop calls


RULE_KEYS = ("lr", "momentum", "weight_decay")
"""Hyper-parameters of a method's own device rule, which a module's own optimizer does not read."""


def by_own_optimizer(task: L.LightningModule, mode: LocalOptimizer) -> bool:
    """Return whether devices step by the module's own optimizer, or by several of them."""
    return mode != "rule" or not task.automatic_optimization


def refuse_schedule(task: L.LightningModule, schedule: object | None, mode: LocalOptimizer) -> None:
    """Raise UserError for a schedule of a learning rate that no device takes."""
    if schedule is not None and by_own_optimizer(task, mode):
        raise UserError(
            f"schedule: {type(schedule).__name__} would change nothing, since devices step by "
            f"{type(task).__name__}.configure_optimizers: leave it out, or return a scheduler there"
        )


def stepping(algorithm: Algorithm, task: L.LightningModule, layout: Layout, mode: LocalOptimizer) -> Algorithm:
    """Return the method with the optimizer that devices step by.

    Raises:
        UserError: where the method, or the module's optimizer, does not allow it.
    """
    if mode != "rule" and task.automatic_optimization:
        module = copy.deepcopy(task)
        rule = rule_of(module, configured, layout)
        return with_module_optimizer(algorithm, rule, layout, mode == "module_reset")
    if not task.automatic_optimization:
        refuse_by_itself(algorithm, task)
    elif own_optimizer(task):
        warnings.warn(
            f"configure_optimizers of {type(task).__name__} is not used, devices step by {type(algorithm).__name__}'s "
            "own rule: set local_optimizer: module to use it",
            stacklevel=3,
        )
    return algorithm


def refuse_by_itself(algorithm: Algorithm, task: L.LightningModule) -> None:
    """Raise UserError for a method that changes a device's steps in ways that a task in manual optimisation does not
    follow."""
    parts = ("local_step", "device_rule", "correct", "loss")
    why = algorithm.steps_by_sgd
    if not why and any(getattr(plain_class(algorithm), part) is not getattr(Algorithm, part) for part in parts):
        why = "its devices have a step of their own"
    if not why and (algorithm.asks is not None or algorithm.jobs_per_device > 1):
        why = "it compares models by their losses"
    if not why and (algorithm.gamma is not None or algorithm.clip_norm is not None):
        why = "gamma and clip_norm need losses and gradients that only the task sees; leave them out"
    if why:
        raise UserError(
            f"task: {type(task).__name__} optimises by itself (automatic_optimization = False), which makes no sense "
            f"for {type(algorithm).__name__}: {why}; use FedAvg or another method that changes the server's step alone"
        )


def own_optimizer(task: L.LightningModule) -> bool:
    """Return whether a module defines how it is optimised."""
    return overrides(task, "configure_optimizers")


def configured(task: L.LightningModule) -> Configured:
    """Return the module's optimizer and its schedulers, in any of the forms that Lightning takes.

    Raises:
        UserError: where there is no optimizer, or several, or a scheduler that asks for a metric, or a hook between
            gradient and step.
    """
    name = type(task).__name__
    if not own_optimizer(task):
        raise UserError(f"local_optimizer: module needs one, but {name} defines no configure_optimizers; use rule")
    if (hook := next((hook for hook in HOOKS if overrides(task, hook)), None)) is not None:
        raise UserError(f"local_optimizer: module does not call {name}.{hook}: leave it out, or use rule")
    optimizers, schedulers = parts(task.configure_optimizers())
    if len(optimizers) != 1:
        raise UserError(
            f"local_optimizer: module takes one optimizer, {name} configures {len(optimizers)}: several need "
            "automatic_optimization = False, as in Lightning, which runs under executor: trainer"
        )
    return Configured(optimizers[0], tuple(scheduled(scheduler, name) for scheduler in schedulers))


def scheduled(returned: Any, name: str) -> Scheduled:
    """Return the scheduler of a module of that name, with the times of its steps.

    Raises:
        UserError: for one that asks for a metric.
    """
    config = returned if isinstance(returned, Mapping) else {"scheduler": returned}
    if isinstance(config["scheduler"], ReduceLROnPlateau):
        raise UserError(f"local_optimizer: module: {name} schedules by a metric (ReduceLROnPlateau); use another")
    return Scheduled(config["scheduler"], int(config.get("frequency", 1)), config.get("interval", "epoch") == "epoch")


def parts(returned: Any) -> tuple[list[Optimizer], list[Any]]:
    """Return all optimizers, and all schedulers, in the result of ``configure_optimizers``."""
    if isinstance(returned, Optimizer):
        return [returned], []
    if isinstance(returned, Mapping):
        scheduler = returned.get("lr_scheduler")
        return [returned["optimizer"]], [] if scheduler is None else [scheduler]
    if returned is None:
        return [], []
    if len(returned) == 2 and isinstance(returned[0], list | tuple):
        return list(returned[0]), list(returned[1])
    pairs = [parts(part) for part in returned]
    optimizers = [optimizer for many, _ in pairs for optimizer in many]
    return optimizers, [scheduler for _, many in pairs for scheduler in many]
