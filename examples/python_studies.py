# %% [markdown]
# # Studies from Python, with figures
#
# A study takes objects in place of a file. What its workers have to make again must be importable, so data come from a
# `Dataset`. In round 21 all images are turned by a quarter.

# %%
import optuna

from flstudy import Population, Study
from flstudy.algorithms import FedProx
from flstudy.population import Digits, Dirichlet, Rotation, SuddenDrift

drift = SuddenDrift(round=21, change=Rotation(quarters=[1]))
world = Population(Digits(), clients=20, partition=Dirichlet(alpha=0.3), drift=drift, epochs=3)
search = {"algorithm.lr": {"loguniform": [0.001, 1.0]}, "algorithm.mu": {"loguniform": [0.001, 1.0]}}
options = {"name": "python_studies", "rounds": 40, "seeds": [0, 44], "study": {"trials": 12}}
study = Study("Mlp", world, FedProx(lr=0.1), search, **options)
study.run()

# %% [markdown]
# The objective by round, a column for each trial and seed: here its mean over seeds.

# %%
curves = study.curves().T.groupby("trial").mean().T
print(f"best: trial {study.best.trial.number} with {study.best.value:.3f}, after 40 rounds {curves.iloc[-1].max():.3f}")
curves.plot(figsize=(8, 3.5), ylabel="validation accuracy", legend=False, grid=True)

# %% [markdown]
# Optuna's own figures take the study as it is.

# %%
optuna.visualization.matplotlib.plot_contour(study.to_optuna())

# %% [markdown]
# The best trial's model, trained on the first seed, is a LightningModule again.

# %%
study.load_model()
