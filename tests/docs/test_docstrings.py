"""What rooms show to others says what it is, which shapes tensors have, and what it raises."""

import ast
import inspect
import re
import textwrap
from importlib import import_module

import pytest

ROOMS = (
    "flstudy",
    "flstudy.algorithms",
    "flstudy.controllers",
    "flstudy.execution",
    "flstudy.federation",
    "flstudy.population",
    "flstudy.privacy",
    "flstudy.tasks",
    "flstudy.testing",
    "flstudy.tune",
)
TENSORS = {"Tensor", "torch.Tensor", "np.ndarray"}
OF_CALLERS = {"AttributeError", "NotImplementedError"}  # said by Python to who writes a class, not to who uses it


def public():
    """Functions, classes and their public methods, by name."""
    for room in map(import_module, ROOMS):
        for name in getattr(room, "__all__", vars(room)):
            member = getattr(room, name)
            ours = getattr(member, "__module__", "").startswith("flstudy")
            if name.startswith("_") or not ours or not (inspect.isclass(member) or inspect.isfunction(member)):
                continue
            yield f"{member.__module__}.{name}", member, member.__doc__
            for method, written in vars(member).items() if inspect.isclass(member) else ():
                function = getattr(written, "fget", None) or getattr(written, "__func__", written)
                if inspect.isfunction(function) and not method.startswith("_"):
                    # That of the class it overrides where it has none.
                    yield f"{member.__module__}.{name}.{method}", function, inspect.getdoc(getattr(member, method))


PUBLIC = {name: (member, doc) for name, member, doc in public()}


def lacks(source, doc):
    """What a docstring does not say of its function."""
    function = ast.parse(textwrap.dedent(source)).body[0]
    for node in ast.walk(function):
        error = getattr(node.exc, "func", node.exc) if isinstance(node, ast.Raise) else None
        if isinstance(error, ast.Name) and error.id[0].isupper() and error.id not in OF_CALLERS and error.id not in doc:
            yield f"raises {error.id}"
    args = [*function.args.args, *function.args.kwonlyargs]
    if TENSORS & {ast.unparse(arg.annotation) for arg in args if arg.annotation} and not re.search(r"\[|shape", doc):
        yield "takes a tensor of what shape?"


def test_there_are_hundreds_of_them():
    assert len(PUBLIC) > 500


@pytest.mark.parametrize("room", ROOMS)
def test_they_say_what_they_are_raise_and_take(room):
    troubles = {}
    for name, (member, doc) in PUBLIC.items():
        if not name.startswith(f"{room}.") or (room == "flstudy" and any(name.startswith(f"{r}.") for r in ROOMS[1:])):
            continue
        if not doc:
            troubles[name] = ["no docstring"]
        elif inspect.isfunction(member) and member.__name__ != "<lambda>" and member.__code__.co_filename[0] != "<":
            troubles[name] = list(lacks(inspect.getsource(member), doc))
    assert not {name: lacking for name, lacking in troubles.items() if lacking}


def test_what_is_missing_is_found():
    source = """
    def f(x: Tensor) -> None:
        if x.sum() < 0:
            raise ValueError("negative")
    """
    assert list(lacks(source, "The positive part.")) == ["raises ValueError", "takes a tensor of what shape?"]
    assert not list(lacks(source, "The positive part of x [B].\n\nRaises:\n    ValueError: negative."))
