"""Comparison of runs and trials from their files, as `flstudy compare` prints it.

A run is named by its folder, a study by its folder or name (its best trial stands for it), a trial as STUDY/NUMBER.
Values are means over seeds with their sample standard deviation; differences are taken seed by seed, on the seeds that
both runs have, since equal seeds are equal worlds.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure
from numpy.typing import NDArray

from flstudy.config import ConfigError, nearest
from flstudy.metrics.registry import METRICS
from flstudy.remote import is_uri
from flstudy.reporting.looks import looks_of
from flstudy.reporting.multiples import BEHIND, COLUMNS, CROWD
from flstudy.reporting.sections.comparison import Pair, compare, format_p, holm
from flstudy.reporting.style import as_lines_end, draw_mean, finish, legend_beside, new_panels, scale_of
from flstudy.reporting.tables import NOTHING, Cells, format_difference, format_value, metric_label
from flstudy.study import StudyFolder, load_study
from flstudy.study.records import curve, metric_names, read_records, seeds_of, standard_errors
from flstudy.study.trial import without_nan

SHOWN = ("test/accuracy", "valid/accuracy", "test/loss", "valid/loss", "train/loss")
"""Default metrics: the first three of these that all runs have."""
RECORDS = "records.parquet"  # in a run's folder


@dataclass(frozen=True)
class ComparedRun:
    """Run or trial with its records."""

    name: str
    records: pa.Table

    @property
    def metrics(self) -> list[str]:
        """Names of the recorded metrics."""
        return metric_names(self.records)

    @property
    def seeds(self) -> list[int]:
        """Seeds, one per replica."""
        return seeds_of(self.records)


@dataclass(frozen=True, kw_only=True)
class RunMeasure:
    """Values of one metric of one run; best, last and mean are [S]."""

    run: str
    seeds: list[int]
    rounds: NDArray[np.int64]  # [T]
    values: NDArray[np.float64]  # [S, T]
    higher: bool  # whether more is better
    errors: NDArray[np.float64] | None = None  # [S, T] standard errors of values measured on a panel of devices

    @property
    def best_at(self) -> int:
        """Index of the round with the best mean over seeds; NaN is never the best."""
        means = self.values.mean(0)
        bad = -np.inf if self.higher else np.inf
        comparable = np.where(np.isnan(means), bad, means)
        return int(comparable.argmax() if self.higher else comparable.argmin())

    @property
    def best(self) -> NDArray[np.float64]:
        return self.values[:, self.best_at]

    @property
    def last(self) -> NDArray[np.float64]:
        return self.values[:, -1]

    @property
    def mean(self) -> NDArray[np.float64]:
        """Mean over the evaluated rounds, [S]."""
        return self.values.mean(1)

    def to_json(self) -> dict[str, Any]:
        """Return the values of every seed and their rounds, for ``--json``."""
        values = {name: getattr(self, name).tolist() for name in ("best", "last", "mean")}
        rounds = {"best_round": int(self.rounds[self.best_at]), "last_round": int(self.rounds[-1])}
        return {"run": self.run, "seeds": self.seeds, **values, **rounds}


def read_run(run: str | os.PathLike[str]) -> ComparedRun:
    """Read a run, a study's best trial, or the trial STUDY/NUMBER.

    Raises:
        UserError: where there is none, or its records cannot be read.
    """
    path, text = Path(run), str(run).rstrip("/")
    if (path / RECORDS).is_dir():
        return ComparedRun(path.name, read_records(path / RECORDS))
    head, _, tail = text.rpartition("/")
    of_trial = bool(head) and (tail.isdecimal() or tail == "best")
    if of_trial and (is_uri(text) or not (StudyFolder.named(path).config.is_file() or path.is_dir())):
        study, trial = StudyFolder.named(head), tail
    else:
        study, trial = StudyFolder.named(run), "best"
    if not study.config.is_file():
        raise ConfigError(
            f"there is neither a run nor a study {text!r}: give a folder of runs/, a study's name, or STUDY/TRIAL"
        )
    results = load_study(study)
    chosen = results.find(trial)
    if trial == "best":
        chosen = results.best[0].reported_trial
    return ComparedRun(f"{results.name}/{chosen.number} {chosen.algorithm}", results.records(chosen))


def measures(runs: Sequence[ComparedRun], metrics: Sequence[str] = ()) -> dict[str, list[RunMeasure]]:
    """Collect each metric of every run.

    Raises:
        ConfigError: for runs of one name, or a metric that one of them lacks.
    """
    names = [run.name for run in runs]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"runs that are compared must have different names, got {name!r} twice: leave one out")
    common = [name for name in runs[0].metrics if all(name in run.metrics for run in runs)]
    for metric in metrics:
        if metric not in common:
            lacking = ", ".join(run.name for run in runs if metric not in run.metrics)
            raise ConfigError(f"{lacking} did not record {metric!r}{nearest(metric, common)}")
    wanted = list(metrics) or [name for name in SHOWN if name in common][:3] or common[:3]
    if not wanted:
        raise ConfigError(f"{', '.join(names)} have no metric in common: compare runs of one kind")
    return {metric: [_measure(run, metric) for run in runs] for metric in wanted}


def _measure(run: ComparedRun, metric: str) -> RunMeasure:
    rounds, values = curve(run.records, metric)
    higher = (METRICS[metric].better if metric in METRICS else "max") != "min"
    errors = standard_errors(run.records, metric)
    return RunMeasure(run=run.name, seeds=run.seeds, rounds=rounds, values=values, higher=higher, errors=errors)


def differences(measures: Sequence[RunMeasure]) -> list[Pair | None]:
    """Return the differences between each run's last value and the first run's, seed by seed (later - first), with p
    adjusted for their number; None for the first run itself."""
    first = dict(zip(measures[0].seeds, measures[0].last.tolist(), strict=True))
    pairs: list[Pair | None] = [None]
    for measure in measures[1:]:
        last = dict(zip(measure.seeds, measure.last.tolist(), strict=True))
        (pair,) = compare({measure.run: last, measures[0].run: first}, higher=measure.higher)
        if pair.first != measure.run:  # the pair names the better one first
            pair = pair._replace(
                first=measure.run, second=pair.first, difference=-pair.difference, low=-pair.high, high=-pair.low
            )
        pairs.append(pair)
    levels = holm(np.array([pair.p for pair in pairs if pair is not None]))
    return [None, *(pair._replace(adjusted=float(p)) for pair, p in zip(pairs[1:], levels, strict=True) if pair)]


def run_cells(metric: str, measures: Sequence[RunMeasure]) -> Cells:
    """Return the table of a metric, with a row per run."""

    def spread(values: NDArray[np.float64]) -> str:
        finite = values[np.isfinite(values)]
        if not finite.size:
            return NOTHING
        mean = format_value(float(finite.mean()), metric)
        return mean if finite.size < 2 else f"{mean} ± {format_value(float(finite.std(ddof=1)), metric)}"

    def apart(pair: Pair | None) -> tuple[str, str]:
        if pair is None or not np.isfinite(pair.difference):
            return NOTHING, NOTHING
        interval = ""
        if np.isfinite(pair.low):
            interval = f" [{format_difference(pair.low, metric)}, {format_difference(pair.high, metric)}]"
        return format_difference(pair.difference, metric) + interval, format_p(pair.adjusted)

    apart_by = [apart(pair) for pair in differences(measures)]
    columns = {
        "Run": [measure.run for measure in measures],
        "Seeds": [str(len(measure.seeds)) for measure in measures],
        "Best": [spread(measure.best) for measure in measures],
        "Round": [str(measure.rounds[measure.best_at]) for measure in measures],
        "Last": [spread(measure.last) for measure in measures],
        "Mean": [spread(measure.mean) for measure in measures],
        "Last - first run's": [text for text, _ in apart_by],
        "p (Holm)": [p for _, p in apart_by],
    }
    return Cells.from_columns(metric_label(metric), columns)


def runs_json(measures: Mapping[str, Sequence[RunMeasure]]) -> dict[str, Any]:
    """Return the values and differences of all metrics for ``--json``; NaN, which JSON lacks, is None."""
    by_metric: dict[str, Any] = {}
    for metric, measured in measures.items():
        pairs = [pair._asdict() for pair in differences(measured) if pair is not None]
        by_metric[metric] = {"runs": [measure.to_json() for measure in measured], "differences": pairs}
    return dict(without_nan(by_metric))


def runs_figure(measures: Mapping[str, Sequence[RunMeasure]]) -> Figure:
    """Return the figure with a panel per metric: means over seeds by round, with bands of one standard deviation, and
    of the standard error where devices were sampled; for many runs also a panel per run, with the others in grey
    behind."""
    names = [measure.run for measure in next(iter(measures.values()))]
    methods = [name.rpartition(" ")[2] for name in names]  # a trial's name ends with its method's, whose colour it has
    looks = dict(zip(names, looks_of(methods if len({*methods}) == len(names) else names).values(), strict=True))
    crowded = len(names) > CROWD
    count = len(measures) * (len(names) if crowded else 1)
    figure, panels = new_panels(count, COLUMNS if crowded else 1, 2.0 if crowded else 3.6)
    shown = iter(panels)
    for metric, measured in measures.items():
        factor, label = scale_of(metric)
        for name in names if crowded else [None]:
            axes = next(shown)
            for measure in measured:
                behind = name not in (None, measure.run)
                look: dict[str, Any] = {"linewidth": 0.7, "zorder": 1.5} if behind else {}
                shade = BEHIND if behind else looks[measure.run]
                look |= {} if behind or measure.errors is None else {"errors": factor * measure.errors}
                draw_mean(axes, measure.rounds, factor * measure.values, shade, measure.run, band=not behind, **look)
            if name is None:
                legend_beside(axes, **as_lines_end(axes))
            else:
                axes.set_title(name, fontsize=9, loc="left", color=looks[name].colour)
            finish(axes, *((8, 9) if crowded else ()), xlabel="Round", ylabel=label)
    return figure
