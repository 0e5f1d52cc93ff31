"""Portrait of a population before anything trains: each device's examples and labels, and the drift by round."""

import logging
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from flstudy.config import Config
from flstudy.config.errors import LONGEST, on_a_line
from flstudy.population.datasets.base import SPLITS
from flstudy.reporting.style import COLOURS, GREY, colour, finish, legend_beside, mark_events, new_panels, to_png
from flstudy.reporting.tables import NOTHING, Cells
from flstudy.study.results import WorldEvent

log = logging.getLogger(__name__)

PICTURE = "population.png"
COUNTED = 5000  # devices whose examples are looked at; of a larger population equally spaced ones
SHOWN = 60  # devices whose labels are drawn
OWN_COLOUR = 12  # labels with a colour of their own, the most frequent ones; all others share one
MOMENTS = 400  # rounds that are asked for


class Portrait(NamedTuple):
    """Portrait of a population of the first seed: the numbers that its figure and tables show."""

    devices: int
    counted: NDArray[np.int64]  # [n] numbers of the devices that were looked at
    sizes: NDArray[np.int64]  # [n, 3] examples by split in the first round
    labels: NDArray[np.int64]  # [n, L] examples of each shown label in training; the last column holds all others
    names: list[str]  # [L] of the labels
    kinds: NDArray[np.int64]  # [n] different labels in training
    rounds: NDArray[np.int64]  # [T] numbers of the rounds that were asked for
    concepts: NDArray[np.int64]  # [T, C] devices that live under each concept
    there: NDArray[np.int64]  # [T] devices that can be drawn
    drawn: NDArray[np.int64]  # [T] devices that take part
    events: list[WorldEvent]

    def to_json(self) -> dict[str, Any]:
        """Return the portrait as JSON, for scripts."""
        return {
            "devices": self.devices,
            "counted": len(self.counted),
            "examples": {split: spread(self.sizes[:, place]) for place, split in enumerate(SPLITS)},
            "labels_per_device": spread(self.kinds),
            "labels": dict(zip(self.names, self.labels.sum(0).tolist(), strict=True)),
            "events": [event._asdict() for event in self.events],
            "available": spread(self.there),
            "drawn": spread(self.drawn),
        }


def keep_picture(config: Config, path: Path) -> bool:
    """Draw the population of a config into a file, and say whether that could be done. The picture is no result: a run
    or a study goes on without it."""
    try:
        to_png(portrait_figure(portrait(config)), path)
    except Exception as error:  # of the user's own classes, which draw nothing, or of the disk
        log.warning("there is no picture of the population: %s", on_a_line(str(error), LONGEST))
        return False
    return True


def spread(values: NDArray[np.int64]) -> dict[str, float]:
    """Return the least, quartiles, most and mean of the values."""
    least, low, middle, high, most = np.percentile(values, [0, 25, 50, 75, 100]).tolist()
    return {"least": least, "25 %": low, "median": middle, "75 %": high, "most": most, "mean": float(values.mean())}


def portrait(config: Config) -> Portrait:
    """Return the population of a config's first seed, settled as a run would settle it.

    Raises:
        ConfigError: for a world that cannot be.
    """
    population = config.settled()
    devices, last = population.clients, config.rounds
    counted = np.unique(np.linspace(0, devices - 1, min(COUNTED, devices)).round().astype(np.int64))
    lists = {split: population.device_data.lists(0, counted, split, 1) for split in SPLITS}
    sizes = np.array([[len(rows) for rows in lists[split]] for split in SPLITS]).T
    classes = max(population.dataset.classes, 1)
    label_lists = [population.store.y[rows].numpy().ravel() for rows in lists["train"]]
    discrete = population.dataset.classes > 0
    counts = [np.bincount(y[y >= 0].astype(np.int64), minlength=classes) if discrete else np.zeros(1, np.int64)
              for y in label_lists]  # fmt: skip
    often = np.argsort(-np.sum(counts, 0), kind="stable")[:OWN_COLOUR]
    shown = np.sort(often) if discrete else often[:0]
    some = np.array([line[shown] for line in counts]).reshape(len(counted), -1)
    others = np.array([line.sum() for line in counts]) - some.sum(1)
    names = [str(label) for label in shown]
    if others.any():
        some, names = np.concatenate([some, others[:, None]], 1), [*names, "others"]
    rounds = np.unique(np.linspace(1, last, min(MOMENTS, last)).round().astype(np.int64))
    most = population.count_concepts()
    lives = [np.bincount(population.concepts(number)[0].numpy(), minlength=most) for number in rounds.tolist()]
    there = np.array([int(population.available(number)[0].sum()) for number in rounds.tolist()])
    drawn = np.array([max(1, population.drawn(number)) for number in rounds.tolist()])
    events = [WorldEvent(event.round, event.label) for event in population.events(last)]
    kinds = np.array([np.count_nonzero(line) for line in counts])
    return Portrait(devices, counted, sizes, some, names, kinds, rounds, np.array(lives), there, drawn, events)


