"""Devices: the accuracy of each, from the worst to the best, with every algorithm's best trial of the search."""

import numpy as np

from flstudy.reporting.multiples import Line, line_figure, same_note
from flstudy.reporting.ranking import Findings
from flstudy.reporting.section import Content, Picture, ReportSection
from flstudy.reporting.style import scale_of
from flstudy.reporting.tables import Cells
from flstudy.study.device_results import read_device_results

SHARES = np.linspace(0.0, 1.0, 101)
COLUMNS = {"Worst tenth": 0.1, "Median": 0.5, "Best tenth": 0.9}  # and their places


class DevicesSection(ReportSection):
    """Section on single devices, where a study has kept their results."""

    order = 42

    def of_study(self, findings: Findings) -> Content | None:
        lines = device_lines(findings)
        if not lines:
            return None
        ranking = findings.ranking
        _, label = scale_of(ranking.accuracy_metric)
        figure = line_figure(lines, findings.looks, xlabel="Devices, from the worst to the best (%)", ylabel=label)
        columns = {"Algorithm": list(lines)}
        for name, share in COLUMNS.items():
            at = round(share * (len(SHARES) - 1))
            columns[name] = [f"{line.values[:, at].mean():.3g}" for line in lines.values()]
        caption = (
            "Quantiles over the devices of the last evaluation: mean over seeds with a band of one standard deviation."
        )
        return Content(
            name="Devices",
            title="How do the devices differ?",
            lead="Each algorithm's best trial of the search, on the seeds of the search.",
            tables=[Cells.from_columns(f"Devices by {ranking.shown}{ranking.unit}", columns)],
            pictures=[Picture(figure, caption + same_note(lines))],
        )


def device_lines(findings: Findings) -> dict[str, Line]:
    """Return the ranking's metric at each share of the devices, by seed, in the units shown; of algorithms whose best
    trial's results by device are there."""
    metric, lines = findings.ranking.accuracy_metric, dict[str, Line]()
    scale, _ = scale_of(metric)
    for row in findings.ranking.rows:
        try:
            table = read_device_results(findings.results.folder.by_device(row.trial.number))
        except (ValueError, OSError):  # not kept, or damaged
            continue
        if metric not in table.column_names:
            continue
        seeds, values = table["seed"].to_numpy(), table[metric].to_numpy()
        shares = SHARES if findings.ranking.higher else SHARES[::-1]  # from the worst to the best
        quantiles = [np.quantile(scale * values[seeds == seed], shares) for seed in np.unique(seeds)]
        lines[row.algorithm] = Line(100 * SHARES, np.stack(quantiles))
    return lines
