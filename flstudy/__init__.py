"""flstudy: hyper-parameter studies of federated learning in a moving world.

Names load when they are asked for: importing torch and lightning takes seconds, and a misspelt config key, `--help` or
a study's report should not wait for them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flstudy.federation import Coordinator, Record, load_task
    from flstudy.population import Population

__all__ = ["Coordinator", "Population", "Record", "load_task"]
__version__ = "0.1.0"

_ROOMS = {
    **dict.fromkeys(("Coordinator", "Record", "load_task"), "flstudy.federation"),
    "Population": "flstudy.population",
}


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return getattr(import_module(_ROOMS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
