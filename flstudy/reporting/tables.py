"""A ranking as tables: one set of cells, shown by rich in a terminal of 100 columns or written as Markdown."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich import box
from rich.markup import escape
from rich.table import Table

from flstudy.metrics.sessions import initial_accuracy
from flstudy.reporting.ranking import Floats, Ranking

NOTHING = "–"
FIRST = 10  # rounds of a session whose accuracy is averaged (device sessions, Tables II and III)
SESSIONS = 8  # columns


@dataclass(frozen=True, kw_only=True)
class Cells:
    """A table before it has a form. Numbers are set to the right, words (the columns in `words`) to the left."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: frozenset[int]
    best: frozenset[tuple[int, int]] = frozenset()  # (row, column) of what is set in bold on paper

    def rich(self) -> Table:
        table = Table(
            title=escape(self.title),
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            padding=(0, 0, 0, 1),
        )
        for index, name in enumerate(self.header):
            word = index in self.words
            # Where a terminal is narrow, long words may wrap; a number or a name never does.
            longest = max((len(row[index]) for row in self.rows), default=0)
            table.add_column(
                escape(name),
                justify="left" if word else "right",
                no_wrap=not word,
                overflow="fold",
                min_width=min(longest, 12),
            )
        for row in self.rows:
            table.add_row(*(escape(cell) for cell in row))
        return table

    def markdown(self) -> str:
        def line(cells: tuple[str, ...]) -> str:
            return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"

        rule = "|" + "|".join(":--" if index in self.words else "--:" for index in range(len(self.header))) + "|"
        return "\n".join([f"**{self.title}**", "", line(self.header), rule, *map(line, self.rows)])


def result_cells(ranking: Ranking, study: str) -> Cells:
    """Best trial per algorithm, best first; drift columns only where something drifted, those of new seeds only where
    best trials were trained again, ε only where a run was private."""
    drifted = any(row.drifts for row in ranking.rows)
    kind = _kind(ranking.accuracy_metric)
    unit = " %" if percent(ranking.selection_metric) else ""
    selected = f"Chosen\non{unit}"  # the footnote names the metric
    fresh_header = (f"New\nseeds{unit}", "Gap") if ranking.confirmed else ()
    drift_header = ("Before\ndrift %", "Dip %", "Rounds to\nrecovery") if drifted else ()
    private = any(np.isfinite(row.epsilon) for row in ranking.rows)
    means = [_mean(row.final) for row in ranking.rows]
    leader = int(np.nanargmax(means)) if np.isfinite(means).any() else None
    rows = []
    for place, row in enumerate(ranking.rows, start=1):
        drift = (spread(row.before, 100), spread(row.dip, 100), recovery(row.recovery)) if drifted else ()
        metric = ranking.selection_metric
        value = shown(row.selected_on, metric)
        fresh = (shown(row.fresh, metric), signed(row.gap, metric)) if ranking.confirmed else ()
        paid = (shown(row.epsilon, "privacy/epsilon"),) if private else ()
        name, trial = row.trial.algorithm, row.trial.trial
        rows.append((str(place), name, trial, value, *fresh, *drift, *paid, spread(row.final, 100)))
    return Cells(
        title=f"Study {study}: best trial per algorithm, {kind} accuracy",
        header=(
            "#",
            "Algorithm",
            "Trial",
            selected,
            *fresh_header,
            *drift_header,
            *(("ε",) if private else ()),
            f"Final\n{kind} %",
        ),
        rows=tuple(rows),
        words=frozenset({1, 2}),
        best=frozenset({(leader, len(rows[0]) - 1)}) if rows and leader is not None else frozenset(),
    )


def hyperparameter_cells(ranking: Ranking) -> Cells:
    """What the search chose for each of the best trials."""
    rows = tuple((row.trial.algorithm, row.trial.trial, settings(row.trial.overrides)) for row in ranking.rows)
    return Cells(
        title="Their hyper-parameters",
        header=("Algorithm", "Trial", "Chosen by the search"),
        rows=rows,
        words=frozenset({0, 1, 2}),
    )


def drift_cells(ranking: Ranking) -> Cells | None:
    """Drift by drift, where there were several."""
    if all(len(row.drifts) < 2 for row in ranking.rows):
        return None
    rows = [
        (str(d.round), d.label, row.trial.algorithm, spread(d.before, 100), spread(d.dip, 100), recovery(d.recovery))
        for index in range(len(ranking.rows[0].drifts))  # the drifts are the study's: every row has the same
        for row in ranking.rows
        for d in row.drifts[index : index + 1]
    ]
    return Cells(
        title="Drift by drift",
        header=("Round", "Drift", "Algorithm", "Before %", "Dip %", "Rounds to\nrecovery"),
        rows=tuple(rows),
        words=frozenset({1, 2}),
    )


