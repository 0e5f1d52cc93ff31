"""From a study's folder to what a person reads: tables, figures, the next command. Needs no server."""

from flstudy.reporting.load import StudyResults, Trial, load_study
from flstudy.reporting.report import Report, report

__all__ = ["Report", "StudyResults", "Trial", "load_study", "report"]
