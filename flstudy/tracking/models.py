"""Trained models: kept beside a study's records, and logged to MLflow as models that anybody can load.

    model = mlflow.pyfunc.load_model("runs:/<run id>/model")
    probabilities = model.predict(x)              # x [B, *shape] -> [B, classes], [B, T, classes] for sequences

MLflow finds the weights, the config that rebuilds the task, and this module by name: nothing is unpickled. A trial has
a model for each seed; the one of its first seed is kept. torch is imported on use: studies whose folder keeps no model
need none of this.
"""

import importlib.metadata
import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from numpy.typing import NDArray

from flstudy.study.results import StudyResults
from flstudy.tracking.store import Store, one_line
from flstudy.user_error import UserError

if TYPE_CHECKING:
    from flstudy.config import Config

log = logging.getLogger(__name__)

NAME = "model"  # of the model within its run
LOGGED, REGISTERED = "flstudy.model", "flstudy.registered"  # tags of a run
_CONFIG, _WEIGHTS = "config.yaml", "weights.pt"
_LIBRARIES = ("flstudy", "torch", "lightning", "PyYAML")  # what rebuilding a task imports


class ServedTask:
    """A trained task as MLflow calls it.

    Attributes:
        shape: of one input.
        dtype: of inputs, numpy's name.
    """

    def __init__(self, config: "Config", saved: Mapping[str, Any]) -> None:
        import torch

        self.task = config.build()[0].task
        self.shape, self.dtype = tuple(saved["shape"]), str(saved["dtype"])
        real = next((part.dtype for part in saved["state"].values() if part.is_floating_point()), torch.float32)
        self.task.to(real).eval().load_state_dict(saved["state"])
        self._real = real

    def predict(self, inputs: NDArray[Any], params: Mapping[str, Any] | None = None) -> NDArray[np.float32]:
        """Return the probabilities [B, classes] of inputs [B, *shape]; [B, T, classes] of sequences.

        Raises:
            UserError: for inputs of another shape.
        """
        import torch

        batch = np.asarray(inputs)
        if batch.shape[1:] != self.shape:
            raise UserError(f"inputs must be [B, {', '.join(map(str, self.shape))}], got {list(batch.shape)}")
        x = torch.from_numpy(batch.astype(self.dtype))  # a copy: MLflow's may be read-only
        with torch.no_grad():
            logits = self.task(x.to(self._real) if x.is_floating_point() else x)
        return logits.softmax(-1).to(torch.float32).numpy()


def _load_pyfunc(data_path: str) -> ServedTask:
    """Return the model in a folder; MLflow calls this function of a ``loader_module`` by its name."""
    import torch

    from flstudy.config import load

    folder = Path(data_path)
    saved = torch.load(folder / _WEIGHTS, map_location="cpu", weights_only=True)
    return ServedTask(load(folder / _CONFIG), saved)


def log_model(store: Store, run_id: str, config: Mapping[str, Any], weights: Path, tags: Mapping[str, str]) -> str:
    """Log a model that `save_model` wrote as the run's ``model``; returns MLflow's id of it. The task is not built.

    Args:
        store: MLflow.
        run_id: of the trial.
        config: complete values of the trial.
        weights: the file.
        tags: of the model.
    """
    from mlflow import pyfunc
    from mlflow.entities import LoggedModelOutput
    from mlflow.models import Model, ModelSignature
    from mlflow.types import Schema, TensorSpec

    from flstudy.federation.checkpoint import read_file

    client = store.client
    with tempfile.TemporaryDirectory() as temporary:
        data, model_folder = Path(temporary) / "data", Path(temporary) / "model"
        data.mkdir()
        plain = {name: value for name, value in config.items() if name not in ("study", "run", "store")}
        (data / _CONFIG).write_text(yaml.safe_dump(plain, sort_keys=False))
        (data / _WEIGHTS).write_bytes(weights.read_bytes())
        saved = read_file(weights)
        example = np.zeros((1, *saved["shape"]), saved["dtype"])
        has_output = "output_shape" in saved  # an earlier flstudy's file has none
        if has_output and saved["output_shape"] is None:
            raise UserError("its forward does not map a batch of inputs to one of outputs, which MLflow would call")
        signature = ModelSignature(
            inputs=Schema([TensorSpec(example.dtype, (-1, *example.shape[1:]))]),
            outputs=Schema([TensorSpec(np.dtype("float32"), (-1, *saved["output_shape"]))]) if has_output else None,
        )
        logged = client.create_logged_model(store.experiment_id, name=NAME, source_run_id=run_id, tags=dict(tags))
        pyfunc.save_model(
            path=str(model_folder),
            loader_module=__name__,
            data_path=str(data),
            mlflow_model=Model(artifact_path=logged.artifact_location, run_id=run_id, model_id=logged.model_id),
            signature=signature,
            input_example=example,
            # Named, because MLflow would otherwise try the model in a process of its own to find out.
            pip_requirements=[f"{name}=={importlib.metadata.version(name)}" for name in _LIBRARIES],
        )
        client.log_model_artifacts(logged.model_id, str(model_folder))
        client.log_outputs(run_id, [LoggedModelOutput(logged.model_id, step=0)])
        client.finalize_logged_model(logged.model_id, "READY")
    return logged.model_id


def register_model(store: Store, name: str, model_id: str, run_id: str, tags: Mapping[str, str]) -> str:
    """Register a logged model as the next version of ``name``; returns the version."""
    from mlflow.exceptions import MlflowException

    try:
        store.client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    source = f"models:/{model_id}"
    if not store.uri.startswith("http"):  # MLflow would look the model up in its global store, which may be another one
        source = store.client.get_logged_model(model_id).artifact_location
    version = store.client.create_model_version(name, source, run_id, dict(tags), model_id=model_id)
    return str(version.version)


def log_models(results: StudyResults, store: Store) -> int:
    """Log the model of each algorithm's best trial to the trial's run, and register that of the study's best trial
    where the study has a name for it; what was done before is left alone. Returns how many were logged or registered.
    """
    done, wanted = 0, results.section.get("register")
    for place, trial in enumerate(best.trial for best in results.best):
        number, run_id, weights = trial.number, trial.run_id, results.folder.model(trial.number)
        if run_id is None or not weights.is_file():
            continue
        try:
            run_tags = store.client.get_run(run_id).data.tags
            tags = {"study": results.name, "trial": str(number), "algorithm": trial.algorithm}
            model_id = run_tags.get(LOGGED)
            if model_id is None:
                model_id = log_model(store, run_id, results.trial_config(trial), weights, tags)
                store.log_tags(run_id, {LOGGED: model_id})
                done += 1
            if wanted and place == 0 and REGISTERED not in run_tags:
                version = register_model(store, wanted, model_id, run_id, tags)
                store.log_tags(run_id, {REGISTERED: f"{wanted} {version}"})
                done += 1
        except Exception as error:  # the weights are in the folder
            log.warning("the model of trial %s is not in MLflow: %s", number, one_line(error))
    return done
