"""A damaged file costs only what it held: every command goes on with the rest, or refuses in a sentence."""

import json
import logging
import re
import shutil

import pytest
import torch
import yaml

from flstudy import cli
from flstudy.config import ConfigError
from flstudy.config.config import load
from flstudy.study import Status, StudyFolder, Trial
from flstudy.tuning.files import TrialFiles
from flstudy.tuning.trial import run_trial
from tests.tiers import in_tiers

CONFIG = {
    "task": "Logistic",
    "population": {
        "dataset": "Digits", "clients": 6, "participants": 2, "batch_size": 4, "steps": 2,
        "drift": {"class_path": "SuddenDrift", "init_args": {"round": 4}},
    },
    "algorithm": "Scaffold",
    "rounds": 8,
    "seeds": [0, 1],
    "compile": False,
    "study": {
        "name": "small", "trials": 3, "search": {"algorithm.lr": {"loguniform": [1e-3, 1]}}, "snapshot_s": 0.0,
    },
}  # fmt: skip


class Stopped(Exception):
    """The worker of a trial is gone."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A study that was interrupted: trials 0 and 1 are over, 2 has a snapshot."""
    home = tmp_path_factory.mktemp("home")
    store = {"store": f"sqlite:///{home}/mlflow.db"}
    study = {"study": {**CONFIG["study"], "folder": str(home / "studies")}}
    (home / "small.yaml").write_text(yaml.safe_dump({**CONFIG, **store, **study}))
    config = load(home / "small.yaml", command="tune")
    folder = StudyFolder.create(config)
    folder.write_config(config)
    folder.write_events(config.events())
    folder.write_state("interrupted", study_id="1" * 32, store=f"sqlite:///{home}/mlflow.db")
    folder.journal.write_text("{}\n")
    for number in range(3):
        overrides = {"algorithm.lr": 0.1 / (1 + number)}
        trial = Trial(number=number, algorithm="Scaffold", overrides=overrides, started=1e9)
        folder.write_trial(trial)

        def report(heard, save, number=number):
            if number == 2 and heard.rounds == 5:
                raise SystemExit  # as Ray does

        with pytest.raises(SystemExit) if number == 2 else open("/dev/null"):
            run_trial(config, trial, report=report, files=TrialFiles(folder.records(number), folder.snapshot(number)))
        if trial.status is Status.FINISHED:
            trial.ended = 1e9 + 60
            folder.snapshot(number).unlink()
        else:
            trial.status = Status.INTERRUPTED
        folder.write_trial(trial)
    assert folder.snapshot(2).is_file()
    return folder.path


@pytest.fixture
def folder(whole, request):
    """A copy beside it, with an id of its own, so that MLflow knows nothing of it."""
    path = whole.with_name(request.node.callspec.params["damage"].replace(" ", "-"))
    shutil.copytree(whole, path)
    copy = StudyFolder(path)
    copy.state_file.write_text(json.dumps(copy.state() | {"study_id": path.name}))
    yield copy
    shutil.rmtree(path)


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path, at=0.5):
    content = bytearray(path.read_bytes())
    content[int(len(content) * at)] ^= 0x10
    path.write_bytes(content)


def part_of(folder, trial):
    """The one part of a trial's records."""
    (part,) = folder.records(trial).glob("*.parquet")
    return part


def flip_values(folder):
    """A bit among the values of trial 1: the last column, before the index."""
    flip(part_of(folder, 1), 0.5)


def change_state(**changed):
    return lambda folder: folder.state_file.write_text(json.dumps(folder.state() | changed))


def cut_trials(folder):
    """In the line of trial 1's end."""
    lines = folder.trials.read_bytes().splitlines(keepends=True)
    folder.trials.write_bytes(b"".join(lines[:3]) + lines[3][:100])


def without_pid(folder):
    state = folder.state()
    del state["pid"]
    folder.state_file.write_text(json.dumps(state))


def change_line(old, new, place):
    """Replace a text in one line of trials.jsonl; its checksum stays."""

    def change(folder):
        lines = folder.trials.read_text().splitlines(keepends=True)
        assert old in lines[place]
        lines[place] = lines[place].replace(old, new)
        folder.trials.write_text("".join(lines))

    return change


