"""A first model is what its class makes under the run's seed, whatever the process, trial or study."""

import hashlib
import json
import random
import subprocess
import sys
from functools import partial

import lightning as L
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flstudy import Coordinator, FederatedRun, RunSettings
from flstudy.algorithms import FedAvg, HypCluster
from flstudy.config import load
from flstudy.controllers import MasterFL
from flstudy.population.streams import torch_seed
from flstudy.tasks import Logistic, Mlp
from flstudy.tasks.findings import trained_parameters

from ..lightning_modules.test_lightning_reference import ZOO
from ..tasks.test_task_function import TASKS
from ..worlds import CLASSES, FEATURES, difference, drawn_model, run, world

SEEDS = (0, 44)
BUILDERS = {**TASKS, **{module.__name__: module for module in ZOO}}
SEEDED = RunSettings(seeds=SEEDS, initial="seeded")


def digests() -> dict[str, str]:
    """Digests of the first models of all tasks, by name, where the process's random numbers are at any place."""
    return {
        name: hashlib.sha256(drawn_model(build, 44).numpy(force=True).tobytes()).hexdigest()
        for name, build in BUILDERS.items()
    }


@pytest.mark.slow
def test_a_first_model_has_the_same_bits_in_another_process():
    torch.randn(17)
    done = subprocess.run([sys.executable, "-m", __name__], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == digests()


def plainly(build, seed):
    """The parameters that a class draws for anybody who seeds all generators before."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 of the generator that tasks use
    random.seed(seed)
    task = build()
    for hook in ("setup", "configure_model"):
        getattr(task, hook)(*(["fit"] if hook == "setup" else []))
    return torch.cat([part.reshape(-1) for part in trained_parameters(task).values()])


@pytest.mark.parametrize("name", BUILDERS)
def test_a_first_model_is_what_the_class_makes_under_the_seed(name):
    for seed in SEEDS:
        assert torch.equal(drawn_model(BUILDERS[name], seed), plainly(BUILDERS[name], torch_seed(seed, "init")))


class Drawn(L.LightningModule):
    """Bare parameters of torch's, numpy's and Python's random numbers."""

    def __init__(self, shape=(FEATURES,), classes=CLASSES):
        super().__init__()
        self.w = nn.Parameter(0.2 * torch.randn(shape[0], classes))
        self.b = nn.Parameter(torch.tensor(np.random.rand(classes), dtype=torch.float32))  # noqa: NPY002
        self.scale = nn.Parameter(torch.tensor(random.random()))

    def forward(self, x):
        return self.scale * (x.flatten(1) @ self.w + self.b)

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]), batch[1])


class Pretrained(Drawn):
    """A network that loads its weights where it is built, all but its scale."""

    def __init__(self, shape=(FEATURES,), classes=CLASSES):
        super().__init__(shape, classes)
        with torch.no_grad():
            self.w.fill_(7.0), self.b.fill_(7.0)


def first_of(task, algorithm=None, initial="seeded", seeds=SEEDS):
    """Initial models x of a run."""
    federated = FederatedRun(task, algorithm or FedAvg(lr=0.1), RunSettings(seeds=seeds, initial=initial))
    federated.start(world(), rounds=1)
    return federated.state.server.x


