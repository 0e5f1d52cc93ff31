"""Six awkward studies: whoever names a best trial names the same one."""

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from flstudy.config import Confirm
from flstudy.federation import Record
from flstudy.reporting import write_report
from flstudy.study import StudyFolder
from flstudy.study.records import RecordWriter
from flstudy.tracking.store import open_store
from flstudy.tuning.conclusion import StudyResult
from flstudy.tuning.progress import StudyProgress
from flstudy.tuning.trial_table import TrialTable
from tests.tiers import in_tiers
from tests.tuning.stand_in import StandIn, proposal, report, study

ROUNDS, SEEDS = 6, [0, 44, 56]
BOUND = {"constraints": {"traffic/up_bytes": {"max": 10.0}}}
CONFIRMED = {"confirm": Confirm(top=2, seeds=3)}
# (status, rounds, objective, bytes) of trials; (confirms, objective) of confirmations; settings; the best trial
STUDIES = {
    "pruned ahead": ([("finished", 6, 0.8, 1), ("pruned", 2, 0.9, 1)], [], {}, 0),
    "diverged": ([("diverged", 3, 0.0, 1), ("finished", 6, 0.2, 1)], [], {}, 1),
    "infeasible": ([("finished", 6, 0.9, 11), ("finished", 6, 0.7, 9)], [], BOUND, 1),
    "overturned": ([("finished", 6, 0.9, 1), ("finished", 6, 0.8, 1)], [(0, 0.5), (1, 0.6)], CONFIRMED, 1),
    "tie": ([("finished", 6, 0.5, 1), ("finished", 6, 0.8, 1), ("finished", 6, 0.8, 1)], [], {}, 1),
    "no whole trial": ([("pruned", 2, 0.9, 1), ("failed", 1, 0.0, 1)], [], {}, None),
}


class WithStudy(StandIn):
    """A stand-in whose file says what is searched for."""

    def plain(self):
        constraints = {name: dict(bounds) for name, bounds in self.study.constraints.items()}
        objective = {"metric": "valid/accuracy", "mode": "max"}
        return {**super().plain(), "study": {"objective": objective, "constraints": constraints}}


def keep(folder: StudyFolder, number: int, rounds: int, value: float) -> None:
    """What a trial leaves on disk."""
    with RecordWriter(folder.records(number), SEEDS) as writer:
        for r in range(1, rounds + 1):
            writer.append(Record(r, {"valid/accuracy": [value] * 3, "test/accuracy": [value] * 3}))
    folder.model(number).write_bytes(b"weights")


@pytest.mark.slow
@pytest.mark.parametrize("name", in_tiers(STUDIES, ["tie", "overturned"]))
def test_all_name_the_same_best_trial(tmp_path, name):
    searched, confirmed, settings, expected = STUDIES[name]
    config = WithStudy(study=study(name="small", folder=str(tmp_path), **settings), rounds=ROUNDS, seeds=SEEDS)
    folder = StudyFolder.create(config)
    folder.write_config(config)
    folder.write_state("running", study_id="5" * 32, environment={})
    progress = StudyProgress(Console(file=io.StringIO(), width=120), name="small", config=config)
    table = TrialTable(config, folder, progress)
    tried = [{"algorithm": "FedAvg", "algorithm.lr": 0.1 + n} for n in range(len(searched))]
    ends = [(proposal(n, overrides=tried[n]), end) for n, end in enumerate(searched)]
    for place, (confirms, value) in enumerate(confirmed, start=len(searched)):
        again = proposal(place, stage="confirm", confirms=confirms, overrides=tried[confirms])
        ends.append((again, ("finished", ROUNDS, value, 1)))
    for proposed, (status, rounds, value, up_bytes) in ends:
        table.ensure_started(proposed)
        if proposed["stage"] == "search":
            keep(folder, proposed["number"], rounds, value)
        result = report(status, value, rounds, traffic__up_bytes=up_bytes, test__accuracy=value)
        table.report(proposed, result)
        table.end(proposed, result)
    table.close(complete=True)
    folder.write_state("finished")

    store = open_store(f"sqlite:///{tmp_path}/mlflow.db")
    assert table.deliver(store)
    run = store.find({"flstudy.study_id": "5" * 32, "flstudy.kind": "study"})
    written = write_report(folder.path)
    result = StudyResult(folder, table.trials, table.best, run=type("Run", (), {"run_id": run.info.run_id}))
    best_by_source = {
        "live table": [trial.number for trial in progress.best.values()],
        "--json": [best["number"] for best in json.loads(json.dumps(result.to_json()))["best"].values()],
        "MLflow": [int(value) for tag, value in run.data.tags.items() if tag == "best.trial"],
        "report": ranked(written.summary_path.read_text()),
        "kept model": [n for n in range(len(ends)) if folder.model(n).is_file()],
        "best/*.yaml": [int(heading(path).removesuffix(".").split()[-1]) for path in written.best_paths.values()],
    }
    assert best_by_source == dict.fromkeys(best_by_source, [] if expected is None else [expected])


def heading(path: Path) -> str:
    """The first line of a file."""
    return path.read_text().splitlines()[0]


def ranked(summary: str) -> list[int]:
    """Trials in the report's first table, a row for each algorithm."""
    rows = [line.strip("| ").split(" | ") for line in summary.splitlines() if re.match(r"\| \d+ \| Fed", line)]
    return [int(row[2].split()[0]) for row in rows]
