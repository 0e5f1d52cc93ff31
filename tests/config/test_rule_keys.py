"""Keys of a device rule that is not used, since devices step by the module's own optimizer, are refused."""

import pytest
import yaml

from flstudy import Coordinator, FederatedRun, RunSettings
from flstudy.algorithms import FedAvg
from flstudy.config.config import load
from flstudy.controllers import Polynomial

from ..lightning_modules.modules import LitGan, LitScheduler
from ..lightning_modules.test_modules import world

MODULES = """
import lightning as L, torch


class Net(L.LightningModule):
    def __init__(self, rate: float = 0.01):
        super().__init__()
        self.net, self.rate = torch.nn.Linear(64, 10), rate

    def forward(self, x):
        return self.net(x.flatten(1))

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.rate)


class ByHand(Net):
    def __init__(self, rate: float = 0.01):
        super().__init__(rate)
        self.automatic_optimization = False
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the modules, of which this process may import one of a name."""
    folder = tmp_path_factory.mktemp("rates")
    (folder / "own_rates.py").write_text(MODULES)
    return folder


def config(folder, command="tune", task="./own_rates.py:Net", **changes):
    """A study of the rate of a module's own optimizer, with changes, as loaded."""
    content = {
        "task": task,
        "population": {"dataset": "Digits", "clients": 4, "participants": 2},
        "algorithm": "FedAvg",
        "local_optimizer": "module",
        "rounds": 3,
        "study": {"trials": 4, "search": {"task.rate": {"loguniform": [0.001, 0.1]}}},
        **changes,
    }
    (folder / "study.yaml").write_text(yaml.safe_dump(content))
    return load(folder / "study.yaml", command=command)


RATE = {"loguniform": [0.001, 0.1]}
AVERAGED = {"class_path": "FedAvg", "init_args": {"lr": 0.3}}
REFUSED = [
    (
        "tune",
        {"study": {"trials": 4, "search": {"algorithm.lr": RATE}}},
        r"study\.search\.algorithm\.lr would change no",
    ),
    (
        "tune",
        {"study": {"trials": 4, "search": {"algorithm.momentum": {"uniform": [0.0, 0.9]}}}},
        r"algorithm\.momentum w",
    ),
    (
        "tune",
        {"algorithm": AVERAGED},
        r"algorithm\.init_args\.lr must be left out, since devices step by Net\.conf.*got 0\.3",
    ),
    ("run", {"algorithm": AVERAGED}, r"algorithm\.init_args\.lr must be left out, since devices step by Net\.conf"),
    (
        "run",
        {"schedule": {"class_path": "Polynomial", "init_args": {"floor": 0.1}}},
        "schedule: Polynomial would change no",
    ),
    (
        "run",
        {"task": "./own_rates.py:ByHand", "local_optimizer": "rule", "algorithm": AVERAGED},
        r"algorithm\.init_args\.lr must be left out, since devices step by ByHand\.configure_optimizers",
    ),
    (
        "tune",
        {
            "study": {
                "trials": 4,
                "arms": {"Fast": {"class_path": "FedAvg", "search": {"lr": RATE}}, "Adam": {"class_path": "FedAdam"}},
            }
        },
        r"algorithm\.lr would change nothing",
    ),
]


@pytest.mark.parametrize(("command", "changes", "sentence"), REFUSED)
def test_a_key_that_changes_nothing_is_refused_with_its_line(folder, command, changes, sentence):
    with pytest.raises(ValueError, match=rf"study\.yaml:\d+: .*{sentence}"):
        config(folder, command, **changes)


def test_keys_that_change_something_are_taken(folder):
    assert [*config(folder).study.search] == ["task.rate"]
    searched = {"algorithm.server_lr": RATE, "task.rate": RATE}
    assert config(folder, study={"trials": 4, "search": searched}).study.search == searched
    by_rule = {"local_optimizer": "rule", "algorithm": AVERAGED}
    taken = config(folder, **by_rule, study={"trials": 4, "search": {"algorithm.lr": RATE}})
    assert taken.parts.algorithm.lr == AVERAGED["init_args"]["lr"]
    both = {"algorithm.lr": RATE, "local_optimizer": {"choice": ["rule", "module"]}}
    assert config(folder, study={"trials": 4, "search": both}).study.search == both


@pytest.mark.parametrize(
    ("module", "mode"), [(LitScheduler, "module"), (LitScheduler, "module_reset"), (LitGan, "rule")]
)
def test_no_rate_is_told_that_no_device_took(module, mode):
    run = FederatedRun(module(), FedAvg(), RunSettings(local_optimizer=mode))
    assert "train/lr" not in run.measures(world(), 3)
    assert "train/lr" in FederatedRun(LitScheduler(), FedAvg()).measures(world(), 3)
    with pytest.raises(ValueError, match=rf"Polynomial would change nothing, .* by {module.__name__}\.configure_optim"):
        Coordinator(module(), FedAvg(), RunSettings(local_optimizer=mode), schedule=Polynomial())
