"""The coordinator of federated rounds."""

from flstudy.federation.clock import RoundClock
from flstudy.federation.coordinator import Coordinator
from flstudy.federation.record import Record

__all__ = ["Coordinator", "Record", "RoundClock"]
