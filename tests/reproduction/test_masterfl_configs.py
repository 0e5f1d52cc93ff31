"""Every config and every row of Master-FL's reproduction loads, and runs two rounds; on small files in LIBSVM's format
where it asks for these."""

from dataclasses import replace
from pathlib import Path

import pytest

from flstudy.config.config import load
from flstudy.controllers import MasterFL
from flstudy.reproduction.plan import read_paper, stage_config, stages_of
from tests.population.datasets.on_disk import write_idx, write_libsvm
from tests.reproduction.configs import configs_in

CONFIGS = Path(__file__).parents[2] / "tune_configs"
PLAN = read_paper("masterfl", CONFIGS)
ALL = configs_in(PLAN.folder)
DRIFTS = {"covtype": [65, 187, 233, 367, 411, 489], "mnist": [31, 129, 279, 310, 369, 462]}  # sec. VI
SMALL = {"population.clients": 4, "population.participants": 4, "population.batch_size": 300, "rounds": 2, "seeds": [0]}
SMALL |= {"evaluate_every": 1, "compile": False}


def small(config, folder):
    """The same with two rounds, the last drift in the second, on files that are written here."""
    name = config.flat().get("population.dataset.name")
    few = dict(SMALL)
    if name is not None:
        write_libsvm(folder, name)
    if config.tags()["dataset"] == "FashionMnist":
        write_idx(folder, "FashionMNIST", 600)
    if config.tags()["dataset"] != "Digits":
        few["population.dataset.root"] = str(folder)
    if config.tags()["drift"] == "RepeatedDrift":
        few["population.drift.rounds"] = [2]
    else:
        classes = sorted(label for group in config.flat()["population.drift.groups"] for label in group)
        few |= {"population.drift.rounds": [2], "population.drift.groups": [classes[:2], classes[2:]]}
    return config.with_overrides(few)


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore:MasterFL")
def test_a_config_loads_and_runs_on_small_files(path, tmp_path):
    config, records = small(load(path), tmp_path), []
    config.rehearse()
    config.run(records.append)
    assert [record.round for record in records] == [1, 2]
    assert 0 <= records[-1].metrics["valid/accuracy"][0] <= 1
    assert config.drift_rounds() == [2]


@pytest.mark.parametrize("stage", [s for s in stages_of(PLAN) if s.world.name == "digits-swap"], ids=lambda s: s.name)
@pytest.mark.filterwarnings("ignore:MasterFL")
def test_a_row_runs(stage, tmp_path):
    records = []
    small(stage_config(PLAN, stage), tmp_path).run(records.append)
    assert ("controller/best" in records[-1].metrics) == stage.name.startswith("Master-FL")
    steps = 5 if stage.name in ("FedNova", "FedProx") else 1
    assert records[-1].metrics["fit/steps"] == [steps]


@pytest.mark.parametrize("path", [path for path in ALL if "_" in path.stem], ids=lambda path: path.stem)
def test_the_paper_s_numbers(path):
    """Sec. VI: 20 devices that all take part, 500 rounds, λ, the rounds of the drifts, the pairs that are swapped."""
    config = load(path)
    flat, kind = config.flat(), path.stem.rpartition("_")[2]
    assert (config.rounds, flat["population.clients"], flat["population.participants"]) == (500, 20, 20)
    assert (flat["task"], flat["task.l1"]) == ("Logistic", 2e-4)
    if path.stem == "rho_hat_scale":
        assert config.drift_rounds() == DRIFTS["covtype"]
    elif path.stem.startswith("digits"):
        assert config.drift_rounds() == DRIFTS["mnist"]
    else:
        assert config.drift_rounds() == DRIFTS[flat.get("population.dataset.name") or "mnist"]
        assert (flat["population.data_stream.mean"], flat["population.data_stream.deviation"]) == (1000, 200)
        assert flat["population.data_stream.source"] == "everybody"
    if kind == "swap":
        assert flat["population.drift.change.pairs"] == [[0, 1], [2, 3], [4, 5]]
    assert config.study.objective.metric == "valid/mean_accuracy"


def test_rows_are_tuned_equally_and_are_what_they_are_called():
    for world in ("digits-swap", "digits-introduction"):
        configs = {stage.name: stage_config(PLAN, stage) for stage in stages_of(PLAN) if stage.world.name == world}
        assert len({config.study.trials for config in configs.values()}) == 1
        for name, config in configs.items():
            coordinator = config.build()[0]
            masters = [c for c in coordinator.controllers if isinstance(c, MasterFL)]
            assert bool(masters) == name.startswith("Master-FL")
            assert all(master.rounds is None and master.lr == "instance" for master in masters)
            mirror = getattr(coordinator.algorithm, "mirror", None)
            assert mirror == {"FedAvg": "euclidean", "FedOmd": "hypentropy"}.get(name.removeprefix("Master-FL-"))
            assert ("controller.rho_hat_scale" in config.study.search) == bool(masters)


