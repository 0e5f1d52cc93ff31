"""The section of a study's page about controllers that detect drifts and begin anew."""

import math

from flstudy.reporting import figures
from flstudy.reporting.findings import Findings
from flstudy.reporting.page import Picture, Section
from flstudy.reporting.tables import NOTHING, Cells

COUNTED = {
    "detections": "Detections",
    "false_alarms": "False alarms",
    "delay": "Rounds to detection",
    "restarts_detection": "Restarts after detections",
    "restarts_block": "Restarts after whole blocks",
}


def restarts(found: Findings) -> Section | None:
    """None where no trial that speaks for an algorithm has such a controller."""
    rows = [(row.trial.algorithm, found.results, row.speaker) for row in found.ranking.rows]
    rows = [row for row in rows if "detector/restarts_block" in row[2].metrics]
    if not rows:
        return None
    cells = tuple(
        (name, *(count(trial.metrics.get(f"detector/{key}", math.nan)) for key in COUNTED)) for name, _, trial in rows
    )
    pictures = []
    losses = figures.losses_figure(rows)
    if losses is not None:
        caption = "Loss by round with the drifts; below, of the first seed, with its restarts by cause."
        pictures.append(Picture(svg=figures.to_svg(losses), caption=caption))
    for name, results, trial in rows:
        drawn = figures.reachable_figure(results, trial, title=name)
        if drawn is not None:
            caption = (
                f"{name}: U restarts with every block; the lines below are the block's instances, thick where they run."
            )
            pictures.append(Picture(svg=figures.to_svg(drawn), caption=caption))
    return Section(
        name="Restarts",
        title="When did the controller begin anew, and why?",
        lead="Means over seeds. A detection is a drift's if it is the first from that drift on and before the next "
        "one; all others are false alarms.",
        tables=[
            Cells(title="Detections and restarts", header=("Algorithm", *COUNTED.values()), rows=cells,
                  words=frozenset({0}))
        ],
        pictures=pictures,
    )  # fmt: skip


def count(value: float) -> str:
    """A mean count; nothing where it is not known."""
    return f"{value:.1f}" if math.isfinite(value) else NOTHING
