"""A measure is declared, not guessed: what is correct, and whose measure a name is."""

import warnings
from functools import partial

import lightning as L
import pytest
import torch
import torch.nn.functional as F
import yaml
from torch import nn

from flstudy import Coordinator, FederatedRun, Population, RunSettings
from flstudy.algorithms import FedAvg, HypCluster
from flstudy.cli import main
from flstudy.population import InMemory

from ..worlds import trainer

FEATURES, CLASSES = 8, 4


def raw(count=400):
    """Examples far from zero, which a model has to normalise before it can tell them apart."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(count, FEATURES, generator=generator)
    y = (x @ torch.randn(FEATURES, CLASSES, generator=generator)).argmax(1)
    return x * 20 + 100, y


class Net(L.LightningModule):
    """Normalises in its step, and measures itself."""

    def __init__(self, outputs=CLASSES):
        super().__init__()
        self.body = nn.Linear(FEATURES, outputs)

    def forward(self, x):
        return self.body(x)

    def normalised(self, x):
        return (x - 100) / 20

    def scores(self, x):
        return self(self.normalised(x))

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self.scores(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("own", (self.scores(batch[0]).argmax(1) == batch[1]).float().mean())


class Plain(Net):
    """Does not normalise."""

    def normalised(self, x):
        return x


class Hooked(Plain):
    """Normalises in a hook of Lightning's, which changes every batch."""

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return (batch[0] - 100) / 20, batch[1]


class Embedding(Net):
    """Has a forward that is no classifier, though as wide as one."""

    def __init__(self, outputs=CLASSES):
        super().__init__(outputs)
        self.head = nn.Linear(outputs, CLASSES)

    def scores(self, x):
        return self.head(self(self.normalised(x)).relu())


class Weighted(Hooked):
    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self.scores(batch[0]), batch[1], weight=torch.tensor([1.0, 20.0, 1.0, 1.0]))


class Smoothed(Hooked):
    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self.scores(batch[0]), batch[1], label_smoothing=0.1)


class Correct(Embedding):
    def example_correct(self, batch):
        return (self.scores(batch[0]).argmax(1) == batch[1]).float()


class Decided(Embedding):
    """Says what is correct by a branch that nothing maps."""

    def example_correct(self, batch):
        right = self.scores(batch[0]).argmax(1) == batch[1]
        return right.float() if float(right.sum()) >= 0 else right.double()


class PredictsClasses(Embedding):
    def predict_step(self, batch, batch_idx):
        return self.scores(batch[0]).argmax(1)


class PredictsScores(Embedding):
    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        x, _ = batch
        return self.scores(x).softmax(1)


class PredictsOfHook(Hooked):
    def predict_step(self, batch, batch_idx):
        return self.scores(batch[0]).argmax(1)


class PredictsText(Embedding):
    def predict_step(self, batch, batch_idx):
        return [str(label) for label in self.scores(batch[0]).argmax(1).tolist()]


class PredictsOneNumber(Embedding):
    def predict_step(self, batch, batch_idx):
        return self.scores(batch[0]).max(1).values


class PredictsEmbedding(Embedding):
    def predict_step(self, batch, batch_idx):
        return self.body.weight.new_ones(len(batch[0]), CLASSES + 3)


class OneHot(Hooked):
    """Has labels that a hook makes numbers, which are no classes any more."""

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return (batch[0] - 100) / 20, F.one_hot(batch[1], CLASSES).to(batch[0].dtype)

    def validation_step(self, batch, batch_idx):
        self.log("own", (self.scores(batch[0]).argmax(1) == batch[1].argmax(1)).float().mean())


class PredictsInputs(Hooked):
    """Takes inputs alone for its prediction, so that its forward decides."""

    def predict_step(self, batch, batch_idx):
        return self(batch).argmax(1)


class LogSoftmax(Hooked):
    def forward(self, x):
        return self.body(x).log_softmax(1)

    def training_step(self, batch, batch_idx):
        return F.nll_loss(self.scores(batch[0]), batch[1])


SAID = [Hooked, Correct, Decided, PredictsClasses, PredictsScores, PredictsOfHook, PredictsInputs, LogSoftmax]
UNSAID = [Net, Embedding, Weighted, Smoothed, PredictsText, PredictsOneNumber, PredictsEmbedding, OneHot]


