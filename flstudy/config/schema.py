"""The JSON Schema of configs (draft 2020-12), made from the classes that a config names and kept in schema.json.

    python -m flstudy.config.schema        writes the file anew

Types, choices, domains, defaults and sentences are those of the classes' own fields and arguments. Beside the
standard's words a node may have

    x-domain     the interval of a number, as in the code: "(0, inf)"
    x-at-most    the key whose number it must not exceed, such as "rounds"
    x-symbol     the paper's letter, where the sentence begins with one
    x-class      of an object: the dotted path of the class whose arguments its properties are
    x-citations  the class's keys in references.bib
    x-parts      of a method that makes no sense without parts of the model: the argument that names them
    x-root       of a key that names a class: that key, such as "population.drift"
"""

import ast
import dataclasses
import functools
import inspect
import json
import re
import sys
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from flstudy.config.domain import BOUNDS
from flstudy.config.registry import ROOTS, SECTIONS, TOP, Root, locate
from flstudy.hyper import NOTATION, FilePath, path_of_class
from flstudy.metrics.registry import METRICS
from flstudy.registry import named

PATH = Path(__file__).with_name("schema.json")
SYMBOL = re.compile(r"^((?:[A-Za-zΑ-ω]|[Α-ω]+)(?:[_₀-₉0-9]\w*)?)(?:, | of |: | / )")
FILE = "path"
"""The format of a text that names a file or a folder."""
PLAIN: dict[Any, str] = {int: "integer", float: "number", bool: "boolean", str: "string", types.NoneType: "null"}
NUMBER = {"type": ["integer", "number"]}  # stays as it is written
WIDTH = 200  # of a line of the file


@functools.cache
def config_schema() -> dict[str, Any]:
    """Return the schema as the package has it."""
    schema: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    return schema


def class_names(key: str) -> list[str]:
    """Return the classes that a key can name without a module's path."""
    names: list[str] = config_schema()["$defs"][key]["x-classes"]
    return names


# ---- one class ---------------------------------------------------------------------------------------------------


def described(cls: type[Any], key: str, defs: dict[str, Any]) -> dict[str, Any]:
    """Return the object schema of a class's arguments.

    Args:
        cls: any class; arguments without annotation are left open.
        key: the key at which it stands, so that arguments that are keys of their own are found.
        defs: gets the sections that the class is made of.
    """
    hints = hints_of(cls)
    docs, properties, required = sentences(cls), {}, []
    fields = {field.name: field for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else {}
    for name, argument in inspect.signature(cls).parameters.items():
        argument_key = f"{key}.{name}" if key else name
        linked = ROOTS[key].linked if key in ROOTS else ()
        if argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD) or name in linked:
            continue
        node = _key(argument_key, hints.get(name, Any), defs)
        metadata = fields[name].metadata if name in fields else {}
        node = within_domain(node, metadata["domain"]) if "domain" in metadata else node
        node |= {"x-at-most": metadata["at_most"]} if metadata.get("at_most") else {}
        text = docs.get(name, "")
        node |= {"description": text} if text else {}
        node |= {"x-symbol": match[1]} if (match := SYMBOL.match(text)) else {}
        default = _default_of(argument_key, fields.get(name), argument.default)
        if default is inspect.Parameter.empty:
            required.append(name)
        else:
            node["default"] = default
        properties[name] = node
    return {
        "title": cls.__name__,
        "description": summary(cls),
        "type": "object",
        "x-class": f"{cls.__module__}.{cls.__name__}",
        **({"x-citations": list(cls.citations)} if getattr(cls, "citations", ()) else {}),
        **({"x-parts": cls.names_parts} if getattr(cls, "needs_parts", False) else {}),
        "properties": properties,
        **({"required": required} if required else {}),
        "additionalProperties": any(
            argument.kind is argument.VAR_KEYWORD for argument in inspect.signature(cls).parameters.values()
        ),
    }


def hints_of(cls: Any, *, extras: bool = True) -> dict[str, Any]:
    """Return the annotations of a class's arguments; none where a user's cannot be read, such as names that its module
    imports for type checkers only."""
    try:
        return typing.get_type_hints(cls.__init__, include_extras=extras)
    except Exception:
        return {}


def _key(key: str, hint: Any, defs: dict[str, Any]) -> dict[str, Any]:
    """Return the node of a key: a choice of classes where it names one, else what its annotation allows."""
    if key not in ROOTS or takes_plain_values(hint):
        return allowed(hint, defs)
    root = {"$ref": f"#/$defs/{key}"}
    null = types.NoneType in typing.get_args(hint) or (ROOTS[key].default is None and "." not in key)
    return {"anyOf": [root, {"type": "null"}]} if null else root


