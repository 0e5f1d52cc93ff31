"""Figures of a report, as matplotlib `Figure` objects without pyplot: nothing global, so they work in any thread and
without a display. Each function returns None where it has nothing to show."""

from flstudy.reporting.figures.bits import bits_figure
from flstudy.reporting.figures.curves import curves
from flstudy.reporting.figures.front import front_figure
from flstudy.reporting.figures.history import history
from flstudy.reporting.figures.importances import importances
from flstudy.reporting.figures.instances import losses_figure, reachable_figure, schedule_figure
from flstudy.reporting.figures.parallel import parallel
from flstudy.reporting.figures.slices import slices
from flstudy.reporting.figures.style import to_png, to_svg
from flstudy.reporting.figures.sweep import sweep
from flstudy.reporting.figures.worlds import worlds_figure

__all__ = [
    "bits_figure",
    "curves",
    "front_figure",
    "history",
    "importances",
    "losses_figure",
    "parallel",
    "reachable_figure",
    "schedule_figure",
    "slices",
    "sweep",
    "to_png",
    "to_svg",
    "worlds_figure",
]
