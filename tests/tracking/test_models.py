"""The best models of a study in MLflow: they predict what the trained task predicts, wherever they are loaded."""

import mlflow
import numpy as np
import pytest
import torch
import yaml

from flstudy import Coordinator, load_task
from flstudy.config.config import load
from flstudy.population import Digits, FashionMnist
from flstudy.preparation.prepare import prepare
from flstudy.study import Status, StudyFolder, Trial
from flstudy.tasks import Mlp
from flstudy.tracking.store import open_store
from flstudy.tracking.sync import sync_study
from flstudy.tuning.files import TrialFiles
from flstudy.tuning.trial import run_trial

from ..population.datasets.on_disk import write_idx

CONFIG = {
    "task": {"class_path": "Mlp", "init_args": {"hidden": 8}},
    "population": {"dataset": "Digits", "clients": 6, "participants": 3, "batch_size": 10},
    "algorithm": "FedAvg",
    "rounds": 2,
    "seeds": [0, 44],
    "compile": False,
    "study": {"search": {"algorithm.lr": {"loguniform": [1e-3, 1]}}, "register": "digits"},
}
OVERRIDES = {"algorithm.lr": 0.2, "task.hidden": 12}  # another shape than the study's own task


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return open_store(f"sqlite:///{tmp_path_factory.mktemp('store')}/mlflow.db")


