"""Damaged files of the study's folder, which are missing from the report."""

from flstudy.reporting.ranking import Findings
from flstudy.reporting.section import Content, ReportSection
from flstudy.study.device_results import device_results_damage

NAME, TITLE = "Damage", "What could not be read?"


class DamageSection(ReportSection):
    """Section with a remark for each file that could not be read."""

    order = 105

    def of_study(self, findings: Findings) -> Content | None:
        results = findings.results
        of_trials = [reason for trial in results.trials if trial.is_over and (reason := results.damage_of(trial))]
        paths = [results.folder.by_device(row.trial.number) for row in findings.ranking.rows]
        of_devices = [reason for path in paths if (reason := device_results_damage(path))]
        remarks = [f"{reason}." for reason in [*results.damage, *of_trials, *of_devices]]
        return Content(name=NAME, title=TITLE, points=remarks, remarks=remarks) if remarks else None
