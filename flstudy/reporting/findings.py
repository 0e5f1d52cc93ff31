"""Everything that a report says of one study, as values."""

from dataclasses import dataclass

from flstudy.reporting.bits import Bits, bits
from flstudy.reporting.citations import Citation, citations
from flstudy.reporting.comparison import Comparison, compare_chosen
from flstudy.reporting.cost import Cost, costs, failures
from flstudy.reporting.load import StudyResults, Trial
from flstudy.reporting.pareto import Front, front
from flstudy.reporting.ranking import Ranking, rank
from flstudy.reporting.sensitivity import Sensitivity, sensitivities

TUNING_SPENDS = (
    "ε is of one run each: trying trials on devices' data and choosing among them spends more of the privacy budget, "
    "which is not counted here."
)


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Of one study."""

    results: StudyResults
    ranking: Ranking
    comparison: Comparison
    sensitivities: tuple[Sensitivity, ...]
    front: Front | None
    costs: tuple[Cost, ...]
    bits: Bits | None
    failures: tuple[Trial, ...]
    citations: tuple[Citation, ...]

    @property
    def budget_notes(self) -> list[str]:
        """A sentence where the algorithms had searches of different size, and one where they spent privacy."""
        notes = []
        trials = {cost.algorithm: cost.trials for cost in self.costs}
        if trials and max(trials.values()) > min(trials.values()) + 1:  # an equal share may leave one over
            told = ", ".join(f"{name} {count}" for name, count in sorted(trials.items(), key=lambda item: -item[1]))
            notes.append(
                f"The algorithms had different numbers of trials ({told}): more trials find better ones by luck alone."
            )
        if any("privacy/epsilon" in trial.metrics for trial in self.results.trials):
            notes.append(TUNING_SPENDS)
        return notes


def find(results: StudyResults) -> Findings:
    """All that is known of a study, in the order of its ranking.

    Reads the records of the chosen trials, and of those that cannot tell their cost themselves.
    """
    ranking = rank(results)
    place = {row.trial.algorithm: number for number, row in enumerate(ranking.rows)}

    def ranked(one: Sensitivity | Cost) -> int:
        return place.get(one.algorithm, len(place))

    known = tuple(sorted(sensitivities(results), key=ranked))
    return Findings(
        results=results,
        ranking=ranking,
        comparison=compare_chosen(results, ranking),
        sensitivities=known,
        front=front(results),
        costs=tuple(sorted(costs(results, [row.speaker for row in ranking.rows]), key=ranked)),
        bits=bits(results, ranking),
        failures=failures(results),
        citations=citations([results], importances=any(one.importances for one in known)),
    )
