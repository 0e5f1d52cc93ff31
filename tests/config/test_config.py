"""Configs: what is accepted, what is refused and how it is said."""

import re
from pathlib import Path

import pytest
import yaml

from flstudy.config import ConfigError, StopRun, load
from flstudy.config.composition import quick_check
from flstudy.config.reading import content_of
from flstudy.population import FashionMnist
from tests.tiers import in_tiers

from ..population.datasets import on_disk

QUICK = Path(__file__).parents[2] / "tune_configs" / "quick.yaml"


def scheduled(schedule: dict | str) -> dict:
    """A ScheduledDrift as an override."""
    return {"population.drift": {"class_path": "ScheduledDrift", "init_args": {"schedule": schedule}}}


REFUSED = [
    ({"algorithm": "FedAvgg"}, "unknown algorithm 'FedAvgg': did you mean 'FedAvg'?"),
    ({"algorithm": "scafold"}, "unknown algorithm 'scafold': did you mean 'Scaffold'?"),
    ({"algorithm.tua": 1}, "unknown key 'algorithm.tua' of Flash: did you mean 'algorithm.tau'?"),
    ({"algorithm": "FedProx", "algorithm.tau": 1}, "unknown key 'algorithm.tau' of FedProx"),
    ({"population.client": 3}, "unknown key 'population.client': did you mean 'population.clients'?"),
    ({"round": 3}, "unknown key 'round': did you mean 'rounds'?"),
    ({"population.clients": "many"}, "population.clients must be an integer, got 'many'"),
    ({"algorithm.lr": "fast"}, "algorithm.lr must be a number, got 'fast'"),
    ({"algorithm.lr": -1.0}, "algorithm.lr must lie in (0, 1e12], got -1.0"),
    ({"algorithm.beta1": 1.0}, "algorithm.beta1 must lie in [0, 1), got 1.0"),
    ({"algorithm.weighting": "unifrom"}, "must be one of examples, uniform, got 'unifrom': did you mean 'uniform'?"),
    ({"compile": "yes please"}, "compile must be true, false or auto, got 'yes please'"),
    ({"population.partition.alpha": -1}, "population.partition.alpha must lie in (0, 1e12], got -1"),
    ({"population.participants": 50}, "participants must be ≤ clients (20), got 50"),
    ({"population.drift.p_drift": 1.5}, "population.drift.p_drift must lie in [0, 1], got 1.5"),
    ({"rounds": 10}, "population.drift.init_args.round must be ≤ rounds (10), got 31"),
    (
        {"population.drift": "RecurrentDrift", "population.drift.round": 5, "population.drift.back": 99},
        "population.drift.back must be ≤ rounds (60), got 99",
    ),
    ({"population.drift.change": "Rotatoin"}, "unknown population.drift.change 'Rotatoin': did you mean 'Rotation'?"),
    (
        {"population.drift.change": "FeatureShift", "population.drift.change.sise": 1},
        "unknown key 'population.drift.change.sise' of FeatureShift: did you mean 'population.drift.change.size'?",
    ),
    ({"population.drift.change.pairs": [[0, 10]]}, "LabelSwap: pairs must hold labels in 0 … 9, got (0, 10)"),
    (scheduled({20: [[5, 1]]}), "device 20, entry 1: device must lie in 0 … 19, got 20"),
    (scheduled({3: [[5, 1], [99, 0]]}), "ScheduledDrift: device 3, entry 2: round must be ≤ rounds (60), got 99"),
    (scheduled("absent.csv"), "there is no file 'absent.csv'"),
    ({"rounds": 0}, "rounds must lie in [1, 1e6], got 0"),
    ({"seeds": [1, 1]}, "seeds must be one or more different integers ≥ 0, got [1, 1]"),
    ({"study.trials": 0}, "study.trials must lie in [1, 1e6], got 0"),
    ({"algorithm": "Scaffold", "algorithm.momentum": 0.5}, "Scaffold: momentum must be 0, got 0.5"),
    ({"task": "tests.config.user_tasks.Lossless"}, "Lossless defines neither example_losses nor training_step"),
    ({"task": "tests.config.user_tasks.Absent"}, "task must name a class that can be imported"),
    ({"task": "Cnn", "population.dataset": "Synthetic", "population.partition": None}, "Cnn: shape must be"),
]


