"""Claims of a paper's pages: what compares or counts, with the data that carry it (PAPER/claims.yaml).

    part: [sentence, ...]     a part of ``differences.md``, by its lead; a sentence is plain text, or a claim:

    says      the sentence; ``{name}`` is a number of the claim, ``{name:.0f}`` with another number of decimals
    numbers   name -> [page, row, shown, measure], or with a statistic behind it that is not the mean (`STATISTICS`);
              ``shown`` is a column of the page's table (``preset``, ``tuned``, ``trial``), or ``draws``: all trials of
              the row's search
    holds     what must hold of the numbers, each in one line

    a < b < 10      in this order; shares in percent, as they are shown
    a << b          in this order, and the 95 % interval of their difference excludes 0
    a ~ b ~ c       no interval of two of them excludes 0
    a = 3           equal as shown

Intervals are of Student's paired t over the seeds that both have; of draws, a bootstrap's over those that both share.
A sentence whose data do not carry it is refused where the pages are tested.
"""

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from flstudy.config import ConfigError, nearest
from flstudy.metrics.registry import is_fraction
from flstudy.reporting.ranking import Floats
from flstudy.reporting.sections.comparison import paired
from flstudy.reproduction.measured import MeasuredTrial, read_measured
from flstudy.reproduction.plan import RESULTS, metric_of
from flstudy.reproduction.sweeps import estimate, shared_draws
from flstudy.reproduction.values import places_by, scale_and_digits

FILE = "claims.yaml"
DRAWS = "draws"
STATISTICS: dict[str, Callable[[Floats], float]] = {
    "mean": lambda values: float(values.mean()),
    "deviation": lambda values: float(values.std(ddof=1)),
    "median": lambda values: float(np.median(values)),
    "highest": lambda values: float(values.max()),
    "lowest": lambda values: float(values.min()),
    "count": lambda values: float(np.isfinite(values).sum()),
    "place": lambda values: float(values.mean()),  # of places, which `_values` returns
}
OPERATOR = re.compile(r"\s*(<<|<|~|=)\s*")


@dataclass(frozen=True, kw_only=True)
class Number:
    """Number of a claim: a statistic of values by seed or by draw, in the unit in which it is shown."""

    values: Mapping[Hashable, float]
    statistic: str = "mean"
    digits: int = 1
    of_draws: bool = False

    @property
    def shown(self) -> float:
        return STATISTICS[self.statistic](np.array(list(self.values.values())))

    def __format__(self, spec: str) -> str:
        return format(self.shown, spec or f".{self.digits}f")

    def less_than(self, other: "Number") -> tuple[float, float]:
        """Return the 95 % interval of how much less this is than the other; NaN where too few values are shared."""
        if self.of_draws:
            pairs = shared_draws(self.values, other.values)  # type: ignore[arg-type]
            gap = estimate(np.array([other.values[theirs] - self.values[mine] for mine, theirs in pairs]))
            return gap.low, gap.high
        _, _, low, high, _ = paired(other.values, self.values)  # type: ignore[arg-type]
        return low, high


@dataclass(frozen=True, kw_only=True)
class PageClaim:
    """Sentence that compares or counts, with its numbers and what must hold of them."""

    says: str
    numbers: Mapping[str, Number]
    holds: Sequence[str]

    def __str__(self) -> str:
        return self.says.format(**self.numbers)

    def faults(self) -> list[str]:
        """Return what should hold of the numbers and does not, each with what is there instead."""
        return [f"{relation}: {self._values_in(relation)}" for relation in self.holds if not self._holds(relation)]

    def _holds(self, relation: str) -> bool:
        first, *rest = OPERATOR.split(relation)
        operands, operators = [self._operand(name) for name in (first, *rest[1::2])], rest[::2]
        if set(operators) == {"~"}:
            return all(_related(left, "~", right) for left, right in combinations(operands, 2))
        steps = zip(operators, pairwise(operands), strict=True)
        return bool(operators) and all(_related(left, operator, right) for operator, (left, right) in steps)

    def _operand(self, name: str) -> Number:
        """Return a number of the claim, or one that is written."""
        if name in self.numbers:
            return self.numbers[name]
        try:
            return Number(values={None: float(name)})
        except ValueError:
            raise ConfigError(f"{name!r} is no number of {self.says!r}{nearest(name, list(self.numbers))}") from None

    def _values_in(self, relation: str) -> str:
        names = [name for name in OPERATOR.split(relation)[::2] if name in self.numbers]
        return ", ".join(f"{name} is {self.numbers[name].shown:.4g}" for name in names)