def bomb(folder):
    class Bomb:
        def __reduce__(self):
            return (open, (str(folder.path / "exploded"), "w"))

    torch.save({"epoch": 1, "loops": {}, "state_dict": Bomb()}, folder.snapshot(2))


NOTHING = ""
LOST = r"state\.json is damaged \("
LINE = r"trials\.jsonl, line {}, is left out: it is no trial \({}"
CURVE = r"trial 1 keeps its result but has no curve: \S+parquet is damaged \("
ANEW = r"trial 2 starts anew: \S+2\.ckpt is damaged \("
CONFIG_LOST = r"study\.yaml is damaged \(|study\.yaml"
# damage: (what does it, what report, studies, show and sync say, what a resume says)
DAMAGES = {
    "state cut": (
        lambda folder: cut(folder.state_file),
        LOST,
        r"cannot be resumed: \S*state",
    ),
    "state a list": (lambda folder: folder.state_file.write_text("[]"), LOST, "cannot be resumed: .*holds a list"),
    "state of no kind": (change_state(state="odd"), LOST, "cannot be resumed: .*state is 'odd'"),
    "state wild times": (change_state(started=1e300), LOST, "cannot be resumed: .*started is 1e[+]300"),
    "state no pid": (without_pid, NOTHING, NOTHING),
    "state wild pid": (change_state(pid="abc", state="running"), NOTHING, NOTHING),
    "state huge pid": (change_state(pid=10**30, state="running"), NOTHING, NOTHING),
    "trials cut": (cut_trials, NOTHING, NOTHING),
    "trials flipped": (change_line('"rounds": 8', '"rounds": 9', 3), *2 * [LINE.format(4, "its checksum")]),
    "trials wrong type": (change_line("{", '{"rounds": "x", ', 0), *2 * [LINE.format(1, "its checksum")]),
    "events cut": (lambda folder: cut(folder.events), r"events\.json is damaged \(.*: drifts and sessions", NOTHING),
    "records cut": (lambda folder: cut(part_of(folder, 1)), CURVE, CURVE),
    "records flipped": (flip_values, CURVE, CURVE),
    "snapshot cut": (lambda folder: cut(folder.snapshot(2)), NOTHING, ANEW),
    "snapshot flipped": (lambda folder: flip(folder.snapshot(2), 0.6), NOTHING, ANEW),
    "snapshot bomb": (bomb, NOTHING, ANEW),
    "journal cut": (lambda folder: folder.journal.write_bytes(b"\xff{"), NOTHING, NOTHING),
    "config cut": (lambda folder: folder.config.write_text("rounds: [1"), CONFIG_LOST, "study.yaml"),
    "config gone": (lambda folder: folder.config.unlink(), r"study\.yaml is missing|there is no study", "is missing"),
}
DRAWN = ("trials", "events", "records")  # what the report's pictures show; with other damage they are the whole study's
ONLY_TRIAL_1 = ("records cut", "records flipped")  # `studies` reads no records


def run_command(capsys, caplog, *arguments):
    """A command's exit status and all that it says, in lines."""
    caplog.clear()
    status = cli.main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    logged = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "Traceback" not in printed.out + printed.err
    for line in [*logged, *printed.err.splitlines()]:
        assert len(re.sub(r"/\S+/", "", line)) <= 200, line
    assert len(printed.err.splitlines()) <= 2
    return status, " ".join([*logged, printed.err, printed.out])