@pytest.mark.parametrize(("overrides", "sentence"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_what_is_wrong_is_said_in_one_sentence(overrides: dict, sentence: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        load(QUICK, overrides)
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("space", "sentence"),
    [
        (
            "{algorithm.lrr: {uniform: [0, 1]}}",
            "study.search: unknown key 'algorithm.lrr' of Flash: did you mean 'algor",
        ),
        ("{algorithm: {choice: [FedAvg, Flush]}}", "study.search: unknown algorithm 'Flush': did you mean 'Flash'?"),
        (
            "{algorithm: {choice: [FedAvg, FedProx]}, algorithm.tau: {uniform: [0, 1]}}",
            "'algorithm.tau' of FedAvg or FedProx",
        ),
        ("{population.participant: {randint: [1, 5]}}", "did you mean 'population.participants'?"),
        ("{rounds: {choice: [20, 2]}}", "study.search.rounds must not be searched, since trials are compared after"),
        ("{seeds: {choice: [[0], [1]]}}", "study.search.seeds must not be searched"),
        ("{evaluate_every: {randint: [1, 5]}}", "study.search.evaluate_every must not be searched"),
    ],
)
def test_search_keys_are_checked_at_once(space: str, sentence: str, tmp_path: Path) -> None:
    content = yaml.safe_load(QUICK.read_text())
    content["study"]["search"] = yaml.safe_load(space)
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        quick_check(tmp_path / "study.yaml", [])


SUDDEN = "population: {dataset: Digits, clients: 20, participants: 10, drift: DRIFT}"
WRONG = [  # what is appended to a config that has none of these keys, and what is said
    ("population:", "population must be keys and values, got null"),
    ("population: 5", "population must be keys and values, got 5"),
    ("population: {dataset: Digits}\nstudy: text", "study must be keys and values, got 'text'"),
    ("population: {dataset: Digits, epochs: 1e30}", "population.epochs must lie in [1, 1e6], got 1e+30"),
    (SUDDEN.replace("DRIFT", "SuddenDrift"), "population.drift.round must be given with SuddenDrift, an integer"),
    (SUDDEN.replace("DRIFT", "{a: {b: 1}}"), "population.drift must name a class, such as ClassIntroduction"),
    ("seeds: " + "[" * 3000 + "]" * 3000, "must hold at most 1,000,000 values, 50 deep at most: flatten it"),
    ("seeds: &a [*a]", "must hold at most 1,000,000 values, 50 deep at most: flatten it"),
    ("rounds: 3\nrounds: 4", "the key 'rounds' twice in line 5"),
    ("rounds: 2024-13-45", "rounds must be an integer, got '2024-13-45'"),
    ("rounds: !!set {a, b}", "must hold texts, numbers, lists and the like, got a set"),
    ("rounds: 1" + "0" * 600, "rounds must lie in [1, 1e6], got 1000"),
    ("seeds: [" + "é" * 600 + "]", "seeds[0] must be an integer, got 'ééé"),
    ("ünï: 1", "unknown key 'ünï': see --help"),
    ("study: {confirm: null}", "study.confirm must be keys and values, got null"),
    (
        "study: {search: {algorithm: {choice: null}}}",
        "study.search.algorithm.choice must be a list or keys and values, got null",
    ),
    ("study: {search: {algorithm: {choice: [null]}}}", "algorithm must name a class, such as AdaptiveFedAvg, got null"),
    ("study: {search: {algorithm: {uniform: [0, 1]}}}", "study.search.algorithm must be a choice of classes, got"),
    (
        "study: {search: {algorithm.lr: {uniform: [0.1, .inf]}}}",
        "study.search.algorithm.lr: uniform high must be a finite number",
    ),
    ("study: {presets: {Flsh: {lr: 1}}}", "study.presets: unknown algorithm 'Flsh': did you mean 'Flash'?"),
    ("study: {presets: {FedProx: {tau: 1}}}", "unknown key 'study.presets.FedProx.tau': did you mean"),
]


@pytest.mark.parametrize(("lines", "sentence"), WRONG, ids=[lines[:40] for lines, _ in WRONG])
def test_what_is_no_config_is_said_in_one_short_sentence(lines: str, sentence: str, tmp_path: Path) -> None:
    world = "" if "population" in lines else "population: {dataset: Digits}\n"
    path = tmp_path / "study.yaml"
    path.write_text(f"task: Mlp\nalgorithm: FedAvg\n{world}{lines}\n")
    for action in (lambda: quick_check(path, []), lambda: load(path)):
        with pytest.raises(ConfigError) as refusal:
            action()
        assert sentence in str(refusal.value)
        assert len(str(refusal.value)) <= 200
        assert "\n" not in str(refusal.value)


def test_files_that_cannot_be_configs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no config file"):
        load(tmp_path / "absent.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n- 2\n")
    with pytest.raises(ConfigError, match="must hold keys and values, got list"):
        load(tmp_path / "list.yaml")
    (tmp_path / "broken.yaml").write_text("task: {class_path: Mlp\n")
    with pytest.raises(ConfigError, match="is not a YAML file"):
        load(tmp_path / "broken.yaml")


@pytest.mark.slow
def test_an_impossible_world_fails_in_rehearsal() -> None:
    config = load(QUICK, {"population.partition.min_size": 89, "population.partition.alpha": 0.1})
    with pytest.raises(ConfigError, match="no draw gave each of 20 clients min_size 89"):
        config.rehearse()
    load(QUICK).rehearse()


@pytest.mark.parametrize(
    "name",
    [
        *("AgNews", "Cifar10", "Cifar100", "Emnist", "FashionMnist", "Mnist", "Shakespeare", "StackOverflow"),
        *("Svhn", "TinyImageNet"),
    ],
)
def test_files_that_are_not_there_fail_in_rehearsal(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FashionMnist, "packed", tmp_path / "no package")
    task = {"Shakespeare": "Lstm", "StackOverflow": "Lstm", "AgNews": "FastText"}.get(name, "Cnn")
    names = {"task": task, "population.dataset": name, "population.drift": None}
    config = load(QUICK, {**names, "population.dataset.root": str(tmp_path / "absent")})
    with pytest.raises(ConfigError, match=rf"{name}: there is no folder '{tmp_path / 'absent'}"):
        config.rehearse()


FILES = {
    "Cifar10": (lambda root: on_disk.write_cifar(root, 10), "ResNet18", {"stem": "cifar", "groups": 4}),
    "Cifar100": (lambda root: on_disk.write_cifar(root, 100), "Cnn", {"dropout": [0.25, 0.5]}),
    "Emnist": (on_disk.write_emnist, "Cnn", {"dense": 8}),
    "Shakespeare": (on_disk.write_shakespeare, "Lstm", {"biases": 1, "layers": 2}),
    "StackOverflow": (on_disk.write_stackoverflow, "Lstm", {"projection": 6, "biases": 1}),
    "AgNews": (on_disk.write_ag_news, "FastText", {"embedding": 6}),
    "Mnist": (lambda root: on_disk.write_idx(root, "MNIST"), "Logistic", {}),
    "FashionMnist": (lambda root: on_disk.write_idx(root, "FashionMNIST"), "Mlp", {"projection": 6}),
    "Svhn": (on_disk.write_svhn, "Vgg", {"blocks": [[4, 4], [6]], "dense": 8, "dropout": 0.4}),
    "TinyImageNet": (on_disk.write_tiny_imagenet, "ResNet34", {"projection": 256}),
}
POOLED = ("AgNews", "Cifar10", "Cifar100", "FashionMnist", "Mnist", "Svhn", "TinyImageNet")


@pytest.mark.parametrize("name", in_tiers(FILES, ["Emnist", "FashionMnist", "AgNews"]))
def test_published_files_make_a_world_and_its_task(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, task, arguments = FILES[name]
    write(tmp_path)
    on_disk.accept_any_checksum(monkeypatch)
    words = {"population.dataset.vocabulary": 8} if name in ("StackOverflow", "AgNews") else {}
    overrides = {
        "population.dataset": name,
        "population.dataset.root": str(tmp_path),
        "population.partition": "BalancedDirichlet" if name in POOLED else None,
        "population.drift": None,
        "population.clients": 5,
        "population.participants": 2,
        "task": task,
        **{f"task.{key}": value for key, value in arguments.items()},
    }
    config = load(QUICK, overrides | words)
    (tmp_path / "again.yaml").write_text(yaml.safe_dump(config.plain()))
    assert load(tmp_path / "again.yaml").flat() == config.flat()
    assert list(config.rehearse())  # loaded once, for whoever can share it
    coordinator, population = config.build()
    x, y = population.settle((0,)).store[:2]
    assert coordinator.task(x[:2]).shape == (*y[:2].shape, population.dataset.classes)


def test_a_task_for_texts_is_told_how_many_tokens_there_are(tmp_path: Path) -> None:
    texts = {"population.dataset": "AgNews", "population.dataset.vocabulary": 98, "population.drift": None}
    config = load(QUICK, {"task": "FastText", "task.embedding": 7, **texts})
    assert config.build()[0].task.embedding.weight.shape == (98 + 2, 7)
    (tmp_path / "again.yaml").write_text(yaml.safe_dump(config.plain()))
    assert load(tmp_path / "again.yaml").flat() == config.flat()
    assert "task.tokens" not in config.flat()
    with pytest.raises(ConfigError, match=r"FastText: inputs must be texts .*, got shape .* and tokens 0; use Mlp"):
        load(QUICK, {"task": "FastText"})


def test_a_config_written_down_is_the_same_config(tmp_path: Path) -> None:
    config = load(QUICK, {"algorithm.gamma": None, "algorithm.lr": 0.3, "seeds": [3, 5]})
    (tmp_path / "again.yaml").write_text(yaml.safe_dump(config.plain()))
    again = load(tmp_path / "again.yaml")
    assert again.flat() == config.flat()
    assert again.flat()["algorithm.gamma"] is None  # not Flash's default
    assert again.seeds == [3, 5]


@pytest.mark.parametrize(
    "options",
    [
        ["--population.drift.round", "99"],
        ["--rounds", "10"],
        ["--population.drift", "RecurrentDrift", "--population.drift.round=5", "--population.drift.back=99"],
        ["--population.drift", "StaggeredDrift", "--population.drift.round=5", "--population.drift.until=99"],
        ["--population.drift", "{class_path: ScheduledDrift, init_args: {schedule: {1: [[99, 1]]}}}"],
    ],
)
def test_a_drift_after_the_last_round_is_refused(options: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"must be ≤ rounds \((60|10)\), got"):
        load(QUICK, options=options)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("Rotatoin", "unknown population.drift.init_args.change 'Rotatoin': did you mean 'Rotation'?"),
        (
            {"class_path": "FeatureShft"},
            "unknown population.drift.init_args.change 'FeatureShft': did you mean 'FeatureShift'?",
        ),
        (
            {"class_path": "FeatureShift", "init_args": {"sise": 1}},
            "study.yaml:12: unknown key 'population.drift.init_args.change.init_args.sise' of Feat",
        ),
        (
            {"class_path": "FeatureShift", "init_args": {"size": "big"}},
            "change.init_args.size must be a number, got 'big'",
        ),
    ],
)
def test_a_change_is_looked_at_inside_its_drift(change: str | dict, sentence: str, tmp_path: Path) -> None:
    content = yaml.safe_load(QUICK.read_text())
    content["population"]["drift"]["init_args"]["change"] = change
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        quick_check(tmp_path / "study.yaml", [])


def test_another_drift_does_not_inherit_rounds_of_the_file_s() -> None:
    assert load(QUICK, {"rounds": 10, **scheduled({3: [[5, 1]]})}).drift_rounds() == [5]
    assert load(QUICK, {"rounds": 10, "population.drift": None}).drift_rounds() == []


def test_drifts_and_changes_are_written_down_and_read_again(tmp_path: Path) -> None:
    worlds = [
        scheduled({3: [[5, 1], [9, 2]], 11: [[1, 1]]}) | {"population.drift.change": "Rotation"},
        {"population.drift.change": "FeatureShift", "population.drift.change.size": 0.5},
        {"population.drift.change.pairs": [[0, 3], [1, 2]]},
        {"population.drift": {"class_path": "StaggeredDrift", "init_args": {"round": 5, "until": 9, "p_drift": 0.5}}},
    ]
    for number, overrides in enumerate(worlds):
        config = load(QUICK, overrides)
        (tmp_path / f"{number}.yaml").write_text(yaml.safe_dump(config.plain()))
        again = load(tmp_path / f"{number}.yaml")
        assert again.flat() == config.flat()
        assert again.build()[1].drift == config.build()[1].drift != load(QUICK).build()[1].drift


def test_flat_keys_and_tags() -> None:
    config = load(QUICK)
    flat = config.flat()
    assert flat["algorithm"] == "Flash"
    assert flat["algorithm.tau"] == 1e-3
    assert flat["population.partition.alpha"] == 0.3
    assert flat["algorithm.clip_norm"] is None
    assert config.has_key("algorithm.tau")
    assert not config.with_overrides({"algorithm": "FedAvg"}).has_key("algorithm.tau")
    assert config.tags() == {"algorithm": "Flash", "dataset": "Digits", "drift": "SuddenDrift", "task": "Mlp"}
    assert config.drift_rounds() == [31]


def test_what_is_fixed_holds_for_every_method_that_has_the_key(tmp_path: Path) -> None:
    path = with_presets(tmp_path, {}, {"class_path": "Flash", "init_args": {"lr": 0.3, "server_lr": 0.2, "tau": 0.01}})
    for changes in ({"algorithm": "FedAvg"}, {"algorithm": "flstudy.algorithms.FedAvg"}):
        for config in (load(path, changes), load(path).with_overrides(changes)):
            assert (config.flat()["algorithm.lr"], config.flat()["algorithm.server_lr"]) == (0.3, 0.2)
            assert not config.has_key("algorithm.tau")
            assert type(config.build()[0].algorithm).__name__ == "FedAvg"
    assert load(path, options=["--algorithm", "FedYogi"]).flat()["algorithm.tau"] == 0.01
    assert load(path, {"algorithm": "Flash"}).flat() == load(path).flat()
    assert load(path, {"algorithm": "FedAvg", "algorithm.lr": 0.2}).flat()["algorithm.lr"] == 0.2


def test_what_is_fixed_and_a_method_refuses_needs_a_word_of_its_own(tmp_path: Path) -> None:
    algorithm = {"class_path": "FedAvg", "init_args": {"momentum": 0.9, "lr": 0.3}}
    with pytest.raises(ConfigError, match=r"Scaffold: momentum must be 0, got 0\.9"):
        load(with_presets(tmp_path, {}, algorithm)).with_overrides({"algorithm": "Scaffold"})
    cured = load(with_presets(tmp_path, {"Scaffold": {"momentum": 0.0}}, algorithm))
    assert cured.with_overrides({"algorithm": "Scaffold"}).flat()["algorithm.lr"] == 0.3


def test_the_task_is_built_for_the_data_set() -> None:
    digits, _ = load(QUICK).build()
    assert digits.task.network[1].in_features == 64
    synthetic, _ = load(QUICK, {"population.dataset": "Synthetic", "population.dataset.features": 7}).build()
    assert synthetic.task.network[1].in_features == 7
    user, _ = load(QUICK, {"task": "tests.config.user_tasks.Ridge", "executor": "sequential"}).build()
    assert user.task.linear.out_features == 10


def test_run_calls_back_every_round_and_stops_when_told() -> None:
    config = load(QUICK, {"rounds": 40, "population.participants": 2, "seeds": [0, 1], "evaluate_every": 2})
    rounds, evaluated = [], []

    def on_round(record) -> None:
        rounds.append(record.round)
        if "valid/accuracy" in record.metrics:
            evaluated.append(record.round)
        if record.round == 4:
            raise StopRun

    config.run(on_round)
    assert rounds == [1, 2, 3, 4]
    assert evaluated == [2, 4]


def with_presets(tmp_path: Path, presets: dict, algorithm: object = "FedAvg") -> Path:
    content = yaml.safe_load(QUICK.read_text())
    content["algorithm"] = algorithm
    content["study"]["presets"] = presets
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(content))
    return tmp_path / "study.yaml"


