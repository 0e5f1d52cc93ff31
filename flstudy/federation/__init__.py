"""The coordinator of federated rounds."""

from flstudy.federation.coordinator import Coordinator, RoundClock
from flstudy.federation.loading import load_task
from flstudy.federation.round_metrics import Record
