"""What a study's file says is what its trials train: no class or value changes between the YAML and the engine."""

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from flstudy import cli
from flstudy.algorithms import Algorithm
from flstudy.config import Config, ConfigError, load
from flstudy.config.composition import trial_config, whole_study
from flstudy.config.reading import content_of
from flstudy.config.schema import class_names, config_schema
from flstudy.config.shipped import configs
from flstudy.config.values import arguments_of, flat_items
from flstudy.config.written import config_of
from flstudy.registry import named
from flstudy.reporting.report import write_best
from flstudy.study import Space, Status, StudyFolder, Trial, load_study
from flstudy.study.held import SEARCHED, held_fixed
from flstudy.tracking.store import open_store
from flstudy.tracking.sync import sync_study
from tests.tiers import in_tiers

CONFIGS = Path(__file__).parents[2] / "tune_configs"
WORLD = {"dataset": "Digits", "clients": 6, "participants": 3, "steps": 1}
TURNS = {"class_path": "AlternatingGroups", "init_args": {"rounds": 2}}
SMALL = {"uniform": [0.01, 0.1]}
LR = {"algorithm.lr": {"loguniform": [0.01, 1.0]}}


def refusal_of(act: Callable[[], object]) -> str:
    """What a refusal says."""
    with pytest.raises(ConfigError) as refusal:
        act()
    return str(refusal.value)


def study(folder: Path, **changes: Any) -> Path:
    """A small study with keys of the study section, or of the top, changed."""
    top = {key: changes.pop(key) for key in ("task", "algorithm", "population", "controller") if key in changes}
    content = {
        "task": "Logistic",
        "population": WORLD,
        "algorithm": "FedAvg",
        "rounds": 4,
        "seeds": [0],
        "compile": False,
        **top,
        "study": {"trials": 4, "search": LR, **changes},
    }
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def tuned(path: Path, *options: str) -> Config:
    return load(path, options=options, command="tune")


def arm(config: Config, name: str, **proposal: Any) -> dict[str, Any]:
    """The values of an arm's trial, which is built, too."""
    changed = config.with_overrides(
        {"algorithm": name, **{f"algorithm.{key}": value for key, value in proposal.items()}}
    )
    return changed.flat()


# ---- arms --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_variants_of_one_class_are_arms_with_values_of_their_own(tmp_path: Path) -> None:
    choice = [{"class_path": "FedAvgM", "init_args": {"beta": beta}} for beta in (0.5, 0.9)]
    config = tuned(study(tmp_path, search={**LR, "algorithm": {"choice": ["FedAvg", *choice]}}))
    assert list(config.study.arms) == ["FedAvg", "FedAvgM-beta-0.5", "FedAvgM-beta-0.9"]
    assert [arm(config, name).get("algorithm.beta") for name in config.study.arms] == [None, 0.5, 0.9]
    assert Space.of_study(config.study).validate(config) is None


def test_an_arm_has_its_name_its_values_its_ranges_and_its_presets(tmp_path: Path) -> None:
    arms = {
        "Slow": {
            "class_path": "FedYogi",
            "init_args": {"beta1": 0.5},
            "search": {"server_lr": {"uniform": [0.01, 0.1]}},
        },
        "Fast": {"class_path": "FedYogi", "search": {"server_lr": {"uniform": [1.0, 2.0]}}, "presets": [{"lr": 0.2}]},
        "FedAvg": {},
    }
    config = tuned(study(tmp_path, algorithm={"class_path": "FedAvg", "init_args": {"server_lr": 0.7}}, arms=arms))
    space = Space.of_study(config.study)
    space.validate(config)
    assert arm(config, "Slow")["algorithm.beta1"] == 0.5
    assert arm(config, "Fast")["algorithm.beta1"] == 0.9
    assert space.of("Slow")["algorithm.server_lr"].bounds == (0.01, 0.1)
    assert space.of("Fast")["algorithm.server_lr"].bounds == (1.0, 2.0)
    assert "algorithm.server_lr" not in space.of("FedAvg")
    assert arm(config, "FedAvg")["algorithm.server_lr"] == 0.7  # what is fixed for all that do not search it
    first = {point["algorithm"]: point for point in space.defaults(config)}
    assert first["Fast"]["algorithm.lr"] == 0.2
    assert "algorithm.server_lr" not in first["Fast"]  # .7 lies outside its range: it is drawn
    assert config.with_overrides({"algorithm": "Slow"}).tags()["algorithm"] == "Slow"  # of its run in MLflow
    assert config.tags()["algorithm"] == "FedAvg"


