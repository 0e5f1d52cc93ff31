"""A vision transformer beside torchvision's, from files of weights, frozen but for its head, and learning digits."""

import pickle

import pytest
import torch
from torchvision.models import VisionTransformer

from flstudy import Population
from flstudy.algorithms import FedAda2, JointAdaptivity
from flstudy.execution import training_context
from flstudy.population import Digits, FeatureShift, Iid, InMemory, LabelSwap, SuddenDrift
from flstudy.tasks import TaskFunction, Vit

from ..worlds import CLASSES, difference, drawn_model, examples, measured, run, state, world

SHAPE = (3, 12, 8)
SIZES = {"patch": 4, "dim": 12, "depth": 2, "heads": 3, "mlp_ratio": 2}


def count(task):
    return sum(p.numel() for p in task.parameters())


def test_the_published_sizes():
    with torch.device("meta"):
        small = Vit((3, 32, 32), 1000, image=224, patch=16, dim=384, depth=12, heads=6)
        base = Vit((3, 224, 224), 1000, patch=16, dim=768, depth=12, heads=12)
    assert (count(small), count(small) - count(small.head)) == (22_050_664, 21_665_664)
    assert count(base) == 86_567_656  # torchvision's ViT-B/16


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """torchvision's model with random weights, and files of them by torchvision's and by timm's names."""
    torch.manual_seed(0)
    model = VisionTransformer(
        image_size=12, patch_size=4, num_layers=2, num_heads=3, hidden_dim=12, mlp_dim=24, num_classes=7
    ).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    weights = model.state_dict()
    timm = {
        "cls_token": weights["class_token"],
        "pos_embed": weights["encoder.pos_embedding"],
        "patch_embed.proj.weight": weights["conv_proj.weight"],
        "patch_embed.proj.bias": weights["conv_proj.bias"],
        "norm.weight": weights["encoder.ln.weight"],
        "norm.bias": weights["encoder.ln.bias"],
        "head.weight": weights["heads.head.weight"],
        "head.bias": weights["heads.head.bias"],
    }
    parts = {
        "norm1.{}": "ln_1.{}",
        "norm2.{}": "ln_2.{}",
        "attn.qkv.{}": "self_attention.in_proj_{}",
        "attn.proj.{}": "self_attention.out_proj.{}",
        "mlp.fc1.{}": "mlp.0.{}",
        "mlp.fc2.{}": "mlp.3.{}",
    }
    for block in range(2):
        for name, other in parts.items():
            for kind in ("weight", "bias"):
                layer = f"encoder.layers.encoder_layer_{block}.{other.format(kind)}"
                timm[f"blocks.{block}.{name.format(kind)}"] = weights[layer]
    folder = tmp_path_factory.mktemp("weights")
    torch.save(weights, folder / "torchvision.pth")
    torch.save({"model": timm}, folder / "timm.pth")
    return model, folder


def square(folder, name="timm.pth", **more):
    sizes = {**SIZES, **more}
    return Vit((3, 12, 12), sizes.pop("classes", 7), checkpoint=str(folder / name), **sizes)


@pytest.mark.parametrize("name", ["timm.pth", "torchvision.pth"])
def test_logits_are_those_of_torchvision_with_the_same_weights(name, published):
    model, folder = published
    task, x = square(folder, name), torch.randn(5, 3, 12, 12)
    task.head.load_state_dict(model.heads.head.state_dict())
    assert difference(task(x), model(x)) < 1e-5
    scaled = Vit((3, 6, 6), 7, image=12, checkpoint=str(folder / name), **SIZES)
    scaled.head.load_state_dict(model.heads.head.state_dict())
    larger = torch.nn.functional.interpolate(x[..., :6, :6], (12, 12), mode="bilinear")
    assert difference(scaled(x[..., :6, :6]), model(larger)) < 1e-5


def test_a_checkpoint_is_where_every_seed_starts_but_for_the_head(published):
    task = square(published[1])
    layout = TaskFunction(task).layout
    first, other = (layout.split(drawn_model(task, seed)) for seed in (0, 1))
    for name, value in first.items():
        assert (difference(value, other[name]) > 0.01) == name.startswith("head."), name
    assert difference(first["blocks.1.qkv.weight"], task.blocks[1].qkv.weight) == 0


