"""Error messages of one sentence, with key, value, domain and next step, and the nearest right name; and the place in a
user's code from which an exception comes."""

import difflib
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flstudy.user_error import UserError

LONGEST = 200  # most characters of a message's sentence
ECHO = 60  # most characters of a value that it quotes
MOST_COMMAND_CHARACTERS = 4_000  # of a command that it proposes
LISTED = 100  # most characters of a list of choices; a longer list is left to --help


class ConfigError(UserError):
    """Error of a config, an option or a file of the user's; the message is one sentence, on one line.

    Args:
        sentence: the problem; a long one loses its middle.
        command: a command to type instead, whole.
        at: file and line, in front of the sentence.
    """

    def __init__(self, sentence: str, command: str = "", *, at: str = "") -> None:
        message = f"{at}: {on_a_line(sentence, LONGEST)}" if at else on_a_line(sentence, LONGEST)
        super().__init__(f"{message}: {on_a_line(command, MOST_COMMAND_CHARACTERS)}" if command else message)


def on_a_line(text: str, most: int) -> str:
    """Return a text on one line, without control characters, and without its middle where it is too long."""
    line = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    tail = most // 3  # the next step stands at the end, name and value at the start
    return line if len(line) <= most else f"{line[: most - tail - 1]}…{line[-tail:]}"


def spelled(value: Any) -> str:
    """Return a value as YAML spells it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def shown(value: Any) -> str:
    """Return a value as a sentence quotes it."""
    if isinstance(value, int) and value.bit_length() > 10_000:  # Python writes none of more than 4,300 digits
        return on_a_line(hex(value), ECHO)
    return on_a_line(spelled(value) if value is None or isinstance(value, bool) else repr(value), ECHO)


def nearest(name: Any, names: Sequence[str], otherwise: str = ": see --help") -> str:
    """Return the hint ': did you mean …?'; where no name is near, the choices if they are few, else ``otherwise``."""
    lowered = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(str(name)[:LISTED].lower(), lowered, n=1, cutoff=0.6)
    if close:
        return f": did you mean {lowered[close[0]]!r}?"
    choices = ", ".join(sorted(names))
    return f": choose one of {choices}" if 0 < len(choices) <= LISTED and otherwise else otherwise


# ---- where an exception came from --------------------------------------------------------------------------------

OURS = Path(__file__).resolve().parents[1]
INSTALLED = tuple(sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib"))


def frames_passed(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames through which an exception passed, followed by those of the exception from which it was
    raised."""
    frames: list[traceback.FrameSummary] = []
    raised: BaseException | None = error
    while raised is not None:
        frames += traceback.extract_tb(raised.__traceback__)
        raised = raised.__cause__ or (None if raised.__suppress_context__ else raised.__context__)
    return frames


def own_frame(error: BaseException) -> traceback.FrameSummary | None:
    """Return the last frame in the user's code, which is neither flstudy's nor installed."""
    frames = (
        frame
        for frame in reversed(frames_passed(error))
        if not frame.filename.startswith(("<", *INSTALLED)) and OURS not in Path(frame.filename).resolve().parents
    )
    return next(frames, None)


def describe_error(error: BaseException) -> str:
    """Return the type and message of an exception, with the last line of the user's code that it passed."""
    frame = own_frame(error)
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"{what} ({Path(frame.filename).name}:{frame.lineno})" if frame else what