def session_cells(ranking: Ranking) -> Cells | None:
    """Accuracy of the rounds with which sessions begin, where devices come and go; of many sessions the last ones."""
    if not ranking.sessions:
        return None
    numbered = list(enumerate(ranking.sessions, start=2))
    rows = []
    for row in ranking.rows:
        found = {}
        for number, (first, last) in numbered:
            if ((row.rounds >= first) & (row.rounds <= last)).any():
                found[number] = float(initial_accuracy(row.rounds, row.accuracy, first, last + 1, first=FIRST).mean())
        mean = float(np.mean(list(found.values()))) if len(found) == len(numbered) else float("nan")
        each = [shown(found.get(number, float("nan")), "accuracy") for number, _ in numbered[-SESSIONS:]]
        rows.append((row.trial.algorithm, shown(mean, "accuracy"), *each))
    return Cells(
        title=f"Sessions: accuracy % of their first {FIRST} rounds",
        header=("Algorithm", "Mean", *(f"S{number}" for number, _ in numbered[-SESSIONS:])),
        rows=tuple(rows),
        words=frozenset({0}),
    )


def footnotes(ranking: Ranking, seeds: int) -> list[str]:
    """How to read the numbers, then what became of the other trials."""
    notes = []
    if ranking.rows:
        fresh = max((row.accuracy.shape[0] for row in ranking.rows if row.confirmation), default=0)
        count = f"{fresh} new" if fresh else str(seeds)
        over = f"Mean ± standard deviation over {count} seeds" if max(fresh, seeds) > 1 else "One seed: no spread"
        notes.append(f"{over}. Chosen and ranked by {ranking.selection_metric} of trials that did all rounds.")
        if fresh:
            notes.append(
                "Gap (winner's curse): what the seeds of the search promised beyond what the new seeds, which chose no "
                "trial of the search, have shown. All figures to its right are of the new seeds."
            )
    most = max((len(row.drifts) for row in ranking.rows), default=0)
    if most:
        (first, last), rule = ("first ", "last ") if most > 1 else ("", ""), ranking.rule
        notes.append(
            f"Before: last {rule.steady} evaluations before the {first}drift. Dip: lowest accuracy after it. "
            f"Recovery, after the {last}drift: the mean of {rule.window} evaluations stays within "
            f"{100 * rule.tolerance:g} points of that of the last {rule.steady}; "
            "(2/3) where only two seeds of three recover."
        )
    return notes + list(ranking.notes)


def spread(values: Floats, scale: float = 1.0) -> str:
    """mean ± sample standard deviation over seeds; how many of them count where some are NaN."""
    known = scale * values[~np.isnan(values)]
    if not known.size:
        return NOTHING
    text = f"{known.mean():.1f}" + (f" ± {known.std(ddof=1):.1f}" if known.size > 1 else "")
    return text if known.size == values.size else f"{text} ({known.size}/{values.size})"


def recovery(values: Floats) -> str:
    text = spread(values)
    return "never" if text == NOTHING else text


def settings(overrides: Mapping[str, Any]) -> str:
    """`lr 0.0316, tau 0.001`: the algorithm's own keys without their prefix; its name has a column of its own."""
    chosen = {key.removeprefix("algorithm."): value for key, value in overrides.items() if key != "algorithm"}
    return ", ".join(f"{key} {_short(value)}" for key, value in chosen.items()) or NOTHING


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _kind(metric: str) -> str:
    return "test" if metric.startswith("test/") else "validation"


def percent(metric: str) -> bool:
    """Whether a metric is a share that is shown in percent."""
    return metric.endswith(("accuracy", "/dip"))


def shown(value: float, metric: str) -> str:
    """A value of a metric; in percent, without the sign, where it is a share."""
    if not np.isfinite(value):
        return NOTHING
    if percent(metric):
        return f"{100 * value:.1f}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"


def signed(value: float, metric: str) -> str:
    """A difference of two values, always with its sign."""
    if not np.isfinite(value):
        return NOTHING
    return f"{100 * value:+.1f}" if percent(metric) else f"{value:+.3g}"


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")
