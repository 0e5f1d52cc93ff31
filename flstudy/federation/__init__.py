"""Federated runs, and the coordinator that plays one under a Trainer."""

from flstudy.federation.coordinator import Coordinator
from flstudy.federation.federated_run import FederatedRun
from flstudy.federation.loading import load_task
from flstudy.federation.round_clock import RoundClock
from flstudy.federation.round_metrics import Record
from flstudy.federation.round_progress_bar import RoundProgressBar
from flstudy.federation.run_state import RunState
from flstudy.run_settings import RunSettings
