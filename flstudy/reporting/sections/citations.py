"""Whom to cite for what a study used."""

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flstudy.config.schema import config_schema
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
CHOSEN = [f"population.{part}" for part in ("dataset", "partition", "drift", "drift.change")]  # by a search
STATISTICS: dict[str, str] = {"Holm's adjustment": "holm1979"}


class Citation(NamedTuple):
    """One work and what it is cited for."""

    key: str
    used: tuple[str, ...]


class CitationSection(ReportSection):
    """The works behind what was used, on the page and as citations.bib."""

    order = 120

    def of_study(self, found: Findings) -> Content:
        importances = any(one.importances for one in found.once(sensitivities))
        cited = citations([found.results], importances=importances)
        used = f"Used here: {', '.join(names_used(found.results))}."
        return _content("Whom to cite for what this study used.", cited, used)

    def of_studies(self, found: Sequence[Findings]) -> Sequence[Content]:
        cited = citations([one.results for one in found], ranks=True)
        return [_content("Whom to cite for what these studies used.", cited)]


def _content(title: str, cited: Sequence[Citation], lead: str = "") -> Content:
    text = bibtex(cited)
    works = {"For": [", ".join(one.used) for one in cited], "Key": [one.key for one in cited]}
    return Content(
        name="Citations",
        title=title,
        lead=lead,
        tables=[Cells.from_columns("Works", works, (0, 1))],
        listings=[Listing(title="BibTeX", text=text, folded=True)],
        files={"citations.bib": text},
        values={"citations": [one.key for one in cited]},
    )


@functools.cache
def references() -> dict[str, str]:
    """The entries of references.bib by key, as they are written there."""
    text = (Path(__file__).parents[1] / "references.bib").read_text(encoding="utf-8")
    entries = re.split(r"^(?=@)", text, flags=re.MULTILINE)[1:]
    return {entry[entry.index("{") + 1 : entry.index(",")]: entry.strip() for entry in entries}


@functools.cache
def cited() -> dict[str, tuple[str, ...]]:
    """The BibTeX keys of every shipped class that a config can name, by its short name: those that the class has for
    its ``citations``."""
    classes = [node for node in config_schema()["$defs"].values() if "x-class" in node]
    return {node["title"]: tuple(node.get("x-citations", ())) for node in classes}


def citations(
    studies: Sequence[StudyResults], *, importances: bool = False, ranks: bool = False
) -> tuple[Citation, ...]:
    """The works behind what studies used, in the order: algorithms, worlds, search, statistics, tools; those behind
    importances and ranks where the report shows such."""
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
    """Short class names: algorithms of the trials, then the world's and the search's."""
    config, study = results.config, results.section
    population, privacy = config.get("population") or {}, config.get("privacy") or {}
    drift = population.get("drift")
    change = (drift.get("init_args") or {}).get("change") if isinstance(drift, Mapping) else None
    written = [population.get(part) for part in ("dataset", "partition", "drift", "availability", "data_stream")]
    written += [change, config.get("controller"), config.get("schedule"), config.get("measure")]
    written += [trial.overrides.get(key) for trial in results.trials for key in CHOSEN]
    written += ["Privacy"] * (privacy.get("clip") is not None) + ["AdaptiveClip"] * bool(privacy.get("adaptive_clip"))
    written += ["Regret"] * (config.get("regret") is not None)
    written += [study.get("sampler") or "Tpe", study.get("scheduler")]
    algorithms: list[Any] = [trial.algorithm for trial in results.trials] or [config.get("algorithm")]
    return [name for name in dict.fromkeys(map(class_name, [*algorithms, *written])) if name]


def class_name(written: Any) -> str:
    """The class name of ``Flash``, ``flstudy.algorithms.Flash`` or ``{class_path: ...}``; empty for nothing."""
    path = written.get("class_path", "") if isinstance(written, Mapping) else written or ""
    return str(path).rpartition(".")[2]


def bibtex(found: Sequence[Citation]) -> str:
    """A .bib file."""
    return "\n\n".join(f"% {', '.join(citation.used)}\n{references()[citation.key]}" for citation in found) + "\n"
