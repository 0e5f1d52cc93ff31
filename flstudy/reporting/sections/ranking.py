"""Ranking of the algorithms by their best trials, and the effects of drifts and sessions on them."""

import numpy as np

from flstudy.metrics.sessions import initial_accuracy
from flstudy.reporting.ranking import Findings, Floats, RankedTrial, Ranking
from flstudy.reporting.section import Content, ReportSection, present
from flstudy.reporting.sections.cost import algorithm_costs, budget_cells, budget_notes
from flstudy.reporting.tables import (
    NOTHING,
    Cells,
    chosen_values,
    finite_mean,
    format_difference,
    format_value,
    mean_and_spread,
    percent_sign,
)

FIRST = 10  # rounds of a session whose accuracy is averaged (device sessions, Tables II and III)
SESSIONS = 8  # largest number of columns of sessions


class RankingSection(ReportSection):
    """Section with the main table of a study."""

    order = 20

    def of_study(self, findings: Findings) -> Content:
        results, ranking = findings.results, findings.ranking
        notes = footnotes(ranking, len(results.seeds))
        values = {"ranking": [_row_values(row) for row in ranking.rows], "notes": list(ranking.notes)}
        if not ranking.rows:
            none = f"No trial of study {results.name} has done all its {results.rounds} rounds: no table yet."
            title = "There is nothing to rank yet."
            return Content(name="Ranking", title=title, notes=notes, remarks=[none, *notes], values=values)
        around = (models_cells(ranking), drift_cells(ranking), session_cells(ranking), hyperparameter_cells(ranking))
        tables = present(result_cells(ranking, results.name), *around)
        return Content(
            name="Ranking",
            title="How do the algorithms rank, each with the best hyper-parameters found for it?",
            lead="Every algorithm was tuned, and its best trial on validation data speaks for it. Test data chose "
            "nothing.",
            tables=[*tables, budget_cells(findings.once(algorithm_costs))],
            notes=[*notes, *budget_notes(findings)],
            brief=tables,
            remarks=notes,
            values=values,
        )


def _row_values(row: RankedTrial) -> dict[str, object]:
    return {
        "algorithm": row.algorithm,
        "trial": row.trial.number,
        "overrides": row.trial.overrides,
        "selected_on": row.value,
        "confirmation": None if row.confirmation is None else row.confirmation.number,
        "new_seeds": row.confirmed_value,
        "gap": row.gap,
        "final": row.final,
        "judged_by": row.judged_by,
        "server": row.server,
        "epsilon": row.epsilon,
        "drifts": [drift._asdict() for drift in row.drifts],
    }


def result_cells(ranking: Ranking, study: str) -> Cells:
    """Return the table of the best trial per algorithm, best first; drift columns only where there was a drift, those
    of new seeds only where best trials were trained again, ε only where a run was private."""
    rows, metric = ranking.rows, ranking.selection_metric
    unit = percent_sign(metric)
    columns = {
        "#": [str(place) for place in range(1, len(rows) + 1)],
        "Algorithm": [row.algorithm for row in rows],
        "Trial": [str(row.trial.number) for row in rows],
        f"Chosen\non{unit}": [format_value(row.value, metric) for row in rows],  # the footnote names the metric
    }
    if ranking.confirmed:
        columns[f"New\nseeds{unit}"] = [format_value(row.confirmed_value, metric) for row in rows]
        columns["Gap"] = [format_difference(row.gap, metric) for row in rows]
    if any(row.drifts for row in rows):
        columns["Before\ndrift %"] = [mean_and_spread(row.before, 100) for row in rows]
        columns["Lowest\nafter %"] = [mean_and_spread(row.dip, 100) for row in rows]
        columns["Rounds to\nrecovery"] = [recovery_rounds_text(row.recovery) for row in rows]
    if any(np.isfinite(row.epsilon) for row in rows):
        columns["ε"] = [format_value(row.epsilon, "privacy/epsilon") for row in rows]
    last = ranking.kind if ranking.shows_accuracy else ranking.shown
    columns[f"Final\n{last}{ranking.unit}"] = [ranking.final(row) for row in rows]
    means = np.array([finite_mean(row.final) for row in rows]) * (1 if ranking.higher else -1)
    best = {(int(np.nanargmax(means)), len(columns) - 1)} if np.isfinite(means).any() else ()
    title = f"Study {study}: best trial per algorithm, {ranking.shown}"
    return Cells.from_columns(title, columns, (1, 2), "ranking", names=2, best=frozenset(best))


