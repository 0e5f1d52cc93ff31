"""Looks of methods: a colour for each method, the same in all figures of all studies; dashes and a marker by its place
in the study, so that two lines that coincide are both seen."""

import zlib
from collections.abc import Iterable

from flstudy.reporting.style import Look, dashes, marker

# The first seven are Okabe and Ito's and a grey. Each further colour is the farthest from those before it, seen with
# and without deuteranopia, neither too light on white nor too dark on black. The last ones are ordered so that methods
# that one paper compares differ clearly.
METHOD_COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#777777", "#4B0FFF", "#0F4BD2", "#FF1E5A",
    "#D24BFF", "#A50087", "#5A5A00", "#963C3C", "#A5B487", "#B4B44B", "#FF00C3", "#2D960F", "#FF87D2", "#A5785A",
    "#008787", "#A55AB4", "#A596FF", "#3C694B", "#D2A5A5", "#A51EFF", "#5A4BFF", "#4B782D", "#782DB4", "#0087FF",
)  # fmt: skip
HOMES = (
    "FedAvg", "Flash", "FedYogi", "Scaffold", "FedProx", "FedAdam", "Oracle", "FedAdaGrad", "FedDyn", "FedNova",
    "FedDC", "Apfl", "FedDrift", "Ditto", "LocalOnly", "HypCluster", "AdaptiveFedAvg", "FedDriftEager", "FedAda2",
    "DirectJointAdaptivity", "JointAdaptivity", "FedBlended", "FedAcg", "Moon", "Continuous", "FedOmd",
    "Master-FL-FedAvg", "Master-FL-FedOmd",
)  # fmt: skip
"""Methods that papers compare, in the order of their colours."""


def looks_of(names: Iterable[str]) -> dict[str, Look]:
    """Look of each method. Methods that papers compare have fixed colours; the colour of any other follows from its
    name, and is the next free one where another method has it."""
    methods = list(dict.fromkeys(names))
    taken = {HOMES.index(name) for name in methods if name in HOMES}
    chosen: dict[str, int] = {}
    for name in sorted(name for name in methods if name not in HOMES):
        start = zlib.crc32(name.encode()) % len(METHOD_COLOURS)
        after = [(start + step) % len(METHOD_COLOURS) for step in range(len(METHOD_COLOURS))]
        chosen[name] = next((place for place in after if place not in taken), start)
        taken.add(chosen[name])
    places = {name: HOMES.index(name) if name in HOMES else chosen[name] for name in methods}
    return {
        name: Look(METHOD_COLOURS[place], dashes(at), marker(at)) for at, (name, place) in enumerate(places.items())
    }
