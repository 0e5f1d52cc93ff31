"""A study's trained model as a file for other programs."""

import sys
import types

import pytest
import torch

from flstudy import load_task
from flstudy.cli import main
from flstudy.tasks import Mlp
from flstudy.tracking import export

from .test_models import study_folder, trained, trial  # noqa: F401


@pytest.fixture
def study(trained, tmp_path):  # noqa: F811
    """A study that kept the model of its best trial, 3, and none of 4."""
    return study_folder(tmp_path / "digits", trained, trial(4, 0.1))


@pytest.mark.slow
def test_the_best_trial_s_model_as_a_checkpoint(study, trained, tmp_path, capsys):  # noqa: F811
    assert main(["export", str(study.path), "--to", str(tmp_path / "model.pt")]) == 0
    assert "trial 3 of digits, FedAvg; read it with flstudy.load_task(" in capsys.readouterr().out
    for task in (load_task(tmp_path / "model.pt"), Mlp.load_from_checkpoint(tmp_path / "model.pt", weights_only=True)):
        assert all(map(torch.equal, task.parameters(), trained[1].task.parameters()))


def test_safetensors_are_written_tensor_by_tensor(study, trained, tmp_path, monkeypatch):  # noqa: F811
    """With a stand-in for the package, which need not be installed."""
    written = {}
    package, part = types.ModuleType("safetensors"), types.ModuleType("safetensors.torch")
    package.__spec__ = types.SimpleNamespace(name="safetensors")
    part.save_file = lambda tensors, path, metadata: (path.write_bytes(b""), written.update(tensors, meta=metadata))
    monkeypatch.setitem(sys.modules, "safetensors", package)
    monkeypatch.setitem(sys.modules, "safetensors.torch", part)
    assert main(["export", str(study.path), "3", "--to", str(tmp_path / "model.safetensors")]) == 0
    assert written.pop("meta") == {"study": "digits", "trial": "3"}
    state = trained[1].task.state_dict()
    assert all(torch.equal(written[name], tensor) for name, tensor in state.items())
    assert (tmp_path / "model.safetensors").exists()


def test_onnx_says_what_the_task_says(study, tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    assert main(["export", str(study.path), "--to", str(tmp_path / "model.onnx")]) == 0
    x = torch.rand(3, 8, 8)
    (output,) = onnx.reference.ReferenceEvaluator(str(tmp_path / "model.onnx")).run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(output), load_task(study.model(3))(x).detach())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "model.h5"], "--to must be a file that ends in .pt, .onnx, .safetensors, got 'model.h5'"),
        (["4", "--to", "model.pt"], "study digits kept no model of trial 4, only of each algorithm's best: 3;"),
        (["9", "--to", "model.pt"], "study digits has no trial '9': it has 3 to 4, or best"),
        (["--to", "nowhere/model.pt"], "--to: there is no folder 'nowhere': make it first"),
        (
            ["--to", "model.onnx"],
            "model.onnx needs onnx and onnxscript: pip install onnx onnxscript",
        ),
    ],
)
def test_what_cannot_be_exported_is_one_sentence(study, tmp_path, arguments, message, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    assert main(["export", str(study.path), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.glob("*model*"))


def test_a_damaged_model_and_what_onnx_cannot_say(study, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(export, "find_spec", lambda name: True)

    def refuse(*_, **__):
        raise RuntimeError("no operator for it")

    monkeypatch.setattr(torch.onnx, "export", refuse)
    assert main(["export", str(study.path), "--to", str(tmp_path / "model.onnx")]) == 2
    assert "ONNX cannot say what Mlp does (no operator for it): export it as .pt or" in capsys.readouterr().err
    study.model(3).write_bytes(study.model(3).read_bytes()[:900])
    assert main(["export", str(study.path), "--to", str(tmp_path / "model.pt")]) == 2
    assert "3.pt is damaged (" in capsys.readouterr().err
    assert not list(tmp_path.glob("*model.*"))
