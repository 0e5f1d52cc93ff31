"""Every hook of Lightning's is called, done by a federation's own means, or refused with what to do."""

import warnings
from pathlib import Path

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping
from lightning.pytorch.core.hooks import CheckpointHooks, DataHooks, ModelHooks

from flstudy import Coordinator, RunSettings
from flstudy.algorithms import FedAvg
from flstudy.lightning_hooks import (
    HOOK_GROUPS,
    PREDICTION_HOOKS,
    REFUSED_HOOKS,
    SET_UP_HOOKS,
    UNCALLED_HOOKS,
    hooks_table,
)

from ..worlds import trainer
from .modules import LitClassifier
from .test_modules import world

DOCS = Path(__file__).parents[2] / "docs"
SERVICES = {  # of a LightningModule, which a module calls, or reads
    *("all_gather", "clip_gradients", "freeze", "log", "log_dict", "lr_schedulers", "manual_backward", "optimizers"),
    "remove_ignored_hparams",
    *("print", "save_hyperparameters", "load_from_checkpoint", "to_onnx", "to_tensorrt", "to_torchscript"),
    *("toggle_optimizer", "toggled_optimizer", "unfreeze", "untoggle_optimizer"),
}


def public(kind):
    """Public methods that a class, or one of its parents in Lightning, defines itself."""
    parents = [parent for parent in kind.__mro__ if parent.__module__.startswith("lightning.pytorch.core")]
    return {name for parent in parents for name, value in vars(parent).items()
            if not name.startswith("_") and (callable(value) or isinstance(value, classmethod))}  # fmt: skip


def test_every_hook_of_lightning_is_in_one_group():
    hooks = [hook for group in HOOK_GROUPS for hook in group.hooks]
    assert len(hooks) == len({*hooks})
    of_lightning = public(ModelHooks) | public(DataHooks) | public(CheckpointHooks)
    assert of_lightning <= {*hooks}, "say in HOOK_GROUPS what happens to them"
    services = {name for name in public(L.LightningModule) - {*hooks} if not hasattr(torch.nn.Module, name)}
    assert {name for name in services if callable(getattr(L.LightningModule, name))} <= SERVICES
    assert {*hooks} <= public(L.LightningModule)


def test_the_docs_have_the_table():
    assert hooks_table() in (DOCS / "lightning.md").read_text(), "write the table anew, as the page says"


def fitted(module, executor="sequential", epochs=2):
    """A coordinator after some rounds, and the lines that it warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        coordinator = Coordinator(module, FedAvg(lr=0.1), RunSettings(executor=executor, compile=False))
        trainer(epochs).fit(coordinator, datamodule=world())
    return coordinator, [str(warning.message) for warning in caught]


@pytest.mark.parametrize("executor", ["vectorized", "trainer"])
def test_a_module_is_set_up_and_torn_down_once_and_its_callbacks_join_the_trainer_s(executor):
    calls = []

    class Counts(Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            calls.append(("epoch", trainer.current_epoch))

    class LitOnce(LitClassifier):
        def configure_callbacks(self):
            return [Counts(), EarlyStopping("val_loss", patience=1, min_delta=100.0)]

        def teardown(self, stage):
            calls.append(("teardown", stage))

    for hook in SET_UP_HOOKS:
        setattr(LitOnce, hook, lambda self, *_, hook=hook: calls.append(hook))
    fitted(LitOnce(), executor, epochs=5)
    assert calls == [*SET_UP_HOOKS, ("epoch", 0), ("epoch", 1), ("teardown", "fit")]


def module_with(hook):
    """A module that overrides a hook."""
    return type("LitHooked", (LitClassifier,), {hook: lambda *_, **__: None, "__module__": __name__})()


@pytest.mark.parametrize("hook", UNCALLED_HOOKS)
def test_a_hook_that_is_not_called_is_told_of(hook):
    assert f"task: {hook} of LitHooked is not called: {UNCALLED_HOOKS[hook]}" in fitted(module_with(hook), epochs=1)[1]


@pytest.mark.parametrize("hook", REFUSED_HOOKS)
def test_a_hook_that_cannot_be_followed_is_refused(hook):
    with pytest.raises(ValueError, match=f"^task: LitHooked overrides {hook}, which nobody calls here: "):
        Coordinator(module_with(hook), FedAvg())


@pytest.mark.parametrize("hook", PREDICTION_HOOKS)
def test_a_prediction_of_one_s_own_is_refused_where_it_is_asked_for(hook):
    coordinator, lines = fitted(module_with(hook), epochs=1)
    assert not any(hook in line for line in lines)
    with pytest.raises(ValueError, match=f"LitHooked.{hook} would not be called, .* trainer.predict"):
        trainer(1).predict(coordinator, datamodule=world())
