"""Refusals: one sentence each, with key, value, domain and next step, and the nearest right name; and where exceptions
come from."""

import difflib
import dis
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

LONGEST = 200  # characters of a sentence
ECHO = 60  # of a value in it
LISTED = 100  # of choices in it; longer lists are left to --help


class ConfigError(ValueError):
    """A config, an option or a file of the user's that cannot be used; the message is one sentence, on one line."""

    def __init__(self, sentence: str) -> None:
        super().__init__(on_a_line(sentence, LONGEST))


def on_a_line(text: str, most: int) -> str:
    """A text on one line, without what terminals obey, and without its middle where it is too long."""
    line = " ".join("".join(one if one.isprintable() else " " for one in text).split())
    tail = most // 3  # what to do stands at the end, name and value before it
    return line if len(line) <= most else f"{line[: most - tail - 1]}…{line[-tail:]}"


def spelled(value: Any) -> str:
    """A value as YAML has it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def shown(value: Any) -> str:
    """A value as a sentence echoes it."""
    if isinstance(value, int) and value.bit_length() > 10_000:  # Python writes none of more than 4,300 digits
        return on_a_line(hex(value), ECHO)
    return on_a_line(spelled(value) if value is None or isinstance(value, bool) else repr(value), ECHO)


def nearest(name: Any, known: Sequence[str], otherwise: str = ": see --help") -> str:
    """': did you mean …?'; where nothing is near, the choices if they are few, else ``otherwise``."""
    lowered = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(str(name)[:LISTED].lower(), lowered, n=1, cutoff=0.6)
    if close:
        return f": did you mean {lowered[close[0]]!r}?"
    choices = ", ".join(sorted(known))
    return f": choose one of {choices}" if 0 < len(choices) <= LISTED and otherwise else otherwise


# ---- where an exception came from --------------------------------------------------------------------------------

OURS = Path(__file__).resolve().parents[1]
INSTALLED = tuple(sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib"))


def passed(error: BaseException) -> list[traceback.FrameSummary]:
    """Where an exception passed, that from which it was raised last."""
    found: list[traceback.FrameSummary] = []
    one: BaseException | None = error
    while one is not None:
        found += traceback.extract_tb(one.__traceback__)
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    return found


def own_frame(error: BaseException) -> traceback.FrameSummary | None:
    """The last frame in code that is neither flstudy's nor installed: the user's."""
    own = (
        frame
        for frame in reversed(passed(error))
        if not frame.filename.startswith(("<", *INSTALLED)) and OURS not in Path(frame.filename).resolve().parents
    )
    return next(own, None)


def told(error: BaseException) -> str:
    """What an exception is and says, and the line of the user's that it passed."""
    frame = own_frame(error)
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"{what} ({Path(frame.filename).name}:{frame.lineno})" if frame else what


def is_users_to_mend(error: BaseException) -> bool:
    """Whether a ``raise ValueError`` of flstudy's own raised it, which is there for what a user can mend; one that a
    line of ours met in a function that it called is our mistake."""
    last: TracebackType | None = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if type(error) is not ValueError or last is None:
        return isinstance(error, ConfigError)
    code = last.tb_frame.f_code
    raising = code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"]
    return raising and OURS in Path(code.co_filename).resolve().parents
