"""A study's folder comes back as it was written; what is missing or broken is named in one sentence."""

import math
import re

import pytest

from flstudy.study import load_study


def test_a_study_comes_back(drifting):
    study = load_study(drifting)
    assert (study.name, study.rounds, study.seeds) == ("quick", 10, [0, 44])
    assert (study.objective.metric, study.objective.higher) == ("valid/accuracy", True)
    assert [(event.round, event.label) for event in study.events] == [(5, "sudden drift")]
    assert dict(study.counts()) == {"finished": 3, "pruned": 1, "diverged": 1, "failed": 1}
    flash = study.trials[2]
    assert (flash.number, flash.algorithm, flash.overrides["algorithm.tau"]) == (2, "Flash", 1e-05)
    assert math.isnan(study.trials[4].objective)
    rounds, accuracy = study.curve(flash, "test/accuracy")
    assert rounds.tolist() == list(range(1, 11))
    assert accuracy[:, 4].tolist() == [0.5, 0.6]


def test_events_and_trials_may_not_be_there_yet(tmp_path, write_study):
    folder = write_study(tmp_path / "young", [])
    (folder / "trials.jsonl").unlink()
    study = load_study(folder)
    assert study.events == ()
    assert study.trials == ()


def test_a_missing_study_names_the_near_one_and_those_that_exist(drifting, write_study, trial):
    write_study(drifting.parent / "slow", [trial("0")])
    with pytest.raises(
        ValueError, match=r"^no study 'quik' in .*studies: did you mean 'quick'\? it holds quick, slow$"
    ):
        load_study(drifting.parent / "quik")
    with pytest.raises(ValueError, match=r"^no study 'zzz' in .*: it holds quick, slow$"):
        load_study(drifting.parent / "zzz")
    with pytest.raises(ValueError, match=r"which holds no study yet: start one with 'flstudy tune CONFIG'$"):
        load_study(drifting / "nothing" / "here")


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("study.yaml", "a: [", r"study.yaml is damaged \(it is not a YAML file that can be read: "),
        pytest.param("study.yaml", "[" * 100_000, r"study.yaml is damaged \(", marks=pytest.mark.slow),
        ("study.yaml", "rounds: many", "study.yaml must have a whole number of rounds, got 'many'"),
        ("study.yaml", "rounds: 5\nstudy: [1]", "study.yaml is damaged: it is no study's config"),
        ("study.yaml", "rounds: 5\nseeds: [a]", "study.yaml is damaged: it is no study's config"),
        ("study.yaml", "rounds: 5\nstudy: {objective: {metrik: a}}", "study.yaml is damaged: it is no study's config"),
    ],
)
def test_a_broken_config_is_named(drifting, file, text, message):
    (drifting / file).write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        load_study(drifting)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("trials.jsonl", "[{\n", r"line 1, is left out: it is no trial \(Expecting property name"),
        ("trials.jsonl", "{}\n", r"line 1, is left out: it is no trial \(it has no number and algorithm"),
        (
            "events.json",
            '[{"label": "drift"}]',
            r"events.json is damaged \('round'\): drifts and sessions are left out",
        ),
        ("events.json", '[{"label": "drift", "round": Infinity}]', "events.json is damaged .*: drifts and sessions"),
        ("events.json", "[", "events.json is damaged .*: drifts and sessions are left out"),
        ("state.json", "[]", r"state.json is damaged \(it holds a list\)"),
    ],
)
def test_what_can_be_done_without_is_left_out_and_named(drifting, file, text, message):
    (drifting / file).write_text(text)
    (sentence,) = load_study(drifting).damage
    assert re.search(message, sentence)
    assert "\n" not in sentence
