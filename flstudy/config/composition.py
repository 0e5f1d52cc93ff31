"""Composition of the configuration of a run, or of a study's trial, from the config's file, options, arm, preset and
proposal. All code that needs a configuration takes it from `composed`.

The layers in the order in which they are applied:

    file          a value that it gives a class holds for every class that has the key, as LightningCLI keeps the
                  arguments that fit a new class; but a part of the world, such as a partition, is defined by its paper
                  and starts from its own values
    options       are edits of the file
    preset        ``study.presets.NAME`` of the arm's name or its class's; an option overrides it
    arm           ``study.arms.NAME``: a variant of a class with its own name, values and ranges; the classes of
                  ``study.search.algorithm.choice`` are arms, too
    proposal      the values that a search chose

Options override the values of an arm that the file or an option chose; the values of an arm that a proposal chose
override options, or two arms would become the same.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flstudy.config.errors import ConfigError, shown, spelled
from flstudy.config.lines import errors_with_line
from flstudy.config.reading import ARMS, SEARCH, content_of, parse_options, text_of
from flstudy.config.registry import ROOTS, by_module, check_files
from flstudy.config.schema import class_names
from flstudy.config.values import (
    argument_nodes,
    arguments_of,
    check_value,
    class_label,
    completed,
    drawn_ends,
    flat_items,
    of_world,
    ranges_of,
    resolved,
)

EARLIER = "earlier"
"""Composition rule for studies that an earlier version began: another class starts from its own defaults, and the
file's values of its own algorithm override that algorithm's preset."""


def composed(
    content: Mapping[str, Any],
    edits: Iterable[tuple[str, Any]] = (),
    proposal: Mapping[str, Any] | None = None,
    *,
    imports: bool = False,
    rule: str = "",
) -> dict[str, Any]:
    """Return the nested values of a configuration, for `completed` to check.

    Args:
        content: of the file.
        edits: options, and keys that a script sets; of two with one key the last counts.
        proposal: the values that a search chose, an arm by its name.
        imports: whether users' classes may be imported, to learn which arguments they have.
        rule: `EARLIER`, or none.
    """
    nested = by_module(content)
    edits = _study_edited(nested, [(key, by_module(value)) for key, value in edits])
    edits = [pair for key, value in edits for pair in _apart(nested, key, value)]
    proposed = [pair for key, value in (proposal or {}).items() for pair in _apart(nested, key, by_module(value))]
    edited_keys = {key for key, _ in edits}
    arm = _arm(nested, [*edits, *proposed])
    if rule == EARLIER:
        layers = [[*_preset(nested, [*edits, *proposed], dict(flat_items(nested))), *edits, *arm, *proposed]]
    else:
        if not any(key == "algorithm" for key, _ in proposed):
            arm = [pair for pair in arm if pair[0] not in edited_keys]
        preset = [pair for pair in _preset(nested, [*edits, *proposed], {}) if pair[0] not in edited_keys]
        layers = [edits, [pair for pair in proposed if pair[0] in ROOTS], preset, arm, proposed]
    for layer in layers:
        _put_all(nested, layer, imports=imports, carry=rule != EARLIER)
    if proposal:
        _put_drawn(nested, proposal, {key: None for key, _ in [*arm, *proposed] if key in ROOTS}, imports)
    return nested


def _put_drawn(nested: dict[str, Any], proposal: Mapping[str, Any], roots: Iterable[str], imports: bool) -> None:
    """Set required arguments of the proposed classes to stand-in values from their ranges, where the search draws them.

    With these a class can be checked before its arguments are drawn (`drawn_ends`).
    """
    study = nested.get("study")
    ranges = ranges_of(study, proposal.get("algorithm")) if isinstance(study, Mapping) else {}
    values = dict(flat_items({key: value for key, value in nested.items() if key != "study"}))
    for key in roots:
        if isinstance(path := values.get(key), str):
            fixed = [name.removeprefix(f"{key}.") for name in values]
            for name, end in drawn_ends(key, path, fixed, ranges, imports=imports).items():
                set_key(nested, f"{key}.{name}", end, imports=imports)


def with_edits(content: Mapping[str, Any], edits: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return a file's content as if its author had written the edits into it; presets and arms are not applied."""
    nested = by_module(content)
    _put_all(nested, [pair for key, value in edits for pair in _apart(nested, key, by_module(value))])
    return nested