@pytest.mark.parametrize(
    ("arms", "message"),
    [
        ({"a b": {"class_path": "FedAvg"}}, "study.arms must have names of letters, digits, _, . and -, got 'a b'"),
        ({"FedYogi": {"class_path": "FedAvg"}}, "study.arms.FedYogi must be a FedYogi, or have another name"),
        ({"A": {"class_path": "FedAvq"}}, "unknown algorithm 'FedAvq': did you mean 'FedAvg'?"),
        ({"A": {"class_path": "FedAvg", "init_args": {"tau": 1}}}, "unknown key 'algorithm.tau' of FedAvg"),
        ({"FedAvg": {"search": {"tau": {"uniform": [0, 1]}}}}, "unknown key 'algorithm.tau' of FedAvg"),
        ({"FedAvg": {"presets": [{"momentum": 0.5}]}}, "must be a key that the arm searches"),
        ({"FedAvg": {"search": {"lr": {"uniform": [-1.0, 1.0]}}}}, "study.arms.FedAvg.search.algorithm.lr"),
    ],
)
def test_an_arm_that_cannot_be_is_refused(tmp_path: Path, arms: dict[str, Any], message: str) -> None:
    assert message in refusal_of(lambda: tuned(study(tmp_path, arms=arms)))


def test_ranges_of_ones_own_need_a_search_of_ones_own(tmp_path: Path) -> None:
    arms = {"FedAvg": {}, "FedYogi": {"search": {"server_lr": {"uniform": [0.01, 0.1]}}}}
    config = tuned(study(tmp_path, arms=arms, allocation="free"))
    with pytest.raises(ConfigError, match=r"study\.allocation must be equal where arms have ranges"):
        Space.of_study(config.study).validate(config)


def test_choices_of_other_classes_may_have_arguments(tmp_path: Path) -> None:
    tasks = [{"class_path": "Mlp", "init_args": {"hidden": hidden}} for hidden in (4, 8)]
    controllers = [None, {"class_path": "DynamicInitialModel", "init_args": {"scale": 2.0}}]
    world = {**WORLD, "availability": {"class_path": "AlternatingGroups", "init_args": {"rounds": 1}}}
    search = {**LR, "task": {"choice": [*tasks, "Logistic"]}, "controller": {"choice": controllers}}
    config = tuned(study(tmp_path, search=search, population={**world, "partition": "Distinct"}))
    space = Space.of_study(config.study)
    assert space.domains["task"].options == ("Mlp-hidden-4", "Mlp-hidden-8", "Logistic")
    values = config.with_overrides({"task": "Mlp-hidden-8", "controller": "DynamicInitialModel"}).flat()
    assert (values["task"], values["task.hidden"], values["controller.scale"]) == ("Mlp", 8, 2.0)
    assert config.with_overrides({"task": "Mlp-hidden-4", "controller": None}).flat()["controller"] is None


STEEP = """
from dataclasses import dataclass
from flstudy.algorithms import FedAvg

@dataclass(frozen=True, kw_only=True)
class Steep(FedAvg):
    "FedAvg with a slope that has no default."
    slope: float
"""