def test_presets_are_an_algorithm_s_own_values(tmp_path: Path) -> None:
    path = with_presets(tmp_path, {"FedProx": {"mu": 0.25, "lr": 0.01}, "FedAvg": {"lr": 0.3}})
    config = load(path)
    assert config.flat()["algorithm.lr"] == 0.3
    prox = config.with_overrides({"algorithm": "FedProx"})
    assert (prox.flat()["algorithm.mu"], prox.flat()["algorithm.lr"]) == (0.25, 0.01)
    assert prox.with_overrides({"algorithm.lr": 0.5}).flat()["algorithm.mu"] == 0.25
    assert prox.with_overrides({"algorithm": "Flash"}).flat()["algorithm.lr"] == load(QUICK).build()[0].algorithm.lr / 2
    assert load(path, options=["--algorithm", "FedProx", "--algorithm.mu", "1"]).flat()["algorithm.mu"] == 1
    written = tmp_path / "again.yaml"
    written.write_text(yaml.safe_dump(prox.plain()))
    assert load(written).flat() == prox.flat()


def test_presets_of_the_command_line_replace_the_file_s(tmp_path: Path) -> None:
    path = with_presets(tmp_path, {"FedProx": {"mu": 0.25}})
    config = load(path, options=["--study.presets={FedProx: {lr: 0.02}}"]).with_overrides({"algorithm": "FedProx"})
    assert config.flat()["algorithm.lr"] == 0.02
    assert config.flat()["algorithm.mu"] != 0.25