def _related(left: Number, operator: str, right: Number) -> bool:
    if operator == "=":
        return format(left.shown, f".{left.digits}f") == format(right.shown, f".{left.digits}f")
    if operator == "<":
        return left.shown < right.shown
    low, high = left.less_than(right)
    return low <= 0 <= high if operator == "~" else low > 0


def read_claims(folder: Path) -> dict[str, list[str | PageClaim]]:
    """Read the claims of a paper's folder with their data, by the part of the remarks that holds them.

    Raises:
        ConfigError: for a claim that is wrong, or whose numbers no page has.
    """
    path = folder / FILE
    if not path.is_file():
        return {}
    pages: dict[str, list[MeasuredTrial]] = {}
    parts: dict[str, list[str | PageClaim]] = {}
    try:
        written = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from error
    for part, sentences in written.items():
        parts[part] = []
        for sentence in sentences:
            try:
                parts[part].append(sentence if isinstance(sentence, str) else _claim(folder, sentence, pages))
            except (KeyError, TypeError, ValueError) as error:
                raise ConfigError(f"{path}, {part}: {' '.join(str(error).split())}") from error
    return parts


def _claim(folder: Path, written: Mapping[str, Any], pages: dict[str, list[MeasuredTrial]]) -> PageClaim:
    numbers = {}
    for name, (page, row, shown, measure, *statistic) in written["numbers"].items():
        if page not in pages:
            pages[page] = read_measured(folder / RESULTS / f"{page}.csv")
        numbers[name] = _number(pages[page], row, shown, measure, *statistic)
    return PageClaim(says=" ".join(written["says"].split()), numbers=numbers, holds=tuple(written["holds"]))


def _number(trials: Sequence[MeasuredTrial], row: str, shown: str, measure: str, statistic: str = "mean") -> Number:
    """Return a number of a page.

    Raises:
        ConfigError: in one sentence, where the page has none of these names.
    """
    if statistic not in STATISTICS:
        raise ConfigError(f"unknown statistic {statistic!r}{nearest(statistic, list(STATISTICS))}")
    metric = metric_of(measure)
    rows = {trial.row: trial for trial in trials if shown in trial.shown}
    searched = [trial for trial in trials if trial.row == row and trial.study != "preset" and trial.confirms is None]
    scale, digits = scale_and_digits(metric)
    if row not in rows and not (shown == DRAWS and searched):
        raise ConfigError(f"the page has no row {row!r} under {shown!r}{nearest(row, list(rows))}")
    if statistic == "place":
        of_seeds = {name: list(trial.values(measure).values()) for name, trial in rows.items()}
        means = {name: float(np.mean(seeds)) for name, seeds in of_seeds.items() if seeds and np.isfinite(seeds).all()}
        return Number(values={None: places_by(means)[row]}, statistic=statistic, digits=0)
    if shown == DRAWS:
        draws = {tuple(sorted(trial.settings.items())): list(trial.values(measure).values()) for trial in searched}
        values: dict[Hashable, float] = {draw: scale * float(np.mean(seeds)) for draw, seeds in draws.items() if seeds}
    else:
        values = {seed: scale * value for seed, value in rows[row].values(measure).items()}
    if not values:
        raise ConfigError(f"{row} has no {measure} under {shown!r}")
    return Number(
        values=values,
        statistic=statistic,
        digits=1 if is_fraction(metric) else digits,
        of_draws=shown == DRAWS,
    )


def refuted(parts: Mapping[str, Sequence[str | PageClaim]]) -> list[str]:
    """Return a sentence for each claim that its data do not carry."""
    claims = [sentence for sentences in parts.values() for sentence in sentences if isinstance(sentence, PageClaim)]
    return [f"The data do not carry {str(claim)!r}: {'; '.join(claim.faults())}." for claim in claims if claim.faults()]


def remarks_page(parts: Mapping[str, Sequence[str | PageClaim]]) -> str:
    """Return the Markdown of the claims, a paragraph for each part with its name in bold."""
    paragraphs = [f"**{part}.** {' '.join(map(str, sentences))}" for part, sentences in parts.items()]
    return "\n\n".join(["## What is different, and what that says", *paragraphs]) + "\n"
