"""What the page of a study says of costs: trials, hours and traffic, and accuracy against what was sent for it."""

from flstudy.reporting.bits import bits_cells
from flstudy.reporting.figures import bits_figure, to_svg
from flstudy.reporting.figures.style import order
from flstudy.reporting.finding_tables import cost_cells
from flstudy.reporting.findings import Findings
from flstudy.reporting.page import Picture, Section

CAPTION = (
    "Best trial of each algorithm by what all its devices have sent and received so far: mean over seeds with a band "
    "of one standard deviation. "
)


def cost(found: Findings) -> Section | None:
    """None where there is no trial."""
    if not found.costs:
        return None
    tables, pictures = [cost_cells(found.costs)], []
    notes = ["Hours of all trials added up, pruned and failed ones and confirmations included; several run at once."]
    if found.bits is not None:
        cells = bits_cells(found.bits)
        tables += [cells] if cells is not None else []
        notes.append(found.bits.unit)
    places = order(found.results, [row.trial.algorithm for row in found.ranking.rows])
    figure = bits_figure(found.bits, places)
    if figure is not None and found.bits is not None:
        pictures.append(Picture(svg=to_svg(figure), caption=CAPTION + found.bits.unit, paper=False))
    return Section(name="Cost", title="What did it cost?", tables=tables, pictures=pictures, notes=notes)
