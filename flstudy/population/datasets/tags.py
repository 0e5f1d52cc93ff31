"""Stack Overflow's sentences with the tags of their posts: multi-label classification of bags of words."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flstudy.hyper import hyper
from flstudy.population.datasets.natural import Reader, StackOverflow
from flstudy.population.datasets.text import MISSING, PADDING, as_bytes
from flstudy.user_error import UserError

MOST_TAGS = 5  # of a post, Stack Overflow's own rule


@dataclass(frozen=True, kw_only=True)
class StackOverflowTags(StackOverflow):
    """Tag prediction by user of Stack Overflow, TensorFlow Federated's. Reddi et al. 2021 (App. C.5) and FedAda² (Lee
    et al. 2024, App. G.1) use it.

    An example is a sentence and its post's title, as the numbers of their words: 1 … ``vocabulary`` for the most
    frequent ones, one more for all others, 0 for padding. A task weighs every word by one over their number, unknown
    ones included, which is Reddi et al.'s bag of words: 10,000 frequencies would take 40 kB, these numbers 512 bytes.
    Labels are the post's tags among the ``tags`` most frequent ones, at most five, in the order of the post and padded
    with −1. The 400 devices of FedAda² are chosen at random by ``selection``; the paper does not name its own.

    Differs: words beyond the first ``length`` do not count; a sentence whose post has none of the known tags is left
    out, since it has neither label nor recall.
    """

    citations: ClassVar[tuple[str, ...]] = ("reddi2021",)

    contents: ClassVar[tuple[str, ...]] = ("tokens", "title", "tags")
    aim: ClassVar[str] = "tags"
    first_task: ClassVar[str] = "TagLogistic"

    length: int = hyper(64, "[1, 1e5]")
    """Words of a sentence and its title."""
    tags: int = hyper(500, "[1, 1e6]")
    """Number of the most frequent tags."""

    @cached_property
    def classes(self) -> int:
        return self.tags

    @cached_property
    def tokens(self) -> int:
        return self.vocabulary + 2

    def reader(self) -> Reader:
        vocabulary, numbers = self.words(), self._known()
        return lambda person: by_tag(person, self.length, vocabulary, numbers)

    def _known(self) -> dict[bytes, int]:
        """Return the numbers 0 … tags - 1 of the most frequent tags."""
        path = self.existing(self.folder / "stackoverflow.tag_count")
        try:
            return most_frequent_tags(json.loads(path.read_text()), self.tags)
        except (ValueError, OSError) as error:
            self.refuse(error, path)


def most_frequent_tags(counts: Any, count: int) -> dict[bytes, int]:
    """Return the numbers 0 … count - 1 of the tags with the largest counts; of equal ones the first.

    Raises:
        UserError: for no counts, or too few.
    """
    if not isinstance(counts, dict) or not all(isinstance(value, int) for value in counts.values()):
        raise UserError("it must hold one JSON object of tags and their counts")
    if len(counts) < count:
        raise UserError(f"it has {len(counts)} tags, but tags is {count}")
    ordered = sorted(counts, key=lambda tag: -counts[tag])
    return {tag.encode(): number for number, tag in enumerate(ordered[:count])}


def by_tag(
    person: Mapping[str, NDArray[Any]], length: int, vocabulary: Mapping[bytes, int], tag_numbers: Mapping[bytes, int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (x, y) [n, length] and [n, 5]: words of a person's sentences and titles, and the known tags of their
    posts.

    Raises:
        UserError: for contents of different lengths, or a post of more than five known tags.
    """
    counts = {content: len(values) for content, values in person.items()}
    if len(set(counts.values())) > 1:
        raise UserError(f"contents must be as many as each other, got {counts}")
    unknown, xs, ys = len(vocabulary) + 1, [], []
    for tokens, title, tags in zip(person["tokens"], person["title"], person["tags"], strict=True):
        labels = list(dict.fromkeys(tag_numbers[tag] for tag in as_bytes(tags).split(b"|") if tag in tag_numbers))
        if len(labels) > MOST_TAGS:
            raise UserError(f"a post has at most {MOST_TAGS} tags, got {as_bytes(tags)[:80]!r}")
        if not labels:
            continue
        words = [vocabulary.get(word, unknown) for word in (as_bytes(tokens) + b" " + as_bytes(title)).split()[:length]]
        xs.append(words + [PADDING] * (length - len(words)))
        ys.append(labels + [MISSING] * (MOST_TAGS - len(labels)))
    x, y = (np.array(rows, dtype=np.int64) for rows in (xs, ys))
    return x.reshape(-1, length), y.reshape(-1, MOST_TAGS)
