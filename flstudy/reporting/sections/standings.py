"""Standings of algorithms over several studies (Demšar 2006): mean ranks, and Friedman's test of any difference."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from flstudy.escaping import for_figure
from flstudy.reporting.looks import looks_of
from flstudy.reporting.ranking import Findings
from flstudy.reporting.section import Content, ReportSection, pictures, present
from flstudy.reporting.sections.comparison import (
    LEVEL,
    StudyComparison,
    compare_study,
    comparison_cells,
    comparison_metric,
    format_p,
    verdicts,
)
from flstudy.reporting.sections.ranking import models_cells, result_cells
from flstudy.reporting.style import finish, new_panels, scale_of
from flstudy.reporting.tables import Cells, format_value, percent_sign
from flstudy.study.folder import from_here
from flstudy.user_error import UserError

LEAST_STUDIES = 3
LEAST_ALGORITHMS = 3  # for Friedman's test
CAPTION = "Mean and standard deviation over seeds, in each study; the best mean rank on top."
WIDE = 4  # largest number of panels in a row


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Standing of an algorithm over several studies."""

    algorithm: str
    mean_rank: float  # 1 is best; ties share the mean of their ranks
    wins: int  # number of studies in which no algorithm is better
    worlds: int


@dataclass(frozen=True, kw_only=True)
class Standings:
    """Standings of the algorithms of several studies."""

    names: tuple[str, ...]
    metric: str
    higher: bool
    comparisons: tuple[StudyComparison, ...]  # by study
    standings: tuple[Standing, ...]  # best first; of the algorithms that every study has
    friedman: tuple[float, float] | None  # (statistic, p)
    notes: tuple[str, ...]


class StandingsSection(ReportSection):
    """Section with the results over all studies, and of each study."""

    order = 15

    def of_studies(self, studies: Sequence[Findings]) -> Sequence[Content]:
        over = compare_studies(studies)
        cells, drawn = standing_cells(over), pictures((standings_figure(over), CAPTION))
        headline, notes = standings_headline(over), standings_notes(over)
        whole = Content(
            name="Summary",
            title=f"Over all studies, {headline}.",
            tables=present(cells),
            pictures=drawn,
            notes=notes,
            heading=f"{len(studies)} studies beside each other: {headline}",
            facts={"Studies": ", ".join(over.names), "Compared on": over.metric},
            brief=present(cells),
            remarks=notes,
            exports=dict(zip(["results.png"], drawn, strict=False)),
            values={
                "studies": over.names,
                "metric": over.metric,
                "higher_is_better": over.higher,
                "standings": [dataclasses.asdict(standing) for standing in over.standings],
                "friedman": over.friedman and {"statistic": over.friedman[0], "p": over.friedman[1]},
                "comparisons": {
                    name: comparison.to_json() for name, comparison in zip(over.names, over.comparisons, strict=True)
                },
                "notes": over.notes,
            },
        )
        return [whole, *(_part(study, comparison) for study, comparison in zip(studies, over.comparisons, strict=True))]


def _part(findings: Findings, comparison: StudyComparison) -> Content:
    name = findings.results.name
    ranking = findings.ranking
    tables = present(result_cells(ranking, name), models_cells(ranking)) if ranking.rows else []
    ranked = [dataclasses.replace(cells, label=f"{name}-{cells.label}") for cells in tables]
    page = findings.results.folder.report / "report.html"
    return Content(
        name=name,
        title=f"What came out in study {name}?",
        points=verdicts(comparison),
        tables=[*ranked, *(dataclasses.replace(cells, label="") for cells in present(comparison_cells(comparison)))],
        notes=[f"Its own report: {from_here(page)}"] if page.is_file() else [],
        brief=ranked,
    )


def compare_studies(studies: Sequence[Findings]) -> Standings:
    """Rank the algorithms over several studies.

    Raises:
        UserError: where the studies have different objectives.
    """
    from scipy import stats

    first = studies[0].results
    for study in studies:
        if study.results.objective != first.objective:
            mine, other = (f"{goal.metric} ({goal.mode})" for goal in (first.objective, study.results.objective))
            raise UserError(
                f"studies in one report must have the same objective, got {mine} in {first.name} and {other} in "
                f"{study.results.name}: report them one by one"
            )
    metric, higher = comparison_metric(studies), first.objective.higher
    comparisons = tuple(compare_study(study, metric) for study in studies)
    everywhere = [
        name for name in comparisons[0].values if all(np.isfinite(comparison.mean(name)) for comparison in comparisons)
    ]
    every = dict.fromkeys(name for comparison in comparisons for name in comparison.values)
    notes, missing = [], [name for name in every if name not in everywhere]
    if missing:
        notes.append(f"Without a result in every study, and so without a rank: {', '.join(missing)}.")
    means = np.array([[comparison.mean(name) for name in everywhere] for comparison in comparisons])  # [studies, names]
    losses = -means if higher else means
    ranks = stats.rankdata(losses, axis=1).mean(0)
    wins = (losses == losses.min(1, keepdims=True, initial=np.inf)).sum(0)
    standings = [
        Standing(algorithm=name, mean_rank=float(rank), wins=int(won), worlds=len(studies))
        for name, rank, won in zip(everywhere, ranks, wins, strict=True)
    ]
    friedman = None
    if len(studies) >= LEAST_STUDIES and len(everywhere) >= LEAST_ALGORITHMS:
        test = stats.friedmanchisquare(*means.T)
        friedman = (float(test.statistic), float(test.pvalue)) if np.isfinite(test.pvalue) else None
    else:
        notes.append(
            f"Friedman's test needs at least {LEAST_STUDIES} studies and {LEAST_ALGORITHMS} algorithms that all of "
            f"them have; here are {len(studies)} and {len(everywhere)}."
        )
    return Standings(
        names=tuple(study.results.name for study in studies),
        metric=metric,
        higher=higher,
        comparisons=comparisons,
        standings=tuple(sorted(standings, key=lambda standing: standing.mean_rank)),
        friedman=friedman,
        notes=tuple(notes),
    )