@pytest.mark.parametrize("place", ["drift", "arm", "choice"])
def test_an_argument_without_a_default_may_be_searched(tmp_path: Path, place: str) -> None:
    (tmp_path / f"steep_{place}.py").write_text(STEEP)  # a name of its own in this process
    path = f"./steep_{place}.py:Steep"
    rounds, slopes = {"randint": [2, 4]}, {"uniform": [1.0, 2.0]}
    key, name, value, search = "algorithm.slope", "Steep", 1.5, dict(LR)
    changes: dict[str, Any] = {}
    if place == "drift":
        key, name, value = "population.drift.round", "SuddenDrift", 3
        search |= {"population.drift": {"choice": [None, name]}, key: rounds}
        changes = {"choose_world": True}
    elif place == "arm":
        changes = {"arms": {"FedAvg": {}, "Steep": {"class_path": path, "search": {"slope": slopes}}}}
    else:
        search |= {"algorithm": {"choice": ["FedAvg", path]}, key: slopes}
    config = tuned(study(tmp_path, search=search, **changes))
    space = Space.of_study(config.study)
    space.validate(config)
    root = key.rpartition(".")[0]
    owners = [chosen for chosen, variant in space.candidates(config) if variant.has_key(key)]
    assert [chosen[root] for chosen in owners] == [name]
    assert config.with_overrides({root: name, key: value}).flat()[key] == value  # the drawn value, not a stand-in
    whole = whole_study(content_of(config.path, config.content), imports=True)
    assert dict(flat_items(trial_config(whole, {root: name, key: value})))[key] == value
    assert len(space.grid(config, 2)) == 6  # 2 rates without the argument, 2 times 2 with it


def test_a_value_that_only_the_search_has_is_nobody_s_default(tmp_path: Path) -> None:
    search = {"population.drift.round": {"randint": [2, 4]}}
    path = study(tmp_path, population={**WORLD, "drift": "SuddenDrift"}, search=search, choose_world=True)
    assert "population.drift.round must be given with SuddenDrift" in refusal_of(lambda: load(path, command="run"))


# ---- the world ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "domain"),
    [
        ("population.partition.alpha", {"choice": [0.1, 0.5, 5.0]}),
        ("population.partition", {"choice": ["Iid", {"class_path": "Dirichlet", "init_args": {"alpha": 0.1}}]}),
        ("population.drift.round", {"randint": [2, 4]}),
        ("population.dataset", {"choice": ["Digits", "Mnist"]}),
        ("population.clients", {"choice": [4, 6]}),
        (
            "population.availability",
            {"choice": [None, {"class_path": "AlternatingGroups", "init_args": {"rounds": 2}}]},
        ),
    ],
)
def test_a_search_does_not_choose_its_world_unless_it_is_meant(
    tmp_path: Path, key: str, domain: dict[str, Any]
) -> None:
    drift = {"class_path": "SuddenDrift", "init_args": {"round": 2}}
    world = {**WORLD, "partition": {"class_path": "Dirichlet", "init_args": {"alpha": 0.5}}, "drift": drift}
    path = study(tmp_path, population=world, search={key: domain})
    message = refusal_of(lambda: tuned(path))
    assert f"study.search.{key} must not be searched, since a search would choose the easiest world" in message
    assert "run a study for each world, or set study.choose_world" in message
    assert tuned(path, "--study.choose_world").study.search


def test_worlds_with_arguments_can_be_chosen_where_that_is_meant(tmp_path: Path) -> None:
    drifts = [{"class_path": "SuddenDrift", "init_args": {"round": round}} for round in (2, 3)]
    path = study(tmp_path, search={"population.drift": {"choice": drifts}}, choose_world=True)
    config = tuned(path)
    options = Space.of_study(config.study).domains["population.drift"].options
    assert options == ("SuddenDrift-round-2", "SuddenDrift-round-3")
    assert [config.with_overrides({"population.drift": name}).drift_rounds() for name in options] == [[2], [3]]


