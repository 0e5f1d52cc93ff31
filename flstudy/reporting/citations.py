"""Whom to cite for what a study used."""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flstudy.config.schema import config_schema
from flstudy.study import StudyResults

TOOLS: dict[str, str] = {
    "Optuna": "akiba2019",
    "Ray Tune": "liaw2018",
    "MLflow": "zaharia2018",
    "PyTorch Lightning": "falcon2019",
    "PyTorch": "paszke2019",
}
STATISTICS: dict[str, str] = {"Holm's adjustment": "holm1979"}


@dataclass(frozen=True, kw_only=True)
class Citation:
    """One work and what it is cited for."""

    key: str
    used: tuple[str, ...]

    @property
    def bibtex(self) -> str:
        return references()[self.key]


@functools.cache
def references() -> dict[str, str]:
    """The entries of references.bib by key, as they are written there."""
    text = (Path(__file__).parent / "references.bib").read_text(encoding="utf-8")
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
    """The works behind what studies used, in the order: algorithms, worlds, search, statistics, tools.

    Args:
        studies: what was used.
        importances: whether the report shows importances of hyper-parameters.
        ranks: whether it ranks over several studies.
    """
    used: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for results in studies for name in names_used(results)):
        for key in cited().get(name, ()):
            used.setdefault(key, []).append(name)
    statistics = STATISTICS | ({"PED-ANOVA": "watanabe2023"} if importances else {})
    statistics |= {"ranks over studies": "demsar2006"} if ranks else {}
    for name, key in (statistics | TOOLS).items():
        used.setdefault(key, []).append(name)
    return tuple(Citation(key=key, used=tuple(names)) for key, names in used.items())


def names_used(results: StudyResults) -> list[str]:
    """Short class names: algorithms of the trials, then the world's and the search's."""
    config, study = results.config, results.section
    population = config.get("population") or {}
    algorithms = [trial.algorithm for trial in results.trials] or [class_name(config.get("algorithm"))]
    parts = ("dataset", "partition", "drift", "availability", "data_stream")
    world = [class_name(population.get(part)) for part in parts]
    drift = population.get("drift")
    if isinstance(drift, Mapping):
        world.append(class_name((drift.get("init_args") or {}).get("change")))
    world += [class_name(config.get(part)) for part in ("controller", "schedule")]
    chosen = [
        str(value).rpartition(".")[2]
        for trial in results.trials
        for key, value in trial.overrides.items()
        if key in ("population.dataset", "population.partition", "population.drift", "population.drift.change")
    ]
    privacy = config.get("privacy") or {}
    world += ["Privacy"] * (privacy.get("clip") is not None) + ["AdaptiveClip"] * bool(privacy.get("adaptive_clip"))
    world += ["Regret"] * (config.get("regret") is not None)
    search = [class_name(study.get("sampler") or "Tpe"), class_name(study.get("scheduler"))]
    return [name for name in dict.fromkeys([*algorithms, *world, *chosen, *search]) if name]


def class_name(written: Any) -> str:
    """The class name of ``Flash``, ``flstudy.algorithms.Flash`` or ``{class_path: ...}``; empty for nothing."""
    path = written.get("class_path", "") if isinstance(written, Mapping) else written or ""
    return str(path).rpartition(".")[2]


def bibtex(found: Sequence[Citation]) -> str:
    """A .bib file."""
    return "\n\n".join(f"% {', '.join(citation.used)}\n{citation.bibtex}" for citation in found) + "\n"