def test_a_preset_may_reach_beyond_its_algorithm(tmp_path: Path) -> None:
    path = with_presets(tmp_path, {"FedProx": {"mu": 0.25, "population.epochs": 7}})
    assert load(path).flat()["population.epochs"] != 7
    prox = load(path, options=["--algorithm", "FedProx"])
    assert prox.flat()["population.epochs"] == 7
    assert load(path, options=["--algorithm", "FedProx", "--population.epochs", "3"]).flat()["population.epochs"] == 3
    searched = prox.with_overrides({"population.epochs": 2})
    assert searched.flat()["population.epochs"] == 2
    written = tmp_path / "again.yaml"
    written.write_text(yaml.safe_dump(searched.plain()))
    assert load(written).flat()["population.epochs"] == 2


def test_a_preset_goes_before_what_is_fixed_for_all_and_an_option_before_it(tmp_path: Path) -> None:
    algorithm = {"class_path": "FedProx", "init_args": {"lr": 0.7}}
    path = with_presets(tmp_path, {"FedProx": {"mu": 0.25, "lr": 0.01}}, algorithm)
    assert (load(path).flat()["algorithm.mu"], load(path).flat()["algorithm.lr"]) == (0.25, 0.01)
    assert load(path, options=["--algorithm.lr", "0.5"]).flat()["algorithm.lr"] == 0.5
    assert load(path).with_overrides({"algorithm": "FedAvg"}).flat()["algorithm.lr"] == 0.7


