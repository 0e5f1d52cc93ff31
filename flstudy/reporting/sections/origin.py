"""Origin of a report: versions and config, and commands to continue with."""

import shlex
from collections.abc import Sequence
from importlib import metadata

import yaml

from flstudy.remote import is_uri
from flstudy.reporting.ranking import Findings
from flstudy.reporting.section import Content, Listing, ReportSection
from flstudy.study.folder import from_here

TOOLS = ("flstudy", "torch", "lightning", "ray", "optuna", "mlflow", "scipy", "numpy")
NAME, TITLE = "How it was made", "How can this be made again?"


class OriginSection(ReportSection):
    """Section with versions, commands and the config."""

    order = 110

    def of_study(self, findings: Findings) -> Content:
        results, commands = findings.results, [("Browse every run", "flstudy ui")]
        if findings.ranking.rows:
            trial = findings.ranking.rows[0].trial
            config = results.folder.best / f"{trial.algorithm}.yaml"
            command = f"flstudy run {shlex.quote(from_here(config))}"
            commands.append((f"Run the best trial again ({trial.algorithm}, trial {trial.number})", command))
        called = results.folder.name_or_uri if is_uri(results.folder.name_or_uri) else results.name
        resume = ("Go on with the study, or extend it", f"flstudy tune --resume {shlex.quote(called)}")
        versions = [f"{name} {version}" for name in TOOLS if (version := _version(name))]
        config_text = yaml.safe_dump(dict(results.config), sort_keys=False, allow_unicode=True)
        return Content(
            name=NAME,
            title=TITLE,
            points=[f"This page was written with {', '.join(versions)}."] if versions else [],
            listings=[
                *(Listing(title=purpose, text=command) for purpose, command in [*commands, resume]),
                Listing(title="The study's config", text=config_text, folded=True),
            ],
            commands=commands,
        )

    def of_studies(self, studies: Sequence[Findings]) -> Sequence[Content]:
        places = [(study.results.folder.name_or_uri, study.results.folder.path) for study in studies]
        folders = (shlex.quote(name if is_uri(name) else from_here(path)) for name, path in places)
        again = ("Make this report again", f"flstudy report {' '.join(folders)}")
        return [Content(name=NAME, title=TITLE, listings=[Listing(title=again[0], text=again[1])], commands=[again])]


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
