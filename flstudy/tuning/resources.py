"""Resources that a trial reserves, by Ray's names, and checks that a machine has them."""

import math
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flstudy.config import ConfigError
from flstudy.local_ray import joins_cluster
from flstudy.process_state import usable_cores
from flstudy.tuning.address import ray_command

if TYPE_CHECKING:
    from flstudy.config import Resources

_SOME = 0.001  # amount of an accelerator's kind that a trial reserves, of which a node has 1
_STATUS_S = 15.0


def ray_bundle(resources: "Resources") -> dict[str, float]:
    """Return Ray's bundle of the resources that one trial reserves on one node."""
    bundle = {"CPU": resources.cpu, "GPU": resources.gpu, "memory": resources.memory, **resources.custom}
    if resources.accelerator_type is not None:
        bundle[f"accelerator_type:{resources.accelerator_type}"] = _SOME
    return {name: amount for name, amount in bundle.items() if amount > 0} or {"CPU": 0.0}


def placement(resources: "Resources") -> Any:
    """Return the placement group factory of Ray Tune with the resources that one trial reserves on one node."""
    from ray.tune import PlacementGroupFactory

    return PlacementGroupFactory([ray_bundle(resources)])


def trials_that_fit(resources: "Resources", nodes: Sequence[Mapping[str, float]]) -> int:
    """Return the number of trials that nodes can run side by side."""
    wanted = {name: amount for name, amount in ray_bundle(resources).items() if amount > 0}
    if not wanted:
        return sys.maxsize
    return sum(int(min(has.get(name, 0.0) / amount for name, amount in wanted.items()) + 1e-6) for has in nodes)


def refuse_none(resources: "Resources") -> None:
    """Raise ConfigError for a trial that reserves nothing, by which Ray cannot place it."""
    if not any(ray_bundle(resources).values()):
        raise ConfigError(
            "study.resources.cpu must be > 0 where a trial reserves nothing else, got 0: give a fraction, such as 0.5, "
            "for several trials on a core"
        )


def check_local(resources: "Resources", gpus: int) -> None:
    """Raise ConfigError for a trial that a Ray of this machine cannot hold."""
    known_later = {"memory": math.inf, f"accelerator_type:{resources.accelerator_type}": float(gpus > 0)}
    _refuse_unless_one_has(resources, [{"CPU": usable_cores(), "GPU": gpus, **known_later}])


def check_fit(resources: "Resources", nodes: Sequence[Mapping[str, float]], say: Callable[[str], None]) -> None:
    """Say that trials wait for a node that can hold one, of a cluster that grows.

    Raises:
        ConfigError: names a resource that no node has, of a cluster that does not grow: a trial would wait for ever.
    """
    try:
        _refuse_unless_one_has(resources, nodes)
    except ConfigError as error:
        if not grows():
            raise
        wanted, _, _ = str(error).rpartition(": ")
        say(f"{wanted}: trials wait until the cluster has grown by such a node")


def _refuse_unless_one_has(resources: "Resources", nodes: Sequence[Mapping[str, float]]) -> None:
    wanted = ray_bundle(resources)
    for name, amount in wanted.items():
        most = max((has.get(name, 0.0) for has in nodes), default=0.0)
        if amount <= most:
            continue
        if name.startswith("accelerator_type:"):
            offered = {resource for has in nodes for resource in has if resource.startswith("accelerator_type:")}
            kinds = sorted(resource.partition(":")[2] for resource in offered)
            raise ConfigError(
                f"study.resources.accelerator_type must be a kind that a node has ({', '.join(kinds) or 'none'}), got "
                f"{resources.accelerator_type}: name another one, or none"
            )
        key = {"CPU": "cpu", "GPU": "gpu"}.get(name, name if name not in resources.custom else f"custom.{name}")
        raise ConfigError(
            f"study.resources.{key} must lie in [0, {most:g}], what a node of this machine or cluster has, "
            f"got {amount:g}: lower it, or give the --address of a cluster that has more"
        )
    if not any(all(has.get(name, 0.0) >= amount for name, amount in wanted.items()) for has in nodes):
        together = ", ".join(f"{name} {amount:g}" for name, amount in wanted.items())
        raise ConfigError(f"study.resources must be on one node together, and none has {together}: lower one of them")


def grows() -> bool:
    """Return whether an autoscaler of the cluster can add nodes: `ray status` names its nodes by their kinds then, and
    otherwise each by its own name."""
    import ray

    command = [ray_command(), "status", f"--address={ray.get_runtime_context().gcs_address}"]
    try:
        status = subprocess.run(command, capture_output=True, text=True, timeout=_STATUS_S, check=False).stdout
    except subprocess.TimeoutExpired:
        return False
    kinds = re.findall(r"^ \d+ (\S+)", status.partition("Active:")[2].partition("Pending:")[0], re.MULTILINE)
    return joins_cluster() and any(not re.fullmatch(r"node_[0-9a-f]{56}", kind) for kind in kinds)
