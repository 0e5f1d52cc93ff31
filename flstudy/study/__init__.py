"""Studies: a study's folder, its trials and their records, its search space, and the one rule for its best trial."""

from flstudy.config.domain import Domain
from flstudy.study.best import BestTrial, best_trials, eligible
from flstudy.study.folder import StudyFolder
from flstudy.study.results import StudyResults, load_study
from flstudy.study.space import Space
from flstudy.study.trial import Status, Trial

__all__ = [
    "BestTrial",
    "Domain",
    "Space",
    "Status",
    "StudyFolder",
    "StudyResults",
    "Trial",
    "best_trials",
    "eligible",
    "load_study",
]
