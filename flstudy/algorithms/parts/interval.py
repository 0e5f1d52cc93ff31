"""Domains in interval notation, such as "(0, inf)" or "[0, 1)". Imports nothing of the package."""

import math
import re

NOTATION = re.compile(r"^([\[(])\s*([^,]+),\s*([^\])]+)([\])])$")


def within(value: float, domain: str) -> bool:
    """Whether a number lies in the interval."""
    match = NOTATION.match(domain)
    assert match is not None, domain
    low, high = float(match[2]), float(match[3])
    above = value >= low if match[1] == "[" else value > low
    below = value <= high if match[4] == "]" else value < high
    return above and below and not math.isnan(value)
