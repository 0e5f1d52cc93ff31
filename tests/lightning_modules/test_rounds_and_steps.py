"""What a module reads of its Trainer, and what its hooks do, hold where it is trained and where it is measured."""

import warnings
from typing import ClassVar

import lightning as L
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flstudy import Coordinator, FederatedRun, RunSettings
from flstudy.algorithms import Apfl, FedAvg, Scaffold
from flstudy.lightning_hooks import TRAINING_HOOKS
from flstudy.tasks.stand_in_trainer import OPERATORS, NeedsExecutor, StandInTrainer, Unavailable
from tests.tiers import in_tiers

from ..worlds import difference, trainer
from . import modules as m
from . import zoo as z
from .test_modules import trained, world

EXECUTORS = ("vectorized", "threads", "sequential", "trainer")


def rounds_of(module, rounds=3, algorithm=None, evaluated=False, **settings):
    """A coordinator after some rounds of a module, and the lines that say where it is trained."""
    torch.manual_seed(0)
    coordinator = Coordinator(module(), algorithm or FedAvg(lr=0.1), RunSettings(compile=False, **settings))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer(rounds, "32-true", limit_val_batches=1 if evaluated else 0).fit(coordinator, datamodule=world())
    return coordinator, [str(line.message) for line in caught if str(line.message).startswith("executor: ")]


# ---- where it is trained ---------------------------------------------------------------------------------------------


class LitSees(m.LitClassifier):
    """Remembers what it reads of rounds and steps."""

    seen: ClassVar[list] = []

    def training_step(self, batch, batch_idx):
        self.seen.append((self.current_epoch, self.global_step, int(batch_idx)))
        return super().training_step(batch, batch_idx)


class LitSeesTrainer(LitSees):
    def training_step(self, batch, batch_idx):
        self.seen.append(
            (self.trainer.current_epoch, self.trainer.global_step, int(batch_idx), self.trainer.max_epochs)
        )
        return m.LitClassifier.training_step(self, batch, batch_idx)


@pytest.mark.parametrize("executor", in_tiers(["vectorized", "sequential", "trainer"], ["sequential"]))
@pytest.mark.parametrize("module", [LitSees, LitSeesTrainer])
def test_an_epoch_is_a_round_and_steps_are_those_of_a_device_s_fit(module, executor):
    coordinator, _ = rounds_of(module, executor=executor)
    steps = coordinator.last.fit.steps[0].tolist()
    devices = coordinator.last.cohort.jobs.client[0].tolist()
    LitSees.seen.clear()
    rounds_of(module, executor=executor)
    count = sum(steps)
    seen = [line[:3] for line in LitSees.seen[-3 * count :]]  # before them a few examples were looked at
    expected = [(round, step, step) for round in range(3) for device in devices for step in range(steps[device])]
    assert seen == expected
    assert {line[3:] for line in LitSees.seen[-3 * count :]} == ({(3,)} if module is LitSeesTrainer else {()})


@pytest.mark.parametrize(
    ("module", "executor", "why"),
    [
        (z.LitAnnealed, "sequential", "it reads self.current_epoch"),
        (z.LitWarmUp, "sequential", "it reads self.global_step"),
        (z.LitEveryOther, "sequential", "it reads batch_idx"),
        (z.LitAsksTrainer, "trainer", "it reads self.trainer.num_training_batches"),
        (z.LitMetricInLoss, "trainer", "it computes with the value of a torchmetric"),
        (z.LitCounts, "trainer", "it changes its attribute seen while it trains"),
        (z.LitPassesOn, "vectorized", None),
        (z.LitAssignedBuffer, "vectorized", None),
    ],
)
def test_the_first_line_says_where_a_module_is_trained_and_why(module, executor, why):
    _, lines = rounds_of(module, rounds=1)
    line = f"executor: {executor} in place of vectorized, since {module.__name__} cannot run there: {why}"
    assert lines == ([] if why is None else [line])


@pytest.mark.parametrize("hook", TRAINING_HOOKS)
def test_a_module_with_a_hook_of_training_is_trained_where_it_is_called(hook):
    calls = []

    def call(self, *arguments, **options):
        calls.append(hook)
        return getattr(m.LitClassifier, hook)(self, *arguments, **options)

    module = type("LitHooked", (m.LitClassifier,), {hook: call, "__module__": __name__})
    coordinator, lines = rounds_of(module, rounds=1)
    plain, _ = rounds_of(m.LitClassifier, rounds=1, executor="trainer")
    assert lines == [f"executor: trainer in place of vectorized, since LitHooked cannot run there: it overrides {hook}"]
    assert difference(coordinator.server, plain.server) == 0
    assert calls