def standings_headline(over: Standings) -> str:
    """Return the result over all studies, in words that claim no more than the test shows."""
    if not over.standings:
        return "no algorithm has a result in all of them"
    first = over.standings[0]
    shown = over.friedman is not None and over.friedman[1] < LEVEL
    reservation = "" if shown or len(over.standings) < 2 else "; no difference between the algorithms is shown"
    return f"{first.algorithm} has the best mean rank, {first.mean_rank:.2f}{reservation}"


def standings_notes(over: Standings) -> list[str]:
    """Return the notes on the test over studies, then on missing results."""
    notes = []
    if over.friedman is not None:
        statistic, p = over.friedman
        verdict = "some algorithms differ" if p < LEVEL else "no difference between the algorithms is shown"
        sign = format_p(p) if p < 0.001 else f"= {format_p(p)}"
        notes.append(f"Friedman's test over the studies: χ² = {statistic:.2f}, p {sign}: {verdict}.")
    notes.append("Rank 1 is best; a win is a study in which nobody was better; equal algorithms share their ranks.")
    notes += over.notes
    where: dict[str, list[str]] = {}  # note -> studies
    for name, comparison in zip(over.names, over.comparisons, strict=True):
        for note in comparison.notes:
            where.setdefault(note, []).append(name)
    return notes + [f"{', '.join(names)}: {note}" for note, names in where.items()]


def standing_cells(over: Standings) -> Cells | None:
    """Return the table of algorithms by mean rank over studies, with their mean in each; None where none is in all
    studies."""
    if not over.standings:
        return None
    sign = 1 if over.higher else -1
    names = [standing.algorithm for standing in over.standings]
    leaders = [max(names, key=lambda name: (sign * comparison.mean(name), name)) for comparison in over.comparisons]
    columns = {
        "Algorithm": names,
        "Mean\nrank": [f"{standing.mean_rank:.2f}" for standing in over.standings],
        "Wins": [f"{standing.wins} of {standing.worlds}" for standing in over.standings],
    }
    for study, comparison in zip(over.names, over.comparisons, strict=True):
        columns[study] = [format_value(comparison.mean(name), over.metric) for name in names]
    title = f"Mean rank over {len(over.names)} studies, and mean {over.metric}{percent_sign(over.metric)} in each"
    best = frozenset((names.index(leader), 3 + study) for study, leader in enumerate(leaders))
    return Cells.from_columns(title, columns, label="ranks", best=best)


def standings_figure(over: Standings) -> Figure | None:
    """Return the figure with a panel per study: mean and standard deviation over seeds by algorithm, the best mean rank
    on top."""
    ranked = [standing.algorithm for standing in over.standings]
    names = list(dict.fromkeys([*ranked, *(name for comparison in over.comparisons for name in comparison.values)]))
    if not names:
        return None
    scale, label = scale_of(over.metric)
    columns, looks = min(WIDE, len(over.names)), looks_of(names)
    figure, panels = new_panels(len(over.names), columns, 0.9 + 0.24 * len(names), sharey=True)
    for axes, study, comparison in zip(panels, over.names, over.comparisons, strict=True):
        for place, name in enumerate(names):
            values = scale * np.array(list(comparison.values.get(name, {}).values()))
            finite = values[np.isfinite(values)]
            if finite.size:
                spread = finite.std(ddof=1) if finite.size > 1 else 0.0
                look: dict[str, Any] = {
                    "fmt": looks[name].marker,
                    "color": looks[name].colour,
                    "capsize": 3,
                    "markersize": 6,
                }
                axes.errorbar(finite.mean(), place, xerr=spread, label=name, **look)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_title(for_figure(study), fontsize=10, loc="left")
        finish(axes, 9, 9, xlabel=label)
    return figure