def test_a_part_of_the_world_is_its_paper_s_definition(tmp_path: Path) -> None:
    groups = {"class_path": "LabelGroups", "init_args": {"overlap": 0.0, "alpha": 0.3}}
    world = {
        **WORLD,
        "partition": groups,
        "availability": {"class_path": "AlternatingGroups", "init_args": {"rounds": 2}},
    }
    config = load(study(tmp_path, population=world), options=["--population.partition", "PartialOverlap"])
    assert config.flat()["population.partition.overlap"] == pytest.approx(1 / 3)
    assert config.flat()["population.partition.alpha"] is None


# ---- classes -----------------------------------------------------------------------------------------------------

MINE = """
from dataclasses import dataclass

import lightning as L
from torch import nn
from torch.nn import functional as F

from flstudy.algorithms import FedYogi as Theirs
from flstudy.population.datasets.images import Digits as TheirDigits


@dataclass(frozen=True, kw_only=True)
class FedYogi(Theirs):
    '''A variant that has its paper's name.'''


@dataclass(frozen=True, kw_only=True)
class Digits(TheirDigits):
    '''A variant of the data, likewise.'''


class StayNet(L.LightningModule):
    '''A network.'''

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]), batch[1])
"""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> tuple[Path, str, str]:
    """A folder with two files of classes of the same names; the files' names are no other test's."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    first, second = (f"lab_{abs(hash(request.node.nodeid))}_{name}" for name in ("a", "b"))
    for width, name in enumerate((first, second), start=4):
        (tmp_path / f"{name}.py").write_text(MINE.replace("WIDTH", str(width)))
    return tmp_path, first, second


def test_a_class_is_its_path_and_not_its_name(lab: tuple[Path, str, str]) -> None:
    folder, first, second = lab
    path = study(folder, task=f"./{first}.py:StayNet", algorithm="FedYogi")
    for key, value in (("task", "StayNet"), ("algorithm", "FedYogi"), ("population.dataset", "Digits")):
        config = load(path, options=[f"--{key}", f"./{second}.py:{value}"])
        assert config.flat()[key] == f"{second}.{value}"
    config = load(path, options=["--task", f"./{second}.py:StayNet", "--algorithm", f"./{second}.py:FedYogi"])
    parts = config.parts
    assert (type(parts.task).__module__, type(parts.algorithm).__module__) == (second, second)
    assert named(Algorithm)["FedYogi"].__module__.startswith("flstudy.")
    assert named(Algorithm)[f"{second}.FedYogi"] is type(parts.algorithm)


def test_classes_of_one_name_are_two_choices(lab: tuple[Path, str, str]) -> None:
    folder, first, second = lab
    tasks = [f"./{first}.py:StayNet", f"./{second}.py:StayNet"]
    search = {**LR, "algorithm": {"choice": ["FedYogi", f"./{first}.py:FedYogi"]}, "task": {"choice": tasks}}
    config = tuned(study(folder, search=search))
    space = Space.of_study(config.study)
    space.validate(config)
    assert space.domains["algorithm"].options == ("FedYogi", f"{first}.FedYogi")
    assert space.domains["task"].options == (f"{first}.StayNet", f"{second}.StayNet")
    variants = [config.with_overrides({"algorithm": a, "task": t}) for a in ("FedYogi", f"{first}.FedYogi") for t in
            space.domains["task"].options]  # fmt: skip
    kinds = [(type(variant.parts.algorithm).__module__, type(variant.parts.task).__module__) for variant in variants]
    ours = "flstudy.algorithms.fedopt"
    assert [kind[1] for kind in kinds] == [first, second, first, second]
    assert [kind[0] for kind in kinds] == [kinds[0][0], kinds[0][0], first, first]
    assert kinds[0][0].startswith(ours.rpartition(".")[0])


# ---- what is held fixed ------------------------------------------------------------------------------------------


def test_what_is_held_fixed_is_named_and_what_differs_marked(tmp_path: Path) -> None:
    search = {**LR, "algorithm": {"choice": ["FedAvg", "FedProx", "FedYogi"]}}
    algorithm = {"class_path": "FedProx", "init_args": {"momentum": 0.5, "mu": 0.37}}
    config = tuned(study(tmp_path, search=search, algorithm=algorithm, presets={"FedYogi": {"server_lr": 0.03}}))
    held = {setting.key: setting for setting in held_fixed(config.whole_study())}
    assert held["algorithm.weighting"].differs
    assert dict(held["algorithm.weighting"].values) == {
        "FedAvg": "examples",
        "FedProx": "examples",
        "FedYogi": "uniform",
    }
    assert dict(held["algorithm.server_lr"].values) == {"FedAvg": 1.0, "FedProx": 1.0, "FedYogi": 0.03}
    assert dict(held["algorithm.momentum"].values) == dict.fromkeys(config.study.arms, 0.5)
    assert not held["algorithm.momentum"].differs
    assert "algorithm.lr" not in held
    assert set(held) >= {"algorithm.gamma", "algorithm.clip_norm", "population.batch_size", "population.steps"}
    assert config.left_out() == ["algorithm.mu, which the config gives, is no key of FedAvg, FedYogi"]
    arms = {"FedAvg": {"search": {"momentum": {"uniform": [0.0, 0.9]}}}, "FedYogi": {}}
    held = {setting.key: setting for setting in held_fixed(tuned(study(tmp_path, arms=arms)).whole_study())}
    assert dict(held["algorithm.momentum"].values) == {"FedAvg": SEARCHED, "FedYogi": 0.0}


# ---- one composition ---------------------------------------------------------------------------------------------


SHIPPED = [str(path.resolve().relative_to(CONFIGS)) for path in configs()]


@pytest.mark.parametrize("name", in_tiers(SHIPPED, [name for name in SHIPPED if not name.startswith("flash/")]))
def test_a_shipped_study_s_best_file_says_what_its_trial_trained(name: str, tmp_path: Path) -> None:
    path = CONFIGS / name
    config, rng = Config(str(path), path.read_text(), (), {}, "tune"), random.Random(0)
    whole = yaml.safe_load(yaml.safe_dump(config.whole_study()))
    for arm in config.study.arms or [None]:
        proposal = drawn(config, arm, rng)
        best = tmp_path / "best.yaml"
        best.write_text(yaml.safe_dump(trial_config(whole, proposal)))
        again = Config(str(best), best.read_text(), (), {})
        assert again.flat() == config._proposed(proposal).flat()


def drawn(config: Config, name: str | None, rng: random.Random) -> dict[str, Any]:
    """A proposal of a search for an arm."""
    chosen = {} if name is None else {"algorithm": name}
    domains = Space.of_study(config.study).of(name)
    keys = config.keys_of(chosen)
    for key, domain in domains.items():
        if key in keys and key not in chosen:
            chosen[key] = rng.choice(domain.options) if domain.kind == "choice" else domain.draw(rng)
    return chosen


VALUES = {"lr": (0.1, 0.25), "server_lr": (0.5, 0.75), "clip_norm": (1.0, 2.0)}
"""Values of the algorithm that a random file, option, arm or preset says."""


class RandomStudy:
    """A random file and options over the registry, and which of `VALUES` its arms' trials have, told key by key."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.rng = rng
        first, second, third, self.chosen = rng.sample(class_names("algorithm"), 4)
        self.first, self.held = first, self.some(first)
        self.arms: dict[str, Any] = {name: {} for name in (first, second, third)}
        self.arms["Variant"] = {"class_path": second, "init_args": self.some(second)}
        self.presets = {name: self.some(of) for name, of in [(second, second), (third, third), ("Variant", second)]
                        if rng.random() < 0.5}  # fmt: skip
        self.options = {f"algorithm.{key}": value for key, value in self.some(first).items() if rng.random() < 0.5}
        if rng.random() < 0.3:
            self.options["algorithm"] = self.chosen
            self.options = {key: value for key, value in self.options.items() if self.has(self.chosen, key)}
        if rng.random() < 0.3:
            self.options["population.batch_size"] = 10
        search: dict[str, Any] = {"algorithm.server_lr": {"uniform": [0.01, 1.0]}} if rng.random() < 0.3 else {}
        if rng.random() < 0.3:
            mlps = [{"class_path": "Mlp", "init_args": {"hidden": hidden}} for hidden in (4, 8)]
            search["task"] = {"choice": [*mlps, "Logistic"]}
        if rng.random() < 0.3:
            self.arms[third]["search"] = {"lr": {"loguniform": [0.01, 1.0]}}
        self.path = study(
            folder,
            algorithm={"class_path": first, "init_args": self.held},
            arms=self.arms,
            presets=self.presets,
            search=search,
        )

    @staticmethod
    def has(name: str, key: str) -> bool:
        return key.removeprefix("algorithm.") in properties(name) or not key.startswith("algorithm.")

    def some(self, name: str) -> dict[str, float]:
        """Values of keys that the class has."""
        draws = {key: self.rng.choice(values) for key, values in VALUES.items() if self.rng.random() < 0.4}
        return {key: value for key, value in draws.items() if key in properties(name)}

    def words(self) -> list[str]:
        return [word for key, value in self.options.items() for word in (f"--{key}", str(value))]

    def expected(self, name: str, key: str, proposal: dict[str, Any]) -> Any:
        """The first that says it: proposal, arm, option, the arm's preset or its class's, file, the class itself."""
        of = self.arms[name].get("class_path", name)
        held = self.held if self.has(self.options.get("algorithm", self.first), key) else {}
        candidates = [proposal.get(f"algorithm.{key}"), self.arms[name].get("init_args", {}).get(key)]
        candidates += [self.options.get(f"algorithm.{key}"), self.presets.get(name, self.presets.get(of, {})).get(key)]
        return next(
            (value for value in [*candidates, held.get(key), properties(of)[key]["default"]] if value is not None), None
        )


