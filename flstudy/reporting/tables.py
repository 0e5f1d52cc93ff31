"""Tables as cells, which a terminal shows, or which are written as Markdown, HTML or LaTeX; number formats."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from flstudy.escaping import for_markdown, for_terminal
from flstudy.metrics.registry import METRICS, is_fraction
from flstudy.whole_file import write_whole

NOTHING = "–"
LINE = 24  # characters up to which words stay in one line, however narrow the terminal is
GAP = 2  # characters between two columns, and around all of them
_WORDS = {"\\": "backslash", "~": "asciitilde", "^": "asciicircum", "<": "less", ">": "greater", "|": "bar"}
_SYMBOLS = {"±": "pm", "ε": "varepsilon", "×": "times", "≤": "le", "≥": "ge", "α": "alpha", "β": "beta", "γ": "gamma"}
_SYMBOLS |= {"η": "eta", "κ": "kappa", "μ": "mu", "ρ": "rho", "τ": "tau"}
_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {character: rf"\text{name}{{}}" for character, name in _WORDS.items()}
    | {character: rf"$\{name}$" for character, name in _SYMBOLS.items()}
    | {"−": "$-$", "–": "--"}
)
_NEGATIVE = re.compile(r"(?<![\w.])-(?=[\d.])")


@dataclass(frozen=True, kw_only=True)
class Cells:
    """Table as cells of text, which rich prints. Numbers are aligned to the right, words (the columns in `words`) to
    the left."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: frozenset[int]
    names: int = 1  # of the first columns, which say what a row is about
    best: frozenset[tuple[int, int]] = frozenset()  # (row, column) of cells in bold in LaTeX
    label: str = ""  # in LaTeX; a table without a label is not written there

    @classmethod
    def from_columns(
        cls, title: str, columns: Mapping[str, Iterable[str]], words: Iterable[int] = (0,), label: str = "", **more: Any
    ) -> Self:
        """Build a table from columns of equal length, each with its heading."""
        rows = tuple(zip(*columns.values(), strict=True))
        return cls(title=title, header=tuple(columns), rows=rows, words=frozenset(words), label=label, **more)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the title and the table. Where a terminal is too narrow for all columns, further tables have the rest,
        each behind the columns that name the rows."""
        if self.title:
            yield Text(for_terminal(self.title), style="bold")
        least, whole = zip(*map(self._widths, range(len(self.header))), strict=True)
        for columns in self._split(least, options.max_width):
            room = options.max_width - GAP * len(columns)
            widths = shared_widths([least[index] for index in columns], [whole[index] for index in columns], room)
            table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1))
            for index, width in zip(columns, widths, strict=True):
                heading = Text(for_terminal(self.header[index]), overflow="fold")
                table.add_column(heading, justify="left" if index in self.words else "right", width=width)
            for row in self.rows:
                table.add_row(*(Text(for_terminal(row[index]), overflow="fold") for index in columns))
            yield table

    def _widths(self, index: int) -> tuple[int, int]:
        """Return a column's least width, in which no number wraps and words only in lines longer than `LINE`, and its
        whole width, in which nothing does."""
        heading, cells = self.header[index], [row[index] for row in self.rows]
        longest = max(map(cell_len, cells), default=0)
        wrapped = " ".join([heading, *cells] if index in self.words else [heading]).split()
        least = max([min(longest, LINE) if index in self.words else longest, *map(cell_len, wrapped)])
        return least, max([longest, *map(cell_len, heading.split("\n"))])

    def _split(self, least: Sequence[int], room: int) -> list[list[int]]:
        """Return the columns of each table: as many as fit with their least widths, but at least one behind the
        names."""
        names = list(range(self.names))
        tables: list[list[int]] = [[]]
        for index in range(len(self.header)):
            behind_names = len(tables[-1]) > self.names
            if behind_names and sum(least[column] + GAP for column in [*tables[-1], index]) > room:
                tables.append(list(names))
            tables[-1].append(index)
        return tables

    def markdown(self, escape: Callable[[str], str] = for_markdown) -> str:
        """Format as a table in Markdown; ``escape`` is for other cells than plain text (`flstudy.escaping`)."""

        def line(cells: tuple[str, ...]) -> str:
            return "| " + " | ".join(map(escape, cells)) + " |"

        rule = "|" + "|".join(":--" if index in self.words else "--:" for index in range(len(self.header))) + "|"
        return "\n".join([f"**{for_markdown(self.title)}**", "", line(self.header), rule, *map(line, self.rows)])

    def latex(self) -> str:
        """Format as a table environment with booktabs, the best values in bold."""

        def cell(text: str, bold: bool) -> str:
            escaped = _NEGATIVE.sub("$-$", escape_latex(text))
            return rf"\textbf{{{escaped}}}" if bold else escaped

        columns = "".join("l" if index in self.words else "r" for index in range(len(self.header)))
        rows = [
            " & ".join(cell(text, (place, column) in self.best) for column, text in enumerate(row))
            for place, row in enumerate(self.rows)
        ]
        return "\n".join(
            [
                r"\begin{table}",
                r"  \centering",
                rf"  \caption{{{escape_latex(self.title)}.}}",
                rf"  \label{{tab:{self.label}}}",
                rf"  \begin{{tabular}}{{{columns}}}",
                r"    \toprule",
                "    " + " & ".join(map(escape_latex, self.header)) + r" \\",
                r"    \midrule",
                *(f"    {row} \\\\" for row in rows),
                r"    \bottomrule",
                r"  \end{tabular}",
                r"\end{table}",
            ]
        )


def shared_widths(least: Sequence[int], whole: Sequence[int], room: int) -> list[int]:
    """Return the widths of columns between their least and their whole width, the narrow ones first, that fill the
    room; where the least do not fit, the widest is cut."""
    widths = list(least)
    while sum(widths) < room and (cut := [index for index, width in enumerate(widths) if width < whole[index]]):
        widths[min(cut, key=widths.__getitem__)] += 1
    while sum(widths) > room and max(widths) > 1:
        widths[widths.index(max(widths))] -= 1
    return widths


def escape_latex(text: str) -> str:
    """Escape a text so that LaTeX prints it as it stands."""
    return for_terminal(" ".join(text.split())).translate(_LATEX)


def write_latex(path: Path, tables: Sequence[Cells], notes: Sequence[str]) -> None:
    """Write a file for ``\\input``, with the notes as comments, since every paper words them its own way."""
    heading = [
        r"% Needs \usepackage{booktabs} in the preamble.",
        *(f"% {for_terminal(' '.join(note.split()))}" for note in notes),
    ]
    write_whole(path, "\n".join(heading) + "\n\n" + "\n\n".join(cells.latex() for cells in tables) + "\n")


def mean_and_spread(values: NDArray[np.float64], scale: float = 1.0, form: str = ".1f") -> str:
    """Format mean ± sample standard deviation over seeds in Python's ``form``; with their count where some are NaN."""
    valid = scale * values[~np.isnan(values)]
    if not valid.size:
        return NOTHING
    text = f"{valid.mean():{form}}" + (f" ± {valid.std(ddof=1):{form}}" if valid.size > 1 else "")
    return text if valid.size == values.size else f"{text} ({valid.size}/{values.size})"


