"""A user's own LightningModule: what is asked of it, and what it is told if it cannot do it."""

import lightning as L
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flstudy import Coordinator, RunSettings
from flstudy.algorithms import FedAvg, Flash, Scaffold
from flstudy.tasks import Cnn, Logistic, Mlp

from ..worlds import CLASSES, FEATURES, Ragged, difference, run, trainer, world

EVEN = Ragged([20] * 6)  # 20 examples, 12 of them for training: three batches of four each


class OnlyTrainingStep(L.LightningModule):
    """As most Lightning code is written: a mean loss, logged, and an optimizer that flstudy has no use for."""

    def __init__(self, as_dict=False):
        super().__init__()
        torch.manual_seed(0)
        self.net, self.as_dict = nn.Linear(FEATURES, CLASSES), as_dict

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("my_loss", loss)
        self.log_dict({"again": loss})
        return {"loss": loss} if self.as_dict else loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


class OnlyLosses(L.LightningModule):
    """Nothing but per-example losses, and no forward: a regression, say."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.w = nn.Parameter(torch.randn(FEATURES))

    def example_losses(self, batch):
        x, y = batch
        return (x @ self.w - y) ** 2


class Same(Logistic):
    """Like OnlyTrainingStep, with per-example losses."""

    def __init__(self):
        super().__init__((FEATURES,), CLASSES)
        self.linear.load_state_dict(OnlyTrainingStep().net.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize("as_dict", [False, True])
@pytest.mark.parametrize("executor", ["sequential", "trainer"])
def test_training_step_alone_is_enough_one_job_at_a_time(executor, as_dict):
    for algorithm in (FedAvg(lr=0.1), Scaffold(lr=0.1), Flash(lr=0.1)):
        mine = run(algorithm, task=OnlyTrainingStep(as_dict), executor=executor, evaluate=True)
        same = run(algorithm, task=Same(), executor="sequential", evaluate=True)
        assert difference(mine.server, same.server) <= 1e-12
        for name in ("valid/accuracy", "test/personal_accuracy"):  # by forward and argmax
            assert mine.record.metrics[name] == pytest.approx(same.record.metrics[name], abs=1e-12)


def test_training_step_alone_is_enough_when_vectorised_without_ragged_batches():
    for algorithm in (FedAvg(lr=0.1), Flash(lr=0.1)):
        even = run(algorithm, task=OnlyTrainingStep(), population=world(partition=EVEN), evaluate=True)
        same = run(algorithm, task=Same(), population=world(partition=EVEN), evaluate=True)
        assert difference(even.server, same.server) <= 1e-12


class Declared(OnlyTrainingStep):
    mean_over_examples = True


@pytest.mark.slow
@pytest.mark.parametrize("task", [OnlyTrainingStep, Declared])
def test_a_training_step_is_mapped_though_batches_and_validation_examples_are_ragged(task):
    """Whole minibatches of one size are mapped together; where a mean is declared, losses of batches of one are, and
    padding is masked."""
    for algorithm in (FedAvg(lr=0.1), Scaffold(lr=0.1), FedAvg(lr=0.1, gamma=0.05)):
        mine = run(algorithm, task=task(), evaluate=True)
        same = run(algorithm, task=Same(), evaluate=True)
        assert mine.task_function.per_example == (task is Declared)
        assert difference(mine.server, same.server) <= 1e-12
        for name in ("valid/loss", "test/loss", "valid/accuracy"):
            assert mine.record.metrics[name] == pytest.approx(same.record.metrics[name], abs=1e-12)


@pytest.mark.slow
def test_a_declared_mean_is_compiled():
    runs = [run(FedAvg(lr=0.1), task=Declared(), compile=compile) for compile in (True, False)]
    assert runs[0].executor.choices()["compile"]
    assert difference(runs[0].server, runs[1].server) <= 1e-12


def test_compiling_what_declares_no_mean_is_refused_in_a_line():
    line = (
        r"run eagerly and are not compiled: of OnlyTrainingStep, it declares no losses of single examples; add .*mean_"
    )
    coordinator = Coordinator(OnlyTrainingStep(), FedAvg(lr=0.1), RunSettings(compile=True))
    with pytest.warns(UserWarning, match=line):
        trainer(1, limit_val_batches=0).fit(coordinator, datamodule=world())


class DeclaredCentred(Declared):
    def forward(self, x):
        return self.net(x - x.mean(0, keepdim=True))


class DeclaredNormalised(Declared):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(FEATURES)


class DeclaredUnclear(Declared):
    mean_over_examples = "mean"


class DeclaredByHand(Declared):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


class DeclaredInPairs(Declared):
    def training_step(self, batch, batch_idx):
        return F.mse_loss(self(batch[0])[0], self(batch[0])[1])


@pytest.mark.parametrize(
    ("task", "sentence"),
    [
        (
            DeclaredCentred,
            r"DeclaredCentred declares mean_over_examples, but its loss of 6 examples is \S+, and the mean",
        ),
        (DeclaredNormalised, "DeclaredNormalised declares mean_over_examples, but has BatchNorm"),
        (DeclaredUnclear, "DeclaredUnclear.mean_over_examples must be True or False, got 'mean'"),
        (DeclaredByHand, "DeclaredByHand declares mean_over_examples, but optimises by itself"),
        (
            DeclaredInPairs,
            "DeclaredInPairs declares mean_over_examples, but .* fails on a batch of one example: IndexError: index 1",
        ),
    ],
)
def test_a_declaration_that_cannot_hold_is_refused_before_the_first_round(task, sentence):
    with pytest.raises(ValueError, match=f"^task: {sentence}"):
        run(FedAvg(), 1, task=task())


class Centred(OnlyTrainingStep):
    """Its loss of a batch is not the mean of its examples' losses."""

    def forward(self, x):
        return self.net(x - x.mean(0, keepdim=True))