@pytest.mark.slow
@pytest.mark.parametrize("damage", in_tiers(DAMAGES, ["state cut", "trials flipped", "records cut", "snapshot bomb"]))
def test_every_command_goes_on_or_refuses_in_a_sentence(folder, damage, capsys, caplog, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    do, sentence, on_resume = DAMAGES[damage]
    do(folder)
    lost = damage in ("config cut", "config gone")
    if not damage.startswith(DRAWN):
        monkeypatch.setattr("flstudy.reporting.report.to_png", lambda figure, path: path)
        monkeypatch.setattr("flstudy.reporting.section.to_svg", lambda figure: "<svg/>")

    status, text = run_command(capsys, caplog, "studies", folder.path.parent)
    assert status == 0
    assert re.search(r"small .*interrupted", text)
    assert damage in ONLY_TRIAL_1 or re.search(sentence, text), text
    listed = {
        entry["study"]: entry
        for entry in json.loads(run_command(capsys, caplog, "studies", folder.path.parent, "--json")[1])
    }
    assert listed["small"]["damage"] == []
    assert (listed[folder.name]["state"] == "damaged") == (lost or sentence == LOST)
    assert lost or listed[folder.name]["best"]["trial"] == (0 if damage in ("trials cut", "trials flipped") else 1)

    for command in (("report", folder.path), ("show", folder.path, "1")):
        if damage == "trials cut" and command[0] == "show":
            continue  # of the six lines three are left: trial 1 is not known to be over
        status, text = run_command(capsys, caplog, *command)
        assert status == (2 if lost else 0), text
        assert re.search(sentence, " ".join(text.split())), text
    if not lost:
        shown = json.loads(
            run_command(capsys, caplog, "show", folder.path, "0", "--json")[1].partition("{")[2].join(["{", ""])
        )
        assert (shown["status"], len(shown["curve"]["rounds"])) == ("finished", 8)

    def stop(resources):
        raise ConfigError("enough was read")

    monkeypatch.setattr("flstudy.tuning.plan.check_resources", stop)
    status, text = run_command(capsys, caplog, "tune", "--resume", folder.path)
    assert status == 2
    refused = lost or sentence == LOST
    assert ("enough was read" in text) == (not refused), text
    assert re.search(on_resume, " ".join(text.split())), text
    assert not (folder.path / "exploded").exists()
    assert refused or folder.snapshot(2).exists() == (on_resume != ANEW)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["snapshot flipped"])
def test_a_trial_that_starts_anew_ends_as_if_nobody_had_disturbed_it(folder, damage, caplog):
    DAMAGES[damage][0](folder)
    config, overrides = load(folder.config, command="tune"), folder.read_trials()[2].overrides
    anew, alone = (Trial(number=2, algorithm="Scaffold", overrides=overrides) for _ in range(2))
    run_trial(config, anew, report=lambda *_: None, files=TrialFiles(folder.records(2), folder.snapshot(2)))
    run_trial(config, alone, report=lambda *_: None)
    assert (anew.status, anew.objective) == (Status.FINISHED, alone.objective)
    assert re.search(ANEW, caplog.text)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["records cut"])
def test_what_is_left_is_delivered_and_what_is_lost_is_named(folder, damage, capsys, caplog, monkeypatch):
    monkeypatch.setattr("flstudy.tracking.trust.remember_store", lambda uri: None)
    DAMAGES[damage][0](folder)
    status, text = run_command(capsys, caplog, "sync", folder.path, "--store", folder.state()["store"])
    assert status == 0, text
    assert re.search(CURVE, text)
    assert "4 runs" in text


@pytest.mark.slow
def test_a_run_goes_on_from_an_earlier_checkpoint_or_says_that_there_is_none(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    plain = {name: value for name, value in CONFIG.items() if name != "study"}
    run = {"folder": str(tmp_path), "name": "one", "track": False, "checkpoint_every": 4}
    (tmp_path / "one.yaml").write_text(yaml.safe_dump({**plain, "run": run}))
    assert cli.main(["run", str(tmp_path / "one.yaml")]) == 0
    flip(tmp_path / "one" / "checkpoints" / "last.ckpt", 0.6)
    assert cli.main(["run", str(tmp_path / "one.yaml"), "--run.resume", "true", "--rounds", "10"]) == 0
    assert re.search(r"last\.ckpt is damaged \(.*\): going on from round-", capsys.readouterr().out)
    for checkpoint in (tmp_path / "one" / "checkpoints").iterdir():
        cut(checkpoint)
    assert cli.main(["run", str(tmp_path / "one.yaml"), "--run.resume", "true"]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "leave run.resume out to start anew" in message
