"""Damaged files of the study's folder, which are missing from the report."""

from flstudy.reporting.ranking import Findings
from flstudy.reporting.section import Content, ReportSection

NAME, TITLE = "Damage", "What could not be read?"


class DamageSection(ReportSection):
    """Section with a remark for each file that could not be read."""

    order = 105

    def of_study(self, findings: Findings) -> Content | None:
        results = findings.results
        lost = [reason for trial in results.trials if trial.is_over and (reason := results.lost(trial))]
        remarks = [f"{reason}." for reason in [*results.damage, *lost]]
        return Content(name=NAME, title=TITLE, points=remarks, remarks=remarks) if remarks else None
