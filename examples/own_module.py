# %% [markdown]
# # A LightningModule of one's own in a changing world
#
# The coordinator is a LightningModule, the devices are a LightningDataModule, one round is one epoch of any Trainer. In
# round 21 labels change places in pairs: every 0 is a 1 from then on.

# %%
import lightning as L
import torch
from sklearn.datasets import load_digits

from flstudy import Coordinator, Population, RoundProgressBar, RunSettings
from flstudy.algorithms import FedYogi
from flstudy.population import Dirichlet, SuddenDrift


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.cross_entropy(self(batch[0]), batch[1])


x, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
how = {"partition": Dirichlet(alpha=0.3), "drift": SuddenDrift(round=21), "epochs": 2}
coordinator = Coordinator(Net(), FedYogi(lr=0.1, server_lr=0.03), RunSettings(seeds=[0, 44, 56]))
trainer = L.Trainer(max_epochs=40, callbacks=[RoundProgressBar()], logger=False, enable_checkpointing=False)
trainer.fit(coordinator, datamodule=Population((x.float() / 16, y), clients=20, **how))
print(f"validation accuracy {trainer.callback_metrics['valid/accuracy']:.3f}, mean over three seeds")

# %%
coordinator