def portrait_cells(view: Portrait) -> list[Cells]:
    """Return the tables of a portrait for a terminal of 100 columns."""
    of = "" if len(view.counted) == view.devices else f", of {len(view.counted):,} looked at"
    columns: dict[str, list[str]] = {"per device": [], **{name: [] for name in spread(view.there)}}
    lines = [(f"examples for {name}", view.sizes[:, place])
             for place, name in enumerate(("training", "validation", "testing"))]  # fmt: skip
    lines += [("different labels", view.kinds)] if view.names else []
    for name, values in lines:
        columns["per device"].append(name)
        for key, value in spread(values).items():
            columns[key].append(f"{value:,.1f}".removesuffix(".0"))
    cells = [Cells.from_columns(f"{view.devices:,} devices{of}, in round 1", columns)]
    share = view.labels.sum(0) / max(1, view.labels.sum())
    dominant = view.labels.max(1) / np.maximum(view.labels.sum(1), 1) if view.names else np.zeros(1)
    moments = {"rounds": f"{view.rounds[0]} … {view.rounds[-1]}"}
    moments["devices there"] = f"{view.there.min():,} … {view.there.max():,}"
    moments["devices drawn"] = f"{view.drawn.min():,} … {view.drawn.max():,}"
    moments["concepts"] = f"{view.concepts.shape[1]}"
    if view.names:
        most = int(share.argmax())
        moments["most frequent label"] = f"{view.names[most]}, {share[most]:.1%} of all"
        moments["of a device's own most frequent"] = f"{dominant.mean():.1%} (mean)"
    described = [f"{event.round} {event.label}" for event in view.events]
    rest = f", … ({len(described)} in all)" if len(described) > 6 else ""
    moments["events"] = (", ".join(described[:6]) + rest) if described else NOTHING
    rows = {"world": list(moments), "": list(moments.values())}
    return [*cells, Cells.from_columns("what happens", rows, words=(0, 1))]


def portrait_figure(view: Portrait) -> Figure:
    """Return the figure of four panels: sizes, labels, drift, availability."""
    figure, (sizes, labels, drift, there) = new_panels(4, 2, 2.9)
    _draw_sizes(sizes, view)
    _draw_labels(labels, view)
    _draw_drift(drift, view)
    there.step(view.rounds, view.there, where="post", color=colour(0), label="there")
    there.step(view.rounds, view.drawn, where="post", color=colour(1), label="drawn")
    there.set_ylim(bottom=0)
    mark_events(there, view.events)
    legend_beside(there, fontsize=8)
    finish(there, 8, 9, xlabel="round", ylabel="devices")
    return figure


def _draw_sizes(axes: Axes, view: Portrait) -> None:
    order = np.argsort(-view.sizes.sum(1), kind="stable")
    order = np.append(order, order[-1])  # a step ends where the next begins
    below = np.zeros(len(order))
    place = np.linspace(0, view.devices, len(order))
    for number, split in enumerate(SPLITS):
        top = below + view.sizes[order, number]
        axes.fill_between(place, below, top, step="post", color=colour(number), linewidth=0, label=split)
        below = top
    legend_beside(axes, fontsize=8)
    finish(axes, 8, 9, xlabel="devices, largest first", ylabel="examples")


def _draw_labels(axes: Axes, view: Portrait) -> None:
    place = np.unique(np.linspace(0, len(view.counted) - 1, min(SHOWN, len(view.counted))).round().astype(np.int64))
    share = view.labels[place] / np.maximum(view.labels[place].sum(1, keepdims=True), 1)
    below = np.zeros(len(place))
    for number, name in enumerate(view.names):
        shade = GREY if name == "others" else COLOURS[number % len(COLOURS)]
        again = 1.0 if number < len(COLOURS) or name == "others" else 0.5
        axes.bar(np.arange(len(place)), share[:, number], 1.0, bottom=below, color=shade, alpha=again, label=name)
        below += share[:, number]
    if view.names:
        legend_beside(axes, fontsize=7, title="label", title_fontsize=8)
    finish(axes, 8, 9, xlabel=f"{len(place)} devices", ylabel="share of training labels")
    axes.grid(visible=False)


def _draw_drift(axes: Axes, view: Portrait) -> None:
    share = view.concepts / view.devices
    shades = [colour(number) for number in range(share.shape[1])]
    names = [f"concept {number}" for number in range(share.shape[1])][:OWN_COLOUR]
    axes.stackplot(view.rounds, share.T, labels=names, colors=shades, step="post")
    axes.set_ylim(0, 1)
    mark_events(axes, view.events)
    legend_beside(axes, fontsize=8)
    finish(axes, 8, 9, xlabel="round", ylabel="share of devices")