def test_without_a_checkpoint_every_seed_draws_its_own():
    task = Vit(SHAPE, 5, patch=2, dim=24)
    layout = TaskFunction(task).layout
    first, other = (layout.split(drawn_model(task, seed)) for seed in (0, 1))
    for name in ("pos_embed", "patch_embed.weight", "blocks.1.fc1.weight"):
        assert float(first[name].std()) == pytest.approx(0.02, rel=0.1)
        assert difference(first[name], other[name]) > 0.01
    assert first["norm.weight"].min() == first["norm.weight"].max() == 1
    assert not first["blocks.0.qkv.bias"].any()


def test_executors_agree_on_a_transformer():
    settings = {"population": world(dataset=examples(SHAPE), participants=3, epochs=1), "initial": "seeded"}
    task, algorithm = Vit(SHAPE, CLASSES, **SIZES), FedAda2(eps=0.1, client_optimizer="sm3_adam")
    states = [
        state(run(algorithm, 1, task=task, executor=name, **settings))
        for name in ("sequential", "vectorized", "trainer")
    ]
    assert max(difference(states[0], other) for other in states[1:]) < 1e-10


class EveryStep(Vit):
    """Goes through its frozen layers in every step."""

    embeds = False


class Counting(Vit):
    """Counts the examples that go through its frozen layers."""

    seen = 0

    def embed(self, x):
        Counting.seen += len(x)
        return super().embed(x)


def probe(cls, folder, **settings):
    task = cls((3, 12, 12), CLASSES, checkpoint=str(folder / "timm.pth"), train="head", **SIZES)
    world_settings = {"dataset": settings.pop("dataset", examples((3, 12, 12))), "participants": 4}
    return run(FedAda2(eps=0.1), 2, task=task, initial="seeded", population=world(**world_settings), **settings)


@pytest.mark.parametrize("executor", ["sequential", "vectorized", "trainer"])
def test_a_head_trains_on_what_the_frozen_layers_said_once(executor, published):
    once, always = (probe(cls, published[1], evaluate=True, executor=executor) for cls in (Vit, EveryStep))
    assert once.task_function.layout.names == ("head.weight", "head.bias")
    assert once.task_function.layout.n == (12 + 1) * CLASSES
    assert once.evaluation.evaluator.store.x.shape[1:] == (12,)
    assert difference(state(once), state(always)) < 1e-12
    names = ("train/loss", "valid/loss", "test/accuracy", "test/personal_accuracy")
    assert difference(measured(once, *names), measured(always, *names)) < 1e-12


def test_runs_on_the_same_inputs_share_what_the_frozen_layers_said(published):
    data = examples((3, 12, 12))
    Counting.seen = 0
    runs = [probe(Counting, published[1], dataset=data) for _ in range(2)]
    noted = 2  # examples in each run, by what the layers do with which runs know each other
    assert Counting.seen == len(data.examples.x) + 2 * noted
    assert difference(state(runs[0]), state(runs[1])) == 0
    probe(Counting, published[1], dataset=examples((3, 12, 12)))
    assert Counting.seen == 2 * len(data.examples.x) + 3 * noted


def test_embedded_inputs_do_not_drift_but_labels_may(published):
    task, data = square(published[1], classes=CLASSES, train="head"), examples((3, 12, 12))
    for change in (LabelSwap(), FeatureShift()):
        drift = SuddenDrift(round=2, change=change)
        population = world(dataset=data, drift=drift).settle((0,))
        if isinstance(change, LabelSwap):
            assert training_context(
                TaskFunction(task), population.store, torch.device("cpu"), torch.float32
            ).store.table.numel()
            continue
        with pytest.raises(
            ValueError, match=r"task: Vit computes once what .* but the population's drift changes inputs"
        ):
            training_context(TaskFunction(task), population.store, torch.device("cpu"), torch.float32)


