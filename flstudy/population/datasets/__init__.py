"""Data sets, one file per source: examples, and who owns them where the source says so."""

from flstudy.registry import import_modules

import_modules(__name__, __path__)  # a data set that `flstudy.population` does not list can be named in configs, too