def finite_mean(values: Any) -> float:
    """Return the mean of the finite values; NaN where there is none."""
    array = np.asarray(values, float)
    finite = array[np.isfinite(array)]
    return float(finite.mean()) if finite.size else float("nan")


def chosen_values(overrides: Mapping[str, Any]) -> str:
    """Format overrides as `lr 0.0316, tau 0.001`, without the prefix ``algorithm.`` and the name of the algorithm."""
    chosen = {key.removeprefix("algorithm."): value for key, value in overrides.items() if key != "algorithm"}
    parts = (f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in chosen.items())
    return ", ".join(parts) or NOTHING


def percent_sign(metric: str) -> str:
    """Return the percent sign that a heading adds to a metric's name, for a fraction."""
    return " %" if is_fraction(metric) else ""


def metric_label(metric: str) -> str:
    """Return the title of a metric with its unit, or the name of a metric without a description."""
    if metric not in METRICS:
        return metric
    unit = "%" if is_fraction(metric) else METRICS[metric].unit
    return METRICS[metric].title + (f", {unit}" if unit else "")


def format_value(value: float, metric: str) -> str:
    """Format a value of a metric; in percent, without the sign, where it is a share."""
    if not np.isfinite(value):
        return NOTHING
    if is_fraction(metric):
        return f"{100 * value:.1f}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"


def format_difference(value: float, metric: str) -> str:
    """Format a difference of two values, always with its sign."""
    if not np.isfinite(value):
        return NOTHING
    return f"{100 * value:+.1f}" if is_fraction(metric) else f"{value:+.3g}"


def plural(count: int, noun: str) -> str:
    """Format a count with its noun: ``1 trial``, ``2 trials``."""
    return f"{count} {noun}" + ("" if count == 1 else "s")
