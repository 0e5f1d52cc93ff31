"""Announcement of a study or a run before anything slow is imported: how many trials of which methods, with which
resources, and where results go. All of it follows from a config's values."""

import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flstudy.config.values import class_label
from flstudy.process_state import usable_cores
from flstudy.remote import child_uri, is_uri, shown_uri
from flstudy.study.folder import StudyFolder, free_path, from_here
from flstudy.study.working_copy import home_of

WIDTH = 100
NAMED = 6  # methods by their names; more are counted


def study_announcement(
    values: Mapping[str, Any],
    path: str,
    store: str,
    resume: Path | None = None,
    size: tuple[int | None, bool] | None = None,
) -> list[str]:
    """Return the lines that ``flstudy tune`` prints at the start.

    Args:
        values: the config's, completed.
        path: of the config's file.
        store: the MLflow store, as it is shown to users.
        resume: the folder of a study that goes on.
        size: number of trials of a sampler that knows its points, and whether it is exact rather than an upper bound;
            None: study.trials.
    """
    study, folder = values["study"], None if resume is None else StudyFolder(resume)
    methods, at_most = _methods(values), ""
    equal = study["allocation"] == "equal" and size is None  # a grid may have more points for one method
    if size is not None:
        study, at_most = {**study, "trials": size[0]}, "" if size[1] or size[0] is None else "up to "
    if folder is not None:
        place, name = folder.path, folder.name
        over = sum(trial.is_over for trial in folder.read_trials() if not trial.is_confirmation)
        are = "trial is" if over == 1 else "trials are"
        wanted = study["trials"] or "those that the budget allows"
        first = f"going on with {name}: {over} {are} over of {at_most}{wanted}"
    else:
        name = study["name"] or Path(path).stem
        place = free_path(home_of(study["folder"]) / name)
        name = place.name
        first = f"{name}: {at_most}{_trials(study, methods, equal)}"
    called = child_uri(study["folder"], name) if folder is None else folder.name_or_uri
    where = shown_uri(called) if is_uri(called) else from_here(place)
    shorter = "up to " if study["scheduler"] is not None or _budget(study) else ""
    first += f", {shorter}{_count(values['rounds'], 'round')} with {_count(len(values['seeds']), 'seed')} each"
    confirm = study["confirm"]
    if confirm["seeds"]:
        best = "the best of each method" if confirm["top"] == 1 else f"the best {confirm['top']} of each method"
        first += f"; then {best} again, with {_count(confirm['seeds'], 'new seed')}"
    return list(_wrap(first, _resources(study), f"results: {where}; MLflow: {store}"))


def run_announcement(values: Mapping[str, Any], path: str, store: str) -> list[str]:
    """Return the lines that ``flstudy run`` prints at the start; the arguments are those of `study_announcement`."""
    run, population = values["run"], values["population"]
    place = Path(run["folder"]) / (run["name"] or Path(path).stem)
    place = place if run["resume"] else free_path(place)
    first = (
        f"{place.name}: {_count(values['rounds'], 'round')} of {class_label('algorithm', values['algorithm'])} with "
    )
    first += f"{_count(len(values['seeds']), 'seed')} at once, {population['participants']} of "
    first += f"{_count(population['clients'], 'device')} in each round"
    tracked = f"; MLflow: {store}" if run["track"] else ""
    return list(_wrap(first, f"results: {from_here(place)}{tracked}"))


def _methods(values: Mapping[str, Any]) -> list[str]:
    return list(values["study"]["arms"]) or [class_label("algorithm", values["algorithm"])]


def _trials(study: Mapping[str, Any], methods: Sequence[str], equal: bool) -> str:
    compared = f"{len(methods)} methods" if len(methods) > NAMED else " and ".join(
        [", ".join(methods[:-1]), methods[-1]] if len(methods) > 1 else methods
    )  # fmt: skip
    if study["trials"] is None:
        return f"trials of {compared}, as many as {_budget(study)} allow"
    within = f" within {_budget(study)}" if _budget(study) else ""
    equal = equal and len(methods) > 1 and study["trials"] % len(methods) == 0
    share = f" ({study['trials'] // len(methods)} each)" if equal else ""
    return f"{_count(study['trials'], 'trial')} of {compared}{share}{within}"


def _budget(study: Mapping[str, Any]) -> str:
    budget = study["budget"]
    parts = [
        None if budget["rounds"] is None else f"{budget['rounds']:,} rounds",
        None if budget["hours"] is None else f"{budget['hours']:g} hours",
    ]
    return " or ".join(filter(None, parts))


def _resources(study: Mapping[str, Any]) -> str:
    resources = study["resources"]
    more = [f"{resources['gpu']:g} GPU" if resources["gpu"] else "", resources["accelerator_type"] or ""]
    more += [f"{resources['memory'] / 2**30:,.1f} GiB" if resources["memory"] else ""]
    more += [f"{amount:g} {name}" for name, amount in resources["custom"].items()]
    per_trial = " and ".join(filter(None, [_count(resources["cpu"], "core"), *more]))
    address = os.environ.get("RAY_ADDRESS")
    if address not in (None, "", "local"):
        return f"on the Ray cluster at {address}, {per_trial} for a trial"
    cores = usable_cores()
    most = [limit for limit in (study["trials"], study["concurrent"]) if limit is not None]
    if resources["cpu"] and not resources["gpu"]:
        beside = min([int(cores // resources["cpu"]), *most])
        return f"on this machine's {_count(cores, 'core')}, {per_trial} for a trial: {beside} side by side"
    return f"on this machine, {per_trial} for a trial"


def _count(number: float, noun: str) -> str:
    return f"{number:,g} {noun}" if number == 1 else f"{number:,g} {noun}s"


def _wrap(*sentences: str) -> Iterator[str]:
    for sentence in sentences:
        yield from textwrap.wrap(sentence, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
