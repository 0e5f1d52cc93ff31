# %% [markdown]
# # A method of one's own, tuned fairly against three
#
# Momentum helps a server until the world changes: then it points to where the optimum was. This method drops it in the
# rounds in which the devices' mean update turns against it. Workers of a study import the class from this file.

# %%
from dataclasses import dataclass

from flstudy import Population, Study
from flstudy.algorithms import FedAvgM
from flstudy.population import Digits, Dirichlet, SuddenDrift


@dataclass(frozen=True, kw_only=True)
class FedRestart(FedAvgM):
    """FedAvgM whose momentum is dropped where the mean update turns against it."""

    def server_step(self, server, inbox, round):
        agrees = (server.v * inbox.mean().delta).sum() >= 0
        return super().server_step(server._replace(v=agrees * server.v), inbox, round)


# %% [markdown]
# Each has six trials on the same devices, batches and drift. Its best one runs again on five seeds, new to the search.
# The ranking says what became of the idea, the report whether a difference is more than noise.

# %%
if __name__ == "__main__":
    world = Population(Digits(), clients=20, partition=Dirichlet(alpha=0.3), drift=SuddenDrift(round=31), epochs=3)
    search = {"algorithm": {"choice": ["./own_method.py:FedRestart", "FedAvg", "FedAvgM", "FedYogi"]}}
    search |= {key: {"loguniform": [0.01, 1.0]} for key in ("algorithm.lr", "algorithm.server_lr")}
    options = {"trials": 24, "confirm": {"top": 1, "seeds": 5}}
    study = Study("Mlp", world, "FedAvg", search, name="own_method", rounds=60, seeds=[0, 44, 56], study=options).run()
    print(study.report())

# %%
study if __name__ == "__main__" else None  # to workers this file is a module
