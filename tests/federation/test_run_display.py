"""What a run shows of itself: in a notebook, and as a bar over its rounds."""

import base64
import importlib.util
import io
import re

import lightning as L
import pytest
from PIL import Image

from flstudy import Coordinator, FederatedRun, RoundProgressBar, RunSettings
from flstudy.algorithms import FedAvg
from flstudy.metrics.registry import deviation_over_replicas, mean_over_replicas

from ..worlds import drifting, mlp, run, world


@pytest.fixture(scope="module")
def module():
    return run(FedAvg(lr=0.1), 6, population=drifting(), seeds=(0, 44), evaluate=True)


def test_a_run_says_that_it_has_not_begun():
    page = FederatedRun(mlp(), FedAvg(lr=0.1))._repr_html_()
    assert "<b>FedAvg</b> of Mlp, before its first round" in page


def test_a_run_shows_what_trains_and_its_last_headline_metrics(module):
    page, metrics = module._repr_html_(), module.record.metrics
    assert page == module.run._repr_html_()
    assert "round 6, seeds 0, 44" in page
    for name in ("train/loss", "valid/accuracy"):
        scale = 100 if name == "valid/accuracy" else 1
        mean, deviation = mean_over_replicas(metrics[name]), deviation_over_replicas(metrics[name])
        row = re.search(rf"{name}</td><td>([\d.]+)(?: %)?</td><td>([\d.]+)", page)
        assert float(row[1]) == pytest.approx(scale * mean, rel=1e-3)
        assert float(row[2]) == pytest.approx(scale * deviation, rel=1e-2)
    assert "test/accuracy" not in page


def test_its_curves_have_every_round_and_replica(module):
    curves = module.run.curves.by_name()
    assert list(curves["train/loss"]) == [1, 2, 3, 4, 5, 6]
    assert curves["valid/accuracy"][6] == module.record.metrics["valid/accuracy"]
    assert {len(values) for values in curves["valid/accuracy"].values()} == {2}
    (picture,) = re.findall(r"base64,([^']+)'", module._repr_html_())
    assert Image.open(io.BytesIO(base64.b64decode(picture))).width > 400  # a panel for loss and one for accuracy


def test_without_matplotlib_it_shows_the_table_alone(module, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    page = module._repr_html_()
    assert "valid/accuracy" in page
    assert "<img" not in page


def test_a_loaded_model_shows_the_metrics_of_its_checkpoint(tmp_path, module):
    module.run.save(tmp_path / "run.ckpt")
    page = Coordinator.load_from_checkpoint(tmp_path / "run.ckpt", task=mlp())._repr_html_()
    assert f"{100 * mean_over_replicas(module.record.metrics['valid/accuracy']):.4g} %" in page
    assert "<img" not in page  # a single round is no curve


def test_a_run_that_starts_again_begins_its_curves_anew():
    fresh = FederatedRun(mlp(), FedAvg(lr=0.1), RunSettings(compile=False))
    for rounds in (4, 2):
        fresh.start(world(), rounds)
        list(fresh.play())
        assert len(fresh.curves.by_name()["train/loss"]) == rounds


def fit(rounds, path=None, **flags):
    """A fit with a bar over its rounds, and the checkpoint of its end."""
    outer = L.Trainer(
        max_epochs=rounds,
        callbacks=[RoundProgressBar()],
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        accelerator="cpu",
        **flags,
    )
    outer.fit(Coordinator(mlp(), FedAvg(lr=0.1), RunSettings(compile=False)), datamodule=world(), ckpt_path=path)
    return outer


def test_a_bar_counts_the_rounds_of_the_whole_fit(tmp_path, capsys):
    fit(3).save_checkpoint(tmp_path / "end.ckpt")
    shown = capsys.readouterr().out
    assert "| 0/3 [" in shown
    last = shown.rpartition("\r")[2]
    assert "Rounds: 100%" in last
    assert "| 3/3 [" in last
    assert "train/loss=" in last
    assert "valid/accuracy=" in last
    fit(5, tmp_path / "end.ckpt")
    shown = capsys.readouterr().out
    assert "| 3/5 [" in shown
    assert "| 5/5 [" in shown.rpartition("\r")[2]
