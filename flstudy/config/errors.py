"""Refusals: one sentence each, with key, value, domain and next step, and the nearest right name."""

import difflib
from collections.abc import Sequence

LISTED = 160  # characters; longer lists are left to --help


class ConfigError(ValueError):
    """A config, an option or a file of the user's that cannot be used; the message is one sentence."""


def nearest(name: str, known: Sequence[str], otherwise: str = ": see --help") -> str:
    """': did you mean …?'; where nothing is near, the choices if they are few, else ``otherwise``."""
    lowered = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    if close:
        return f": did you mean {lowered[close[0]]!r}?"
    choices = ", ".join(sorted(known))
    return f": choose one of {choices}" if 0 < len(choices) <= LISTED and otherwise else otherwise