@pytest.mark.parametrize(
    ("presets", "sentence"),
    [
        ({"FedPox": {"mu": 1}}, "study.presets: unknown algorithm 'FedPox': did you mean 'FedProx'?"),
        ({"FedProx": {"lrr": 1}}, "key 'study.presets.FedProx.lrr': did you mean 'study.presets.FedProx.lr'?"),
        ({"FedProx": {"mu": -1}}, "study.presets.FedProx.mu must lie in [0, 1e12], got -1"),
        (
            {"FedProx": {"population.epocs": 2}},
            "key 'study.presets.FedProx.population.epocs': did you mean 'population.ep",
        ),
        ({"FedProx": 1}, "study.presets.FedProx must be keys and values, got 1"),
    ],
)
def test_wrong_presets_fail_at_once(presets: dict, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        quick_check(with_presets(tmp_path, presets), [])


def test_an_oracle_needs_a_drift() -> None:
    sentence = "Oracle: the world must have 2 concepts (one for each model), got 1"
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        load(QUICK, {"algorithm": "Oracle", "population.drift": None})
    assert load(QUICK, {"algorithm": "Oracle"}).build()[0].algorithm.models == 2


def test_who_changes_what_a_text_says_changes_it_for_nobody_else(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text("study: {search: {algorithm.lr: {choice: [0.1]}}}")
    content_of(path)["study"]["search"].clear()
    assert content_of(path)["study"]["search"] == {"algorithm.lr": {"choice": [0.1]}}
