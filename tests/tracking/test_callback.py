"""A single run of any Trainer in MLflow."""

from dataclasses import dataclass

import lightning as L
import pytest
import torch

from flstudy.federation import Record
from flstudy.tracking.callback import MlflowRounds


@dataclass
class Method:
    lr: float = 0.1


class Rounds(L.LightningModule):
    """Has a record after each epoch, as a Coordinator has."""

    def __init__(self, fails_in=None):
        super().__init__()
        self.automatic_optimization = False
        self.algorithm, self.seeds, self.record, self.fails_in = Method(), (0, 44), None, fails_in

    def training_step(self, batch, index):
        if self.current_epoch + 1 == self.fails_in:
            raise RuntimeError("no more")
        self.record = Record(self.current_epoch + 1, {"train/loss": [1.0, 2.0]})

    def validation_step(self, batch, index):
        self.record = self.record._replace(metrics={**self.record.metrics, "valid/accuracy": [0.4, 0.6]})

    def configure_optimizers(self):
        return None


def fit(callback, module):
    loader = torch.utils.data.DataLoader(torch.zeros(1, 1))
    trainer = L.Trainer(
        max_epochs=3,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        accelerator="cpu",
    )
    trainer.fit(module, loader, loader)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_round_is_logged_with_its_evaluation(tmp_path):
    callback = MlflowRounds(f"sqlite:///{tmp_path}/mlflow.db", tags={"dataset": "none"}, config={"rounds": 3}, key="k")
    fit(callback, Rounds())
    client = callback.store.client
    run = client.get_run(callback.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params == {"algorithm": "Method", "algorithm.lr": "0.1"}
    assert (run.data.tags["algorithm"], run.data.tags["dataset"], run.data.tags["rounds"]) == ("Method", "none", "3")
    assert [metric.step for metric in client.get_metric_history(callback.run_id, "valid/accuracy")] == [1, 2, 3]
    assert run.data.metrics["seed44/valid/accuracy"] == 0.6
    resumed = MlflowRounds(f"sqlite:///{tmp_path}/mlflow.db", key="k")
    fit(resumed, Rounds())
    assert resumed.run_id == callback.run_id


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_run_that_raises_is_failed(tmp_path):
    callback = MlflowRounds(f"sqlite:///{tmp_path}/mlflow.db")
    with pytest.raises(RuntimeError, match="no more"):
        fit(callback, Rounds(fails_in=2))
    run = callback.store.client.get_run(callback.run_id)
    assert run.info.status == "FAILED"
    assert run.data.tags["error"] == "RuntimeError: no more"
