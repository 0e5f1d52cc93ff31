"""What came out, in a few sentences."""

import math
from collections.abc import Mapping
from typing import Any

from flstudy.reporting.ranking import Findings
from flstudy.reporting.section import Content, ReportSection
from flstudy.reporting.sections.citations import class_name
from flstudy.reporting.sections.comparison import StudyComparison, compare_study, verdicts
from flstudy.reporting.sections.cost import algorithm_costs, budget_notes, format_hours
from flstudy.reporting.tables import plural

SHOWN = 3  # algorithms


class SummarySection(ReportSection):
    """The page's heading, and the first that is read below it."""

    order = 10

    def of_study(self, found: Findings) -> Content:
        results, ranking, costs = found.results, found.ranking, found.once(algorithm_costs)
        points = []
        for row in ranking.rows[:SHOWN]:
            over = plural(max(row.accuracy.shape[0], 1), "new seed" if row.confirmation else "seed")
            final = f"{ranking.final(row)}{ranking.unit} {ranking.shown}"
            points.append(f"{row.algorithm}: {final} at the end, over {over}.")
        points += verdicts(found.once(compare_study))
        known = [one.hours for one in costs if not math.isnan(one.hours)]
        spent = f" and {format_hours(sum(known))} hours of workers' time" if known else ""
        rounds = plural(sum(one.rounds for one in costs), "round")
        points.append(f"{plural(len(results.searched), 'trial')}, {rounds}{spent}.")
        headline = study_headline(found)
        return Content(
            name="Summary",
            title=f"{headline}.",
            points=[*points, *budget_notes(found)],
            heading=f"Study {results.name}: {headline}",
            facts=study_facts(found),
            values={
                "study": results.name,
                "selection_metric": ranking.selection_metric,
                "higher_is_better": results.objective.higher,
                "accuracy_metric": ranking.accuracy_metric,
            },
        )


def study_headline(found: Findings) -> str:
    """What came out, in a sentence that claims no more than the tests show."""
    rows = found.ranking.rows
    if not rows:
        return f"No trial of study {found.results.name} has done all its rounds yet"
    first = rows[0].algorithm
    if len(rows) == 1:
        return f"{first} was tuned alone"
    comparison = found.once(compare_study)
    reservation = _reservation(first, [row.algorithm for row in rows[1:]], comparison)
    if reservation is None:
        return f"{first} did best of {plural(len(rows), 'algorithm')}"
    return f"{first} ranks first of {plural(len(rows), 'algorithm')}; {reservation}"


def _reservation(first: str, others: list[str], comparison: StudyComparison) -> str | None:
    """Why the first of a ranking cannot be called the best; None where it is shown to be better than all others."""
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


def study_facts(found: Findings) -> dict[str, str]:
    """What stands below the page's heading."""
    results = found.results
    config: Mapping[str, Any] = results.config
    population = config.get("population") or {}
    again = [row.confirmation for row in found.ranking.rows if row.confirmation is not None]
    world = (class_name(population.get(part)) for part in ("dataset", "partition", "drift"))
    search = (class_name(results.section.get(part)) for part in ("sampler", "scheduler"))
    facts = {
        "Task": class_name(config.get("task")),
        "Data": ", ".join(filter(None, world)),
        "Devices": ", ".join(f"{population[key]} {key}" for key in ("clients", "participants") if population.get(key)),
        "Rounds": str(results.rounds),
        "Seeds": ", ".join(map(str, results.seeds)),
        "New seeds": ", ".join(map(str, results.seeds_of(again[0]))) if again else "",
        "Objective": f"{'highest' if results.objective.higher else 'lowest'} {results.objective.metric}",
        "Search": ", ".join(filter(None, search)),
    }
    return {name: fact for name, fact in facts.items() if fact}
