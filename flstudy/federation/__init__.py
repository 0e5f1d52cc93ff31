"""The coordinator of federated rounds."""

from flstudy.federation.clock import RoundClock
from flstudy.federation.coordinator import Coordinator, Record

__all__ = ["Coordinator", "Record", "RoundClock"]
