"""Outline of a config: what follows from its values alone, without anything built or imported of the user's."""

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from flstudy.config import ConfigError
from flstudy.config.composition import composed
from flstudy.config.objects import build_section
from flstudy.config.values import classes_in, completed, flat_items

if TYPE_CHECKING:
    from flstudy.config import StudySection


class ConfigOutline:
    """Stand-in for a `Config` that has only what the points of a search need.

    It is made from values alone. Nothing is built, no class of the user's is imported, and a user's sampler is left
    out.

    Args:
        values: the config's, completed.
        proposal: the values that a search has chosen.
    """

    def __init__(self, values: Mapping[str, Any], proposal: Mapping[str, Any] | None = None) -> None:
        self._values, self._proposal, study = values, dict(proposal or {}), {**values["study"], "scheduler": None}
        if any("." in path for _, path in classes_in(study["sampler"])):
            study["sampler"] = None
        self.study: StudySection = build_section("study", study)

    @cached_property
    def _keys(self) -> frozenset[str]:
        values = completed(composed(self._values, (), self._proposal), imports=False)
        for key, path in classes_in({**values, "study": None}):
            if "." in path:
                raise ConfigError(f"the keys of {key} are known once {path} is imported: import it first")
        return frozenset(key for key, _ in flat_items(values))

    def has_key(self, key: str) -> bool:
        """Return whether the config has the key, with the choices of the proposal.

        Raises:
            ConfigError: for an invalid choice, or a class of the user's, whose keys are not known here.
        """
        return key in self._keys

    def variant(self, proposal: Mapping[str, Any]) -> "ConfigOutline":
        """Return this outline with more keys chosen."""
        return ConfigOutline(self._values, {**self._proposal, **proposal})