def fitted(build, data=None, rounds=6, algorithm=None, **settings):
    settings = RunSettings(compile=False, initial="seeded", seeds=[1], **settings)
    coordinator = Coordinator(build, algorithm or FedAvg(lr=0.3), settings)
    population = Population(data or raw(), clients=4, participants=4, batch_size=20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer(rounds, "32-true").fit(coordinator, datamodule=population)
    return coordinator


@pytest.mark.parametrize("executor", ["vectorized", "sequential"])
@pytest.mark.parametrize("module", SAID, ids=lambda module: module.__name__)
def test_a_declared_accuracy_is_the_modules_own(module, executor):
    """Devices hold equally many examples, so that both means over devices are alike."""
    metrics = fitted(module, executor=executor).record.metrics
    assert metrics["valid/accuracy"][0] == pytest.approx(metrics["own"][0], abs=1e-6)
    assert metrics["own"][0] > 0.4


@pytest.mark.parametrize("module", UNSAID, ids=lambda module: module.__name__)
def test_without_a_declaration_there_is_no_accuracy(module):
    coordinator = fitted(module)
    metrics = coordinator.record.metrics
    assert not any("accuracy" in name for name in metrics)
    assert metrics["own"][0] > 0.3
    assert not any("accuracy" in name for name in coordinator.measures(coordinator.run.population, 3))


def test_a_coincidence_of_one_class_declares_nothing():
    """Weights cancel in a batch of one class, as the first examples of sorted data are."""
    x, y = raw()
    order = y.argsort()
    few = InMemory((x[order], torch.where(torch.arange(len(y)) < 390, 0, 1)))
    assert fitted(Weighted, few).run.task_function.scores_accuracy is False


def test_a_loss_that_is_not_finite_declares_nothing():
    class Overflows(Weighted):
        def forward(self, x):
            return self.body(x) * torch.inf

    x, y = raw()
    run = FederatedRun(Overflows(), FedAvg(lr=0.3))
    run.start(Population((x, y), clients=4, participants=4), rounds=1)
    assert not run.task_function.scores_accuracy


@pytest.mark.parametrize("executor", ["vectorized", "sequential"])
def test_what_is_correct_may_depend_on_the_round(executor):
    class ByRound(Embedding):
        def example_correct(self, batch):
            return torch.ones(len(batch[1])) * (self.current_epoch + 1) / 10

    assert fitted(ByRound, executor=executor).record.metrics["valid/accuracy"] == pytest.approx([0.6])


def test_batches_of_another_form_are_judged_by_what_the_loss_sees():
    class Dict(L.LightningModule):
        shift = 0.0

        def __init__(self):
            super().__init__()
            self.body = nn.Linear(FEATURES, CLASSES)

        def forward(self, x):
            return self.body(x)

        def training_step(self, batch, batch_idx):
            return F.cross_entropy(self((batch["x"] - self.shift) / 20), batch["y"])

    class Shifted(Dict):
        shift = 100.0

    class Unscaled(Dict):
        def training_step(self, batch, batch_idx):
            return F.cross_entropy(self(batch["x"]), batch["y"])

    x, y = raw()
    rows = [{"x": inputs / 20, "y": label} for inputs, label in zip(x, y, strict=True)]
    for module, says in ((Unscaled, True), (Dict, False), (Shifted, False)):
        assert fitted(module, rows, 1).run.task_function.scores_accuracy is says


def test_an_example_correct_that_fails_is_told_before_the_first_round():
    class Fails(Embedding):
        def example_correct(self, batch):
            return batch["right"]

    with pytest.raises(ValueError, match=r"Fails\.example_correct fails on examples x \[6, 8\] float32"):
        fitted(Fails)


def test_a_method_that_asks_for_errors_says_what_to_add():
    class ByError(HypCluster):
        asks = "error"

    with pytest.raises(ValueError, match=r"needs the error of single examples.*add example_correct\(batch\)"):
        fitted(Embedding, algorithm=ByError(lr=0.1))


# ---- two measures of one name ------------------------------------------------------------------------------------


class Logs(Hooked):
    """Logs under names that it is given."""

    def __init__(self, step, *names):
        super().__init__()
        self.step, self.names = step, names

    def told(self, step):
        for name in self.names if step == self.step else ():
            self.log(name, torch.tensor(0.5))

    def training_step(self, batch, batch_idx):
        self.told("training_step")
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        self.told("validation_step")

    def test_step(self, batch, batch_idx):
        self.told("test_step")


TWICE = [
    ("validation_step", ["valid/accuracy"], "valid/accuracy is measured by flstudy, and logged as 'valid/accuracy' by"),
    ("validation_step", ["valid/loss"], r"valid/loss is measured by flstudy, and .* by Logs\.validation_step"),
    ("test_step", ["test/accuracy_spread"], r"test/accuracy_spread is measured by flstudy, and .* by Logs\.test_step"),
    ("validation_step", ["valid/global_accuracy"], "valid/global_accuracy is measured by flstudy, and logged as"),
    (
        "training_step",
        ["train/loss"],
        r"train/loss is measured by flstudy, and logged as 'train/loss' by Logs\.training",
    ),
    ("validation_step", ["time/round_s"], "time/round_s is measured by flstudy, and"),
    ("validation_step", ["auc", "auc_spread"], "auc_spread is the deviation of what is logged as 'auc' by Logs"),
    ("validation_step", ["auc", "global_auc"], "global_auc is logged as 'auc' by Logs.*, of the server's model, and"),
]


@pytest.mark.parametrize(("step", "names", "sentence"), TWICE)
def test_two_measures_of_one_name_are_refused_with_both_origins(step, names, sentence):
    with pytest.raises(ValueError, match=f"task: {sentence}") as refused:
        fitted(partial(Logs, step, *names))
    assert str(refused.value).endswith("under another name")


@pytest.mark.parametrize("step", ["training_step", "validation_step"])
def test_a_name_that_no_file_takes_is_refused(step):
    with pytest.raises(
        ValueError, match=rf"a.ud800' is logged as .* by Logs\.{step}, and no file takes it: log it under"
    ):
        fitted(partial(Logs, step, "a\ud800"))


def test_names_that_only_a_run_tells_are_refused_in_its_first_round():
    class UnderTrainer(Logs):
        def on_train_epoch_start(self):
            pass

        def validation_step(self, batch, batch_idx):
            if not self.trainer.sanity_checking:
                super().validation_step(batch, batch_idx)

    for step, *names in (
        ("training_step", "train/loss"),
        ("validation_step", "valid/loss"),
        ("validation_step", "time/round_s"),
        ("validation_step", "auc", "auc_spread"),
        ("validation_step", "auc", "global_auc"),
        ("validation_step", "test/personal_accuracy"),
    ):
        with pytest.raises(ValueError, match=f"task: {names[-1]} is measured already, and logged by UnderTrainer"):
            fitted(partial(UnderTrainer, step, *names))


def test_a_name_that_flstudy_does_not_measure_is_the_modules():
    class Own(Embedding):
        def validation_step(self, batch, batch_idx):
            self.log("valid/accuracy", (self.scores(batch[0]).argmax(1) == batch[1]).float().mean())

    metrics = fitted(Own).record.metrics
    assert metrics["valid/accuracy"][0] > 0.4
    assert "test/accuracy" not in metrics


def test_a_study_by_an_undeclared_accuracy_is_refused_with_what_to_add(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "declared_embedding.py").write_text(
        "import torch, lightning as L, torch.nn.functional as F\n"
        "class Net(L.LightningModule):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.body, self.head = torch.nn.Linear(64, 16), torch.nn.Linear(16, 10)\n"
        "    def forward(self, x):\n"
        "        return self.body(x.flatten(1))\n"
        "    def training_step(self, batch, batch_idx):\n"
        "        return F.cross_entropy(self.head(self(batch[0]).relu()), batch[1])\n"
    )
    content = {
        "task": "./declared_embedding.py:Net",
        "population": {"dataset": "Digits", "clients": 4, "participants": 4},
        "algorithm": "FedAvg",
        "rounds": 2,
        "study": {"trials": 2, "search": {"algorithm.lr": {"loguniform": [0.01, 0.1]}}},
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(content))
    assert main(["tune", "study.yaml"]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "study.objective.metric must be a metric that this run measures, got 'valid/accuracy'" in message
    assert "example_correct" in message
