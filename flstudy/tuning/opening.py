"""Opening, the second stage of a study: the folder with its lock, the store, and the study's run in MLflow."""

import contextlib
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flstudy.study import StudyFolder, Trial
from flstudy.study.best import decisive_metrics
from flstudy.study.consent import remember_begun
from flstudy.study.folder import wanted_name
from flstudy.study.objectives import objectives_of
from flstudy.tracking.content import environment
from flstudy.tracking.runs import StudyRun
from flstudy.tracking.store import Store, open_store
from flstudy.tracking.trust import remember_store
from flstudy.tuning.imported_trials import import_trials
from flstudy.tuning.plan import Plan
from flstudy.tuning.sharing import share

REASONS = 3  # why trials were not imported that are told, the most frequent ones


@dataclass(frozen=True)
class OpenStudy:
    """Open study, whose folder this process holds, and whose trials may start.

    Attributes:
        plan: the stage before.
        folder: the study's.
        past: trials that are in the folder: of a study that goes on, or imported.
        study_id: marks the study's runs in MLflow, and the data that its workers share.
        store: MLflow.
        run: the study's, in MLflow.
        data: the examples where every node reads them.
    """

    plan: Plan
    folder: StudyFolder
    past: list[Trial]
    study_id: str
    store: Store
    run: StudyRun
    data: Any

    @property
    def identity(self) -> dict[str, Any]:
        """Identity that all trials' runs in MLflow share, for `flstudy.tracking.content.trial_identity`."""
        return {
            "study": self.folder.name,
            "study_id": self.study_id,
            "parent": self.run.run_id,
            "tags": self.plan.config.tags(),
            "environment": environment(),
        }

    @property
    def decisive(self) -> list[str]:
        """Metrics by which the study decides."""
        section = self.plan.config.study
        return decisive_metrics(objectives_of(section), section.constraints)


def open_store_in_background(uri: str) -> Callable[[], Store]:
    """Open a store in the background, while Ray starts, and return a function that waits for it: opening takes seconds
    of importing and SQL."""
    aside = ThreadPoolExecutor(1)
    opening = aside.submit(open_store, uri)
    aside.shutdown(wait=False)
    return opening.result


def open_study(
    plan: Plan, store: Callable[[], Store], claims: contextlib.ExitStack, *, import_from: Path | None
) -> OpenStudy:
    """Make or take up the study's folder, and begin its run in MLflow.

    Args:
        plan: the stage before.
        store: gives the opened store.
        claims: hold the folder.
        import_from: the folder of another study, whose trials need not be trained again.
    """
    config, folder, past = plan.config, plan.folder, plan.past
    opened, data = store(), share(plan.examples)
    plan.examples.clear()  # this process needs them no more
    resumed = folder is not None
    if folder is None:
        folder = StudyFolder.create(config)
        claims.enter_context(folder.claim())
        if folder.name != wanted_name(config):
            plan.say(f"study {wanted_name(config)!r} exists already: this one is {folder.name!r}")
        if import_from is not None:
            past, refused = import_trials(StudyFolder(import_from), folder, config)
            plan.say(f"{folder.name}: {len(past)} trials imported from {import_from.name}")
            for reason, count in refused.most_common(REASONS):
                plan.say(f"  {count} not: {reason}")
    study_id = folder.state().get("study_id") or uuid.uuid4().hex
    remember_store(opened.uri)
    folder.write_config(config)
    folder.write_state(
        "running",
        environment=environment(),
        study_id=study_id,
        store=opened.uri,
        modules=plan.modules,
        cwd=str(Path.cwd()),
        trials=plan.trials,
    )
    if not resumed:
        remember_begun(folder)
    run = StudyRun(opened, name=folder.name, study_id=study_id, config=config, resumed=resumed)
    return OpenStudy(plan, folder, past, study_id, opened, run, data)
