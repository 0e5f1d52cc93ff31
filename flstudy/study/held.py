"""Values that a comparison holds fixed, which no search chooses, by method. Where methods differ in such a value, it
may explain their results rather than the methods."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from flstudy.config.composition import trial_config
from flstudy.config.values import class_label, flat_items
from flstudy.study.space import Space

CONFOUNDERS = (
    *("algorithm.weighting", "algorithm.gamma", "algorithm.clip_norm"),
    *("population.batch_size", "population.epochs", "population.steps", "population.max_steps"),
)
"""Keys that are always reported: weights of devices, early stopping of local training, clipping, and the amount of
local work."""
SEARCHED = "searched"


class HeldKey(NamedTuple):
    """A key that at least one method's trials do not search."""

    key: str
    values: Mapping[str, Any]
    """Value by method, for those that have the key; `SEARCHED` for a method that searches it."""

    @property
    def differs(self) -> bool:
        """True if methods that have the key differ in it."""
        return len(self.groups) > 1

    @property
    def groups(self) -> list[tuple[Any, list[str]]]:
        """Values and the methods that have them, the most frequent value first."""
        groups: dict[str, tuple[Any, list[str]]] = {}
        for method, value in self.values.items():
            groups.setdefault(repr(value), (value, []))[1].append(method)
        return sorted(groups.values(), key=lambda group: -len(group[1]))


def held_fixed(whole: Mapping[str, Any]) -> list[HeldKey]:
    """Return the `CONFOUNDERS` and the algorithm's keys, as far as at least one method does not search them.

    Keys whose values differ between methods come first, and among them the `CONFOUNDERS`.

    Args:
        whole: a study's config, `flstudy.config.composition.whole_study`.
    """
    space = Space.of_study(whole["study"])
    arms = {name: {"algorithm": name} for name in whole["study"]["arms"]} or {
        class_label("algorithm", whole["algorithm"]): {}
    }
    configs = {name: dict(flat_items(trial_config(whole, proposal))) for name, proposal in arms.items()}
    algorithm_keys = (key for values in configs.values() for key in values if key.startswith("algorithm."))
    held = []
    for key in dict.fromkeys([*CONFOUNDERS, *algorithm_keys]):
        values = {
            name: SEARCHED if key in space.of(name) else values[key]
            for name, values in configs.items()
            if key in values
        }
        if any(value != SEARCHED for value in values.values()):
            held.append(HeldKey(key, values))
    return sorted(held, key=lambda entry: (not entry.differs, entry.key not in CONFOUNDERS))