class Asks(OnlyTrainingStep):
    """Python decides by a number of the batch."""

    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self(batch[0]), batch[1])
        return loss if loss.item() > 0 else 2 * loss


class Numbered(OnlyTrainingStep):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * (1 + batch_idx)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "same_as", "line"),
    [
        (Asks, "sequential", "executor: sequential in place of vectorized, since Asks cannot run there: .* mapped: "),
        (Numbered, "sequential", "executor: sequential in place of vectorized, since Numbered .*: it reads batch_idx"),
    ],
)
def test_what_cannot_be_masked_or_mapped_goes_to_the_executor_that_can_with_one_line(task, same_as, line):
    def trained(executor):
        module = Coordinator(task(), FedAvg(lr=0.1), RunSettings(executor=executor))
        trainer(2, limit_val_batches=0).fit(module, datamodule=world())
        return module

    with pytest.warns(UserWarning, match=line) as caught_warnings:
        chosen = trained("vectorized")
    assert sum("executor: " in str(warning.message) for warning in caught_warnings) == 1
    assert difference(chosen.server, trained(same_as).server) == 0


def test_what_cannot_be_masked_is_mapped_without_padding():
    mapped = run(FedAvg(lr=0.1), task=Centred(), evaluate=True)
    one_by_one = run(FedAvg(lr=0.1), task=Centred(), executor="sequential")
    assert difference(mapped.server, one_by_one.server) <= 1e-12
    assert mapped.record.metrics["valid/loss"][0] > 0  # of whole devices, since examples have none


@pytest.mark.slow
def test_what_cannot_be_masked_stops_early_by_all_of_a_device_s_validation_examples():
    for algorithm in (FedAvg(lr=0.1, gamma=0.05), Flash(lr=0.1)):
        mapped = run(algorithm, task=Centred())
        one_by_one = run(algorithm, task=Centred(), executor="sequential")
        assert difference(mapped.server, one_by_one.server) <= 1e-12
        assert mapped.record.metrics["fit/steps"] == one_by_one.record.metrics["fit/steps"]


@pytest.mark.parametrize("executor", ["sequential", "vectorized", "trainer"])
def test_losses_alone_are_enough(executor):
    module = run(FedAvg(lr=0.01), task=OnlyLosses(), executor=executor, evaluate=True)
    same = run(FedAvg(lr=0.01), task=OnlyLosses(), executor="sequential", evaluate=True)
    assert difference(module.server, same.server) <= 1e-12
    assert "valid/loss" in module.record.metrics
    assert not any("accuracy" in name for name in module.record.metrics)


class NoLoss(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(2, 2)

    def forward(self, x):
        return self.net(x)


class Lazy(OnlyTrainingStep):
    def __init__(self):
        super().__init__()
        self.net = nn.LazyLinear(CLASSES)


class SparseEmbedding(OnlyTrainingStep):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(5, 3, sparse=True)


class Frozen(Logistic):
    def __init__(self):
        super().__init__((FEATURES,), CLASSES)
        self.requires_grad_(False)


@pytest.mark.parametrize(
    ("task", "sentence"),
    [
        (NoLoss, "NoLoss defines neither example_losses nor training_step, so it has no loss; add"),
        (Frozen, "Frozen has no trainable parameter"),
        (
            lambda: torch.nn.Linear(2, 2),
            r"task must be a lightning.LightningModule, got torch\.nn\.modules\.linear\.Linear: derive it from that",
        ),
        (Lazy, r"Lazy\.net is LazyLinear, whose sizes only a first batch tells: give them, or call it once in setup"),
        (
            SparseEmbedding,
            r"SparseEmbedding\.words is Embedding with sparse=True, whose gradients no method takes: set",
        ),
        (lambda: Logistic((3,), 0), r"classes must lie in \[1, 1e6\], got 0"),
        (lambda: Mlp((3,), 2, hidden=0), r"hidden must lie in \[1, 1e5\], got 0"),
        (lambda: Cnn((4, 4), 2), r"Cnn: shape must be \(channels, height ≥ 6, width ≥ 6\), got \(4, 4\); use Mlp"),
        (lambda: Cnn((1, 5, 9), 2), "Cnn: shape must be .* use Mlp"),
    ],
)
def test_what_cannot_be_trained_is_refused_when_the_coordinator_is_made(task, sentence):
    with pytest.raises(ValueError, match=sentence):
        Coordinator(task(), FedAvg())


def test_the_user_s_module_is_left_usable():
    """Neither its log nor its trainer is touched by the silent copy that executors use."""
    task = OnlyTrainingStep()
    run(FedAvg(lr=0.1), 1, task=task, executor="sequential")
    assert "log" not in task.__dict__
    assert task._trainer is None
    alone = L.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    alone.fit(task.float(), torch.utils.data.DataLoader(torch.utils.data.TensorDataset(
        torch.randn(8, FEATURES), torch.zeros(8, dtype=torch.int64)), batch_size=4))  # fmt: skip
    assert "my_loss" in alone.callback_metrics


class Forgetful(OnlyTrainingStep):
    def training_step(self, batch, batch_idx):
        super().training_step(batch, batch_idx)


class Several(OnlyTrainingStep):
    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]), batch[1], reduction="none")


