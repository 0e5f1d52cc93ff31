"""Files that a disk, a copy or a hand has damaged: found when they are read, and named in a sentence."""

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path

from flstudy.config import ConfigError

_OF_LIGHTNING = ("epoch", "loops", "state_dict")


class DamageError(ConfigError):
    """A file that was whole once; the message names it and what is wrong with it."""


def reason_of(error: BaseException, longest: int = 80) -> str:
    """An error's first words, as part of a sentence."""
    words = " ".join(str(error).split()) or type(error).__name__
    return words if len(words) <= longest else f"{words[: longest - 3]}..."


def checkpoint_damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, naming it; None where nothing is. Nothing in it is executed."""
    import torch

    try:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()  # torch itself compares no checksums
        if bad is not None:
            return f"{path} is damaged (checksum of {bad})"
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)  # mapped: only the pickle is read
        if not isinstance(content, Mapping) or any(name not in content for name in _OF_LIGHTNING):
            return f"{path} is damaged (no {', '.join(_OF_LIGHTNING)})"
    except pickle.UnpicklingError:
        return f"{path} is damaged (it holds other things than numbers, which are not loaded)"
    except Exception as error:  # a damaged pickle can raise anything
        return f"{path} is damaged ({reason_of(error)})"
    return None
