"""Summary of a study's results in a few sentences."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from flstudy.config.values import class_label
from flstudy.reporting.ranking import Findings, tried
from flstudy.reporting.section import Content, ReportSection
from flstudy.reporting.sections.comparison import StudyComparison, compare_study, verdicts
from flstudy.reporting.sections.cost import algorithm_costs, budget_notes, format_hours
from flstudy.reporting.tables import plural

SHOWN = 3  # largest number of algorithms


class SummarySection(ReportSection):
    """Section with the page's heading, and the summary below it."""

    order = 10

    def of_study(self, findings: Findings) -> Content:
        results, ranking, costs = findings.results, findings.ranking, findings.once(algorithm_costs)
        points = []
        for row in ranking.rows[:SHOWN]:
            over = plural(max(row.accuracy.shape[0], 1), "new seed" if row.confirmation else "seed")
            final = f"{ranking.final(row)}{ranking.unit} {ranking.shown}"
            points.append(f"{row.algorithm}: {final} at the end, over {over}.")
        points += verdicts(findings.once(compare_study))
        hours = [cost.hours for cost in costs if not math.isnan(cost.hours)]
        spent = f" and {format_hours(sum(hours))} hours of workers' time" if hours else ""
        rounds = plural(sum(cost.rounds for cost in costs), "round")
        points.append(f"{tried(results)}, {rounds}{spent}.")
        headline = study_headline(findings)
        return Content(
            name="Summary",
            title=f"{headline}.",
            points=[*points, *budget_notes(findings)],
            heading=f"Study {results.name}: {headline}",
            facts=study_facts(findings),
            values={
                "study": results.name,
                "selection_metric": ranking.selection_metric,
                "higher_is_better": results.objective.higher,
                "accuracy_metric": ranking.accuracy_metric,
            },
        )


def study_headline(findings: Findings) -> str:
    """Return the result of a study, in words that claim no more than the tests show."""
    rows = findings.ranking.rows
    if not rows:
        return f"No trial of study {findings.results.name} has done all its rounds yet"
    first = rows[0].algorithm
    if len(rows) == 1:
        return f"{first} was tuned alone"
    comparison = findings.once(compare_study)
    reservation = _reservation(first, [row.algorithm for row in rows[1:]], comparison)
    if reservation is None:
        return f"{first} did best of {plural(len(rows), 'algorithm')}"
    return f"{first} ranks first of {plural(len(rows), 'algorithm')}; {reservation}"


def _reservation(first: str, others: list[str], comparison: StudyComparison) -> str | None:
    """Return the reason why the first of a ranking cannot be called the best; None where it is shown to be better than
    all."""
    pairs = {pair.second if pair.first == first else pair.first: pair for pair in comparison.pairs
             if first in (pair.first, pair.second)}  # fmt: skip
    better = [name for name, pair in pairs.items() if pair.verdict == "different" and pair.first == name]
    if better:
        return f"on {comparison.metric} {', '.join(better)} did better"
    unshown = [name for name in others if name in pairs and pairs[name].verdict == "not shown"]
    if unshown:
        return f"no difference to {', '.join(unshown)} shown"
    unknown = [name for name in others if name not in pairs or pairs[name].verdict == "cannot tell"]
    if unknown:
        return f"too few seeds to tell it from {', '.join(unknown)}"
    return None if comparison.fresh else "not confirmed on new seeds"


def study_facts(findings: Findings) -> dict[str, str]:
    """Return the facts below the page's heading."""
    results = findings.results
    config: Mapping[str, Any] = results.config
    population = config.get("population") or {}
    again = [row.confirmation for row in findings.ranking.rows if row.confirmation is not None]
    world = [(f"population.{part}", population.get(part)) for part in ("dataset", "partition", "drift")]
    search = [(f"study.{part}", results.section.get(part)) for part in ("sampler", "scheduler")]
    facts = {
        "Task": _labels([("task", config.get("task"))]),
        "Data": _labels(world),
        "Devices": ", ".join(f"{population[key]} {key}" for key in ("clients", "participants") if population.get(key)),
        "Rounds": str(results.rounds),
        "Seeds": ", ".join(map(str, results.seeds)),
        "New seeds": ", ".join(map(str, results.seeds_of(again[0]))) if again else "",
        "Objective": f"{'highest' if results.objective.higher else 'lowest'} {results.objective.metric}",
        "Search": _labels(search),
    }
    return {name: fact for name, fact in facts.items() if fact}


def _labels(classes: Sequence[tuple[str, Any]]) -> str:
    """Return the labels of classes by key, joined by commas; '' for none."""
    return ", ".join(class_label(key, value) for key, value in classes if value)
