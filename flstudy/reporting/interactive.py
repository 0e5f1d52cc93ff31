"""Interactive page of a study: charts with values under the pointer and methods to hide, and tables that sort. It works
without a network from two files: the page, and plotly.js beside it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from flstudy.reporting.charts import CHARTS
from flstudy.reporting.page import render
from flstudy.reporting.ranking import Findings
from flstudy.reporting.sections.search import searched_domains, varied_keys
from flstudy.reporting.style import scale_of
from flstudy.reporting.tables import NOTHING, Cells

NAME, PLOTLY = "interactive.html", "plotly.min.js"
ESCAPED = str.maketrans({letter: f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"})


def write_interactive(folder: Path, findings: Findings, title: str, tables: Sequence[Cells]) -> Path:
    """Write the page and plotly.js beside the report, and return the page's path."""
    from plotly.offline import get_plotlyjs

    drawn = [(name, chart, chart.draw(findings)) for name, chart in CHARTS.items()]
    charts = [(name, chart, Markup(_json(figure))) for name, chart, figure in drawn if figure is not None]
    path = folder / NAME
    text = render("interactive.html.j2", title=title, charts=charts, trials=every_trial_cells(findings), tables=tables)
    path.write_text(text, encoding="utf-8")
    (folder / PLOTLY).write_text(get_plotlyjs(), encoding="utf-8")
    return path


def _json(figure: Mapping[str, Any]) -> str:
    """Figure as JSON that is safe inside a ``<script>`` of a page."""
    return json.dumps(figure, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(ESCAPED)


def every_trial_cells(findings: Findings) -> Cells:
    """Table of all trials of the search, with their values of the hyper-parameters that vary."""
    results = findings.results
    trials, (scale, label) = results.searched, scale_of(results.selection_metric)
    columns = {
        "Trial": [str(trial.number) for trial in trials],
        "Method": [trial.algorithm for trial in trials],
        "Status": [str(trial.status) for trial in trials],
        "Rounds": [str(trial.rounds) for trial in trials],
        label: [_cell(scale * results.value_of(trial)) for trial in trials],
    }
    for key in varied_keys(trials, searched_domains(results)):
        columns[key.removeprefix("algorithm.")] = [_cell(trial.overrides.get(key, NOTHING)) for trial in trials]
    return Cells.from_columns("Trials of the search", columns, (1, 2))


def _cell(value: object) -> str:
    return NOTHING if value != value else f"{value:.4g}" if isinstance(value, float) else str(value)
