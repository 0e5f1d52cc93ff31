"""The settings of a run that belong to no part of it: its replicas, and how local fits are carried out.

Torch is not imported: the checks of a config, which are to take no second, read these fields.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal

from flstudy.hyper import Configurable, hyper
from flstudy.user_error import UserError

BufferMode = Literal["average", "local", "freeze"]
Compile = bool | Literal["auto"]
ExecutorName = Literal["vectorized", "threads", "sequential", "trainer", "auto"]
LocalOptimizer = Literal["rule", "module", "module_reset"]
IN_MEMORY = 2**32  # bytes of devices' rows
COHORT_MEMORY = 2**32  # bytes of a block of a cohort


@dataclass(frozen=True, kw_only=True)
class RunSettings(Configurable):
    """Replicas of a run, and how local fits are carried out: the keys at the top of a config."""

    seeds: Sequence[Annotated[int, "[0, 2e9]"]] = (0,)
    """Seeds of the replicas, which are trained at once."""
    initial: Literal["seeded", "given"] = "given"
    """Build each replica's initial model under its seed, or start all from the task as it is given."""
    executor: ExecutorName = "vectorized"
    """Executor of local fits; all agree. auto takes the fastest by a short measurement."""
    compile: Compile = "auto"
    """Compile the vectorized steps; auto does if the rounds ahead pay for it."""
    local_optimizer: LocalOptimizer = "rule"
    """Optimizer of devices: the algorithm's rule, or the task's configure_optimizers (module_reset: its state begins
    anew in every round)."""
    buffers: BufferMode = "average"
    """Treatment of BatchNorm's statistics and the like: averaged, kept by devices with BatchNorm's weights (FedBN), or
    never changed."""
    max_lanes: int | None = hyper(None, "[1, 1e6]")
    """Most lanes at once; null is all of them."""
    bank_memory: int = hyper(IN_MEMORY, "[0, 1e15]")
    """Most bytes of devices' states in memory; beyond it files in the folder for temporary files (TMPDIR) take them."""
    cohort_memory: int = hyper(COHORT_MEMORY, "[0, 1e15]")
    """Most bytes of the models and states of devices that train at once; larger cohorts train in blocks, their uploads
    added up as they come."""

    def __post_init__(self) -> None:
        super().__post_init__()
        seeds = list(self.seeds)
        if not seeds or len(set(seeds)) != len(seeds) or min(seeds) < 0:
            raise UserError(f"seeds must be one or more different integers ≥ 0, got {seeds}")


def settings_with(settings: RunSettings, earlier: Mapping[str, Any]) -> RunSettings:
    """Return the settings, updated with fields that were given as separate arguments of a coordinator.

    Raises:
        TypeError: for an argument that never was one.
    """
    if not earlier:
        return settings
    names = {field.name for field in fields(RunSettings)}
    for name in earlier:
        if name not in names:
            raise TypeError(f"Coordinator() has no argument {name!r}")
    values = ", ".join(f"{name}=..." for name in earlier)
    warnings.warn(
        f"{', '.join(earlier)}: give Coordinator(task, algorithm, RunSettings({values})); arguments of their own are "
        "deprecated",
        DeprecationWarning,
        stacklevel=3,
    )
    return replace(settings, **earlier)