@pytest.mark.slow
def test_law_everybody_tells_the_same_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random file × options × arm × preset × proposal over the registry: the objects that train, ``--print_config``,
    study.yaml, MLflow's parameters and its config.yaml, ``flstudy show`` and best/*.yaml agree in every field."""
    monkeypatch.chdir(tmp_path)
    rng, store, compared = random.Random(7), open_store(f"sqlite:///{tmp_path}/mlflow.db"), 0
    for number in range(8):
        drawn_study = RandomStudy(tmp_path, rng)
        try:
            config = tuned(drawn_study.path, "--study.name", f"law-{number}", *drawn_study.words())
            proposals = {name: drawn(config, name, rng) for name in config.study.arms}
            trained = {name: config.with_overrides(proposal) for name, proposal in proposals.items()}
        except ConfigError:  # of a method with needs of its own
            continue
        folder = StudyFolder.create(config)
        folder.write_config(config)
        folder.write_state(
            "finished", study_id=f"{number:032}", cwd=str(tmp_path), environment={"version.flstudy": "0"}
        )
        ended = {"status": Status.FINISHED, "rounds": config.rounds, "objective": 0.5}
        folder.write_trials(
            Trial(number=at, algorithm=name, overrides=proposal, **ended)
            for at, (name, proposal) in enumerate(proposals.items())
        )
        delivery, results = sync_study(folder, store), load_study(folder)
        best = write_best(results)
        assert printed(capsys, "tune", drawn_study.path, *drawn_study.words(), "--study.name", f"law-{number}") == (
            yaml.safe_load(folder.config.read_text())
        )
        again = tuned(folder.config)
        for trial in results.trials:
            name, trained_config = trial.algorithm, trained[trial.algorithm]
            run = delivery.run_ids[trial.number]
            artifact = Path(store.client.download_artifacts(run, "config.yaml", str(tmp_path)))
            assert cli.main(["show", str(folder.path), str(trial.number), "--json"]) == 0
            shown = json.loads(capsys.readouterr().out)["config"]
            tellings = {
                "study.yaml": again.with_overrides(proposals[name]).flat(),
                "best/*.yaml": load(best[name]).flat(),
                "--print_config": trained_values(printed(capsys, "run", best[name])),
                "show": trained_values(shown),
                "MLflow's config.yaml": trained_values(yaml.safe_load(artifact.read_text())),
            }
            for who, values in tellings.items():
                assert values == trained_config.flat(), (who, name)
            parameters = store.client.get_run(run).data.params
            flat = {key: str(value) for key, value in trained_config.flat().items()}
            assert {key: value for key, value in parameters.items() if key in flat} == flat
            assert {*parameters} - {*flat} <= {"task.shape", "task.classes"}  # which the data set gives
            parts = {key: getattr(trained_config.parts, key) for key in ("task", "population", "algorithm")}
            built = config_of(parts, {}, "built").flat()
            assert built == {
                **trained_config.flat(),
                **{key: built[key] for key in built if key.partition(".")[0] not in parts},
            }
            for key in VALUES:
                if f"algorithm.{key}" in trained_config.flat():
                    assert trained_config.flat()[f"algorithm.{key}"] == drawn_study.expected(name, key, proposals[name])
            compared += 1
    assert compared >= 24


