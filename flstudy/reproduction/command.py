"""Command line of ``flstudy reproduce``."""

from collections.abc import Sequence

from flstudy.reproduction.options import reproduction_options


def main(arguments: Sequence[str]) -> int:
    """Parse the options and run the reproduction."""
    options = reproduction_options(arguments)
    from flstudy.reproduction.stages import reproduce  # seconds of imports

    return reproduce(options)
