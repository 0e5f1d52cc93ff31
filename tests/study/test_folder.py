"""The folder of a study: trials and states come back as they were written."""

import json
import math
import os
import platform
from contextlib import ExitStack
from dataclasses import fields

import pytest

from flstudy.config import ConfigError
from flstudy.study import Status, StudyFolder, Trial
from flstudy.study.results import list_studies, load_study
from flstudy.study.resuming import modules_folder
from flstudy.study.trial import _KINDS


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine").mkdir()
    return StudyFolder(tmp_path / "mine")


def test_trials_come_back_as_they_were(folder):
    trial = Trial(
        number=3,
        algorithm="Flash",
        overrides={"algorithm": "Flash", "algorithm.tau": 1e-3},
        status=Status.DIVERGED,
        rounds=7,
        values=(0.0, 1e9),
        metrics={"valid/accuracy": math.nan, "traffic/bits": 5.0},
    )
    folder.write_trials([Trial(number=1, algorithm="FedAvg"), trial])
    folder.write_trial(trial)
    first, second = folder.read_trials()
    assert (first.number, first.status, math.isnan(first.objective)) == (1, Status.RUNNING, True)
    assert second.overrides == trial.overrides
    assert second.status is Status.DIVERGED
    assert second.values == trial.values
    assert math.isnan(second.metrics["valid/accuracy"])
    assert second.metrics["traffic/bits"] == 5.0


def test_the_last_line_of_a_trial_counts_and_a_line_that_a_kill_cut_off_does_not(folder):
    folder.write_trial(Trial(number=0, algorithm="Flash", rounds=1))
    folder.write_trial(Trial(number=0, algorithm="Flash", rounds=2))
    with folder.trials.open("a") as file:
        file.write('{"number": 1, "algo')
    (trial,) = folder.read_trials()
    assert trial.rounds == 2


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[]", "got list"),
        ('{"algorithm": "Flash"}', "it has no number and algorithm"),
        ('{"number": 0, "algorithm": "A", "status": "odd"}', "'odd' is not a valid Status"),
        ('{"number": true, "algorithm": "A"}', "number cannot be True"),
        ('{"number": -1, "algorithm": "A"}', "number cannot be -1"),
        ('{"number": 0, "algorithm": "A", "metrics": {"loss": "low"}}', "'low' is no number"),
        ('{"number": 0, "algorithm": "A", "values": 3}', "values cannot be 3"),
        ('{"number": 0, "algorithm": "A", "stage": "other"}', "stage cannot be 'other'"),
        ('{"number": 0, "algorithm": "A", "lineage": [1]}', "lineage cannot be [1]"),
        ('{"number": 0, "algorithm": "A", "crc32": 7}', "its checksum is another"),
        ("\xff", "decode"),
        ("[" * 100_000, "it must nest values at most 50 deep"),
    ],
)
def test_a_line_that_is_no_trial_is_named_and_left_out(folder, line, reason):
    valid_trial, damage = Trial(number=7, algorithm="Flash", objective=0.25), []
    folder.write_trial(valid_trial)
    with folder.trials.open("a", encoding="latin-1") as file:
        file.write(line + "\n")
    folder.write_trial(Trial(number=8, algorithm="FedAvg"))
    assert [trial.number for trial in folder.read_trials(damage)] == [7, 8]
    assert folder.read_trials()[0].objective == 0.25
    (sentence,) = damage
    assert sentence.startswith(f"{folder.trials}, line 2, is left out: it is no trial (")
    assert reason in sentence


def test_a_flipped_digit_is_found_and_an_unknown_field_is_not_minded(folder):
    folder.write_trial(Trial(number=0, algorithm="Flash", objective=0.25))
    line = folder.trials.read_text()
    folder.trials.write_text(line.replace("0.25", "0.75"))
    assert folder.read_trials() == []
    folder.trials.write_text('{"number": 0, "algorithm": "A", "mood": "good", "objective": 0.5}\n')
    assert folder.read_trials()[0].objective == 0.5


def test_every_field_of_a_trial_is_checked():
    assert set(_KINDS) == {field.name for field in fields(Trial)}


def test_a_folder_of_another_format_is_refused_by_name(folder):
    folder.state_file.write_text(json.dumps({"study_id": "1", "state": "finished"}))
    with pytest.raises(ConfigError, match="study mine has format 1, and this flstudy reads 2"):
        folder.read_trials()


def test_a_state_knows_its_process(folder):
    assert folder.state() == {}
    with folder.claim():
        folder.write_state("running", study_id="1")
        state = folder.state()
        assert (state["state"], state["pid"], state["host"]) == ("running", os.getpid(), platform.node())
        assert folder.spent_s() > 0
    assert folder.state()["state"] == "killed"
    with ExitStack() as claims:
        assert StudyFolder.resume(folder.path, claims).state()["study_id"] == "1"


def test_studies_are_listed_and_a_damaged_one_costs_only_itself(tmp_path, folder):
    folder.config.write_text("rounds: 5\n")
    folder.write_trials([Trial(number=0, algorithm="Flash", status=Status.FINISHED, rounds=5, objective=0.5)])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "study.yaml").write_text("rounds: many\n")
    entries = {entry["study"]: entry for entry in list_studies(tmp_path)}
    assert entries["mine"]["best"] == {"trial": 0, "algorithm": "Flash", "value": 0.5}
    assert entries["other"]["state"] == "damaged"
    with pytest.raises(ValueError, match="did you mean 'mine'"):
        load_study(tmp_path / "mien")


def test_own_modules_of_a_study_from_another_machine_lie_in_the_current_folder(tmp_path, monkeypatch):
    """A study by URI named the first driver's home, and its nodes could import nothing of it."""
    folder = StudyFolder(tmp_path)
    monkeypatch.chdir(tmp_path)
    folder.write_state("running", modules="/home/of/another/machine")
    assert modules_folder(folder) == str(tmp_path)
    (tmp_path / "lab").mkdir()
    folder.write_state("running", modules=str(tmp_path / "lab"))
    assert modules_folder(folder) == str(tmp_path / "lab")
