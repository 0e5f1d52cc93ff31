"""flstudy: hyper-parameter studies of federated learning in a moving world."""

from flstudy.federation import Coordinator, Record
from flstudy.population import Population

__all__ = ["Coordinator", "Population", "Record"]
__version__ = "0.1.0"
