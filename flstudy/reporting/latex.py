"""Tables for a paper: LaTeX with booktabs, to be read by ``\\input``."""

import re
from collections.abc import Sequence
from pathlib import Path

from flstudy.reporting.tables import Cells

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "ε": r"$\varepsilon$",
    "×": r"$\times$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "−": r"$-$",
    "–": "--",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "γ": r"$\gamma$",
    "η": r"$\eta$",
    "κ": r"$\kappa$",
    "μ": r"$\mu$",
    "ρ": r"$\rho$",
    "τ": r"$\tau$",
}
_NEGATIVE = re.compile(r"(?<![\w.])-(?=[\d.])")


def escape(text: str) -> str:
    """Text that LaTeX prints as it stands."""
    return "".join(_SPECIAL.get(character, character) for character in " ".join(text.split()))


def table(cells: Cells, label: str) -> str:
    """One table environment; the best figures bold."""
    columns = "".join("l" if index in cells.words else "r" for index in range(len(cells.header)))
    lines = [
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{escape(cells.title)}.}}",
        rf"  \label{{tab:{label}}}",
        rf"  \begin{{tabular}}{{{columns}}}",
        r"    \toprule",
        "    " + " & ".join(map(escape, cells.header)) + r" \\",
        r"    \midrule",
    ]
    for place, row in enumerate(cells.rows):
        found = [_cell(text, (place, column) in cells.best) for column, text in enumerate(row)]
        lines.append("    " + " & ".join(found) + r" \\")
    return "\n".join([*lines, r"    \bottomrule", r"  \end{tabular}", r"\end{table}"])


def _cell(text: str, bold: bool) -> str:
    escaped = _NEGATIVE.sub("$-$", escape(text))
    return rf"\textbf{{{escaped}}}" if bold else escaped


def write_tables(path: Path, tables: Sequence[tuple[str, Cells]], notes: Sequence[str]) -> Path:
    """A file of tables, each with its label; the notes as comments, since every paper words them its own way."""
    heading = [r"% Needs \usepackage{booktabs} in the preamble."]
    heading += [f"% {' '.join(note.split())}" for note in notes]
    path.write_text("\n".join(heading) + "\n\n" + "\n\n".join(table(cells, label) for label, cells in tables) + "\n")
    return path
