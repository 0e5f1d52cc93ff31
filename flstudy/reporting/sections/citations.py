"""Citations of the works behind what a study used."""

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flstudy.config.composition import class_of
from flstudy.config.schema import config_schema
from flstudy.config.values import arguments_of, class_label
from flstudy.reporting.ranking import Findings
from flstudy.reporting.section import Content, Listing, ReportSection
from flstudy.reporting.sections.sensitivity import sensitivities
from flstudy.reporting.tables import Cells
from flstudy.study import StudyResults

TOOLS: dict[str, str] = {
    "Optuna": "akiba2019",
    "Ray Tune": "liaw2018",
    "MLflow": "zaharia2018",
    "PyTorch Lightning": "falcon2019",
    "PyTorch": "paszke2019",
}
WORLD = ("dataset", "partition", "drift", "availability", "data_stream", "selection")
CHOSEN = ("population.dataset", "population.partition", "population.drift", "population.drift.change")  # searchable
STATISTICS: dict[str, str] = {"Holm's adjustment": "holm1979"}


class Citation(NamedTuple):
    """Work to cite, and the names of what it is cited for."""

    key: str
    used: tuple[str, ...]


class CitationSection(ReportSection):
    """Section with the works to cite, on the page and as citations.bib."""

    order = 120

    def of_study(self, findings: Findings) -> Content:
        importances = any(sensitivity.importances for sensitivity in findings.once(sensitivities))
        cited = citations([findings.results], importances=importances)
        used = f"Used here: {', '.join(names_used(findings.results))}."
        return _content("Whom to cite for what this study used.", cited, used)

    def of_studies(self, studies: Sequence[Findings]) -> Sequence[Content]:
        cited = citations([study.results for study in studies], ranks=True)
        return [_content("Whom to cite for what these studies used.", cited)]


def _content(title: str, cited: Sequence[Citation], lead: str = "") -> Content:
    text = bibtex(cited)
    works = {"For": [", ".join(citation.used) for citation in cited], "Key": [citation.key for citation in cited]}
    return Content(
        name="Citations",
        title=title,
        lead=lead,
        tables=[Cells.from_columns("Works", works, (0, 1))],
        listings=[Listing(title="BibTeX", text=text, folded=True)],
        files={"citations.bib": text},
        values={"citations": [citation.key for citation in cited]},
    )


@functools.cache
def references() -> dict[str, str]:
    """Return the entries of references.bib by key, as they are written there."""
    text = (Path(__file__).parents[1] / "references.bib").read_text(encoding="utf-8")
    entries = re.split(r"^(?=@)", text, flags=re.MULTILINE)[1:]
    return {entry[entry.index("{") + 1 : entry.index(",")]: entry.strip() for entry in entries}


@functools.cache
def cited() -> dict[str, tuple[str, ...]]:
    """Return the BibTeX keys of every shipped class that a config can name, by its short name: the ``citations`` of the
    class."""
    classes = [node for node in config_schema()["$defs"].values() if "x-class" in node]
    return {node["title"]: tuple(node.get("x-citations", ())) for node in classes}


def citations(
    studies: Sequence[StudyResults], *, importances: bool = False, ranks: bool = False
) -> tuple[Citation, ...]:
    """Return the works behind what studies used, in the order: algorithms, worlds, search, statistics, tools; those
    behind importances and ranks where the report shows them."""
    used: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for results in studies for name in names_used(results)):
        for key in cited().get(name, ()):
            used.setdefault(key, []).append(name)
    statistics = STATISTICS | ({"PED-ANOVA": "watanabe2023"} if importances else {})
    statistics |= {"ranks over studies": "demsar2006"} if ranks else {}
    for name, key in (statistics | TOOLS).items():
        used.setdefault(key, []).append(name)
    return tuple(Citation(key, tuple(names)) for key, names in used.items())


def names_used(results: StudyResults) -> list[str]:
    """Return the names of the classes that a study used: algorithms of its trials, then those of its world and
    search."""
    config, study = results.config, results.section
    population, privacy = config.get("population") or {}, config.get("privacy") or {}
    drift = population.get("drift")
    used: list[tuple[str, Any]] = [("algorithm", trial.algorithm) for trial in results.trials]
    used = used or [("algorithm", config.get("algorithm"))]
    used += [(f"population.{part}", population.get(part)) for part in WORLD]
    used += [("population.drift.change", arguments_of(drift).get("change") if isinstance(drift, Mapping) else None)]
    used += [(key, config.get(key)) for key in ("controller", "schedule", "measure")]
    used += [(key, trial.overrides.get(key)) for trial in results.trials for key in CHOSEN]
    sections = {"Privacy": privacy.get("clip") is not None, "AdaptiveClip": privacy.get("adaptive_clip")}
    sections["Regret"] = config.get("regret") is not None
    search = [("study.sampler", study.get("sampler") or "Tpe"), ("study.scheduler", study.get("scheduler"))]
    names = [class_label(key, class_of(config, key, value)) for key, value in used if value]
    names += [name for name, is_on in sections.items() if is_on]
    return list(dict.fromkeys([*names, *(class_label(key, value) for key, value in search if value)]))


def bibtex(works: Sequence[Citation]) -> str:
    """Return the text of a .bib file with these works."""
    return "\n\n".join(f"% {', '.join(citation.used)}\n{references()[citation.key]}" for citation in works) + "\n"
