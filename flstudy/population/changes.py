"""Changes of labels or inputs under another concept; a drift's schedule (``drift``) says when they come.

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
from flstudy.user_error import UserError


class Tables(NamedTuple):
    """Tables of a change under each of C concepts. An empty table leaves its part alone, at no cost."""

    labels: Tensor  # [C, classes] what label y is called
    order: Tensor  # [C, features] which entry of the flattened input comes to each place
    shift: Tensor  # [C, *shape] what is added to the input


class Change(Configurable):
    """Concepts of a drift: tables of what happens to labels, to the order of an input's entries or to their values,
    for as many concepts as a schedule has; concept 0 is always the identity."""

    def labels(self, concepts: int, classes: int) -> NDArray[np.int64]:
        """Return the table [concepts, classes]: what label y is called under each concept; empty where labels stay.

        Raises:
            UserError: so many concepts cannot be made of these labels.
        """
        return np.empty((0, 0), dtype=np.int64)

    def order(self, concepts: int, shape: Sequence[int]) -> NDArray[np.int64]:
        """Return the table [concepts, features]: entry ``order[c, i]`` of the flattened input comes to place i; empty
        where places stay.

        Raises:
            UserError: inputs of this shape cannot be turned so.
        """
        return np.empty((0, 0), dtype=np.int64)

    def shift(self, concepts: int, shape: Sequence[int]) -> NDArray[np.float32]:
        """Return the table [concepts, *shape]: what is added to inputs; empty where they stay.

        Raises:
            UserError: the numbers do not fit the shape.
        """
        return np.empty((0, 0), dtype=np.float32)

    def tables(self, concepts: int, shape: Sequence[int], classes: int) -> Tables:
        """Return all tables, for data of this shape and number of classes.

        Raises:
            UserError: if the change does not suit them, or knows fewer concepts.
        """
        tables = self.labels(concepts, classes), self.order(concepts, shape), self.shift(concepts, shape)
        return Tables(*(torch.from_numpy(table) for table in tables))


@dataclass(frozen=True, kw_only=True)
class NoChange(Change):
    """No change of labels or inputs: the drift is in which examples there are, or only a name."""

    citations: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True, kw_only=True)
class LabelSwap(Change):
    """Label swap (FLASH, Panchal et al. 2023, sec. 5.1) in pairs (0, 1), (2, 3), …; the last of an odd number stays.

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
            raise UserError(f"LabelSwap: pairs must name each label at most once, got {self.pairs}")

    def labels(self, concepts: int, classes: int) -> NDArray[np.int64]:
        if classes < 2:
            raise UserError(f"LabelSwap: the data set must have at least 2 labels, got {classes}; use FeatureShift")
        table = np.tile(np.arange(classes), (concepts, 1))
        if self.pairs is None:
            if concepts > classes:
                raise UserError(
                    f"LabelSwap: {classes} labels allow {classes - 1} new concepts, but the drift has {concepts - 1}"
                )
            for concept in range(1, concepts):
                label = np.arange(classes)
                partner = label + np.where(label % (2 * concept) < concept, concept, -concept)
                table[concept] = np.where(partner < classes, partner, label)
            return table
        if concepts > 2:
            raise UserError(
                f"LabelSwap: named pairs make one new concept, but the drift has {concepts - 1}; leave pairs out"
            )
        for first, second in self.pairs:
            if not (0 <= first < classes and 0 <= second < classes):
                raise UserError(f"LabelSwap: pairs must hold labels in 0 … {classes - 1}, got {(first, second)}")
            table[1:, [first, second]] = table[1:, [second, first]]
        return table