def takes_plain_values(hint: Any) -> bool:
    """Return whether an annotation allows texts, numbers and the like alone, as one of a user's class whose argument
    has the name of a key that names classes."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return all(map(takes_plain_values, typing.get_args(hint)))
    return hint in PLAIN or typing.get_origin(hint) in (Literal, typing.Annotated)


def is_tensor(hint: Any) -> bool:
    """Return whether an annotation is torch's Tensor; torch is not imported."""
    return f"{getattr(hint, '__module__', '')}.{getattr(hint, '__name__', '')}" == "torch.Tensor"


def _default_of(key: str, field: Any, value: Any) -> Any:
    if field is not None and field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    if key in ROOTS and (value is None or value is inspect.Parameter.empty):
        default = ROOTS[key].default
        return inspect.Parameter.empty if default == "" else default
    if isinstance(value, partial):
        return {"class_path": path_of_class(value.func), "init_args": as_json(value.keywords)}
    if key in ROOTS and type(value) not in PLAIN and value is not inspect.Parameter.empty:
        return type(value).__name__
    return value if value is inspect.Parameter.empty else as_json(value)


def as_json(value: Any) -> Any:
    """Return a default as JSON; a section as its own values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: as_json(part) for key, part in value.items()}
    return [as_json(part) for part in value] if isinstance(value, Sequence) and not isinstance(value, str) else value


def allowed(hint: Any, defs: dict[str, Any]) -> dict[str, Any]:
    """Return the schema's node of the values that an annotation allows."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint == FilePath:
        return {"type": "string", "format": FILE}
    if origin is typing.Annotated:
        return within_domain(allowed(arguments[0], defs), arguments[1])
    if origin in (types.UnionType, typing.Union):  # a config holds no tensors
        return _union([allowed(argument, defs) for argument in arguments if not is_tensor(argument)])
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple and arguments[-1] is not Ellipsis:
        parts = [allowed(argument, defs) for argument in arguments]
        return {"type": "array", "prefixItems": parts, "items": False, "minItems": len(parts)}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return {"type": "array", "items": allowed(arguments[0], defs)}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        names = {"propertyNames": {"pattern": "^-?[0-9]+$"}} if arguments[0] is int else {}
        return {"type": "object", **names, "additionalProperties": allowed(arguments[1], defs)}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        if hint.__name__ not in defs:
            defs[hint.__name__] = {}  # before its own fields, which may name it
            defs[hint.__name__] = described(hint, hint.__name__, defs)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    return {"type": PLAIN[hint]} if hint in PLAIN else {}


