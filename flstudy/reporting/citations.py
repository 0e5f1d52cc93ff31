"""Whom to cite for what a study used."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flstudy.reporting.bibliography import ENTRIES
from flstudy.reporting.load import StudyResults

CITED: dict[str, tuple[str, ...]] = {
    # algorithms
    "FedAvg": ("mcmahan2017",),
    "FedAvgM": ("hsu2019",),
    "FedAcg": ("kim2024",),
    "FedAdaGrad": ("reddi2021",),
    "FedAdam": ("reddi2021",),
    "FedYogi": ("reddi2021",),
    "FedProx": ("li2020fedprox",),
    "FedNova": ("wang2020",),
    "FedOmd": ("mitra2021", "ganguly2024"),
    "FedDyn": ("acar2021",),
    "FedDC": ("gao2022",),
    "Ditto": ("li2021ditto",),
    "Apfl": ("deng2020",),
    "AdaptiveFedAvg": ("canonaco2021",),
    "HypCluster": ("mansour2020", "ghosh2020"),
    "FedDriftEager": ("jothimurugesan2023",),
    "FedDrift": ("jothimurugesan2023",),
    "Moon": ("li2021moon",),
    "Continuous": ("chang2025", "dong2022"),
    "Oracle": ("panchal2023",),
    "LocalOnly": (),
    "Scaffold": ("karimireddy2020",),
    "JointAdaptivity": ("lee2024",),
    "DirectJointAdaptivity": ("lee2024",),
    "FedAda2": ("lee2024", "anil2019"),
    "FedBlended": ("lee2024",),
    "Mime": ("karimireddy2020mime", "karimireddy2021"),
    "MimeLite": ("karimireddy2020mime", "karimireddy2021"),
    "Flash": ("panchal2023",),
    # samplers
    "Tpe": ("bergstra2011",),
    "RandomSearch": ("bergstra2012",),
    "GridSearch": (),  # nobody's in particular
    "TwoStep": ("lee2024",),
    "CmaEs": ("hansen2001",),
    "GaussianProcess": ("snoek2012",),
    "Nsga2": ("deb2002",),
    # schedulers
    "Asha": ("li2020asha",),
    "HyperBand": ("li2018hyperband", "li2020asha"),
    "Pbt": ("jaderberg2017",),
    "MedianStopping": ("golovin2017",),
    # worlds
    "Digits": ("alpaydin1998",),
    "HeavyTails": ("lee2024",),
    "Synthetic": ("li2020fedprox",),
    "Emnist": ("cohen2017", "caldas2018"),
    "Shakespeare": ("mcmahan2017", "caldas2018"),
    "StackOverflow": ("reddi2021",),
    "StackOverflowTags": ("reddi2021",),
    "Cifar10": ("krizhevsky2009",),
    "Cifar100": ("krizhevsky2009",),
    "Mnist": ("lecun1998",),
    "LibSvm": ("chang2011",),
    "FashionMnist": ("xiao2017",),
    "Svhn": ("netzer2011",),
    "TinyImageNet": ("le2015",),
    "Landmarks": ("weyand2020", "hsu2020"),
    "AgNews": ("zhang2015",),
    "BalancedDirichlet": ("hsu2019", "reddi2021"),
    "Dirichlet": ("hsu2019", "li2022niid"),
    "Shards": ("mcmahan2017",),
    "Iid": (),
    "SuddenDrift": ("panchal2023",),
    "IncrementalDrift": ("panchal2023",),
    "RecurrentDrift": ("panchal2023",),
    "StaggeredDrift": (),
    "ScheduledDrift": (),
    "RepeatedDrift": ("ganguly2024",),
    "ClassIntroduction": ("ganguly2024",),
    "FreshDraws": ("ganguly2024",),
    "AlternatingGroups": ("chang2025",),
    "ScheduledPresence": (),
    "DynamicInitialModel": ("chang2025",),
    "Average": ("chang2025",),
    "Polynomial": ("chang2025",),
    "Cosine": ("loshchilov2017",),
    "Restart": (),
    "MasterFL": ("ganguly2024", "wei2021"),
    "LabelGroups": ("chang2025",),
    "Half": ("chang2025",),
    "PartialOverlap": ("chang2025",),
    "TwoShard": ("chang2025",),
    "Distinct": ("chang2025",),
    "LabelSwap": ("panchal2023",),
    "ComposedSwaps": ("ganguly2024",),
    "NoChange": (),
    "FeatureShift": (),
    "Rotation": ("ghosh2020",),
    # between devices and server
    "Privacy": ("mcmahan2018",),
    "AdaptiveClip": ("andrew2021",),
    # what is measured
    "Regret": ("ganguly2024",),
}
"""Keys of `bibliography.ENTRIES` by what a config can name; an empty one says that there is nobody to cite."""

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
        return ENTRIES[self.key]


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
        for key in CITED.get(name, ()):
            used.setdefault(key, []).append(name)
    statistics = STATISTICS | ({"PED-ANOVA": "watanabe2023"} if importances else {})
    statistics |= {"ranks over studies": "demsar2006"} if ranks else {}
    for name, key in (statistics | TOOLS).items():
        used.setdefault(key, []).append(name)
    return tuple(Citation(key=key, used=tuple(names)) for key, names in used.items())


def names_used(results: StudyResults) -> list[str]:
    """Short class names: algorithms of the trials, then the world's and the search's."""
    config, study = results.config, results.config.get("study") or {}
    population = config.get("population") or {}
    algorithms = [trial.algorithm for trial in results.trials] or [short(config.get("algorithm"))]
    world = [short(population.get(part)) for part in ("dataset", "partition", "drift", "presence", "arrivals")]
    drift = population.get("drift")
    if isinstance(drift, Mapping):
        world.append(short((drift.get("init_args") or {}).get("change")))
    world += [short(config.get(part)) for part in ("controller", "schedule")]
    chosen = [
        str(value).rpartition(".")[2]
        for trial in results.trials
        for key, value in trial.overrides.items()
        if key in ("population.dataset", "population.partition", "population.drift", "population.drift.change")
    ]
    privacy = config.get("privacy") or {}
    world += ["Privacy"] * (privacy.get("clip") is not None) + ["AdaptiveClip"] * bool(privacy.get("adaptive_clip"))
    world += ["Regret"] * (config.get("regret") is not None)
    search = [short(study.get("sampler") or "Tpe"), short(study.get("scheduler"))]
    return [name for name in dict.fromkeys([*algorithms, *world, *chosen, *search]) if name]


def short(written: Any) -> str:
    """The class name of ``Flash``, ``flstudy.algorithms.Flash`` or ``{class_path: ...}``; empty for nothing."""
    path = written.get("class_path", "") if isinstance(written, Mapping) else written or ""
    return str(path).rpartition(".")[2]


def bibtex(found: Sequence[Citation]) -> str:
    """A .bib file."""
    return "\n\n".join(f"% {', '.join(citation.used)}\n{citation.bibtex}" for citation in found) + "\n"
