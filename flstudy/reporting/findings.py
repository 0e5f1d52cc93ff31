"""A study as the sections of its report see it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from flstudy.reporting.ranking import Ranking, rank
from flstudy.study import StudyResults

TUNING_SPENDS = (
    "ε is of one run each: trying trials on devices' data and choosing among them spends more of the privacy budget, "
    "which is not counted here."
)
Analysis = TypeVar("Analysis")


@dataclass(frozen=True, kw_only=True)
class Findings:
    """A study, its ranking, and the analyses that several sections share."""

    results: StudyResults
    _made: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def ranking(self) -> Ranking:
        return rank(self.results)

    def once(self, analysis: "Callable[[Findings], Analysis]") -> Analysis:
        """What a section's analysis finds in this study, made when the first section asks for it."""
        if analysis not in self._made:
            self._made[analysis] = analysis(self)
        return self._made[analysis]  # type: ignore[no-any-return]

    @cached_property
    def places(self) -> dict[str, int]:
        """Each algorithm's place, and so its colour in every figure: the ranked ones first, in the ranking's order."""
        ranked = [row.trial.algorithm for row in self.ranking.rows]
        names = dict.fromkeys([*ranked, *(trial.algorithm for trial in self.results.searched)])
        return {name: place for place, name in enumerate(names)}
