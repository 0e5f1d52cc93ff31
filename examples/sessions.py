# %% [markdown]
# # Devices that come and go
#
# Two groups of devices with different labels take turns every fifteen rounds. With which model should a session begin?
# Without a controller the last one goes on, `Average` takes the mean of earlier sessions' models, `DynamicInitialModel`
# weighs them by how alike their devices' gradients were. Each is tried with two methods and two learning rates.

# %%
from flstudy import Population, Study
from flstudy.population import AlternatingGroups, Digits, LabelGroups

groups = LabelGroups(overlap=0.0, alpha=0.3)
world = Population(Digits(), clients=20, partition=groups, availability=AlternatingGroups(rounds=15), steps=1)
search = {
    "algorithm": {"choice": ["FedAvg", "Scaffold"]},
    "controller": {"choice": [None, "Average", "DynamicInitialModel"]},
    "algorithm.lr": {"choice": [0.1, 0.3]},
}
options = {"trials": 12, "sampler": "GridSearch", "objective": {"metric": "valid/initial_accuracy", "mode": "max"}}
study = Study("Mlp", world, "FedAvg", search, name="sessions", rounds=105, seeds=[100, 200, 300], study=options)
study.run()

# %% [markdown]
# Accuracy in the first ten rounds of a session, mean over three seeds, of every trial.

# %%
trials = study.trials.fillna({"controller": "the last model"})
table = trials.pivot(index="controller", columns=["algorithm", "algorithm.lr"], values="valid/initial_accuracy")
table.sort_index(axis=1).round(3)