class LitLateEpoch(m.LitClassifier):
    """Reads the round for batches of three alone, which no look at six examples meets."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss * (1 + self.current_epoch) if len(batch[1]) == 3 else loss


class LitLateCount(z.LitCounts):
    def training_step(self, batch, batch_idx):
        self.seen += len(batch[1]) == 3
        return m.LitClassifier.training_step(self, batch, batch_idx)


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        (LitLateEpoch, "LitLateEpoch reads self.current_epoch, which this executor cannot follow: set executor: seq"),
        (LitLateCount, "LitLateCount changes its attribute seen while it trains, .*: set executor: trainer"),
    ],
)
def test_what_no_look_has_met_is_refused_and_not_dropped(module, sentence):
    with pytest.raises(NeedsExecutor, match=f"^task: {sentence}"):
        rounds_of(module)


def test_a_hook_that_changes_the_model_is_refused_where_a_device_trains_several():
    with pytest.raises(ValueError, match=r"a hook of LitBoundWeights changes the model .* no sense for Apfl"):
        rounds_of(z.LitBoundWeights, algorithm=Apfl(lr=0.1))


@pytest.mark.parametrize(
    ("algorithm", "settings", "why"),
    [
        (Scaffold(lr=0.1), {}, "Scaffold: its control variates divide what a device did by K η"),
        (
            FedAvg(lr=0.1),
            {"local_optimizer": "module"},
            "FedAvg: its devices step by configure_optimizers, set it there",
        ),
    ],
)
def test_a_hook_that_sets_the_rate_is_refused_where_it_would_do_nothing(algorithm, settings, why):
    class LitSetsRate(z.LitBeforeStep):
        def on_before_optimizer_step(self, optimizer):
            optimizer.param_groups[0]["lr"] = 0.01

    with pytest.raises(
        ValueError, match=f"a hook of LitSetsRate sets lr of the optimizer, which makes no sense for {why}"
    ):
        rounds_of(LitSetsRate, algorithm=algorithm, **settings)


class LitUnfreezes(m.LitFrozen):
    def on_train_epoch_start(self):
        self.l1.requires_grad_(True)


class LitAveragesFrozen(m.LitClassifier):
    """An exponential mean in a copy of a layer."""

    def __init__(self):
        super().__init__()
        self.ema = nn.Linear(m.FEATURES, 12).requires_grad_(False)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.ema.weight.lerp_(self.l1.weight.detach(), 0.1)


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        (LitUnfreezes, r"LitUnfreezes, while it trains, unfreezes l1\.weight, which is no part of models: let it be"),
        (
            LitAveragesFrozen,
            r"LitAveragesFrozen, while it trains, changes its frozen ema\.weight, which no device keeps",
        ),
    ],
)
def test_parameters_that_no_model_holds_are_not_lost(module, sentence):
    with pytest.raises(ValueError, match=f"^task: {sentence}"):
        rounds_of(module)


@pytest.mark.parametrize("algorithm", [Apfl(lr=1e12), FedAvg(lr=1e12)])
def test_a_model_that_diverges_under_a_trainer_is_no_error(algorithm):
    coordinator, _ = rounds_of(z.LitMaskedGradient, algorithm=algorithm)
    assert not torch.isfinite(coordinator.server.x).all()


def test_a_value_that_is_not_known_may_be_handed_on_and_is_refused_in_use():
    stand_in = StandInTrainer("Net")
    value = stand_in.batch_idx
    assert isinstance(value, Unavailable)
    for operator in OPERATORS:
        arguments = [1] * (
            operator not in {"neg", "pos", "abs", "hash", "bool", "int", "float", "index", "str", "iter", "len"}
        )
        with pytest.raises(NeedsExecutor, match="Net reads batch_idx"):
            getattr(value, f"__{operator}__")(*arguments)
    for use in (
        lambda: torch.ones(2) * value,
        lambda: torch.add(torch.ones(2), value),
        lambda: 1 + value,
        lambda: value.x,
    ):
        with pytest.raises(NeedsExecutor, match="Net reads batch_idx"):
            use()
    with stand_in.at(3, 7, 2):
        assert (stand_in.current_epoch, stand_in.global_step, stand_in.batch_idx) == (3, 7, 2)


# ---- its batches -----------------------------------------------------------------------------------------------------


class LitTransformsRows(m.LitDictBatch):
    """Rows as mappings, which a hook changes."""

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return {**batch, "values": 2 * batch["values"] - batch["mask"]}


class LitDoubled(m.LitDictBatch):
    """The same without a hook."""

    def _changed(self, batch):
        return {**batch, "values": 2 * batch["values"] - batch["mask"]}

    def training_step(self, batch, batch_idx):
        return super().training_step(self._changed(batch), batch_idx)

    def validation_step(self, batch, batch_idx):
        super().validation_step(self._changed(batch), batch_idx)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_hooks_change_batches_in_training_and_evaluation_once(executor):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runs = [
            trained(module, 2, "rows", evaluate=1, executor=executor)[0] for module in (LitTransformsRows, LitDoubled)
        ]
    assert difference(runs[0].server, runs[1].server) <= 1e-6
    assert runs[0].record.metrics["val_acc"] == pytest.approx(runs[1].record.metrics["val_acc"])


@pytest.mark.parametrize("module", [z.LitTransforms, z.LitTransformsAlone])
def test_accuracy_is_that_of_changed_batches(module):
    coordinator, _ = rounds_of(module, evaluated=True)
    task, population = coordinator.task, world().settle((0,))
    x, y = population.store.x.float(), population.store.y
    for hook in ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"):
        x, y = getattr(task, hook)((x, y), *([task.device] if "device" in hook else []), 0)
    index = population.device_data.evaluation_index("valid", 3)
    rows, devices = (part[0][index.rows[0] >= 0] for part in index)
    right = (task(x[rows]).argmax(1) == y[rows]).float()
    expected = torch.stack([right[devices == device].mean() for device in devices.unique()]).mean()
    assert coordinator.record.metrics["valid/accuracy"] == pytest.approx([float(expected)], abs=1e-6)


# ---- where it is measured --------------------------------------------------------------------------------------------


class LitMeasuresRound(m.LitClassifier):
    def validation_step(self, batch, batch_idx):
        self.log("round", float(self.current_epoch))
        if self.current_epoch >= 1:
            self.log("late", F.cross_entropy(self(batch[0]), batch[1]))


class LitMeasuresByTrainer(m.LitClassifier):
    def validation_step(self, batch, batch_idx):
        if not self.trainer.sanity_checking:
            self.log("last", float(self.trainer.max_epochs))


class LitAsksEverywhere(z.LitAsksTrainer):
    def training_step(self, batch, batch_idx):
        return m.LitClassifier.training_step(self, batch, batch_idx) * min(1, 1 + self.trainer.current_epoch)

    def forward(self, x):
        return super().forward(x) * (1 if self.trainer.current_epoch < 100 else 0)


@pytest.mark.parametrize("executor", in_tiers(EXECUTORS, ["sequential"]))
def test_steps_of_evaluation_read_the_round_and_their_trainer(executor):
    for module, name, value in ((LitMeasuresRound, "round", 2), (LitMeasuresByTrainer, "last", 3)):
        coordinator, _ = rounds_of(module, evaluated=True, executor=executor)
        assert coordinator.record.metrics[name] == [value]
    coordinator, _ = rounds_of(LitAsksEverywhere, evaluated=True, executor=executor)
    plain, _ = rounds_of(m.LitClassifier, evaluated=True, executor=executor)
    for name in ("valid/loss", "valid/accuracy", "test/personal_accuracy"):
        assert coordinator.record.metrics[name] == pytest.approx(plain.record.metrics[name], rel=1e-5)
    assert "late" in rounds_of(LitMeasuresRound, evaluated=True)[0].record.metrics


@pytest.mark.parametrize("first_epoch", ["eval_received", "inf"])
def test_devices_stop_early_by_what_a_module_reads_of_its_trainer(first_epoch):
    algorithm = FedAvg(lr=0.1, gamma=0.3, first_epoch=first_epoch)
    runs = [
        rounds_of(module, algorithm=algorithm, executor="trainer")[0] for module in (LitAsksEverywhere, m.LitClassifier)
    ]
    assert difference(runs[0].server, runs[1].server) <= 1e-6


def test_a_device_that_skips_all_batches_is_refused():
    class LitSkipsAll(m.LitClassifier):
        def on_train_batch_start(self, batch, batch_idx):
            return -1

    with pytest.raises(ValueError, match=r"LitSkipsAll.on_train_batch_start skips all \d+ batches of a device"):
        rounds_of(LitSkipsAll)


def test_a_run_without_a_trainer_knows_the_round_and_refuses_the_rest():
    def play(module):
        run = FederatedRun(module(), FedAvg(lr=0.1), RunSettings(compile=False))
        run.start(world(), rounds=2)
        return [record.metrics for record in run.play()]

    assert [metrics["round"] for metrics in play(LitMeasuresRound)] == [[0], [1]]
    with pytest.raises(NeedsExecutor, match=r"LitMeasuresByTrainer reads self.trainer.sanity_checking"):
        play(LitMeasuresByTrainer)


# ---- how it is set up ------------------------------------------------------------------------------------------------


class LitAsksInSetUp(z.LitSetUp):
    def setup(self, stage):
        self.l1 = nn.Linear(self.trainer.datamodule.features, 12)


def test_layers_are_made_once_by_the_hooks_for_that():
    module = z.LitSetUp()
    Coordinator(module, FedAvg())
    first = module.l1
    Coordinator(module, FedAvg())
    assert module.l1 is first
    with pytest.raises(
        ValueError, match=r"LitAsksInSetUp reads self.trainer.datamodule in setup, which runs before there"
    ):
        Coordinator(LitAsksInSetUp(), FedAvg())


def test_a_module_keeps_the_trainer_that_it_had():
    module = m.LitClassifier()
    module.trainer = alone = L.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
    Coordinator(module, FedAvg())
    assert module.trainer is alone


def test_steps_by_hand_keep_the_buffers_of_the_device():
    class LitByHand(z.LitBufferInPlace):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch, batch_idx):
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(super().training_step(batch, batch_idx))
            optimizer.step()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        by_hand, _ = trained(LitByHand, rounds=2)
        plain, _ = trained(z.LitBufferInPlace, rounds=2)
    assert difference(by_hand.server, plain.server) <= 1e-5
