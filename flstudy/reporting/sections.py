"""What the page of a study says, section by section."""

import math
from collections.abc import Sequence
from importlib import metadata

import yaml
from matplotlib.figure import Figure

from flstudy.reporting import figures
from flstudy.reporting.citations import bibtex, names_used, short
from flstudy.reporting.comparison import LEVEL, Comparison
from flstudy.reporting.cost_section import cost
from flstudy.reporting.domains import domains
from flstudy.reporting.figures.style import order
from flstudy.reporting.finding_tables import (
    budget_cells,
    citation_cells,
    comparison_cells,
    failure_cells,
    front_cells,
    hours,
    importance_cells,
    sensitivity_cells,
)
from flstudy.reporting.findings import Findings
from flstudy.reporting.page import Listing, Picture, Section
from flstudy.reporting.ranking import plural
from flstudy.reporting.restarts import restarts
from flstudy.reporting.sensitivity import LEAST_TRIALS, METHOD
from flstudy.reporting.tables import (
    drift_cells,
    footnotes,
    hyperparameter_cells,
    result_cells,
    session_cells,
    spread,
)

TOOLS = ("flstudy", "torch", "lightning", "ray", "optuna", "mlflow", "scipy", "numpy")


def study_facts(found: Findings) -> dict[str, str]:
    """What stands below the page's title."""
    results = found.results
    config, study = results.config, results.config.get("study") or {}
    population = config.get("population") or {}
    metric, higher = results.objective
    again = [row.confirmation for row in found.ranking.rows if row.confirmation is not None]
    facts = {
        "Task": short(config.get("task")),
        "Data": ", ".join(filter(None, (short(population.get(part)) for part in ("dataset", "partition", "drift")))),
        "Devices": ", ".join(f"{population[key]} {key}" for key in ("clients", "participants") if population.get(key)),
        "Rounds": str(results.rounds),
        "Seeds": ", ".join(map(str, results.seeds)),
        "New seeds": ", ".join(map(str, results.seeds_of(again[0]))) if again else "",
        "Objective": f"{'highest' if higher else 'lowest'} {metric}",
        "Search": ", ".join(filter(None, (short(study.get("sampler")), short(study.get("scheduler"))))),
    }
    return {name: fact for name, fact in facts.items() if fact}


def study_sections(found: Findings, commands: Sequence[tuple[str, str]]) -> list[Section]:
    """The sections that have something to say."""
    made = [
        summary(found),
        ranking(found),
        comparison(found.comparison),
        curves(found),
        restarts(found),
        sensitivity(found),
        search(found),
        pareto(found),
        cost(found),
        failed(found),
        origin(found, commands),
        cited(found),
    ]
    return [section for section in made if section is not None]


def headline(found: Findings) -> str:
    """What came out, in a sentence."""
    rows = found.ranking.rows
    if not rows:
        return f"No trial of study {found.results.name} has done all its rounds yet"
    name = rows[0].trial.algorithm
    return f"{name} did best of {plural(len(rows), 'algorithm')}" if len(rows) > 1 else f"{name} was tuned alone"


def summary(found: Findings) -> Section:
    points = []
    for row in found.ranking.rows[:3]:
        kind = "test" if found.ranking.accuracy_metric.startswith("test/") else "validation"
        over = plural(max(row.accuracy.shape[0], 1), "new seed" if row.confirmation else "seed")
        points.append(f"{row.trial.algorithm}: {spread(row.final, 100)} % {kind} accuracy at the end, over {over}.")
    points += verdicts(found.comparison)
    rounds = sum(one.rounds for one in found.costs)
    known = [one.hours for one in found.costs if not math.isnan(one.hours)]
    spent = f" and {hours(sum(known))} hours of workers' time" if known else ""
    points.append(f"{plural(len(found.results.searched), 'trial')}, {plural(rounds, 'round')}{spent}.")
    points += found.budget_notes
    return Section(name="Summary", title=headline(found) + ".", points=points)


def verdicts(comparison: Comparison) -> list[str]:
    """What can be said of the leader and of each other algorithm."""
    leader = next(iter(comparison.values), None)
    own = [pair for pair in comparison.pairs if pair.first == leader]
    caution = "" if comparison.fresh else ", on the seeds that chose their trials: confirm it on new ones"
    said = []
    for verdict, sentence in (
        ("different", f"On {comparison.metric}, {leader} is better than {{}} beyond what chance explains{caution}."),
        ("not shown", f"On {comparison.metric}, no difference between {leader} and {{}} could be shown."),
        ("cannot tell", f"Too few seeds to tell {leader} from {{}} on {comparison.metric}."),
    ):
        names = [pair.second for pair in own if pair.verdict == verdict]
        said += [sentence.format(", ".join(names))] if names else []
    return said


def ranking(found: Findings) -> Section | None:
    if not found.ranking.rows:
        notes = footnotes(found.ranking, len(found.results.seeds))
        return Section(name="Ranking", title="There is nothing to rank yet.", notes=notes)
    around = [cells for cells in (drift_cells(found.ranking), session_cells(found.ranking)) if cells is not None]
    return Section(
        name="Ranking",
        title="Which algorithm did best, each with the best hyper-parameters found for it?",
        lead="Every algorithm was tuned, and its best trial on validation data speaks for it. Test data chose nothing.",
        tables=[
            result_cells(found.ranking, found.results.name),
            *around,
            hyperparameter_cells(found.ranking),
            budget_cells(found.costs),
        ],
        notes=[*footnotes(found.ranking, len(found.results.seeds)), *found.budget_notes],
    )


