"""What changes under another concept: labels, or inputs. When it changes is the schedule's business (``drift``).

A change is a table by concept, of which concept 0 is the data set's own. It is looked up when a batch is gathered:
the examples are neither copied nor written to.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flstudy.hyper import Configurable, hyper
from flstudy.population.streams import generator


class Tables(NamedTuple):
    """What a change does under each of C concepts. An empty table leaves its part alone, at no cost."""

    labels: Tensor  # [C, classes] what label y is called
    order: Tensor  # [C, features] which entry of the flattened input comes to each place
    shift: Tensor  # [C, *shape] what is added to the input


class Change(Configurable):
    """What the concepts of a drift are. A change says what it does to labels, to the order of an input's entries or
    to their values, for as many concepts as a schedule has; concept 0 is always the identity."""

    def labels(self, concepts: int, classes: int) -> NDArray[np.int64]:
        """Table [concepts, classes]: what label y is called under each concept; empty where labels stay.

        Raises:
            ValueError: so many concepts cannot be made of these labels.
        """
        return np.empty((0, 0), dtype=np.int64)

    def order(self, concepts: int, shape: Sequence[int]) -> NDArray[np.int64]:
        """Table [concepts, features]: entry ``order[c, i]`` of the flattened input comes to place i; empty where
        places stay.

        Raises:
            ValueError: inputs of this shape cannot be turned so.
        """
        return np.empty((0, 0), dtype=np.int64)

    def shift(self, concepts: int, shape: Sequence[int]) -> NDArray[np.float32]:
        """Table [concepts, *shape]: what is added to inputs; empty where they stay.

        Raises:
            ValueError: the numbers do not fit the shape.
        """
        return np.empty((0, 0), dtype=np.float32)

    def tables(self, concepts: int, shape: Sequence[int], classes: int) -> Tables:
        """All tables, for data of this shape and number of classes.

        Raises:
            ValueError: if the change does not suit them, or knows fewer concepts.
        """
        tables = self.labels(concepts, classes), self.order(concepts, shape), self.shift(concepts, shape)
        return Tables(*(torch.from_numpy(table) for table in tables))


@dataclass(frozen=True, kw_only=True)
class NoChange(Change):
    """Labels and inputs stay as they are: the drift is in what examples there are, or only a name."""

    citations: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True, kw_only=True)
class LabelSwap(Change):
    """Labels are swapped in pairs (FLASH, sec. 5.1): (0, 1), (2, 3), …; the last label of an odd number stays.

    A schedule with more than one new concept gets as many different swaps: under concept c label i changes places with
    label i + c within blocks of 2c labels, (0, 2), (1, 3), (4, 6), … for c = 2; a label without a partner stays.
    """

    citations: ClassVar[tuple[str, ...]] = ("panchal2023",)

    pairs: list[tuple[int, int]] | None = None
    """Labels to swap instead, each at most once; for schedules with one new concept."""

    def __post_init__(self) -> None:
        super().__post_init__()
        named = [label for pair in self.pairs or [] for label in pair]
        if len(set(named)) < len(named):
            raise ValueError(f"LabelSwap: pairs must name each label at most once, got {self.pairs}")

    def labels(self, concepts: int, classes: int) -> NDArray[np.int64]:
        if classes < 2:
            raise ValueError(f"LabelSwap: the data set must have at least 2 labels, got {classes}; use FeatureShift")
        table = np.tile(np.arange(classes), (concepts, 1))
        if self.pairs is None:
            if concepts > classes:
                raise ValueError(
                    f"LabelSwap: {classes} labels allow {classes - 1} new concepts, but the drift has {concepts - 1}"
                )
            for concept in range(1, concepts):
                label = np.arange(classes)
                partner = label + np.where(label % (2 * concept) < concept, concept, -concept)
                table[concept] = np.where(partner < classes, partner, label)
            return table
        if concepts > 2:
            raise ValueError(
                f"LabelSwap: named pairs make one new concept, but the drift has {concepts - 1}; leave pairs out"
            )
        for one, other in self.pairs:
            if not (0 <= one < classes and 0 <= other < classes):
                raise ValueError(f"LabelSwap: pairs must hold labels in 0 … {classes - 1}, got {(one, other)}")
            table[1:, [one, other]] = table[1:, [other, one]]
        return table


@dataclass(frozen=True, kw_only=True)
class ComposedSwaps(Change):
    """Every drift swaps labels in pairs, on top of all swaps before it, so that no concept ever comes back: under
    concept c a label is called what the swaps 1, …, c, one after another, make of it. (Ganguly & Aggarwal 2024,
    sec. VI, swap the pairs (0, 1), (2, 3), (4, 5) "at each drift round", which undoes itself at every other one.)
    """

    citations: ClassVar[tuple[str, ...]] = ("ganguly2024",)

    sets: list[list[tuple[int, int]]] | None = None
    """Pairs of labels that drift 1, 2, … swaps, from the first again after the last; null swaps (0, 1), (2, 3), … and
    (1, 2), (3, 4), … in turn, which gives 2 C different concepts to C ≥ 3 labels."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for pairs in [] if self.sets is None else self.sets:
            named = [label for pair in pairs for label in pair]
            if not pairs or len(set(named)) < len(named):
                raise ValueError(
                    f"ComposedSwaps: each of sets must hold pairs that name a label at most once, got {pairs}"
                )
        if self.sets is not None and not self.sets:
            raise ValueError("ComposedSwaps: sets must hold one or more lists of pairs, got none")

    def labels(self, concepts: int, classes: int) -> NDArray[np.int64]:
        if classes < 2:
            raise ValueError(
                f"ComposedSwaps: the data set must have at least 2 labels, got {classes}; use FeatureShift"
            )
        sets = self.sets or [[(low, low + 1) for low in range(first, classes - 1, 2)] for first in (0, 1)]
        table = np.tile(np.arange(classes), (concepts, 1))
        for concept in range(1, concepts):
            called = np.arange(classes)
            for one, other in sets[(concept - 1) % len(sets)]:
                if not (0 <= one < classes and 0 <= other < classes):
                    raise ValueError(f"ComposedSwaps: sets must hold labels in 0 … {classes - 1}, got {(one, other)}")
                called[[one, other]] = other, one
            table[concept] = called[table[concept - 1]]
            earlier = np.flatnonzero((table[:concept] == table[concept]).all(1))
            if len(earlier):
                raise ValueError(
                    f"ComposedSwaps: drift {concept} would bring concept {earlier[0]} back: name other sets, or let "
                    f"there be fewer than {concept} drifts"
                )
        return table


