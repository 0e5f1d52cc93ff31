# %% [markdown]
# # A first study
#
# Twenty devices hold unequal shares of handwritten digits, and in round 31 labels change places in pairs. Which of
# three methods copes best, when each is tuned alike? `quick` is a study that comes with flstudy.

# %%
import flstudy

study = flstudy.Study.from_yaml("quick", study={"name": "first_study", "trials": 12})
study.run()

# %% [markdown]
# A study at the end of a cell shows its ranking and curves. *Lowest* is the least accuracy after the drift. The best
# trial of each method was run again on five new seeds, so that nobody is judged by the seeds that chose it.

# %%
best = study.best.trial
print(best.algorithm, best.overrides)

# %% [markdown]
# Each trial is a row of a table, with the values that were searched and its last metrics.

# %%
study.trials[["algorithm", "stage", "status", "algorithm.lr", "algorithm.server_lr", "valid/accuracy"]]

# %% [markdown]
# The report compares them seed by seed, `flstudy ui` shows every round of every trial in MLflow.

# %%
print(study.report())