@dataclass(frozen=True, kw_only=True)
class ComposedSwaps(Change):
    """Composed label swaps: every drift swaps labels in pairs, on top of all swaps before it, so that no concept ever
    comes back. Under concept c a label is called what the swaps 1, …, c, one after another, make of it. (Ganguly &
    Aggarwal 2024, sec. VI, swap (0, 1), (2, 3), (4, 5) "at each drift round", which undoes itself at every other one.)
    """

    citations: ClassVar[tuple[str, ...]] = ("ganguly2024",)

    sets: list[list[tuple[int, int]]] | None = None
    """Pairs of labels that drift 1, 2, … swaps, from the first again after the last. Null swaps (0, 1), (2, 3), … and
    (1, 2), (3, 4), … in turn, which gives 2 C different concepts to C ≥ 3 labels."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for pairs in [] if self.sets is None else self.sets:
            named = [label for pair in pairs for label in pair]
            if not pairs or len(set(named)) < len(named):
                raise UserError(
                    f"ComposedSwaps: each of sets must hold pairs that name a label at most once, got {pairs}"
                )
        if self.sets is not None and not self.sets:
            raise UserError("ComposedSwaps: sets must hold one or more lists of pairs, got none")

    def labels(self, concepts: int, classes: int) -> NDArray[np.int64]:
        if classes < 2:
            raise UserError(f"ComposedSwaps: the data set must have at least 2 labels, got {classes}; use FeatureShift")
        sets = self.sets or [[(low, low + 1) for low in range(first, classes - 1, 2)] for first in (0, 1)]
        table = np.tile(np.arange(classes), (concepts, 1))
        for concept in range(1, concepts):
            called = np.arange(classes)
            for left, right in sets[(concept - 1) % len(sets)]:
                if not (0 <= left < classes and 0 <= right < classes):
                    raise UserError(f"ComposedSwaps: sets must hold labels in 0 … {classes - 1}, got {(left, right)}")
                called[[left, right]] = right, left
            table[concept] = called[table[concept - 1]]
            earlier = np.flatnonzero((table[:concept] == table[concept]).all(1))
            if len(earlier):
                raise UserError(
                    f"ComposedSwaps: drift {concept} would bring concept {earlier[0]} back: name other sets, or let "
                    f"there be fewer than {concept} drifts"
                )
        return table


@dataclass(frozen=True, kw_only=True)
class FeatureShift(Change):
    """Feature shift: a fixed vector is added to every input, so that P(x) and P(y | x) move and labels stay.

    Without ``by_feature`` it is drawn at random, another one for each concept, from a normal distribution of each
    feature, and scaled to ``size``; it is the same for all devices and replicas.
    """

    citations: ClassVar[tuple[str, ...]] = ()

    size: float = hyper(1.0, "[0, 1e12]")
    """Root mean square of the vector over the features, in the inputs' units."""
    by_feature: list[float] | None = hyper(None, "[-1e12, 1e12]")
    """The vector itself, one number for each feature of a flattened input; concept c adds it c times."""
    seed: int = hyper(0, "[0, 2e9]")
    """Seed of the random vectors."""

    def shift(self, concepts: int, shape: Sequence[int]) -> NDArray[np.float32]:
        features = math.prod(shape)
        if self.by_feature is not None:
            if len(self.by_feature) != features:
                raise UserError(
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
    """Rotation of square images by multiples of 90 degrees (as in Ghosh et al. 2020, sec. 6)."""

    citations: ClassVar[tuple[str, ...]] = ("ghosh2020",)

    quarters: list[int] = hyper(domain="[1, 3]", default_factory=lambda: [2, 1, 3])
    """Quarter turns, counter-clockwise, of concepts 1, 2, …, all different."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(set(self.quarters)) < max(1, len(self.quarters)):
            raise UserError(f"Rotation: quarters must be one or more different numbers, got {self.quarters}")

    def order(self, concepts: int, shape: Sequence[int]) -> NDArray[np.int64]:
        if len(shape) < 2 or shape[-1] != shape[-2]:
            raise UserError(
                f"Rotation: inputs must be square images (..., height, width), got shape {tuple(shape)}; "
                "use FeatureShift or LabelSwap"
            )
        if concepts - 1 > len(self.quarters):
            raise UserError(
                f"Rotation: quarters must name {concepts - 1} turns, one for each new concept, got {self.quarters}"
            )
        places = np.arange(math.prod(shape)).reshape(shape)
        turned = [np.rot90(places, turns, axes=(-2, -1)).ravel() for turns in [0, *self.quarters][:concepts]]
        return np.stack(turned)