@pytest.fixture
def in_mlflow(store, monkeypatch):
    """MLflow's own functions speak with the store."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    mlflow.set_tracking_uri(store.uri)
    yield
    mlflow.set_tracking_uri(None)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The study's config, and what its trial leaves behind: the coordinator and the file."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "small.yaml").write_text(yaml.safe_dump(CONFIG))
    config = load(folder / "small.yaml", command="tune")
    coordinator = config.with_overrides(OVERRIDES).run(lambda record: None)
    (folder / "models").mkdir()
    coordinator.run.saved_state.save_model(folder / "models" / "3.pt")
    return config, coordinator, folder / "models" / "3.pt"


def trial(number, objective, **more):
    done = {"status": Status.FINISHED, "rounds": 2, "objective": objective}
    return Trial(number=number, algorithm="FedAvg", overrides=OVERRIDES, **done, **more)


def study_folder(path, trained, *others):
    """A study that has kept the model of its trial 3."""
    config, _, weights = trained
    folder = StudyFolder(path)
    folder.model(3).parent.mkdir(parents=True)
    folder.model(3).write_bytes(weights.read_bytes())
    folder.write_config(config)
    folder.write_state("finished", study_id=path.name, environment={})
    folder.write_trials([trial(3, 0.8), *others])
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("in_mlflow")
def test_a_model_of_coded_images_is_served_as_a_batch_is_given_them(tmp_path, store):
    write_idx(tmp_path, "FashionMNIST", 200)
    prepare(FashionMnist(root=str(tmp_path)), tmp_path / "copy")
    copied = {"class_path": "FederatedParquet", "init_args": {"path": str(tmp_path / "copy")}}
    values = {**CONFIG, "population": {**CONFIG["population"], "dataset": copied}, "study": {}}
    (tmp_path / "coded.yaml").write_text(yaml.safe_dump(values))
    config = load(tmp_path / "coded.yaml", command="tune")
    coordinator = config.with_overrides(OVERRIDES).run(lambda record: None)
    coordinator.run.saved_state.save_model(tmp_path / "model.pt")
    folder = study_folder(tmp_path / "coded", (config, coordinator, tmp_path / "model.pt"))
    run_id = sync_study(folder, store).run_ids[3]
    inputs, _ = coordinator.population.store.read(slice(0, 20))
    assert coordinator.population.store.x.dtype == torch.uint8
    with torch.no_grad():
        expected = coordinator.task(inputs).softmax(-1).numpy()
    model = mlflow.pyfunc.load_model(f"runs:/{run_id}/model")
    np.testing.assert_array_equal(model.predict(inputs.numpy()), expected)
    assert model.metadata.signature.inputs.inputs[0].shape == (-1, 1, 28, 28)
    assert model.metadata.signature.inputs.inputs[0].type == np.float32


@pytest.fixture(scope="module")
def images():
    return Digits().load(0, 1).x[:50]


@pytest.mark.slow
@pytest.mark.usefixtures("in_mlflow")
def test_a_logged_model_predicts_what_the_task_does(tmp_path, store, trained, images):
    first = sync_study(study_folder(tmp_path / "first", trained), store)
    assert first.counts["models"] == 2  # logged, and registered
    _, coordinator, _ = trained
    with torch.no_grad():
        expected = coordinator.task(images).softmax(-1).numpy()
    model = mlflow.pyfunc.load_model(f"runs:/{first.run_ids[3]}/model")
    np.testing.assert_array_equal(model.predict(images.numpy()), expected)
    assert expected.std() > 0.01  # it was trained
    replica = torch.stack([coordinator.server.x[s] for s in range(2)])
    assert not torch.equal(replica[0], replica[1])  # so that the seed matters
    assert model.metadata.signature.inputs.inputs[0].shape == (-1, 1, 8, 8)
    assert model.metadata.signature.outputs.inputs[0].shape == (-1, 10)
    example = model.metadata.load_input_example()
    np.testing.assert_array_equal(np.asarray(example), np.zeros((1, 1, 8, 8)))
    with pytest.raises(Exception, match="shape"):
        model.predict(np.zeros((2, 3), np.float32))

    again = sync_study(StudyFolder(tmp_path / "first"), store)
    assert str(again) == "nothing was missing"
    second = sync_study(study_folder(tmp_path / "second", trained), store)
    versions = store.client.search_model_versions("name = 'digits'")
    tags_by_version = {int(version.version): version.tags for version in versions}
    assert {number: tags["study"] for number, tags in tags_by_version.items()} == {1: "first", 2: "second"}
    assert {tags["trial"] for tags in tags_by_version.values()} == {"3"}
    newest = mlflow.pyfunc.load_model("models:/digits/2")
    np.testing.assert_array_equal(newest.predict(images.numpy()), expected)
    assert newest.metadata.run_id == second.run_ids[3]


def test_a_finished_trial_leaves_its_model(tmp_path, trained):
    config, coordinator, _ = trained
    finished = Trial(number=0, algorithm="FedAvg", overrides=OVERRIDES)
    run_trial(config, finished, report=lambda trial, save: True, files=TrialFiles(model=tmp_path / "models" / "0.pt"))
    assert finished.status is Status.FINISHED
    saved = torch.load(tmp_path / "models" / "0.pt", weights_only=True)
    assert saved["seed"] == 0
    assert saved["shape"] == [1, 8, 8]
    for name, tensor in coordinator.task.state_dict().items():
        assert torch.equal(saved["state"][name], tensor)


def test_a_stopped_trial_leaves_none(tmp_path, trained):
    config, _, _ = trained
    stopped = Trial(number=0, algorithm="FedAvg", overrides=OVERRIDES)
    run_trial(config, stopped, report=lambda trial, save: False, files=TrialFiles(model=tmp_path / "models" / "0.pt"))
    assert stopped.status is Status.PRUNED
    assert not (tmp_path / "models").exists()


@pytest.mark.slow
def test_the_registered_model_is_that_of_the_best_trial(tmp_path, store, trained):
    """Its confirmation names it, and has no model of its own; others that were ahead register none."""
    again = trial(4, 0.7, stage="confirm", confirms=2), trial(5, 0.75, stage="confirm", confirms=3)
    folder = study_folder(tmp_path / "confirmed", trained, trial(2, 0.9), *again)
    folder.model(2).write_bytes(trained[2].read_bytes())  # left behind by a study that was killed
    sent = sync_study(folder, store)
    assert sent.counts["models"] == 2
    runs = {number: store.client.get_run(run_id).data.tags for number, run_id in sent.run_ids.items()}
    assert [number for number, tags in runs.items() if "flstudy.model" in tags] == [3]
    name, version = runs[3]["flstudy.registered"].split()
    assert store.client.get_model_version(name, version).tags["trial"] == "3"
    study = store.find({"flstudy.study_id": "confirmed", "flstudy.kind": "study"})
    assert study.data.tags["best.trial"] == "3"


@pytest.mark.slow
def test_trouble_with_a_model_fails_nothing(tmp_path, store, trained, caplog):
    folder = study_folder(tmp_path / "broken", trained)
    folder.model(3).write_bytes(b"cut off")
    sent = sync_study(folder, store)
    assert sent.counts["models"] == 0
    assert sent.counts["runs"] == 2
    assert "the model of trial 3 is not in MLflow" in caplog.text


def test_a_kept_model_is_a_checkpoint_too(trained):
    _, coordinator, path = trained
    back = Coordinator.load_from_checkpoint(path)
    assert (back.seeds, back.record.round, back.algorithm) == ((0,), 2, coordinator.algorithm)
    loaded = Mlp.load_from_checkpoint(path, weights_only=True)
    for task in (back.task, load_task(path), loaded):
        assert all(map(torch.equal, task.parameters(), coordinator.task.parameters()))
