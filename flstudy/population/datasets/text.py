"""Text as examples of predicting what follows, with the vocabularies of Reddi et al. 2021 (App. C): numbers 0 for
padding, 1 … K for the known characters or words, then one each for unknown ones, the beginning and the end."""

import string
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flstudy.user_error import UserError

# The 86 characters of TensorFlow Federated's Shakespeare, in the order of their codes.
CHARACTERS = "".join(sorted(string.digits + string.ascii_letters + "\n\r !\"#$%&'()*,-./:;?@[]_"))
PADDING, MISSING = 0, -1  # a padded input's number and its label


class Special(NamedTuple):
    """Numbers in texts that do not stand for a known character or word."""

    unknown: int  # stands for all others
    begin: int  # before the first one
    end: int  # after the last one
    size: int  # of the vocabulary, padding included

    @classmethod
    def after(cls, count: int) -> "Special":
        """Return the special numbers that follow so many known characters or words."""
        return cls(*range(count + 1, count + 5))


def successors(tokens: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (x, y) [P, T]: inputs and what follows them, of tokens [P, T + 1] that are MISSING where there are
    none."""
    return np.where(tokens[:, :-1] < 0, PADDING, tokens[:, :-1]), tokens[:, 1:].copy()


def by_character(snippets: NDArray[Any], length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (x, y) [D, length] of K texts [K]: each is put between marks and cut into pieces of length + 1, those of a
    single character left out.

    Raises:
        UserError: for a text that is not bytes.
    """
    special = Special.after(len(CHARACTERS))
    table = np.full(256, special.unknown, dtype=np.int64)
    table[np.frombuffer(CHARACTERS.encode(), dtype=np.uint8)] = np.arange(1, special.unknown)
    pieces = [np.empty((0, length + 1), dtype=np.int64)]
    for snippet in snippets:
        codes = table[np.frombuffer(as_bytes(snippet), dtype=np.uint8)]
        tokens = np.concatenate([[special.begin], codes, [special.end]])
        padded = np.full(-(-len(tokens) // (length + 1)) * (length + 1), MISSING, dtype=np.int64)
        padded[: len(tokens)] = tokens
        pieces.append(padded.reshape(-1, length + 1))
    joined = np.concatenate(pieces)
    return successors(joined[joined[:, 1] >= 0])


def by_word(
    sentences: NDArray[Any], length: int, vocabulary: Mapping[bytes, int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (x, y) [D, length] of sentences [D]: the first ``length`` words of each after a mark, and a mark if there
    is room.

    Raises:
        UserError: for a sentence that is not bytes.
    """
    special = Special.after(len(vocabulary))
    tokens = np.full((len(sentences), length + 1), MISSING, dtype=np.int64)
    for line, sentence in zip(tokens, sentences, strict=True):
        numbers = [vocabulary.get(word, special.unknown) for word in as_bytes(sentence).split(b" ")[:length]]
        if len(numbers) < length:
            numbers.append(special.end)
        line[: len(numbers) + 1] = [special.begin, *numbers]
    return successors(tokens)


def as_bytes(value: Any) -> bytes:
    """Return the value, if it is bytes; else raise UserError."""
    if not isinstance(value, bytes):
        raise UserError(f"texts must be bytes, got {type(value).__name__}")
    return value


def most_frequent(path: Path, count: int) -> dict[bytes, int]:
    """Return the numbers 1 … count of the first words of a file of lines "word count", most frequent first.

    Raises:
        UserError: for other lines, or too few.
    """
    vocabulary: dict[bytes, int] = {}
    with path.open("rb") as file:
        for number, line in enumerate(islice(file, count), start=1):
            parts = line.split()
            if len(parts) != 2 or not parts[1].isdigit() or parts[0] in vocabulary:
                raise UserError(f"line {number} must be a new word and its count, got {line[:40]!r}")
            vocabulary[parts[0]] = number
    if len(vocabulary) < count:
        raise UserError(f"it has {len(vocabulary)} words, but vocabulary is {count}")
    return vocabulary
