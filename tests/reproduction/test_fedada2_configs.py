"""Every config of FedAda²'s studies loads, and runs two rounds on small files in its data set's real format."""

from collections import Counter
from pathlib import Path

import pytest
import torch

from flstudy.config import ConfigError
from flstudy.config.config import load
from flstudy.config.reading import arguments
from flstudy.reproduction.plan import read_paper, stage_config, stages_of
from flstudy.tasks import Vit
from flstudy.tuning.plan import check_study
from tests.population.datasets.on_disk import SMALL_FILES, accept_any_checksum

FOLDER = Path(__file__).parents[2] / "tune_configs" / "fedada2"
NAMES = ("cifar100", "digits_vit", "gld23k", "stackoverflow_tags")
IMAGES = ("cifar100", "gld23k")
FEW = {"population.clients": 4, "population.participants": 2, "population.epochs": 1, "rounds": 2, "evaluate_every": 1}
SIZES = {"image": 16, "patch": 8, "dim": 12, "depth": 1, "heads": 2}


def write_checkpoint(path, shape=(3, 16, 16)):
    """Random weights of a transformer with these sizes, by timm's names."""
    weights = Vit(shape, 5, **SIZES).state_dict()
    names = {"qkv": "attn.qkv", "proj": "attn.proj", "fc1": "mlp.fc1", "fc2": "mlp.fc2"}
    timm = {}
    for key, value in weights.items():
        parts = [names.get(part, part) if key.startswith("blocks") else part for part in key.split(".")]
        timm[".".join(parts).replace("patch_embed", "patch_embed.proj")] = value
    timm["patch_embed.proj.weight"] = timm["patch_embed.proj.weight"].view(-1, 3, 8, 8)
    torch.save(timm, path)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """What makes the task of images small: sizes, and a file of weights for them."""
    path = tmp_path_factory.mktemp("weights") / "timm.pth"
    write_checkpoint(path)
    values = {f"task.{key}": value for key, value in {**SIZES, "checkpoint": str(path)}.items()}
    return lambda name: values if name in IMAGES else {}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_config_loads_and_runs_on_small_files(name, tmp_path, monkeypatch, small):
    few = {**FEW, "seeds": [0], "accelerator": "cpu", "executor": "sequential"}
    config = load(FOLDER / f"{name}.yaml", small(name))
    source = config.tags()["dataset"]
    if source in SMALL_FILES:
        SMALL_FILES[source](tmp_path)
        accept_any_checksum(monkeypatch)
        few["population.dataset.root"] = str(tmp_path)
    if name in IMAGES:
        few["algorithm.warmup"] = 1  # these devices take a step or two
    if source == "Landmarks":
        few["population.dataset.size"] = 16
    short, records = config.with_overrides(few), []
    short.rehearse()
    short.run(records.append)
    assert [record.round for record in records] == [1, 2]
    assert 0 <= records[-1].metrics["valid/accuracy"][0] <= 1
    if name == "stackoverflow_tags":
        assert records[-1].metrics["privacy/epsilon"][0] > 0


@pytest.mark.parametrize(
    ("name", "clients", "participants", "rounds"),
    [("stackoverflow_tags", 400, 40, 500), ("cifar100", 1000, 10, 600), ("gld23k", 233, 2, 200)],
)
def test_the_paper_s_numbers(name, clients, participants, rounds, small):
    """App. G and H, and an equal budget for every arm."""
    config = load(FOLDER / f"{name}.yaml", small(name))
    flat = config.flat()
    assert (flat["population.clients"], flat["population.participants"], config.rounds) == (
        clients,
        participants,
        rounds,
    )
    assert flat["population.batch_size"] == 32
    arms = config.study.search["algorithm"]["choice"]
    assert set(config.study.presets) == set(arms)
    assert config.study.trials % len(arms) == 0
    assert config.study.allocation == "equal"


@pytest.mark.parametrize("name", NAMES)
def test_each_arm_s_best_values_are_its_first_trial(name, small):
    """Every value of a preset that is searched lies in its domain."""
    config = load(FOLDER / f"{name}.yaml", small(name), command="tune")
    space = check_study(config)
    points = space.defaults(config)
    assert Counter(point["algorithm"] for point in points) == Counter(config.study.search["algorithm"]["choice"])
    for point in points:
        preset = config.study.presets[point["algorithm"]]
        for field, value in preset.items():
            key = field if "." in field else f"algorithm.{field}"
            if key in space.of(point["algorithm"]):
                assert point[key] == value, (point["algorithm"], key)
    if name == "stackoverflow_tags":  # c, Table 3
        clips = {point["algorithm"]: point["privacy.clip"] for point in points}
        assert clips == {
            "FedAvg": 1.0,
            "FedAdaGrad": 0.1,
            "DirectJointAdaptivity": 0.5,
            "JointAdaptivity": 0.5,
            "FedAda2": 0.1,
        }


@pytest.mark.slow
def test_first_trials_are_the_tables_3_to_6_s(small):
    """Every published value of a hyper-parameter is that of its arm's first trial."""
    plan = read_paper("fedada2", FOLDER.parent)
    names = {key[0] for key in plan.published}
    options = arguments(small("gld23k"))
    stages = {stage.world.name: stage for stage in stages_of(plan, names, ["tuned"])}
    assert set(stages) == names
    for name, stage in stages.items():
        config = stage_config(plan, stage, [] if name == "stackoverflow-tags" else options)
        firsts = {point["algorithm"]: point for point in check_study(config).defaults(config)}
        for (world, algorithm, key), figure in plan.published.items():
            if world == name:
                assert firsts[algorithm][key] == figure.value, (world, algorithm, key)


def test_how_the_arms_of_images_are_set_up(small):
    """Adam on devices and server, without bias correction as in the published runs, and the warm-up."""
    for name, algorithm, expected in (
        ("cifar100", "FedAda2", {"client_optimizer": "sm3_adam", "server_optimizer": "adam", "warmup": 10}),
        ("gld23k", "FedAda2", {"client_optimizer": "sm3_adam", "server_optimizer": "adam", "warmup": 10}),
        ("gld23k", "JointAdaptivity", {"client_optimizer": "adam", "bias_correction": False}),
    ):
        preset = load(FOLDER / f"{name}.yaml", small(name)).study.presets[algorithm]
        assert {key: preset.get(key, False) for key in expected} == expected


def test_a_missing_checkpoint_is_said_before_anything_runs():
    with pytest.raises(
        ConfigError, match=r"cifar100.yaml: Vit: there is no checkpoint 'data/vit_small_patch16_224.pth'"
    ):
        load(FOLDER / "cifar100.yaml")