@pytest.mark.parametrize("world", ["digits-swap-paper", "digits-introduction-paper", "fmnist-swap-paper"])
def test_nobody_is_tuned_at_the_paper_s_rates(world):
    """Sec. VI: η = 1/√T, one step of everybody on all that a device has; Alg. 3: an instance of L rounds has 1/√L."""
    rows = ("Master-FL-FedAvg", "Master-FL-FedOmd", "FedNova", "FedProx", "FedAvg", "FedOmd")
    configs = {stage.name: stage_config(PLAN, stage) for stage in stages_of(PLAN, [world])}
    assert list(configs)[: len(rows)] == list(rows)
    for name, config in configs.items():
        flat = config.flat()
        assert config.study.trials == 1
        assert flat["population.epochs"] == (5 if name.endswith("5-steps") else 1)
        of_one = name.startswith("Master") or name.endswith("eta-1")
        assert flat["algorithm.lr"] == (1.0 if of_one else pytest.approx(500**-0.5, rel=1e-3))
    masters = {name: config.build()[0].controllers[0] for name, config in configs.items() if name.startswith("Master")}
    printed = MasterFL(rounds=500, loss_max=2.3)
    assert (printed.rho_hat_scale, printed.on_detect, printed.tests) == (1.0, "increment", "active")
    for name, master in masters.items():
        changed = {
            "": {},
            "-kappa": {"rho_hat_scale": 3e-4},
            "-kappa-reset": {"rho_hat_scale": 1e-4, "on_detect": "reset"},
            "-longest": {"instance_init": "longest"},
            "-current": {"instance_init": "current"},
            "-kappa-all-tests": {"rho_hat_scale": 3e-4, "tests": "all"},
        }
        how = name.removeprefix("Master-FL-FedAvg").removeprefix("Master-FL-FedOmd")
        assert master.planned(500) == replace(printed, **changed[how])


@pytest.mark.parametrize(
    ("world", "loss_max"),
    [("mnist-swap", 2.3), ("mnist-introduction", 2.3), ("covtype-swap", 1.95), ("covtype-introduction", 1.95)],
)
def test_the_paper_s_own_data_are_run_at_its_rates(world, loss_max):
    """Losses are divided by that of a blind guess, ln 10 and ln 7."""
    configs = {stage.name: stage_config(PLAN, stage).flat() for stage in stages_of(PLAN, [world])}
    for name in ("FedNova", "FedProx", "FedAvg", "FedOmd"):
        assert configs[name]["algorithm.lr"] == pytest.approx(500**-0.5, rel=1e-3)
    for name in ("Master-FL-FedAvg", "Master-FL-FedOmd"):
        assert configs[name]["algorithm.lr"] == configs[name]["controller.rho_hat_scale"] == 1.0
        assert configs[name]["controller.loss_max"] == loss_max


def test_who_chooses_kappa_does_not_judge():
    """Neither seeds nor rounds of drifts of the world in which κ is chosen are those of a world that uses it."""
    chooses = stage_config(PLAN, stages_of(PLAN, ["rho-hat-scale"])[0])
    for stage in stages_of(PLAN, ["digits-swap-paper", "digits-introduction-paper", "fmnist-swap-paper"]):
        config = stage_config(PLAN, stage)
        assert not {*config.seeds} & {*chooses.seeds}
        assert config.drift_rounds() == DRIFTS["mnist"] != chooses.drift_rounds()


def test_the_scales_reach_from_never_to_always():
    config = load(PLAN.folder / "rho_hat_scale.yaml")
    scales = config.study.search["controller.rho_hat_scale"]["choice"]
    assert config.study.trials == len(scales) * len(config.study.search["controller.on_detect"]["choice"])
    masters = [MasterFL(rounds=500, rho_hat_scale=scale, loss_max=2.3) for scale in scales]
    assert [3 * master.rho_hat(500) > 1 for master in masters] == [scale > 0.0135 for scale in scales]
    assert any(scale > 0.0135 for scale in scales)


def test_table_2_is_beside_it():
    values = {(world, name): figure.value for (world, name, measure), figure in PLAN.published.items()}
    assert values["covtype-swap", "FedProx"] == 0.686
    assert values["digits-swap", "FedNova"] == values["digits-swap-paper", "FedNova"] == values["mnist-swap", "FedNova"]
    assert values["digits-swap", "Master-FL-FedOmd"] == 0.780
    assert values["digits-introduction", "FedProx"] == 0.577
    assert {name for _, name in values} == {"Master-FL-FedAvg", "Master-FL-FedOmd", "FedNova", "FedProx"}
    assert "Master-FL-FedAvg 0.874" in (PLAN.folder / "covtype_introduction.yaml").read_text()