def _union(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the schema node of values that suit any of some nodes, in as few words as they allow."""
    if any("enum" in part for part in parts) and all(
        "enum" in p or p.get("type") in ("boolean", "null") for p in parts
    ):
        values: dict[str, list[Any]] = {"boolean": [True, False], "null": [None]}
        return {
            "enum": [value for part in parts for value in (part["enum"] if "enum" in part else values[part["type"]])]
        }
    if all(set(part) <= {"type", "format", *bounded("(0, 0)"), *bounded("[0, 0]")} for part in parts):
        return {key: value for part in parts for key, value in part.items()} | {"type": [p["type"] for p in parts]}
    return {} if {} in parts else {"anyOf": parts}


def within_domain(node: dict[str, Any], domain: str) -> dict[str, Any]:
    """Return a node whose numbers, and numbers in lists, lie in an interval."""
    if "anyOf" in node:
        return {**node, "anyOf": [within_domain(part, domain) for part in node["anyOf"]]}
    if "prefixItems" in node:
        return {**node, "prefixItems": [within_domain(part, domain) for part in node["prefixItems"]]}
    if "items" in node:
        return {**node, "items": within_domain(node["items"], domain)}
    return {**node, **bounded(domain)} if {"integer", "number"} & {*types_of(node)} else node


def types_of(node: Mapping[str, Any]) -> list[str]:
    """Return the kinds of value that a node names."""
    types = node.get("type", [])
    return [types] if isinstance(types, str) else types


def bounded(domain: str) -> dict[str, Any]:
    """Return the standard's keywords for an interval, and the interval itself."""
    match = NOTATION.match(domain)
    assert match is not None, domain
    bounds: dict[str, Any] = {}
    for side, end, exclusive, closed in (("minimum", match[2], "exclusiveMinimum", match[1] == "["),
                                         ("maximum", match[3], "exclusiveMaximum", match[4] == "]")):  # fmt: skip
        if "inf" not in end:
            number = float(end)
            bounds[side if closed else exclusive] = int(number) if number.is_integer() else number
    return {**bounds, "x-domain": domain}


def summary(cls: type[Any]) -> str:
    """Return the first paragraph of a class's own docstring, on one line."""
    doc = cls.__dict__.get("__doc__") or ""
    return "" if doc.startswith(f"{cls.__name__}(") else " ".join(inspect.cleandoc(doc).split("\n\n")[0].split())


def sentences(cls: type[Any]) -> dict[str, str]:
    """Return the sentences on a class's arguments, below its fields or in an ``Args:`` block; a subclass's override its
    base's."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.partition(".")[0] in ("builtins", "abc", "typing", "torch", "lightning"):
            continue
        texts |= dict(_argument_block(inspect.cleandoc(base.__dict__.get("__doc__") or "")))
        try:
            (node,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except (OSError, TypeError, SyntaxError, ValueError):
            continue
        assert isinstance(node, ast.ClassDef)
        for field, text in zip(node.body, node.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                docstring = getattr(getattr(text, "value", None), "value", None) if isinstance(text, ast.Expr) else None
                texts |= {field.target.id: " ".join(docstring.split())} if isinstance(docstring, str) else {}
    return texts


def _argument_block(doc: str) -> Iterator[tuple[str, str]]:
    block = re.search(r"^Args:\n((?:[ \t]+.*\n?|\n)+)", doc, re.MULTILINE)
    for match in re.finditer(r"^ {4}(\w+): (.+(?:\n {5,}.+)*)", block[1] if block else "", re.MULTILINE):
        yield match[1], " ".join(match[2].split())


# ---- the whole -----------------------------------------------------------------------------------------------------


def generated() -> dict[str, Any]:
    """Return the schema of all that flstudy ships; it imports everything."""
    defs: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    for key in TOP:
        if key in ROOTS:
            off = {"default": None} if ROOTS[key].default is None else {}
            properties[key] = {**_key(key, Any, defs), "description": ROOTS[key].doc, **off}
            continue
        section = SECTIONS[key]
        cls = locate(f"{section.module}.{section.name}")
        node = defs[section.name] = described(cls, key, defs)
        if not key:
            properties |= node["properties"]
            del defs[section.name]
            continue
        ref = {"$ref": f"#/$defs/{section.name}"}
        properties[key] = {
            **({"anyOf": [ref, {"type": "null"}]} if section.null else ref),
            "description": section.doc,
            **({} if "required" in node else {"default": None if section.null else {}}),
        }
    for key, root in ROOTS.items():
        classes = nameable(root)
        for name, cls in classes.items():
            defs[name] = {**described(cls, key, defs), **(_first_study(cls) if key == "population.dataset" else {})}
        defs[key] = _choice(key, {name: defs[name] for name in classes})
    study = defs["StudySection"]["properties"]
    keys = dict(reversed(list(_keys(properties, defs))))  # of a key of several classes the first one's sentence
    searched = {key: {"$ref": "#/$defs/distribution", **keys[key]} for key in sorted(keys)}
    study["search"] |= {"properties": searched, "additionalProperties": {"$ref": "#/$defs/distribution"}}
    study["presets"] |= {"properties": {
        name: {"type": "object", "patternProperties": {"[.]": {}}, "additionalProperties": False, "properties": {
            argument: {"$ref": f"#/$defs/{name}/properties/{argument}"} for argument in defs[name]["properties"]}}
        for name in nameable(ROOTS["algorithm"])}}  # fmt: skip
    arm = defs["ArmSection"]["properties"]
    arm["search"] |= {"additionalProperties": {"$ref": "#/$defs/distribution"}}
    arm["class_path"] |= {"anyOf": [*defs["algorithm"]["anyOf"][0]["anyOf"], {"const": ""}]}
    bounds = {"$ref": "#/$defs/bounds"}
    described_bounds = {name: {**bounds, "description": metric.sentence} for name, metric in METRICS.items()}
    study["constraints"] |= {"properties": described_bounds, "additionalProperties": bounds}
    names = [{"const": name, "description": metric.sentence} for name, metric in METRICS.items()]
    defs["metric"] = {"anyOf": [*names, {"type": "string", "description": "A metric of your own classes."}]}
    defs["Objective"]["properties"]["metric"] |= {"$ref": "#/$defs/metric"}
    del defs["Objective"]["properties"]["metric"]["type"]
    ends = {"min": NUMBER, "max": NUMBER}
    defs["bounds"] = {"type": "object", "minProperties": 1, "properties": ends, "additionalProperties": False}
    defs["distribution"] = {
        "type": "object",
        "minProperties": 1,
        "maxProperties": 1,
        "additionalProperties": False,
        "properties": {
            **{name: {"type": "array", "items": NUMBER, "minItems": count, "maxItems": count,
                      "description": ["[low, high]", "[low, high, step]"][count - 2]}
               for name, count in BOUNDS.items()},
            "choice": {"type": ["array", "object"], "minItems": 1,
                       "description": "The values themselves, or names of classes; or classes by names of yours."},
        },
    }  # fmt: skip
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A flstudy config",
        "type": "object",
        "properties": properties,
        "required": ["task", "algorithm", "population"],
        "additionalProperties": False,
        "$defs": dict(sorted(defs.items())),
    }


def _first_study(cls: type[Any]) -> dict[str, Any]:
    """Return the facts on a data set for a first study of it (`flstudy.config.starter`): a task, whether examples have
    owners, and how many labels there are, where no file has to say."""
    parameters = inspect.signature(cls).parameters.values()
    has_defaults = all(parameter.default is not parameter.empty for parameter in parameters)
    return {
        "x-first-task": cls.first_task,  # type: ignore[attr-defined]  # a Dataset
        "x-natural": cls.natural,  # type: ignore[attr-defined]
        **({"x-labels": cls().classes} if has_defaults else {}),
    }


def nameable(root: Root) -> dict[str, type[Any]]:
    """Return the classes by name that a key may name without a path: flstudy's concrete ones whose arguments a config
    can give."""
    nameable_classes = {}
    for name, cls in named(locate(f"{root.module}.{root.base}")).items():
        hints, arguments = hints_of(cls), inspect.signature(cls).parameters.values()
        anything = any(hints.get(argument.name) is Any and argument.default is argument.empty for argument in arguments)
        if cls.__module__.startswith("flstudy.") and not anything:
            nameable_classes[name] = cls
    return nameable_classes


def _choice(key: str, classes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the schema's node of a choice of classes: a name alone, or with arguments; a dotted path is the user's
    own."""

    def names(shipped_names: Sequence[str]) -> dict[str, Any]:
        shipped = [{"const": name, "description": classes[name]["description"]} for name in shipped_names]
        full = {"type": "string", "pattern": rf"^flstudy\.([a-z_0-9]+\.)*({'|'.join(shipped_names)})$"}
        whose = "your own class" if classes else f"a class, such as those of {ROOTS[key].module}"
        users_path = {
            "type": "string",
            "pattern": r"^((?!flstudy\.)\w+(\.\w+)+|(\./)?(\w+/)*\w+\.py:\w+)$",
            "description": f"The path of {whose}: mylab.Hospitals, or ./mylab.py:Hospitals beside the config.",
        }
        return {"anyOf": [*shipped, *([full] if shipped else []), users_path]}

    arguments = [
        {
            "if": {"properties": {"class_path": {"pattern": rf"^(flstudy\.([a-z_0-9]+\.)*)?{name}$"}}},
            "then": {
                "properties": {"init_args": {"$ref": f"#/$defs/{name}"}},
                **({"required": ["init_args"]} if "required" in node else {}),
            },
        }
        for name, node in classes.items()
    ]
    mapping = {
        "type": "object",
        "properties": {"class_path": names(list(classes)), "init_args": {"type": ["object", "null"]}},
        "required": ["class_path"],
        "additionalProperties": False,
        **({"allOf": arguments} if arguments else {}),
    }
    alone = names([name for name, node in classes.items() if "required" not in node])
    return {"x-root": key, "x-classes": list(classes), "anyOf": [alone, mapping]}


def _keys(properties: Mapping[str, Any], defs: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, dict[str, str]]]:
    """Yield every key that a study can search, with its sentence, of sections and of all classes."""
    for name, node in properties.items():
        key = f"{at}.{name}" if at else name
        if key.split(".")[0] in ("study", "run", "store"):
            continue
        yield key, {"description": node["description"]} if "description" in node else {}
        for part in [node, *node.get("anyOf", ())]:
            target = defs.get(part.get("$ref", "").rpartition("/")[2], {})
            for class_name in target.get("x-classes", ()):
                yield from _keys(defs[class_name]["properties"], defs, key)
            if "properties" in target:
                yield from _keys(target["properties"], defs, key)


def text() -> str:
    """Return the schema as the file's text: a value that fits on a line stands on one."""

    def lines(value: Any, indent: str) -> str:
        flat = json.dumps(value, ensure_ascii=False)
        if len(indent) + len(flat) <= WIDTH or not isinstance(value, dict | list):
            return flat
        deeper = f"{indent} "
        if isinstance(value, list):
            return "[\n" + ",\n".join(deeper + lines(part, deeper) for part in value) + f"\n{indent}]"
        inner = (f"{deeper}{json.dumps(key)}: {lines(part, deeper)}" for key, part in value.items())
        return "{\n" + ",\n".join(inner) + f"\n{indent}}}"

    return lines(generated(), "") + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
    print(f"{PATH}: {len(config_schema()['$defs'])} definitions", file=sys.stderr)
