"""A trained model of a study as a file for other programs: ``.pt``, ``.onnx`` or ``.safetensors``."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flstudy.config import ConfigError
from flstudy.study.damage import reason_of
from flstudy.study.results import StudyResults
from flstudy.study.trial import Trial
from flstudy.tracking.models import ServedTask
from flstudy.whole_file import whole_file

if TYPE_CHECKING:
    from torch import Tensor

NEEDED = {".pt": (), ".onnx": ("onnx", "onnxscript"), ".safetensors": ("safetensors",)}
"""Required packages by a file's ending."""


def export_model(results: StudyResults, trial: Trial, path: Path, *, trust: bool = False) -> str:
    """Write the model that a study kept of a trial; returns the line that reads it.

    Only for ONNX the task is built, and so the module of its class imported.

    Args:
        results: of the study.
        trial: whose model it is.
        path: of the file, which ends in one of `NEEDED`.
        trust: whether the user agrees to the code that somebody else's study names.

    Raises:
        ConfigError: in one sentence, before anything is written, for a format or a trial that cannot be exported.
    """
    import torch

    from flstudy.federation.checkpoint import read_file
    from flstudy.study.resuming import load_study_config

    packages = NEEDED.get(path.suffix)
    if packages is None:
        raise ConfigError(f"--to must be a file that ends in {', '.join(NEEDED)}, got {path.name!r}: give another name")
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise ConfigError(f"{path.name} needs {' and '.join(missing)}: pip install {' '.join(missing)}")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--to: there is no folder {str(path.parent)!r}: make it first")
    model_path = kept_model(results, trial)
    try:
        saved = read_file(model_path)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    with whole_file(path) as hidden:
        if path.suffix == ".pt":
            torch.save({"state_dict": saved["state"], **saved}, hidden)
            reader = "flstudy.load_task({!r}), or the load_from_checkpoint of the task's own class"
        elif path.suffix == ".safetensors":
            write_safetensors(saved["state"], hidden, {"study": results.name, "trial": str(trial.number)})
            reader = "safetensors.torch.load_file({!r})"
        else:
            config = load_study_config(results.folder, trust=trust).with_overrides(trial.overrides)
            write_onnx(ServedTask(config, saved), hidden)
            reader = "onnxruntime.InferenceSession({!r})"
    return reader.format(str(path))


def kept_model(results: StudyResults, trial: Trial) -> Path:
    """Return the file in which a study kept a trial's trained model; ConfigError where it kept none."""
    return _kept(results, trial, results.folder.model(trial.number), "model")


def kept_by_device(results: StudyResults, trial: Trial) -> Path:
    """Return the file with a trial's results on each device; ConfigError where the study kept none."""
    return _kept(results, trial, results.folder.by_device(trial.number), "results by device")


def _kept(results: StudyResults, trial: Trial, path: Path, what: str) -> Path:
    if not path.is_file():
        files = path.parent.glob(f"*{path.suffix}")
        names = sorted((file.stem for file in files), key=lambda name: (len(name), name))
        if not names:
            raise ConfigError(f"study {results.name} kept no {what}: no trial finished, or an earlier flstudy ran it")
        raise ConfigError(
            f"study {results.name} kept no {what} of trial {trial.number}, only of each algorithm's best: "
            f"{', '.join(names)}; take one of these"
        )
    return path


def write_safetensors(state: "dict[str, Tensor]", path: Path, metadata: dict[str, Any]) -> None:
    """Write the tensors by name; tied ones are written for each of their names."""
    from safetensors.torch import save_file

    separate = {name: tensor.clone().contiguous() for name, tensor in state.items()}
    save_file(separate, path, metadata={name: str(json.loads(json.dumps(value))) for name, value in metadata.items()})


def write_onnx(served: ServedTask, path: Path) -> None:
    """Write the task's ``forward`` for batches of any size; ConfigError for operations that ONNX lacks."""
    import logging
    import warnings

    import torch

    x = torch.zeros(2, *served.shape, dtype=getattr(torch, served.dtype))
    x = x.to(next(served.task.parameters()).dtype) if x.is_floating_point() else x
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about torch's own code
            torch.onnx.export(
                served.task, (x,), path, input_names=["x"], output_names=["y"], dynamo=True, verbose=False,
                dynamic_shapes=({0: torch.export.Dim("batch")},), external_data=False,
            )  # fmt: skip
    except Exception as error:  # whatever a model does that ONNX has no word for
        raise ConfigError(
            f"ONNX cannot say what {type(served.task).__name__} does ({reason_of(error, 60)}): export it as .pt or "
            ".safetensors"
        ) from error