@pytest.mark.slow
def test_a_small_one_learns_digits():
    """Five local epochs with Adam and a warm-up of ten steps, as App. H; the server averages, since τ is large."""
    source = Digits()
    task = Vit(source.shape, 10)
    assert count(task) == 26_538
    population = Population(source, clients=5, partition=Iid(), participants=5, batch_size=32, epochs=5, valid=0.1)
    algorithm = JointAdaptivity(
        client_optimizer="adam", client_bias_correction=True, lr=0.005, warmup=10, server_lr=1.0, beta1=0.0, tau=1.0
    )
    settings = {"precision": "32-true", "executor": "vectorized", "compile": False, "evaluate": True}
    module = run(algorithm, 5, task=task, population=population, **settings)
    assert module.record.metrics["test/accuracy"][0] > 0.9


def altered(folder, tmp_path, change):
    weights = torch.load(folder / "timm.pth", weights_only=True)["model"]
    change(weights)
    torch.save(weights, tmp_path / "altered.pth")
    return square(tmp_path, "altered.pth")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda w: w.pop("blocks.1.attn.qkv.bias"), "it lacks blocks.1.qkv.bias"),
        (lambda w: w.update({"blocks.2.norm1.bias": torch.zeros(12)}), "it has blocks.2.norm1.bias, which is not here"),
        (lambda w: w.update(pos_embed=torch.zeros(1, 197, 12)), r"pos_embed is \[1, 197, 12\], here \[1, 10, 12\]"),
        (lambda w: w.update({"layer4.0.conv.weight": torch.zeros(3)}), "it has layer4.0.conv.weight, which"),
    ],
)
def test_another_architecture_is_refused(change, sentence, published, tmp_path):
    path = tmp_path / "altered.pth"
    with pytest.raises(
        ValueError, match=rf"Vit: checkpoint '{path}' is of another architecture: {sentence}.*; set image"
    ):
        altered(published[1], tmp_path, change)


def test_what_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"Vit: there is no checkpoint '.*none.pth': save a model's state_dict there"):
        square(tmp_path, "none.pth")
    (tmp_path / "text.pth").write_text("weights")
    with pytest.raises(
        ValueError, match=r"Vit: checkpoint '.*text.pth' holds no weights that can be read \(.*\); save"
    ):
        square(tmp_path, "text.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(ValueError, match=r"Vit: checkpoint '.*list.pth' must hold a state_dict, got list"):
        square(tmp_path, "list.pth")
    (tmp_path / "pickled.pth").write_bytes(pickle.dumps({"a": square}, protocol=2))
    with pytest.raises(ValueError, match=r"holds no weights that can be read"):
        square(tmp_path, "pickled.pth")


def test_safetensors_need_their_package(published, tmp_path):
    """They are read where the package is installed."""
    weights = torch.load(published[1] / "timm.pth", weights_only=True)["model"]
    try:
        from safetensors.torch import save_file
    except ImportError:
        (tmp_path / "timm.safetensors").write_bytes(b"")
        with pytest.raises(ImportError, match=r"Vit: reading .*timm.safetensors needs safetensors: pip install"):
            square(tmp_path, "timm.safetensors")
        return
    save_file({name: value.contiguous() for name, value in weights.items()}, tmp_path / "timm.safetensors")
    assert difference(square(tmp_path, "timm.safetensors").pos_embed, weights["pos_embed"]) == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"shape": (12,)}, r"Vit: shape must be \(channels, height, width\), got \(12,\); use Mlp"),
        ({"patch": 5}, "Vit: patch must divide height and width, got 5 for 12×8; set image or patch"),
        ({"image": 10, "patch": 4}, "Vit: patch must divide height and width, got 4 for 10×10"),
        ({"dim": 10, "heads": 4}, "Vit: heads must divide dim, got 4 for 10"),
        ({"depth": 0}, r"depth must lie in \[1, 1e3\], got 0"),
        ({"train": "tail"}, "Vit: train must be one of full, head, got 'tail'"),
        ({"train": "head"}, "Vit: train head keeps all else as it is loaded, got no checkpoint: set checkpoint"),
    ],
)
def test_bad_values_are_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        Vit(**{"shape": SHAPE, "classes": 3, **arguments})


def test_inputs_that_are_no_images_are_refused():
    with pytest.raises(ValueError, match=r"Vit: inputs must be images \[B, channels, height, width\], got \[2, 12\]"):
        Vit(SHAPE, 3)(torch.zeros(2, 12))
    assert InMemory((torch.zeros(3, *SHAPE), torch.arange(3))).shape == SHAPE
