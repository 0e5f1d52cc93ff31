"""A study as an object, for scripts and notebooks: what ``flstudy tune``, ``report``, ``show`` and ``export`` do, by
the same functions, with tables of pandas and Optuna in place of a terminal's."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from flstudy.config import ConfigError, load
from flstudy.config.config import Config
from flstudy.config.values import dotted
from flstudy.reporting import write_report
from flstudy.reporting.listing import studies_cells
from flstudy.reporting.notebook import html_of
from flstudy.reporting.ranking import rank
from flstudy.reporting.report import terminal
from flstudy.reporting.sections.ranking import result_cells
from flstudy.study import BestTrial, StudyFolder, StudyResults, Trial, load_study
from flstudy.study.records import seeds_of
from flstudy.study.results import study_entry
from flstudy.study.resuming import check_changes, find_modules

if TYPE_CHECKING:
    import lightning as L
    import optuna
    import pandas as pd


class Study:
    """A hyper-parameter study: one to be run, one that runs elsewhere, or one that is over.

    Args:
        task: a task, or its class's name.
        population: its devices and their data; of a `Dataset`, since workers load it themselves.
        algorithm: the federated optimizer, or its class's name.
        search: config key to distribution, as ``study.search`` in a config.
        name: of the study and its folder.
        settings: further keys of a config, nested or dotted: ``rounds=60``, ``study={"trials": 8}``,
            ``**{"study.concurrent": 1}``.

    Raises:
        ConfigError: one sentence, before anything is trained.
    """

    def __init__(
        self,
        task: Any,
        population: Any,
        algorithm: Any,
        search: Mapping[str, Any],
        *,
        name: str = "study",
        **settings: Any,
    ) -> None:
        from flstudy.config.written import config_of

        parts = {"task": task, "population": population, "algorithm": algorithm}
        self._config: Config | None = config_of(parts, {**settings, "study.search": search}, name)
        self._folder: StudyFolder | None = None

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str], **overrides: Any) -> Self:
        """The study of a config file; ``overrides`` are its keys, dotted as on the command line, or nested.

        Raises:
            ConfigError: one sentence naming key, value, domain and next step.
        """
        study = cls.__new__(cls)
        study._config, study._folder = load(Path(path), dotted(overrides), command="tune"), None
        return study

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Self:
        """A study that has begun, by its folder or by its name under studies/; ValueError where there is none."""
        study = cls.__new__(cls)
        study._config, study._folder = None, StudyFolder.named(folder)
        load_study(study._folder)
        return study

    @property
    def config(self) -> Config:
        """The study's config, checked."""
        if self._config is None:
            find_modules(self.folder)
            self._config = load(self.folder / "study.yaml", command="tune")
        return self._config

    # ---- running -----------------------------------------------------------------------------------------------------

    def run(self, *, quiet: bool = False) -> Self:
        """Search what the study searches, in a new folder, and write its report; Ctrl-C ends it early with what it has.

        Args:
            quiet: show no progress: a live table in a terminal or a notebook, else a line now and then.

        Raises:
            ConfigError: it has been run.
        """
        if self._folder is not None:
            raise ConfigError(f"study {self.name} has been run: resume() goes on with it, from_yaml() begins another")
        return self._carry_out(self.config, None, quiet)

    def resume(self, *, quiet: bool = False, **changes: Any) -> Self:
        """Go on with a study that was stopped or killed, or extend it.

        Args:
            quiet: show no progress.
            changes: keys of the config that may change, such as ``**{"study.trials": 64}``.
        """
        folder = self.folder
        check_changes(dotted(changes), "Study.resume")
        find_modules(folder)
        return self._carry_out(load(folder / "study.yaml", dotted(changes), command="tune"), folder, quiet)

    def _carry_out(self, config: Config, folder: Path | None, quiet: bool) -> Self:
        if not config.study.search:
            raise ConfigError(
                f"{config.path} has nothing to search: give study.search, such as {{algorithm.lr: {{loguniform: "
                "[1e-3, 1]}}"
            )
        from flstudy.tuning.driver import carry_out

        self._folder = carry_out(config, terminal(), folder, quiet=quiet).folder
        return self

    # ---- what it found -----------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The study's name."""
        if self._folder is not None:
            return self._folder.name
        return self.config.study.name or Path(self.config.path).stem

    @property
    def folder(self) -> Path:
        """Where its files are; ConfigError before it is run."""
        if self._folder is None:
            raise ConfigError(f"study {self.name} has not been run: call run() first")
        return self._folder.path

    @property
    def results(self) -> StudyResults:
        """Its trials, records and best trials as they are on disk now, also while it runs."""
        return load_study(self.folder)

    @property
    def best(self) -> BestTrial:
        """The best trial, by the one rule that reports, MLflow and the command line use too (`flstudy.study.best`);
        ValueError where no trial can be the best."""
        found = self.results.best
        if not found:
            raise ValueError(f"study {self.name} has no best trial: none did all rounds within its constraints")
        return found[0]

    @property
    def trials(self) -> "pd.DataFrame":
        """A row per trial: what it was, its searched keys, its last metrics (mean over seeds)."""
        import pandas as pd

        plain = ("algorithm", "status", "stage", "rounds", "objective", "feasible", "confirms", "started", "ended")
        rows = [
            {name: getattr(trial, name) for name in plain}
            | {key: value for key, value in trial.overrides.items() if key != "algorithm"}
            | trial.metrics
            for trial in self.results.trials
        ]
        table = pd.DataFrame(rows, index=pd.Index([t.number for t in self.results.trials], name="trial"))
        for name in ("started", "ended") if rows else ():
            table[name] = pd.to_datetime(pd.to_numeric(table[name]), unit="s")
        if rows:
            table["status"] = table["status"].astype(str)
        return table

    def curves(self, metric: str | None = None) -> "pd.DataFrame":
        """A metric by round (the index), with a column per trial and seed; trials without it are left out.

        Args:
            metric: such as ``test/accuracy``; the study's objective by default.

        Raises:
            ValueError: where no trial has recorded it.
        """
        import pandas as pd

        results = self.results
        name, found, said = metric or results.objective.metric, {}, None
        for trial in results.trials:
            try:
                rounds, values = results.curve(trial, name)
            except ValueError as error:  # of a trial that ended before its first record, or that never measured it
                said = error
                continue
            for seed, row in zip(seeds_of(results.records(trial)), values, strict=True):
                found[trial.number, seed] = pd.Series(row, index=rounds)
        if not found:
            raise ValueError(f"study {self.name} has no curve of {name!r}" + (f": {said}" if said else ""))
        table = pd.DataFrame(found).sort_index()
        table.columns.names, table.index.name = ["trial", "seed"], "round"
        return table

    def report(self) -> Path:
        """The report's page, written anew; works while the study runs, too."""
        return write_report(self.folder).page_path

    def to_optuna(self) -> "optuna.Study":
        """The trials of the search that are over as a study of Optuna's in memory: values, distributions, the
        objective's curve, and ``trial`` and ``status`` as user attributes."""
        import optuna

        from flstudy.study import Domain, Space
        from flstudy.study.objectives import objectives_of
        from flstudy.tuning.search import frozen_trial

        results, section = self.results, self.config.study
        space = Space.parse(section.search)
        study = optuna.create_study(
            study_name=self.name,
            directions=["maximize" if one.higher else "minimize" for one in objectives_of(section)],
        )
        study.set_user_attr("objectives", [one.metric for one in objectives_of(section)])
        for trial in results.searched:
            if trial.is_over:
                own = {key: value for key, value in trial.overrides.items() if key in space.domains}
                point = {key: Domain.parameter(value) for key, value in own.items()}
                study.add_trial(frozen_trial(trial, point, space, section, _curve(results, trial)))
        return study

    def load_model(self, trial: int | str = "best") -> "L.LightningModule":
        """The task with a trained global model, of the first seed, in evaluation mode. A study keeps the models of each
        algorithm's best trial.

        Raises:
            ValueError: for a trial that there is not, or whose model was not kept.
        """
        from flstudy.federation import load_task
        from flstudy.tracking.export import kept_model

        results = self.results
        find_modules(self.folder)
        return load_task(kept_model(results, results.find(str(trial))))

    # ---- shown -------------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"<Study {self.name}: {self._state()}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: how the study stands, and the best trial of each algorithm."""
        if self._folder is None:
            return html_of(repr(self))
        results = self.results
        best = result_cells(rank(results), results.name)
        return html_of(studies_cells([study_entry(results)], self.folder.parent).rich(), best.rich())

    def _state(self) -> str:
        if self._folder is None:
            return "not run yet"
        counts = ", ".join(f"{count} {status}" for status, count in sorted(self.results.counts().items()))
        return f"{self._folder.state().get('state', 'unknown')}, {counts or 'no trials'}"


def _curve(results: StudyResults, trial: Trial) -> dict[int, float]:
    """The objective by round, mean over seeds, as far as it is known and finite."""
    try:
        rounds, values = results.curve(trial, results.objective.metric)
    except ValueError:
        return {}
    means = values.mean(0)
    return {int(at): float(value) for at, value in zip(rounds, means, strict=True) if np.isfinite(value)}
