"""What is about to happen, said before anything slow is imported: how many trials of what, on what, and where results
go. All of it is known from a config's values."""

import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flstudy.config.values import short
from flstudy.study.folder import StudyFolder, free_path

WIDTH = 100
NAMED = 6  # methods by their names; more are counted


def announced_study(values: Mapping[str, Any], path: str, store: str, resume: Path | None = None) -> list[str]:
    """The lines of ``flstudy tune``.

    Args:
        values: the config's, completed.
        path: of the config's file.
        store: where runs go, for people.
        resume: the folder of a study that goes on.
    """
    study, folder = values["study"], None if resume is None else StudyFolder(resume)
    methods = _methods(values)
    if folder is not None:
        place, name = folder.path, folder.name
        over = sum(trial.is_over for trial in folder.read_trials() if not trial.is_confirmation)
        are = "trial is" if over == 1 else "trials are"
        first = f"going on with {name}: {over} {are} over of {study['trials'] or 'those that the budget allows'}"
    else:
        name = study["name"] or Path(path).stem
        place = free_path(Path(study["folder"]) / name)
        first = f"{place.name}: {_trials(study, methods)}"
    at_most = "up to " if study["scheduler"] is not None or _budget(study) else ""
    first += f", {at_most}{_count(values['rounds'], 'round')} with {_count(len(values['seeds']), 'seed')} each"
    confirm = study["confirm"]
    if confirm["seeds"]:
        best = "the best of each method" if confirm["top"] == 1 else f"the best {confirm['top']} of each method"
        first += f"; then {best} again, with {_count(confirm['seeds'], 'new seed')}"
    return list(_wrapped(first, _resources(study), f"results: {_from_here(place)}; MLflow: {store}"))


def announced_run(values: Mapping[str, Any], path: str, store: str) -> list[str]:
    """The lines of ``flstudy run``; the arguments are those of `announced_study`."""
    run, population = values["run"], values["population"]
    place = Path(run["folder"]) / (run["name"] or Path(path).stem)
    place = place if run["resume"] else free_path(place)
    first = f"{place.name}: {_count(values['rounds'], 'round')} of {short(values['algorithm'])} with "
    first += f"{_count(len(values['seeds']), 'seed')} at once, {population['participants']} of "
    first += f"{_count(population['clients'], 'device')} in each round"
    tracked = f"; MLflow: {store}" if run["track"] else ""
    return list(_wrapped(first, f"results: {_from_here(place)}{tracked}"))


def _methods(values: Mapping[str, Any]) -> list[str]:
    searched = values["study"]["search"].get("algorithm", {}).get("choice")
    return list(map(short, searched or [values["algorithm"]]))


def _trials(study: Mapping[str, Any], methods: Sequence[str]) -> str:
    told = f"{len(methods)} methods" if len(methods) > NAMED else " and ".join(
        [", ".join(methods[:-1]), methods[-1]] if len(methods) > 1 else methods
    )  # fmt: skip
    if study["trials"] is None:
        return f"trials of {told}, as many as {_budget(study)} allow"
    within = f" within {_budget(study)}" if _budget(study) else ""
    equal = study["allocation"] == "equal" and len(methods) > 1 and study["trials"] % len(methods) == 0
    each = f" ({study['trials'] // len(methods)} each)" if equal else ""
    return f"{_count(study['trials'], 'trial')} of {told}{each}{within}"


def _budget(study: Mapping[str, Any]) -> str:
    budget = study["budget"]
    parts = [
        None if budget["rounds"] is None else f"{budget['rounds']:,} rounds",
        None if budget["hours"] is None else f"{budget['hours']:g} hours",
    ]
    return " or ".join(filter(None, parts))


def _resources(study: Mapping[str, Any]) -> str:
    asked = study["resources"]
    each = _count(asked["cpu"], "core") + (f" and {asked['gpu']:g} GPU" if asked["gpu"] else "")
    address = os.environ.get("RAY_ADDRESS")
    if address not in (None, "", "local"):
        return f"on the Ray cluster at {address}, {each} for a trial"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    most = [one for one in (study["trials"], study["concurrent"]) if one is not None]
    if asked["cpu"] and not asked["gpu"]:
        beside = min([int(cores // asked["cpu"]), *most])
        return f"on this machine's {_count(cores, 'core')}, {each} for a trial: {beside} side by side"
    return f"on this machine, {each} for a trial"


def _count(number: float, noun: str) -> str:
    return f"{number:,g} {noun}" if number == 1 else f"{number:,g} {noun}s"


def _from_here(place: Path) -> str:
    place = place.absolute()
    return str(place.relative_to(Path.cwd()) if place.is_relative_to(Path.cwd()) else place)


def _wrapped(*sentences: str) -> Iterator[str]:
    for sentence in sentences:
        yield from textwrap.wrap(sentence, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