def models_cells(ranking: Ranking) -> Cells | None:
    """Return the table of the models by which each algorithm was judged, beside the server's; None where all are judged
    alike."""
    if len(ranking.judges) < 2:
        return None
    columns = {
        "Algorithm": [row.algorithm for row in ranking.rows],
        "Judged by": [row.judged_by or NOTHING for row in ranking.rows],
        f"Final{ranking.unit}": [ranking.final(row) for row in ranking.rows],
        f"Server's\nmodel{ranking.unit}": [ranking.spread(row.server) for row in ranking.rows],
    }
    return Cells.from_columns(f"Models that were judged, {ranking.shown}", columns, (0, 1), "models")


def drift_cells(ranking: Ranking) -> Cells | None:
    """Return the table of the effects of each drift, where there were several; else None."""
    if all(len(row.drifts) < 2 for row in ranking.rows):
        return None
    # Drifts are the study's: all rows have the same.
    lived = [(row.algorithm, row.drifts[n]) for n in range(len(ranking.rows[0].drifts)) for row in ranking.rows]
    columns = {
        "Round": [str(drift.round) for _, drift in lived],
        "Drift": [drift.label for _, drift in lived],
        "Algorithm": [name for name, _ in lived],
        "Before %": [mean_and_spread(drift.before, 100) for _, drift in lived],
        "Lowest\nafter %": [mean_and_spread(drift.dip, 100) for _, drift in lived],
        "Rounds to\nrecovery": [recovery_rounds_text(drift.recovery) for _, drift in lived],
    }
    return Cells.from_columns("Drift by drift", columns, (1, 2), "drifts", names=3)


def session_cells(ranking: Ranking) -> Cells | None:
    """Return the table of the accuracy of sessions' first rounds, for many sessions of the last ones; None without
    sessions."""
    if not ranking.sessions:
        return None
    means = np.full((len(ranking.rows), len(ranking.sessions)), np.nan)
    for place, row in enumerate(ranking.rows):
        for session, (first, last) in enumerate(ranking.sessions):
            if ((row.rounds >= first) & (row.rounds <= last)).any():
                means[place, session] = initial_accuracy(row.rounds, row.accuracy, first, last + 1, first=FIRST).mean()
    numbers = {"Mean": means.mean(1)} | {f"S{number}": column for number, column in enumerate(means.T, start=2)}
    columns = {"Algorithm": [row.algorithm for row in ranking.rows]}
    for name in ("Mean", *list(numbers)[1:][-SESSIONS:]):
        columns[name] = [format_value(value, ranking.accuracy_metric) for value in numbers[name]]
    what = "accuracy" if ranking.shows_accuracy else ranking.shown
    title = f"Sessions: {what}{ranking.unit} of their first {FIRST} rounds"
    return Cells.from_columns(title, columns, label="sessions")


def hyperparameter_cells(ranking: Ranking) -> Cells:
    """Return the table of the hyper-parameters that the search chose for the best trials."""
    columns = {
        "Algorithm": [row.algorithm for row in ranking.rows],
        "Trial": [str(row.trial.number) for row in ranking.rows],
        "Chosen by the search": [chosen_values(row.trial.overrides) for row in ranking.rows],
    }
    return Cells.from_columns("Their hyper-parameters", columns, (0, 1, 2), "hyper-parameters")


def recovery_rounds_text(values: Floats) -> str:
    """Format rounds to recovery [S]; ``never`` where no seed recovers."""
    text = mean_and_spread(values)
    return "never" if text == NOTHING else text


def footnotes(ranking: Ranking, seeds: int) -> list[str]:
    """Return the notes on how to read the numbers, then on the other trials."""
    notes = []
    if ranking.rows:
        fresh = max((row.accuracy.shape[0] for row in ranking.rows if row.confirmation), default=0)
        count = f"{fresh} new" if fresh else str(seeds)
        over = f"Mean ± standard deviation over {count} seeds" if max(fresh, seeds) > 1 else "One seed: no spread"
        notes.append(f"{over}. Chosen and ranked by {ranking.selection_metric} of trials that did all rounds.")
        if len(ranking.judges) == 1 and ranking.judges[0]:
            notes.append(f"Every algorithm is judged by {ranking.judges[0]}.")
        if fresh:
            notes.append(
                "Gap (winner's curse): what the seeds of the search promised beyond what the new seeds, which chose no "
                "trial of the search, have shown. All figures to its right are of the new seeds."
            )
    most = max((len(row.drifts) for row in ranking.rows), default=0)
    if most:
        (first, last), rule = ("first ", "last ") if most > 1 else ("", ""), ranking.rule
        notes.append(
            f"Before: last {rule.steady} evaluations before the {first}drift. Lowest: accuracy after it, not its drop. "
            f"Recovery, after the {last}drift: the mean of {rule.window} evaluations stays at most "
            f"{100 * rule.tolerance:g} points below that of the {rule.steady} before it, or as near to that of the "
            f"last {rule.steady}; (2/3) where only two seeds of three recover."
        )
    return [*notes, *ranking.notes]
