"""Studies as objects, for scripts and notebooks: ``flstudy tune``, ``report``, ``show`` and ``export`` by the same
functions, with tables of pandas and Optuna in place of a terminal's."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from flstudy.config import ConfigError, load
from flstudy.config.config import Config
from flstudy.config.reading import dotted
from flstudy.config.shipped import find_config
from flstudy.remote import is_uri
from flstudy.reporting import write_report
from flstudy.reporting.listing import studies_cells
from flstudy.reporting.notebook import html_of
from flstudy.reporting.ranking import Findings
from flstudy.reporting.report import terminal
from flstudy.reporting.sections.curves import accuracy_figure
from flstudy.reporting.sections.ranking import result_cells
from flstudy.reporting.style import to_svg
from flstudy.study import BestTrial, StudyFolder, StudyResults, Trial, load_study
from flstudy.study.records import seeds_of
from flstudy.study.results import study_entry
from flstudy.study.resuming import add_modules_to_path, check_changes, load_study_config
from flstudy.user_error import UserError

if TYPE_CHECKING:
    import lightning as L
    import optuna
    import pandas as pd


class StudyFailedError(RuntimeError):
    """Failure of a study: its trials failed, or it stopped by itself, since too many of them failed or its disk did.
    Its results so far are in its folder, and `Study.open` shows them.

    Args:
        folder: the study's.
        ended: how, as a verb.
        reason: a sentence: how many trials failed, and why the first did.

    Attributes:
        folder: the path.
    """

    def __init__(self, folder: StudyFolder, ended: str, reason: str) -> None:
        super().__init__(f"study {folder.name} {ended}: {reason} (see {folder.report / 'report.html'})")
        self.folder = folder.path


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

    _trust = False  # in code that somebody else's study names

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
        """Return the study of a config.

        Args:
            path: its file, or the name of one that comes with flstudy, such as ``quick``.
            overrides: its keys, dotted as on the command line, or nested.

        Raises:
            ConfigError: one sentence naming key, value, domain and next step.
        """
        study = cls.__new__(cls)
        study._config, study._folder = load(Path(find_config(str(path))), dotted(overrides), command="tune"), None
        return study

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, trust: bool = False) -> Self:
        """Return a study that has begun. A study by URI is read as its bucket has it now.

        Args:
            folder: its folder or URI, or its name under studies/.
            trust: whether you agree to the code of somebody else's study, which `config`, `resume` and `load_model`
                import; all else reads data.

        Raises:
            UserError: where there is none.
        """
        study = cls.__new__(cls)
        study._config, study._folder, study._trust = None, StudyFolder.named(folder), trust
        load_study(study._folder)
        return study

    @property
    def config(self) -> Config:
        """The study's config, checked."""
        if self._config is None:
            self._config = load_study_config(StudyFolder(self.folder), trust=self._trust)
        return self._config

    # ---- running -----------------------------------------------------------------------------------------------------

    def run(self, *, quiet: bool = False) -> Self:
        """Run the study in a new folder and write its report; Ctrl-C ends it early with the results so far.

        Args:
            quiet: show no progress: a live table in a terminal or a notebook, else a line now and then.

        Raises:
            ConfigError: it has been run.
            StudyFailedError: all of its trials failed, or it stopped by itself; its results so far are kept.
        """
        if self._folder is not None:
            raise ConfigError(f"study {self.name} has been run: resume() goes on with it, from_yaml() begins another")
        return self._carry_out(self.config, None, quiet)

    def resume(self, *, quiet: bool = False, **changes: Any) -> Self:
        """Go on with a study that was stopped or killed, or extend it.

        Args:
            quiet: show no progress.
            changes: keys of the config that may change, such as ``**{"study.trials": 64}``, and arms that are new:
                ``**{"study.arms": {"MyFlash": {"class_path": "Flash", "init_args": {"beta1": 0.0}}}}``.

        Raises:
            ConfigError: for another key, or a study that has all of its trials.
            StudyFailedError: as of `run`.
        """
        folder = StudyFolder(self.folder)
        changes = check_changes(folder, dotted(changes), "Study.resume")
        return self._carry_out(load_study_config(folder, changes, trust=self._trust), folder.path, quiet)

    def _carry_out(self, config: Config, folder: Path | None, quiet: bool) -> Self:
        from flstudy.tuning.driver import carry_out

        result = carry_out(config, terminal(), folder, quiet=quiet)
        self._folder = result.folder
        if result.hopeless is not None:
            raise StudyFailedError(result.folder, "failed" if result.failed else "stopped", result.hopeless)
        return self

    # ---- results -----------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The study's name."""
        if self._folder is not None:
            return self._folder.name
        return self.config.study.name or Path(self.config.path).stem

    @property
    def folder(self) -> Path:
        """The folder of the study's files; ConfigError before it is run."""
        if self._folder is None:
            raise ConfigError(f"study {self.name} has not been run: call run() first")
        return self._folder.path

    @property
    def results(self) -> StudyResults:
        """Trials, records and best trials as they are on disk now, also while the study runs."""
        return load_study(self.folder)

    @property
    def best(self) -> BestTrial:
        """The best trial, by the one rule that reports, MLflow and the command line use too (`flstudy.study.best`);
        UserError where no trial can be the best."""
        best = self.results.best
        if not best:
            raise UserError(f"study {self.name} has no best trial: none did all rounds within its constraints")
        return best[0]

    @property
    def trials(self) -> "pd.DataFrame":
        """Table with a row per trial: its fields, its searched keys, its last metrics (mean over seeds)."""
        import pandas as pd

        counts = ("rounds", "objective", "feasible", "times_proposed", "confirms")
        plain = ("algorithm", "status", "stage", *counts, "started", "ended")
        rows = [
            {name: getattr(trial, name) for name in plain}
            | {key: value for key, value in trial.overrides.items() if key != "algorithm"}
            | trial.metrics
            for trial in self.results.trials
        ]
        table = pd.DataFrame(rows, index=pd.Index([t.number for t in self.results.trials], name="trial"))
        table = table.rename(columns={"times_proposed": "proposed"})
        for name in ("started", "ended") if rows else ():
            table[name] = pd.to_datetime(pd.to_numeric(table[name]), unit="s")
        if rows:
            table["status"] = table["status"].astype(str)
        return table

    def curves(self, metric: str | None = None) -> "pd.DataFrame":
        """Return the table of a metric by round (the index), with a column per trial and seed; trials without it are
        left out.

        Args:
            metric: such as ``test/accuracy``; the study's objective by default.

        Raises:
            UserError: where no trial has recorded it.
        """
        import pandas as pd

        results = self.results
        name, series, last_error = metric or results.objective.metric, {}, None
        for trial in results.trials:
            try:
                rounds, values = results.curve(trial, name)
            except ValueError as error:  # of a trial that ended before its first record, or that never measured it
                last_error = error
                continue
            for seed, row in zip(seeds_of(results.records(trial)), values, strict=True):
                series[trial.number, seed] = pd.Series(row, index=rounds)
        if not series:
            raise UserError(f"study {self.name} has no curve of {name!r}" + (f": {last_error}" if last_error else ""))
        table = pd.DataFrame(series).sort_index()
        table.columns.names, table.index.name = ["trial", "seed"], "round"
        return table

    def devices(self, trial: int | str = "best") -> "pd.DataFrame":
        """Return what a trial's models scored on single devices in its last evaluation, for a histogram over devices.

        A row is a device of a seed: ``seed``, ``device``, ``round``, ``concept``, ``examples`` (those that it owns
        for training), then metrics such as ``test/accuracy``. A study keeps them of each algorithm's best trial.

        Args:
            trial: its number, or ``best``.

        Raises:
            UserError: for a trial that there is not, or of which they were not kept.
        """
        from flstudy.study.device_results import read_device_results
        from flstudy.tracking.export import kept_by_device

        results = self.results
        return read_device_results(kept_by_device(results, results.find(str(trial)))).to_pandas()

    def report(self) -> Path:
        """Return the report's page, written anew; works while the study runs, too."""
        return write_report(self.folder).page_path

    def to_optuna(self) -> "optuna.Study":
        """Return the trials of the search that are over as a study of Optuna's in memory: values, distributions, the
        objective's curve, and ``trial`` and ``status`` as user attributes."""
        import optuna

        from flstudy.study import Domain, Space
        from flstudy.tuning.search import frozen_trial

        results = self.results
        domains = Space.of_study(results.section).widest()
        study = optuna.create_study(
            study_name=self.name,
            directions=["maximize" if goal.higher else "minimize" for goal in results.objectives],
        )
        study.set_user_attr("objectives", [goal.metric for goal in results.objectives])
        for trial in results.searched:
            if trial.is_over:
                values = {key: value for key, value in trial.overrides.items() if key in domains}
                point = {key: Domain.parameter(value) for key, value in values.items()}
                study.add_trial(frozen_trial(trial, point, domains, results.goals, _curve(results, trial)))
        return study

    def load_model(self, trial: int | str = "best") -> "L.LightningModule":
        """Return the task with a trained global model, of the first seed, in evaluation mode. A study keeps the models
        of each algorithm's best trial.

        Args:
            trial: its number, or ``best``.

        Raises:
            UserError: for a trial that there is not, or whose model was not kept.
            ConfigError: for code of somebody else's study that you have not agreed to.
        """
        from flstudy.federation import load_task
        from flstudy.tracking.export import kept_model

        results = self.results
        if is_uri(results.folder.name_or_uri):
            StudyFolder.fetch(results.folder.name_or_uri, "models")
        add_modules_to_path(results.folder, trust=self._trust)
        return load_task(kept_model(results, results.find(str(trial))))

    # ---- display -----------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"<Study {self.name}: {self._state()}>"

    def _repr_html_(self) -> str:
        """Return the HTML for a notebook: how the study stands, the best trial of each algorithm, and its curve."""
        if self._folder is None:
            return html_of(repr(self))
        results = self.results
        findings = Findings(results=results)
        state, best = study_entry(results), result_cells(findings.ranking, results.name)
        curves = accuracy_figure(findings)
        drawn = "" if curves is None else f'<div style="background: white">{to_svg(curves)}</div>'
        return html_of(studies_cells([state], self.folder.parent), best) + drawn

    def _state(self) -> str:
        if self._folder is None:
            return "not run yet"
        counts = ", ".join(f"{count} {status}" for status, count in sorted(self.results.counts().items()))
        return f"{self._folder.state().get('state', 'unknown')}, {counts or 'no trials'}"


def _curve(results: StudyResults, trial: Trial) -> dict[int, float]:
    """Return the objective by round, mean over seeds, as far as it is known and finite."""
    try:
        rounds, values = results.curve(trial, results.objective.metric)
    except ValueError:
        return {}
    means = values.mean(0)
    return {int(at): float(value) for at, value in zip(rounds, means, strict=True) if np.isfinite(value)}
