"""What is damaged in the study's folder, and is missing from the report."""

from flstudy.reporting.ranking import Findings
from flstudy.reporting.section import Content, ReportSection

NAME, TITLE = "Damage", "What could not be read?"


class DamageSection(ReportSection):
    """A remark for each file that could not be read."""

    order = 105

    def of_study(self, found: Findings) -> Content | None:
        results = found.results
        lost = [reason for trial in results.trials if trial.is_over and (reason := results.lost(trial))]
        remarks = [f"{reason}." for reason in [*results.damage, *lost]]
        return (
            Content(name="Damage", title="What could not be read?", points=remarks, remarks=remarks)
            if remarks
            else None
        )
