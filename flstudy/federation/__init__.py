"""The coordinator of federated rounds."""

from flstudy.federation.coordinator import Coordinator, RoundClock
from flstudy.federation.round_metrics import Record
