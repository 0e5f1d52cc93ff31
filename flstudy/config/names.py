"""The nearest right name to a wrong one."""

import difflib
from collections.abc import Sequence


def nearest(name: str, known: Sequence[str], else_say: str = ": see --help") -> str:
    """': did you mean …?'; where nothing is near, the choices if they are few, else ``else_say``."""
    lowered = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    if close:
        return f": did you mean {lowered[close[0]]!r}?"
    return f": choose one of {', '.join(sorted(known))}" if 0 < len(known) <= 30 and else_say else else_say