class WrongShape(OnlyLosses):
    def example_losses(self, batch):
        return (batch[0] @ self.w[1:] - batch[1]) ** 2


class WrongShapeOfTask(Mlp):
    def __init__(self):
        super().__init__((FEATURES + 1,), CLASSES)


class WrongLabels(OnlyTrainingStep):
    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]), batch[1].int())


class WrongValidation(OnlyTrainingStep):
    def validation_step(self, batch, batch_idx):
        self.log("val_loss", F.cross_entropy(self(batch[0]), batch[1][:2]))


class Wrong(OnlyTrainingStep):
    def training_step(self, batch, batch_idx):
        return self(batch["image"]).mean()


@pytest.mark.parametrize(
    ("task", "sentence"),
    [
        (Forgetful, r"Forgetful.training_step must return the loss of a batch, one number, got None: return it, or"),
        (Several, r"Several.training_step must return the loss of a batch, one number, got a tensor \[6\]"),
        (Wrong, r"Wrong.training_step fails on training examples x \[6, 12\] float64, y \[6\] int64: TypeError: tuple"),
        (WrongShape, r"WrongShape.example_losses fails on training examples x \[6, 12\] float64, y \[6\] int64: size"),
        (
            WrongShapeOfTask,
            r"WrongShapeOfTask.example_losses fails on training examples x \[6, 12\] float64, y \[6\] in",
        ),
        (
            WrongLabels,
            r"WrongLabels.training_step fails on training examples .*: expected target dtype .* got Int: let it",
        ),
        (
            WrongValidation,
            r"WrongValidation.validation_step fails on examples x \[\d+, 12\] float64, y \[\d+\] int64: .* let it take",
        ),
    ],
)
def test_a_training_step_without_a_loss_is_refused_before_the_first_round(task, sentence):
    with pytest.raises(ValueError, match=sentence) as refused:
        run(FedAvg(), 1, task=task())
    assert len(str(refused.value)) <= 240


def test_a_failure_says_where_it_happened():
    class Breaks(Same):
        def example_losses(self, batch):
            if len(batch[1]) <= 4:  # not where a few examples are looked at
                raise ArithmeticError("no loss today")
            return super().example_losses(batch)

    with pytest.raises(ArithmeticError, match="no loss today") as failure:
        run(FedAvg(lr=0.1), 1, task=Breaks(), executor="sequential")
    notes = " ".join(failure.value.__notes__)
    assert "in the local fit of device 0, replica 0" in notes
    assert "in round 1, sequential executor, FedAvg" in notes


class UsedTwice(L.LightningModule):
    """A layer and a block under two names each, and a parameter in two layers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, block = nn.Linear(FEATURES, FEATURES), nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Tanh())
        self.again, self.stack = self.first, nn.ModuleList([block, block])
        self.inner, self.out = nn.Linear(FEATURES, CLASSES, bias=False), nn.Linear(FEATURES, CLASSES, bias=False)
        self.out.weight = self.inner.weight

    def forward(self, x):
        for layer in (self.first, self.again, *self.stack):
            x = layer(x)
        return self.out(x) + self.inner(x)

    def example_losses(self, batch):
        return F.cross_entropy(self(batch[0]), batch[1], reduction="none")


def test_a_module_under_two_names_is_one():
    trained = {}
    for executor in ("vectorized", "sequential"):
        coordinator = trained[executor] = run(FedAvg(lr=0.1), task=UsedTwice(), executor=executor)
        assert coordinator.task_function.layout.n == sum(p.numel() for p in coordinator.task.parameters())
        assert trainer(1).validate(coordinator, datamodule=world(), verbose=False)[0]["valid/accuracy"] > 0
        assert all(type(p) is nn.Parameter for p in coordinator.task_function.module.parameters())
    assert difference(trained["vectorized"].server, trained["sequential"].server) < 1e-12
    assert coordinator.task.out.weight is coordinator.task.inner.weight
