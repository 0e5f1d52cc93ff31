"""Values that the study held fixed: the report says where methods differ in a value that no trial searched."""

from collections.abc import Mapping, Sequence
from typing import Any

from flstudy.config import ConfigError
from flstudy.reporting.ranking import Findings
from flstudy.reporting.section import Content, ReportSection
from flstudy.reporting.tables import Cells
from flstudy.study.held import CONFOUNDERS, HeldKey, held_fixed

LEAD = (
    "Values that no trial searched. A difference between methods in one of them, marked ≠, can make a difference in "
    "their results: each may be what the method's paper says, but it is not the search's doing."
)
NAMED = 3  # largest number of methods listed by name; more are counted


class HeldSection(ReportSection):
    """Section with the fixed values by method."""

    order = 65

    def of_study(self, findings: Findings) -> Content | None:
        try:
            held = held_fixed(findings.results.config)
        except (ConfigError, KeyError, TypeError, AttributeError):  # study.yaml is damaged
            return None
        values = {entry.key: dict(entry.values) for entry in held}
        lines = [f"Held fixed, but not alike for all methods: {differing(held)}."] if differing(held) else []
        return Content(
            name="Held fixed",
            title="What did no trial search, and is it the same for all?",
            lead=LEAD,
            tables=[held_table(held, "held-fixed")],
            remarks=lines,
            values={"held_fixed": values},
        )


def differing(held: Sequence[HeldKey]) -> str:
    """Return the keys in which methods differ, with their values, as text."""
    return "; ".join(
        f"{_short(entry.key)} ({', '.join(_spelled(value) for value, _ in entry.groups)})"
        for entry in held
        if entry.differs
    )


def held_table(held: Sequence[HeldKey], name: str = "", *, brief: bool = False) -> Cells:
    """Return the table of keys, values and methods; a key that differs is marked ≠.

    Args:
        held: result of `flstudy.study.held.held_fixed`.
        name: label of the table in LaTeX.
        brief: whether only keys that differ and `flstudy.study.held.CONFOUNDERS` are listed.
    """
    methods = {method for entry in held for method in entry.values}
    rows = []
    for entry in held:
        if brief and not entry.differs and entry.key not in CONFOUNDERS:
            continue
        for place, (value, names) in enumerate(entry.groups):
            mark, key = "≠" * entry.differs, _short(entry.key) if place == 0 else ""
            rows.append((mark, key, _spelled(value), _methods(names, len(entry.values), len(methods))))
    rest = len([entry for entry in held if not entry.differs and entry.key not in CONFOUNDERS]) if brief else 0
    title = "Held fixed" + (f" (and {rest} more, alike for all that have them)" if rest else "")
    header = ("", "Key", "Value", "Methods")
    return Cells(title=title, header=header, rows=tuple(rows), words=frozenset({0, 1, 2, 3}), names=2, label=name)


def _methods(names: Sequence[str], having: int, every: int) -> str:
    """Format methods by their names, or by their count if many: ``having`` of ``every`` method have the key."""
    if len(names) == every:
        return "all" if every > 1 else names[0]
    if len(names) <= NAMED:
        return ", ".join(names)
    return f"all {having} that have it" if len(names) == having else f"{len(names)} of {having}"


def _short(key: str) -> str:
    return key.removeprefix("algorithm.")


def _spelled(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return str(value.get("class_path", dict(value)))
    return f"{value:g}" if isinstance(value, float) else str(value)