def _put_all(nested: dict[str, Any], changes: Iterable[tuple[str, Any]], **how: bool) -> None:
    for key, value in sorted(changes, key=lambda change: change[0].count(".")):  # stable: the last edit counts
        set_key(nested, key, value, **how)


def _study_edited(nested: dict[str, Any], edits: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Apply the edits of the study section in place and name its choices; returns the other edits."""
    left = []
    for key, value in edits:
        if not key.startswith("study."):
            left.append((key, value))
            continue
        for part, argument in _apart(nested, key, value):
            set_key(nested, part, argument)
    name_choices(nested)
    return left


def _variants(nested: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the named variants of the class at a key: a study's arms, or those of a choice."""
    study = nested.get("study")
    section = study if isinstance(study, Mapping) else {}
    if key == "algorithm":
        arms = section.get("arms")
        return arms if isinstance(arms, Mapping) else {}
    search = section.get("search")
    domain = search.get(key) if isinstance(search, Mapping) else None
    options = domain.get("choice") if isinstance(domain, Mapping) else None
    return options if isinstance(options, Mapping) else {}


def class_of(content: Mapping[str, Any], key: str, name: Any) -> Any:
    """Return the class that a name stands for, of an arm or of a choice's variant; any other value unchanged."""
    variant = _variants(content, key).get(name) if isinstance(name, str) else None
    return name if variant is None else variant


def _apart(nested: Mapping[str, Any], key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a class with arguments as the class and its arguments; the name of an arm stays a name, that of another
    choice's variant becomes the class that it stands for."""
    if key in ROOTS and key != "algorithm" and isinstance(value, str):
        value = _variants(nested, key).get(value, value)
    if key not in ROOTS or not isinstance(value, Mapping) or "class_path" not in value:
        yield key, value
        return
    yield key, value["class_path"]
    for name, argument in arguments_of(value).items():
        yield from _apart(nested, f"{key}.{name}", argument)


def _chosen(nested: Mapping[str, Any], changes: Sequence[tuple[str, Any]]) -> tuple[Any, Any]:
    """Return the algorithm by the last change that sets it: an arm's name or a class, and the class's path."""
    word = next((value for key, value in reversed(changes) if key == "algorithm"), None)
    word = nested.get("algorithm") if word is None else word
    arm = _variants(nested, "algorithm").get(word) if isinstance(word, str) else None
    path = arm.get("class_path", word) if isinstance(arm, Mapping) else word
    return word, path.get("class_path") if isinstance(path, Mapping) else path


def _arm(nested: Mapping[str, Any], changes: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return the class and the values of the arm that changes choose."""
    word, path = _chosen(nested, changes)
    arm = _variants(nested, "algorithm").get(word) if isinstance(word, str) else None
    if not isinstance(arm, Mapping):
        return []
    return list(_apart(nested, "algorithm", {"class_path": path, "init_args": arguments_of(arm)}))


def _preset(
    nested: Mapping[str, Any], changes: Sequence[tuple[str, Any]], file_keys: Mapping[str, Any]
) -> list[tuple[str, Any]]:
    """Return the values of ``study.presets`` for the algorithm that changes choose, except for the keys in
    ``file_keys`` if it is the file's algorithm."""
    study = nested.get("study")
    presets = study.get("presets") if isinstance(study, Mapping) else None
    word, path = _chosen(nested, changes)
    if not isinstance(presets, Mapping) or not isinstance(path, str):
        return []
    names = [word] if isinstance(word, str) else []
    values = next((presets[name] for name in [*names, class_label("algorithm", path)] if name in presets), None)
    if not isinstance(values, Mapping):
        return []
    of_file = resolved("algorithm", path) == resolved("algorithm", nested.get("algorithm"))
    every = {str(key) if "." in str(key) else f"algorithm.{key}": value for key, value in values.items()}
    return [("algorithm", path), *((key, value) for key, value in every.items() if not of_file or key not in file_keys)]


def set_key(nested: dict[str, Any], key: str, value: Any, *, imports: bool = False, carry: bool = True) -> None:
    """Set one dotted key in nested content.

    Args:
        nested: content, whose classes are named by their modules.
        key: dotted; with a + at its end the value is added to the list that is there.
        value: the value; for a key that names a class, the class's path.
        imports: whether a user's class may be imported, to learn which arguments it has.
        carry: whether another class keeps those of the arguments that it accepts.
    """
    key, more = key.removesuffix("+"), key.endswith("+")
    parents, name = key.split(".")[:-1], key.rpartition(".")[2]
    for table in (SEARCH, ARMS):  # whose own keys have dots
        if key.startswith(f"{table}."):
            parents, name = table.split("."), key.removeprefix(f"{table}.")
    place, at = nested, ""
    for parent in parents:
        at = f"{at}.{parent}" if at else parent
        below: Any = place.get(parent)
        if at in ROOTS and (below is None or isinstance(below, str)):
            below = below or ROOTS[at].default
            if not below:
                raise ConfigError(f"{key} needs a class, and {at} names none: give --{at} as well")
            below = place[parent] = {"class_path": below}
        elif not isinstance(below, Mapping):
            below = place[parent] = {}
        if "class_path" in below:
            below["init_args"] = arguments_of(below)
            below = below["init_args"]
        place = below
    if more:
        parts = (place.get(name) or [], value)
        value = [element for part in parts for element in (part if isinstance(part, list) else [part])]
    if key in ROOTS and isinstance(value, str):
        if key == "algorithm":
            value = _chosen(nested, [(key, value)])[1]
        value = _other_class(key, place.get(name), value, imports=imports, carry=carry)
    place[name] = value


def _other_class(key: str, before: Any, path: str, *, imports: bool, carry: bool) -> Any:
    """Return a class in the place of another, with those of the other's arguments that it accepts."""
    held = arguments_of(before) if isinstance(before, Mapping) else {}
    if isinstance(before, Mapping) and resolved(key, before.get("class_path")) == resolved(key, path):
        return before
    if not held or not carry or of_world(key):
        return path
    nodes = argument_nodes(key, path, imports=imports)
    held = {name: value for name, value in held.items() if name in nodes and _fits(f"{key}.{name}", value, nodes[name])}
    return {"class_path": path, "init_args": held}


def _fits(key: str, value: Any, node: Mapping[str, Any]) -> bool:
    """Return whether a class accepts a value that was given to another class."""
    try:
        check_value(key, value, node)
    except ConfigError:
        return False
    return True


# ---- names of variants -------------------------------------------------------------------------------------------


def name_choices(nested: Mapping[str, Any]) -> None:
    """Name the classes in a search's choices, in place.

    Classes of ``study.search.algorithm`` become arms in ``study.arms``, and the choice becomes a list of their names.
    The choice of another key becomes a mapping by name if a class in it has arguments or if two share a name. A choice
    that cannot be named stays as it is, for `completed` to refuse.
    """
    study = nested.get("study")
    if not isinstance(study, dict):
        return
    search, arms = study.get("search") or {}, study.get("arms") or {}
    if not isinstance(search, dict) or not isinstance(arms, dict):
        return
    for name, arm in arms.items():
        if isinstance(arm, dict):
            arm.setdefault("class_path", name)
    for key, domain in search.items():
        options = domain.get("choice") if key in ROOTS and isinstance(domain, dict) else None
        if not isinstance(options, list):
            continue
        arm_names = [option for option in options if key == "algorithm" and isinstance(option, str) and option in arms]
        named = _named(key, [option for option in options if option is not None and option not in arm_names])
        if named is None or (None in options and key == "algorithm"):
            continue
        if key == "algorithm":
            fresh = iter(named.items())
            ordered = dict((option, arms[option]) if option in arm_names else next(fresh) for option in options)
            arms = study["arms"] = {**ordered, **arms}
        elif any(isinstance(option, Mapping) for option in options) or _share_names(key, options):
            null: dict[Any, Any] = {None: None} if None in options else {}
            domain["choice"] = null | named
    if arms:
        study["search"] = {**search, "algorithm": {"choice": list(arms)}}


def _share_names(key: str, options: Sequence[Any]) -> bool:
    """Return whether two of a choice's classes have one label."""
    names = [class_label(key, option) for option in options if option is not None]
    return len({*names}) < len(names)


def _named(key: str, options: Sequence[Any]) -> dict[str, dict[str, Any]] | None:
    """Return the classes of a choice by the names that tables show; None where an entry is no class.

    A class goes by its own short name. The module is added where another class has that name. Where the class occurs
    more than once, the arguments in which its entries differ are added.

    Raises:
        ConfigError: for two equal entries.
    """
    by_name: dict[str, dict[str, Any]] = {}
    variants: list[dict[str, Any]] = []
    for option in options:
        path = option.get("class_path") if isinstance(option, Mapping) else option
        if not isinstance(path, str) or (isinstance(option, Mapping) and set(option) - {"class_path", "init_args"}):
            return None
        variants.append({"class_path": path, "init_args": arguments_of(option) if isinstance(option, Mapping) else {}})
    classes = [resolved(key, variant["class_path"]) for variant in variants]
    labels = {path: class_label(key, path) for path in classes}
    twice = {name for name, count in Counter(labels.values()).items() if count > 1}
    labels = {path: path if name in twice else name for path, name in labels.items()}
    for path, variant in zip(classes, variants, strict=True):
        alike = [other["init_args"] for other, its in zip(variants, classes, strict=True) if its == path]
        values = variant["init_args"]
        apart = [name for name in values if any(name not in other or other[name] != values[name] for other in alike)]
        parts = [labels[path], *(f"{name}-{spelled(values[name])}" for name in apart)]
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", "-".join(parts)).strip("-") if len(parts) > 1 else parts[0]
        if name in by_name:
            raise ConfigError(f"{SEARCH}.{key}: choice must have distinct values, got {shown(name)} twice: remove one")
        by_name[name] = variant
    return by_name


# ---- whole configs -----------------------------------------------------------------------------------------------


def quick_check(path: str | Path, options: Sequence[str], text: str | None = None) -> dict[str, Any]:
    """Return the values of a YAML file and options, checked without importing torch or anything of the user's.

    Args:
        path: of the file.
        options: of the command line.
        text: the file's content, if it was read before; None reads it.

    Raises:
        ConfigError: as `completed`.
    """
    text = text_of(path) if text is None else text
    content, edits = content_of(path, text), parse_options(options)
    with errors_with_line(path, text, edits):
        check_files([content, *(value for _, value in edits)], Path(modules_of(path, edits, content)))
        return checked_values(content, edits, imports=False)


def checked_values(
    content: Mapping[str, Any],
    edits: Sequence[tuple[str, Any]],
    proposal: Mapping[str, Any] | None = None,
    *,
    imports: bool,
) -> dict[str, Any]:
    """Return the complete values of a configuration; those that a preset or an arm hides are checked, too.

    Raises:
        ConfigError: as `completed`.
    """
    values = completed(composed(content, edits, proposal, imports=imports), imports=imports)
    if not proposal and (values["study"]["presets"] or values["study"]["arms"]):
        trained = [(key, value) for key, value in edits if not key.startswith("study.")]
        completed(with_edits({**content, "study": {}}, trained), imports=imports)
    return values


def modules_of(path: str | Path, edits: Iterable[tuple[str, Any]], content: Mapping[str, Any]) -> str:
    """Return the folder of a config's own modules: the value of ``modules``, else the folder of the config's file."""
    written = {"modules": content.get("modules"), **dict(edits)}["modules"]
    return str((Path(path).parent / written if isinstance(written, str) else Path(path).parent).resolve())


def whole_study(
    content: Mapping[str, Any], edits: Sequence[tuple[str, Any]] = (), *, imports: bool = False, rule: str = ""
) -> dict[str, Any]:
    """Return a study's config with nothing left to compose: the values that hold for all, every arm with all of its
    own. study.yaml keeps it, so that trials stay the same whatever a later version's defaults are.

    Args:
        content: of the file.
        edits: options.
        imports: whether users' classes may be imported, so that their defaults are written down, too.
        rule: `EARLIER`, or none.
    """
    nested = by_module(content)
    trained = _study_edited(nested, [(key, by_module(value)) for key, value in edits])
    if rule == EARLIER:
        nested["study"] = {**(nested.get("study") or {}), "choose_world": True}  # earlier versions did not ask for it
    values = completed(composed({**nested, "study": {}}, trained, imports=imports, rule=rule), imports=imports)
    whole = completed(composed(nested, trained, imports=imports, rule=rule), imports=imports)["study"]
    for name, presets in whole["presets"].items():
        if name not in whole["arms"] and name not in class_names("algorithm"):
            continue
        full = dict(flat_items(_proposed(nested, trained, {"algorithm": name}, imports, rule)))
        beyond = {key: full.get(key, value) for key, value in presets.items() if "." in str(key)}
        args = {} if whole["arms"] else {k: full.get(f"algorithm.{k}", v) for k, v in presets.items() if "." not in k}
        whole["presets"][name] = beyond | args
    whole["presets"] = {name: presets for name, presets in whole["presets"].items() if presets}
    for name, arm in whole["arms"].items():
        arm |= _proposed(nested, trained, {"algorithm": name}, imports, rule)["algorithm"]
    for key, domain in whole["search"].items():
        if key in ROOTS and key != "algorithm":  # from now on their defaults are values like any other
            full = {option: _proposed(nested, trained, {key: option}, imports, rule) for option in domain["choice"]}
            domain["choice"] = {option: _at(values, key) for option, values in full.items()}
    return {**values, "study": whole}


def _proposed(
    nested: Mapping[str, Any], edits: Sequence[tuple[str, Any]], proposal: Mapping[str, Any], imports: bool, rule: str
) -> dict[str, Any]:
    return completed(composed(nested, edits, proposal, imports=imports, rule=rule), imports=imports)


def _at(values: Any, key: str) -> Any:
    """Return the value of a dotted key in complete values."""
    for name in key.split("."):
        values = (values.get("init_args", values) if "class_path" in values else values)[name]
    return values


def trial_config(whole: Mapping[str, Any], proposal: Mapping[str, Any]) -> dict[str, Any]:
    """Return the complete values of a trial, from its study's `whole_study`, without the study and the run, enough to
    train it again. Nothing is imported, since every arm and variant is complete."""
    return {key: value for key, value in composed(whole, (), proposal).items() if key not in ("study", "run")}


def left_out(content: Mapping[str, Any], edits: Iterable[tuple[str, Any]], values: Mapping[str, Any]) -> list[str]:
    """Return the keys that a file or options give the algorithm, and that the class in the complete values lacks."""
    algorithm = content.get("algorithm")
    held = [f"algorithm.{name}" for name in (arguments_of(algorithm) if isinstance(algorithm, Mapping) else ())]
    held += [key for key, _ in edits if key.startswith("algorithm.")]
    keys = {key for key, _ in flat_items(values)}
    return [key for key in dict.fromkeys(held) if key not in keys]