def test_all_generators_are_seeded_and_the_script_s_go_on_undisturbed():
    states = torch.random.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    x = first_of(Drawn)
    assert torch.equal(torch.random.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all()  # noqa: NPY002
    assert random.getstate() == states[2]
    assert torch.equal(x, first_of(Drawn))
    assert (x[0] != x[1]).all()
    assert torch.equal(x[1:], first_of(Drawn, seeds=(44,)))


def test_weights_that_a_class_loads_are_loaded_for_every_seed():
    x = first_of(Pretrained)
    assert (x[:, :-1] == 7).all()
    assert x[0, -1] != x[1, -1]


def test_a_given_task_is_where_all_seeds_start_and_a_function_is_called_for_the_first():
    task = Drawn()
    parameters = torch.cat([part.reshape(-1) for part in trained_parameters(task).values()])
    assert torch.equal(first_of(task, initial="given"), parameters.expand(2, -1))
    x = first_of(Drawn, initial="given")
    assert torch.equal(x, first_of(Drawn)[:1].expand(2, -1))


def test_the_run_s_precision_changes_no_draw():
    federated = FederatedRun(Drawn, FedAvg(lr=0.1), SEEDED)
    federated.start(world(), rounds=1, precision="64-true")
    assert federated.state.server.x.dtype == torch.float64
    assert torch.equal(federated.state.server.x.float(), first_of(Drawn))


def test_arguments_that_a_task_keeps_build_it_anew():
    class Saving(Drawn):
        def __init__(self, width):
            super().__init__()
            self.save_hyperparameters()
            self.extra = nn.Parameter(torch.randn(width))

    assert torch.equal(first_of(Saving(3)), first_of(partial(Saving, 3)))
    shipped = partial(Mlp, (FEATURES,), CLASSES, hidden=5)
    assert torch.equal(first_of(shipped()), first_of(shipped))


class Unsaved(Drawn):
    def __init__(self, width):
        super().__init__()
        self.extra = nn.Parameter(torch.randn(width))


class Wider(Mlp):
    """One of flstudy's tasks with other arguments, which nobody keeps."""

    def __init__(self, shape, classes, hidden=4):
        super().__init__(shape, classes, hidden=2 * hidden)


class RandomFeatures(Drawn):
    """A frozen layer that is drawn."""

    def __init__(self):
        super().__init__()
        self.features = nn.Linear(FEATURES, FEATURES).requires_grad_(False)


class RandomBuffer(Drawn):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.rand(FEATURES))


class Growing(Drawn):
    """A task that is never built twice alike."""

    built = 0

    def __init__(self):
        super().__init__()
        Growing.built += 1
        self.extra = nn.Parameter(torch.zeros(Growing.built))


class Alike(Drawn):
    def __init__(self):
        super().__init__()
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.zero_()


MANY = HypCluster(models=2, lr=0.1)


