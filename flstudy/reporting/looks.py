"""The looks of methods: one colour each, the same in every figure, panel and page of every study; dashes and a marker
by its place in the study, so that lines that lie on each other are both seen."""

import zlib
from collections.abc import Iterable

from flstudy.reporting.style import Look, dashes, marker

# The first seven are Okabe and Ito's and a grey; each further one was that which is farthest from those before it, to
# an eye with and one without a sense of green, neither too light on white nor too dark on black; the last ones stand
# so that those which one paper compares are apart.
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
"""Methods that papers compare, by the places of their colours."""


def looks_of(names: Iterable[str]) -> dict[str, Look]:
    """The look of each method, of which the first may be the best one. Methods that are compared in papers have colours
    of their own; that of any other follows from its name, and is the next free one where another method has it."""
    given = list(dict.fromkeys(names))
    taken = {HOMES.index(name) for name in given if name in HOMES}
    chosen: dict[str, int] = {}
    for name in sorted(name for name in given if name not in HOMES):
        start = zlib.crc32(name.encode()) % len(METHOD_COLOURS)
        after = [(start + step) % len(METHOD_COLOURS) for step in range(len(METHOD_COLOURS))]
        chosen[name] = next((place for place in after if place not in taken), start)
        taken.add(chosen[name])
    places = {name: HOMES.index(name) if name in HOMES else chosen[name] for name in given}
    return {
        name: Look(METHOD_COLOURS[place], dashes(at), marker(at)) for at, (name, place) in enumerate(places.items())
    }
