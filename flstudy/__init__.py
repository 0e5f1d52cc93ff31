"""flstudy: hyper-parameter studies of federated learning in a moving world.

Names load when they are asked for: importing torch and lightning takes seconds, and a misspelt config key, `--help` or
a study's report should not wait for them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flstudy import tune
    from flstudy.federation import Coordinator, FederatedRun, Record, RoundProgressBar, RunSettings, load_task
    from flstudy.population import Population
    from flstudy.studies import Study
    from flstudy.tune import objective

__all__ = [
    "Coordinator",
    "FederatedRun",
    "Population",
    "Record",
    "RoundProgressBar",
    "RunSettings",
    "Study",
    "load_task",
    "objective",
    "tune",
]
__version__ = "0.2.0"

_TRAINING = ("Coordinator", "FederatedRun", "Record", "RoundProgressBar", "RunSettings", "load_task")
_ROOMS = {
    **dict.fromkeys(_TRAINING, "flstudy.federation"),
    "Population": "flstudy.population",
    "Study": "flstudy.studies",  # of the study layer, which needs the packages of `flstudy[study]`
    "objective": "flstudy.tune",
}


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return getattr(import_module(_ROOMS[name]), name)
    if name == "tune":
        return import_module("flstudy.tune")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
