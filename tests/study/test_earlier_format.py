"""A study that an earlier version began goes on with that version's own rule: another class than the config's starts
from its own defaults, and the file goes before a preset of its own algorithm."""

import json
from pathlib import Path

import pytest
import yaml

from flstudy.config import ConfigError
from flstudy.config.composition import EARLIER, whole_study
from flstudy.config.values import flat_items
from flstudy.study import StudyFolder, load_study
from flstudy.study.folder import EARLIER_FORMAT, FORMAT
from flstudy.study.resuming import check_changes, load_study_config

OWN = {"lr": 0.3, "mu": 0.37, "server_lr": 1.0}
CONTENT = {
    "task": "Logistic",
    "population": {"dataset": "Digits", "clients": 6, "participants": 3},
    "algorithm": {"class_path": "FedProx", "init_args": OWN},
    "rounds": 3,
    "seeds": [0],
    "study": {
        "trials": 6,
        "search": {
            "algorithm": {"choice": ["FedAvg", "FedProx", "FedYogi"]},
            "algorithm.lr": {"loguniform": [0.01, 1.0]},
            "population.partition": {"choice": ["Iid", "Dirichlet"]},
        },
        "presets": {"FedYogi": {"server_lr": 0.03}, "FedProx": {"mu": 0.9, "momentum": 0.5}},
    },
}


@pytest.fixture
def earlier(tmp_path: Path) -> StudyFolder:
    """What an earlier version left behind."""
    folder = StudyFolder(tmp_path / "earlier")
    folder.path.mkdir()
    folder.config.write_text(yaml.safe_dump(CONTENT))
    folder.state_file.write_text(json.dumps({"format": EARLIER_FORMAT, "state": "interrupted", "study_id": "1" * 32}))
    trial = {"number": 0, "algorithm": "FedAvg", "status": "finished", "rounds": 3}
    overrides = {"algorithm": "flstudy.algorithms.FedAvg", "algorithm.lr": 0.2, "population.partition": "Iid"}
    folder.trials.write_text(json.dumps({**trial, "overrides": overrides}) + "\n")
    return folder


def test_its_methods_keep_their_values(earlier: StudyFolder) -> None:
    config = load_study_config(earlier)
    methods = {name: config.with_overrides({"algorithm": name}).flat() for name in ("FedAvg", "FedProx", "FedYogi")}
    assert [values["algorithm.lr"] for values in methods.values()] == [0.05, 0.3, 0.05]
    assert methods["FedYogi"]["algorithm.server_lr"] == 0.03
    assert (methods["FedProx"]["algorithm.mu"], methods["FedProx"]["algorithm.momentum"]) == (0.37, 0.5)
    (trial,) = load_study(earlier).trials
    assert trial.overrides["algorithm"] == "FedAvg"  # the name of its arm
    best = load_study(earlier).trial_config(trial)
    assert best["algorithm"]["init_args"]["lr"] == 0.2
    assert dict(flat_items(best))["population.partition"] == "Iid"


def test_what_it_becomes_is_a_study_of_today(earlier: StudyFolder) -> None:
    whole = whole_study(CONTENT, rule=EARLIER)
    assert whole == whole_study(yaml.safe_load(yaml.safe_dump(whole)))
    earlier.write_config(load_study_config(earlier))
    earlier.write_state("interrupted")
    assert earlier.state()["format"] == FORMAT
    again = load_study_config(earlier)
    assert again.with_overrides({"algorithm": "FedAvg"}).flat()["algorithm.lr"] == 0.05


def test_arms_are_added_with_equal_shares(earlier: StudyFolder) -> None:
    arm = {"class_path": "FedAvgM"}
    assert check_changes(earlier, {"study.arms.M": arm}, "--resume") == {"study.trials": 8, "study.arms.M": arm}
    wanted = {"study.trials": 12, "study.arms.M": arm}
    assert check_changes(earlier, wanted, "--resume") == wanted
    config = load_study_config(earlier, check_changes(earlier, {"study.arms.M": arm}, "--resume"))
    assert list(config.study.arms) == ["FedAvg", "FedProx", "FedYogi", "M"]
    assert config.study.search["algorithm"] == {"choice": ["FedAvg", "FedProx", "FedYogi", "M"]}
    for changes, message in (
        ({"study.arms.FedAvg": arm}, "study.arms.FedAvg must be a new arm, and earlier has one"),
        (
            {"study.arms.M": arm, "study.trials": 7},
            "study.trials must be 8 or more, so that 4 arms get as many as 3 had",
        ),
        ({"rounds": 5}, f"--rounds 5 --import-from {earlier.path}"),
    ):
        with pytest.raises(ConfigError) as refusal:
            check_changes(earlier, changes, "--resume")
        assert message in str(refusal.value)
