"""Undefined is not diverged: a device's measure without a value is left out, a loss that is not finite ends a run."""

import math
import warnings

import pytest
import torch
import yaml
from sklearn.metrics import roc_auc_score
from torchmetrics.classification import BinaryAUROC

from flstudy import FederatedRun, Population, RunSettings
from flstudy.algorithms import Ditto, FedAvg
from flstudy.cli import main
from flstudy.federation.divergence import divergence, has_diverged
from flstudy.population import InMemory
from flstudy.tasks import Logistic

from ..tuning.stand_in import StandIn
from ..tuning.test_trial import run as run_trial

COUNT, CLIENTS = 200, 5


def one_class_device():
    """Five devices, the last of which has examples of one class only."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(COUNT, 4, generator=generator)
    y = (x[:, 0] + 0.5 * torch.randn(COUNT, generator=generator) > 0).long()
    owner = torch.arange(COUNT) // (COUNT // CLIENTS)
    y[owner == CLIENTS - 1] = 0
    sets = [(x[owner == k], y[owner == k]) for k in range(CLIENTS)]
    return Population(
        [torch.utils.data.TensorDataset(*part) for part in sets], clients=CLIENTS, participants=CLIENTS, batch_size=8
    )


class BySklearn(Logistic):
    def __init__(self):
        super().__init__((4,), 2)

    def validation_step(self, batch, batch_idx):
        scores = self(batch[0]).softmax(1)[:, 1]
        self.log("auc", float(roc_auc_score(batch[1].numpy(), scores.numpy())))


class ByTorchmetrics(Logistic):
    def __init__(self):
        super().__init__((4,), 2)
        self.auroc = BinaryAUROC()

    def validation_step(self, batch, batch_idx):
        self.auroc.update(self(batch[0]).softmax(1)[:, 1], batch[1])
        self.log("auc", self.auroc)


def played(task, population, rounds=2, **settings):
    federated = FederatedRun(task, FedAvg(lr=0.1), RunSettings(compile=False, **settings))
    federated.start(population, rounds=rounds)
    return federated, list(federated.play())


@pytest.mark.parametrize("task", [BySklearn, ByTorchmetrics])
def test_an_undefined_measure_of_a_device_is_left_out_counted_and_told_once(task):
    torch.manual_seed(0)
    population = one_class_device()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        federated, records = played(task(), population)
    messages = [str(warning.message) for warning in caught if "is undefined on device" in str(warning.message)]
    assert len(messages) == 1
    assert "auc is undefined on device 4 (seed 0), whose 8 examples all have label 0" in messages[0]
    metrics = records[-1].metrics
    assert metrics["auc_devices"] == [CLIENTS - 1]
    assert not has_diverged(metrics)
    aucs = []
    for device in range(CLIENTS - 1):
        x, y = population.store.read(torch.from_numpy(population.members[0][device]["valid"]))
        aucs.append(roc_auc_score(y.numpy(), federated.task(x).detach().softmax(1)[:, 1].numpy()))
    assert metrics["auc"][0] == pytest.approx(sum(aucs) / len(aucs), rel=1e-6)
    assert {"auc", "auc_spread", "auc_devices"} <= set(federated.measures(population, 2))


def test_a_trial_s_objective_may_be_undefined_for_a_while_but_not_in_the_end_nor_for_ever(monkeypatch):
    values = {2: math.nan, 4: 0.5, 6: 0.6}
    plain = StandIn.run

    def undefined(self, on_round, **named):
        def report(record):
            accuracies = record.metrics.get("valid/accuracy")
            on_round(record if accuracies is None else record._replace(
                metrics={**record.metrics, "valid/accuracy": [values[record.round]] * len(accuracies)}
            ))  # fmt: skip

        return plain(self, report, **named)

    monkeypatch.setattr(StandIn, "run", undefined)
    trial, _, _ = run_trial({"algorithm": "Flash"})
    assert (trial.status, trial.rounds, trial.objective, trial.error) == ("finished", 6, 0.6, None)
    values[6] = math.nan
    trial, _, _ = run_trial({"algorithm": "Flash"})
    assert (trial.status, trial.rounds, trial.objective, trial.error) == ("finished", 6, 0.0, None)
    values[4] = math.nan
    trial, _, _ = run_trial({"algorithm": "Flash"})
    assert trial.status == "failed"
    assert "valid/accuracy was undefined in every evaluation" in trial.reason


def test_a_divergence_tells_round_seed_device_and_tensor():
    population = Population(InMemory((torch.randn(60, 4), torch.arange(60) % 2)), clients=3, participants=3)
    federated = FederatedRun(Logistic((4,), 2), FedAvg(lr=0.1), RunSettings(seeds=[3, 5], compile=False))
    federated.start(population, rounds=3)
    federated.play_round()
    assert divergence(federated) is None
    federated.state.server.x[1, 2] = math.nan
    federated.play_round()
    assert divergence(federated) == (
        "diverged in round 2 (seed 5): train/loss is nan, first on device 0, the server's linear.weight is not finite"
    )


def test_a_devices_own_model_that_is_not_finite_is_told():
    """A personal model may diverge where the server's does not."""
    population = Population(InMemory((torch.randn(60, 4), torch.arange(60) % 2)), clients=3, participants=3)
    federated = FederatedRun(Logistic((4,), 2), Ditto(lr=0.1, lam=1e12), RunSettings(compile=False))
    federated.start(population, rounds=9)
    sentence = next(filter(None, (divergence(federated) for _ in federated.play())))
    assert "(seed 0): valid/loss is" in sentence
    assert "linear.weight of device 0's own model is not finite" in sentence
    assert "the server's" not in sentence


def test_a_run_that_diverges_ends_there_with_status_1(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    content = {
        "task": "Mlp",
        "algorithm": {"class_path": "FedAvg", "init_args": {"lr": 1e12}},
        "population": {"dataset": "Digits", "clients": 4, "participants": 2, "epochs": 5},
        "rounds": 9,
        "compile": False,
        "run": {"track": False, "name": "one"},
    }
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(content))
    assert main(["run", "own.yaml"]) == 1
    out = capsys.readouterr()
    assert "error: diverged in round" in out.err
    assert "lower algorithm.lr" in out.err