@pytest.mark.parametrize(
    ("start", "sentence"),
    [
        (lambda: first_of(Unsaved(3)), r"building Unsaved anew, but its .* task=lambda: Unsaved\(\.\.\.\)"),
        (lambda: first_of(Wider((FEATURES,), CLASSES)), "building Wider anew, but its arguments are"),
        (lambda: first_of(Unsaved(3), MANY, "given"), "building Unsaved anew, but its arguments are not known"),
        (lambda: first_of(Unsaved), r"Unsaved\(\) fails: .*width.*: give a .* task=lambda: Unsaved\(\.\.\.\)"),
        (lambda: first_of(RandomFeatures), r"RandomFeatures\.features\.weight is not trained and differs"),
        (lambda: first_of(RandomBuffer), r"RandomBuffer\.mask is not trained and differs with the seed"),
        (lambda: first_of(Growing), "Growing has other trained parameters when it is built anew"),
        (lambda: first_of(Alike, MANY), "starts from 2 different models, but those of Alike are equal: let"),
        (lambda: first_of(lambda: nn.Linear(2, 2)), "task must be a lightning.LightningModule, got torch.*Linear"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_refused_before_the_first_round(start, sentence):
    with pytest.raises(ValueError, match=sentence):
        start()


def test_a_controller_that_draws_models_asks_how_the_task_is_built_before_the_first_round():
    controller = MasterFL(instance_init="random", lr="algorithm")
    federated = FederatedRun(Unsaved(3), FedAvg(lr=0.1), controllers=[controller])
    with pytest.raises(ValueError, match="building Unsaved anew, but its arguments are not known"):
        federated.start(world(), rounds=8)
    FederatedRun(lambda: Unsaved(3), FedAvg(lr=0.1), controllers=[controller]).start(world(), rounds=8)


def test_frozen_layers_that_seeds_share_may_be_drawn_where_there_is_one_seed():
    task = RandomFeatures
    assert first_of(task, seeds=(44,)).shape[0] == 1


def test_a_run_goes_on_though_nobody_knows_how_its_task_was_built(tmp_path):
    build = partial(Unsaved, 3)
    settings = RunSettings(seeds=SEEDS, initial="seeded", compile=False)
    federated = FederatedRun(build, FedAvg(lr=0.1), settings)
    federated.start(world(), rounds=2)
    federated.play_round()
    federated.save(tmp_path / "run.ckpt")
    federated.play_round()
    resumed = FederatedRun(Unsaved(3), FedAvg(lr=0.1), settings)
    resumed.resume(tmp_path / "run.ckpt", world(), rounds=2)
    resumed.play_round()
    assert torch.equal(resumed.state.server.x, federated.state.server.x)


def test_a_coordinator_takes_a_class_and_its_task_is_that_of_the_first_seed():
    coordinator = Coordinator(Drawn, FedAvg(lr=0.1), SEEDED)
    assert isinstance(coordinator.task, Drawn)
    assert torch.equal(coordinator.task.w.detach().flatten(), first_of(Drawn)[0, : FEATURES * CLASSES])


CONFIG = """
task: {task}
population: {{dataset: Digits, clients: 4, participants: 2}}
algorithm: {{class_path: FedAvg, init_args: {{lr: 0.1}}}}
initial: {initial}
rounds: 1
seeds: [0, 1]
compile: false
study: {{trials: 1, search: {{algorithm.lr: {{choice: [0.1, 0.1000001]}}}}}}
"""
OWN = """
import lightning as L, torch
class Raw(L.LightningModule):
    def __init__(self, shape, classes):
        super().__init__()
        self.w = torch.nn.Parameter(0.2 * torch.randn(64, classes))
    def forward(self, x):
        return x.flatten(1) @ self.w
    def training_step(self, batch, batch_idx):
        return torch.nn.functional.cross_entropy(self(batch[0]), batch[1])
class Loaded(Raw):
    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.head = torch.nn.Linear(classes, classes)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.fill_(7.0)
"""


def x_of(config):
    """Initial models of the run of a config."""
    coordinator, population = config.build()
    coordinator.run.start(population, rounds=1)
    return coordinator.server.x


def config_in(folder, task, initial="seeded"):
    (folder / f"{folder.name}.py").write_text(OWN)  # a module's name stands for one file in a process
    (folder / "study.yaml").write_text(CONFIG.format(task=f"./{folder.name}.py:{task}", initial=initial))
    return load(folder / "study.yaml", command="tune")


@pytest.mark.parametrize("initial", ["seeded", "given"])
def test_a_config_s_trials_start_from_the_same_models(tmp_path, initial):
    config = config_in(tmp_path, "Raw", initial)
    x = x_of(config)
    torch.randn(5)
    assert torch.equal(x, x_of(config))
    assert torch.equal(x, x_of(config.with_overrides({"algorithm.lr": 0.1000001})))
    assert torch.equal(x, x_of(config_in(tmp_path, "Raw", initial)))
    assert torch.equal(x[0], x[1]) == (initial == "given")


def test_a_config_s_class_loads_its_weights_again(tmp_path):
    assert (x_of(config_in(tmp_path, "Loaded")) == 7).all()


def test_a_seeded_run_without_steps_keeps_its_seeds_models():
    still = run(FedAvg(lr=1e-300), 1, task=Logistic((FEATURES,), CLASSES), seeds=SEEDS, initial="seeded")
    for seed, x in zip(SEEDS, still.server.x, strict=True):
        assert difference(x, drawn_model(Logistic((FEATURES,), CLASSES), seed)) <= 1e-12


if __name__ == "__main__":
    print(json.dumps(digests()))