def comparison(found: Comparison) -> Section | None:
    cells = comparison_cells(found)
    if cells is None:
        return None
    return Section(
        name="Comparison",
        title="Are the differences more than chance?",
        lead="All algorithms met the same worlds: seed by seed the same devices, data and initial models. So they are "
        "compared seed by seed, with a paired t test.",
        tables=[cells],
        notes=[
            f"Different means that p, adjusted by Holm for the number of pairs, is below {LEVEL:g}. The intervals are "
            "not adjusted, each holds for its own pair alone.",
            "No difference shown is not the same as equal: few seeds cannot show a small difference.",
            *found.notes,
        ],
    )


def curves(found: Findings) -> Section | None:
    results = found.results
    events = [event for event in results.events if event.round <= results.rounds]
    drawn = _picture(
        figures.curves(found.ranking, events),
        "Best trial of each algorithm: mean over seeds with a band of one standard deviation. "
        + ("Dashed lines: what happened to the world, at the first round that felt it." if events else ""),
    )
    return Section(name="Curves", title="How did accuracy go, round by round?", pictures=drawn) if drawn else None


def sensitivity(found: Findings) -> Section | None:
    if not any(one.complete for one in found.sensitivities):
        return None
    importance, metric = importance_cells(found.sensitivities), found.ranking.selection_metric
    notes = [one.note for one in found.sensitivities if one.note]
    if found.results.counts()["pruned"]:
        notes.append("Trials that were stopped early are left out; they would have been among the worse ones.")
    return Section(
        name="Sensitivity",
        title="How much does each algorithm depend on its tuning?",
        lead="Median: what a configuration drawn by this search typically reached. Worst quarter: one trial in four "
        "did worse than that. An algorithm whose three values are close together is easy to tune.",
        tables=[sensitivity_cells(found.sensitivities, metric), *([importance] if importance else [])],
        pictures=_picture(
            figures.importances(found.sensitivities, _places(found)),
            f"What decided whether a trial was among the best of its algorithm, by {METHOD} of the trials that did all "
            f"rounds or diverged; algorithms with fewer than {LEAST_TRIALS} such trials are left out.",
        )
        + _picture(
            figures.sweep(found.results, _ranked(found)),
            "Every trial, the lighter the better at its end (by the final loss where all have one).",
        ),
        notes=notes,
    )


def search(found: Findings) -> Section | None:
    results, ranked = found.results, _ranked(found)
    if not domains(results):
        return None
    pictures = _picture(
        figures.history(results, ranked),
        "Best value so far by the number of trials that the algorithm had. A line that still rises at its end would "
        "have gained from more trials.",
    )
    pictures += _picture(
        figures.slices(results, ranked),
        "Every trial that did all rounds, against one hyper-parameter at a time. Optima at the edge of a panel ask for "
        "a wider search.",
    )
    for algorithm in _places(found):
        pictures += _picture(
            figures.parallel(results, algorithm),
            f"Trials of {algorithm}: a line is a trial, read from left to right; the darker the better, the best one "
            "thick.",
            paper=True,
        )
    title = "What did the search try, and what came of it?"
    return Section(name="Search", title=title, pictures=pictures) if pictures else None


def pareto(found: Findings) -> Section | None:
    if found.front is None:
        return None
    return Section(
        name="Pareto front",
        title="What is gained, and what is paid for it?",
        lead="The study had several objectives. A trial is on the front where no other is at least as good in all of "
        "them and better in one.",
        tables=[front_cells(found.front)],
        pictures=_picture(
            figures.front_figure(found.front, _places(found)),
            "Large marks: the front. Small ones: trials that are beaten. Values are means over the search's seeds.",
        ),
    )


def failed(found: Findings) -> Section | None:
    cells = failure_cells(found.failures)
    return Section(name="Failures", title="What went wrong?", tables=[cells]) if cells else None


def origin(found: Findings, commands: Sequence[tuple[str, str]]) -> Section:
    results = found.results
    versions = [f"{name} {version}" for name in TOOLS if (version := _version(name))]
    return Section(
        name="How it was made",
        title="How can this be made again?",
        points=[f"This page was written with {', '.join(versions)}."] if versions else [],
        listings=[
            *(Listing(title=purpose, text=command) for purpose, command in commands),
            Listing(
                title="The study's config",
                text=yaml.safe_dump(dict(results.config), sort_keys=False, allow_unicode=True),
                folded=True,
            ),
        ],
    )


def cited(found: Findings) -> Section:
    return Section(
        name="Citations",
        title="Whom to cite for what this study used.",
        lead=f"Used here: {', '.join(names_used(found.results))}.",
        tables=[citation_cells(found.citations)],
        listings=[Listing(title="BibTeX", text=bibtex(found.citations), folded=True)],
    )


def _picture(figure: Figure | None, caption: str, paper: bool = False) -> list[Picture]:
    return [] if figure is None else [Picture(svg=figures.to_svg(figure), caption=caption.strip(), paper=paper)]


def _ranked(found: Findings) -> tuple[str, ...]:
    return tuple(row.trial.algorithm for row in found.ranking.rows)


def _places(found: Findings) -> dict[str, int]:
    """Algorithms with their colours."""
    return order(found.results, _ranked(found))


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
