"""Domains: declared at fields and arguments, checked when an object is made, and readable by introspection."""

import sys
from collections.abc import Sequence
from dataclasses import FrozenInstanceError, dataclass
from typing import Annotated, Literal

import pytest

from flstudy.hyper import Configurable, Declared, checked, declared, hyper
from flstudy.population import Drift
from flstudy.registry import import_modules, named


@dataclass(frozen=True, kw_only=True)
class Thing(Configurable):
    size: int = hyper(domain="[1, inf)")
    share: float | None = hyper(None, "(0, 1)")
    rounds: Sequence[int] = hyper(domain="[2, inf)", default_factory=lambda: [2, 3])
    kind: Literal["one", "other"] | None = "one"
    parts: tuple[Literal["a", "b"], ...] = ("a",)


class Module:
    @checked
    def __init__(
        self,
        width: Annotated[int, "[1, inf)"],
        drop: Annotated[tuple[float, float], "[0, 1)"] = (0.0, 0.0),
        mode: Literal["fast", "slow"] = "fast",
    ) -> None:
        self.width = width


class Child(Module):
    def __init__(self) -> None:
        super().__init__(0)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Thing(size=0), r"^Thing: size must lie in \[1, inf\), got 0$"),
        (lambda: Thing(size=1, share=float("nan")), r"share must lie in \(0, 1\), got nan"),
        (lambda: Thing(size=1, rounds=[5, 1]), r"rounds must lie in \[2, inf\), got \[5, 1\]"),
        (lambda: Thing(size=1, kind="none"), "kind must be one of one, other, got 'none'"),
        (lambda: Thing(size=1, parts=("a", "c")), "parts must be one of a, b, got 'c'"),
        (lambda: Module(0), r"^Module: width must lie in \[1, inf\), got 0$"),
        (lambda: Module(1, drop=(0.5, 1.0)), r"drop must lie in \[0, 1\), got \(0\.5, 1\.0\)"),
        (lambda: Module(1, mode="slack"), "mode must be one of fast, slow, got 'slack'"),
        (lambda: Child(), r"^Child: width must lie in \[1, inf\), got 0$"),
    ],
)
def test_what_lies_outside_its_domain_is_refused(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_what_lies_inside_is_kept():
    thing = Thing(size=1, share=None, kind=None)
    assert (thing.rounds, thing.share, Module(3).width) == ([2, 3], None, 3)
    with pytest.raises(TypeError, match="size"):
        Thing()
    with pytest.raises(FrozenInstanceError):
        thing.size = 2


def test_domains_can_be_read_from_the_class():
    assert declared(Thing)["size"] == Declared.of(int, "[1, inf)")
    assert declared(Thing)["kind"].choices == ("one", "other")
    assert {name: field.domain for name, field in declared(Module).items()} == {
        "width": "[1, inf)",
        "drop": "[0, 1)",
        "mode": None,
    }


def test_a_drift_in_a_file_of_its_own_is_found(tmp_path, monkeypatch):
    """A room needs no list of its classes to be told of another one."""
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "__init__.py").write_text(
        "from flstudy.registry import import_modules\nimport_modules(__name__, __path__)\n"
    )
    (tmp_path / "room" / "seasons.py").write_text(
        "from flstudy.population import SuddenDrift\n\n\nclass SeasonalDrift(SuddenDrift):\n    '''Another one.'''\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import_modules("room", [str(tmp_path / "room")])
    assert named(Drift)["SeasonalDrift"].__module__ == "room.seasons"
    del sys.modules["room"], sys.modules["room.seasons"]