@dataclass(frozen=True, kw_only=True)
class FeatureShift(Change):
    """A fixed vector is added to every input: P(x) moves, and with it P(y | x), while every example keeps its label.

    Without ``by_feature`` it is drawn at random, another one for each concept, from a normal distribution of each
    feature, and scaled to ``size``; it is the same for all devices and replicas.
    """

    citations: ClassVar[tuple[str, ...]] = ()

    size: float = hyper(1.0, "[0, 1e12]")
    """Root mean square of the vector over the features, in the inputs' units."""
    by_feature: list[float] | None = hyper(None, "[-1e12, 1e12]")
    """The vector itself, one number for each feature of a flattened input; concept c adds it c times."""
    seed: int = hyper(0, "[0, 2e9]")
    """Of the random vectors."""

    def shift(self, concepts: int, shape: Sequence[int]) -> NDArray[np.float32]:
        features = math.prod(shape)
        if self.by_feature is not None:
            if len(self.by_feature) != features:
                raise ValueError(
                    f"FeatureShift: by_feature must hold one number for each of {features} features, "
                    f"got {len(self.by_feature)}"
                )
            vectors = np.outer(np.arange(concepts), self.by_feature)
        else:
            vectors = np.zeros((concepts, features))
            for concept in range(1, concepts):
                vector = generator(self.seed, "feature shift", concept).standard_normal(features)
                vectors[concept] = self.size * vector / np.sqrt(np.mean(vector**2))
        return vectors.reshape(concepts, *shape).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class Rotation(Change):
    """Square images are turned by multiples of 90 degrees (as in Ghosh et al. 2020, sec. 6)."""

    citations: ClassVar[tuple[str, ...]] = ("ghosh2020",)

    quarters: list[int] = hyper(domain="[1, 3]", default_factory=lambda: [2, 1, 3])
    """Quarter turns, counter-clockwise, of concepts 1, 2, …, all different."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(set(self.quarters)) < max(1, len(self.quarters)):
            raise ValueError(f"Rotation: quarters must be one or more different numbers, got {self.quarters}")

    def order(self, concepts: int, shape: Sequence[int]) -> NDArray[np.int64]:
        if len(shape) < 2 or shape[-1] != shape[-2]:
            raise ValueError(
                f"Rotation: inputs must be square images (..., height, width), got shape {tuple(shape)}; "
                "use FeatureShift or LabelSwap"
            )
        if concepts - 1 > len(self.quarters):
            raise ValueError(
                f"Rotation: quarters must name {concepts - 1} turns, one for each new concept, got {self.quarters}"
            )
        places = np.arange(math.prod(shape)).reshape(shape)
        turned = [np.rot90(places, turns, axes=(-2, -1)).ravel() for turns in [0, *self.quarters][:concepts]]
        return np.stack(turned)
