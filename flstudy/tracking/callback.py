"""A single run in MLflow, from any Lightning Trainer over a Coordinator."""

import dataclasses
import traceback
import uuid
from collections.abc import Mapping
from typing import Any

import lightning as L

from flstudy.tracking.content import environment
from flstudy.tracking.runs import TrialRun
from flstudy.tracking.store import EXPERIMENT, open_store


class MlflowRounds(L.Callback):
    """Lightning callback that logs every round's metrics to a run of its own: means, spreads and seeds.

        trainer = L.Trainer(max_epochs=200, callbacks=[MlflowRounds(name="flash, tau 1e-3")])

    It needs ``pl_module.record``, as a Coordinator has, and is independent of the Trainer's loggers; ``MLFlowLogger``
    would log the means only.

    Args:
        store: MLflow tracking URI; None: SQLite under ./mlflow_tracking. Opened and checked at once.
        name: of the run; None: the algorithm's.
        params: None: the algorithm's hyper-parameters.
        tags: further tags, such as dataset and drift.
        config: kept as an artifact of the run.
        key: identifies the run, so that a resumed one goes on in it; None: always a new run.
    """

    def __init__(
        self,
        store: str | None = None,
        *,
        name: str | None = None,
        params: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        config: Mapping[str, Any] | None = None,
        key: str | None = None,
        experiment: str = EXPERIMENT,
    ) -> None:
        self.store = open_store(store, experiment=experiment)
        self.name, self.params, self.tags, self.config = name, params, dict(tags or {}), config
        self.key = {"flstudy.run": key or uuid.uuid4().hex}
        self._run: TrialRun | None = None

    @property
    def run_id(self) -> str | None:
        """Id of the MLflow run, once it is open."""
        return self._run.run_id if self._run is not None else None

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        algorithm = getattr(pl_module, "algorithm", None)
        name = type(algorithm).__name__ if algorithm is not None else type(pl_module).__name__
        params = self.params
        if params is None and dataclasses.is_dataclass(algorithm) and not isinstance(algorithm, type):
            fields = {
                f"algorithm.{field.name}": getattr(algorithm, field.name) for field in dataclasses.fields(algorithm)
            }
            params = {"algorithm": name, **fields}
        self._run = TrialRun(
            self.store, name=self.name or name, key=self.key, tags={**environment(), "flstudy.kind": "run"}
        )
        self._run.start(
            params=params or {},
            tags={"algorithm": name, **self.tags},
            seeds=getattr(pl_module, "seeds", ()),
            config=self.config,
        )

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log the round's record, its evaluation included: Lightning validates before this hook."""
        record = getattr(pl_module, "record", None)
        if self._run is not None and record is not None:
            self._run.log(record)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._run is not None:
            self._run.finish(tags={"rounds": str(trainer.current_epoch)})

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        if self._run is not None:
            stopped = isinstance(exception, KeyboardInterrupt | SystemExit)
            error = None if stopped else "".join(traceback.format_exception(exception))
            self._run.finish("KILLED" if stopped else "FAILED", error=error)
