"""Tables for a paper."""

import re

import pytest

from flstudy.reporting import write_report
from flstudy.reporting.tables import Cells, escape_latex


def test_text_is_printed_as_it_stands():
    assert escape_latex("a_b & 50 % #1 $x {y} ~ ^") == (
        r"a\_b \& 50 \% \#1 \$x \{y\} \textasciitilde{} \textasciicircum{}"
    )
    assert escape_latex("1.0 ± 0.2\n–") == r"1.0 $\pm$ 0.2 --"
    assert escape_latex("\\input") == r"\textbackslash{}input"


def test_a_table_of_booktabs():
    cells = Cells(
        title="Best_of",
        header=("Name", "Final\n%"),
        rows=(("A", "90.1 ± 0.5"), ("B", "-3.0")),
        words=frozenset({0}),
        best=frozenset({(0, 1)}),
        label="best",
    )
    assert cells.latex().splitlines() == [
        r"\begin{table}",
        r"  \centering",
        r"  \caption{Best\_of.}",
        r"  \label{tab:best}",
        r"  \begin{tabular}{lr}",
        r"    \toprule",
        r"    Name & Final \% \\",
        r"    \midrule",
        r"    A & \textbf{90.1 $\pm$ 0.5} \\",
        r"    B & $-$3.0 \\",
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]


@pytest.mark.slow
def test_the_tables_of_a_study(searched):
    text = write_report(searched).latex_path.read_text()
    assert text.startswith("% Needs \\usepackage{booktabs}")
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == text.count(r"\toprule") >= 5
    body = re.sub(r"^%.*$", "", text, flags=re.M)
    assert not re.search(r"(?<!\\)[%#_]", body.replace(r"\label{tab:searched-hyper-parameters}", ""))
    for line in body.splitlines():
        if line.endswith(r"\\"):
            columns = line.replace(r"\&", "").count("&")
            assert 1 <= columns <= 12
    ranking = body[: body.index(r"\end{table}")]
    assert ranking.count(r"\textbf") == 1
    assert re.search(r"Flash & .*\\textbf\{[\d.]+ \$\\pm\$ [\d.]+\} \\\\", ranking)