def printed(capsys: pytest.CaptureFixture[str], command: str, path: Path, *options: str) -> dict[str, Any]:
    """What ``--print_config`` prints."""
    capsys.readouterr()
    assert cli.main([command, str(path), *options, "--print_config"]) == 0
    content: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)
    return content


def trained_values(nested: dict[str, Any]) -> dict[str, Any]:
    """Dotted keys of what trains: none of the study, the run, the store and the place of modules."""
    places = ("study", "run", "store", "modules")
    return {key: value for key, value in flat_items(nested) if key.partition(".")[0] not in places}


def properties(name: str) -> dict[str, Any]:
    fields: dict[str, Any] = config_schema()["$defs"][name]["properties"]
    return fields


def test_print_config_is_the_study_that_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = study(
        tmp_path, search={**LR, "algorithm": {"choice": ["FedAvg", "FedYogi"]}}, presets={"FedYogi": {"tau": 0.1}}
    )
    assert cli.main(["tune", str(path), "--print_config"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert json.dumps(printed, sort_keys=True) == json.dumps(tuned(path).whole_study(), sort_keys=True)
    assert arguments_of(printed["study"]["arms"]["FedYogi"])["tau"] == 0.1
    assert cli.main(["run", str(path), "--algorithm", "FedYogi", "--print_config"]) == 0
    single = yaml.safe_load(capsys.readouterr().out)
    assert single["algorithm"] == {key: printed["study"]["arms"]["FedYogi"][key] for key in ("class_path", "init_args")}
    assert whole_study(content_of(path)) == printed


@pytest.mark.parametrize(
    ("name", "key", "options"),
    [
        ("sessions/digits", "controller", [None, "Average", {"class_path": "DynamicInitialModel"}]),
        ("quick", "schedule", [None, "Polynomial"]),
        ("quick", "task", ["Mlp", "Logistic"]),
        ("quick", "measure", [None, "WorstDevices"]),
    ],
)
def test_a_part_is_chosen_among_classes_also_where_no_key_of_theirs_is_searched(name, key, options):
    changes = {"study.search": {key: {"choice": options}}, "study.presets": {}}
    config = load(CONFIGS / f"{name}.yaml", changes, command="tune")
    space = Space.of_study(config.study)
    space.validate(config)
    chosen = [
        getattr(config.with_overrides({key: option}).parts, key) for option in space.domains[key].options if option
    ]
    assert [type(part).__name__ for part in chosen] == [
        option["class_path"] if isinstance(option, dict) else option for option in options if option
    ]
