"""Where examples come from: one file per source. A data set gives examples, and who owns them where it knows."""

from flstudy.registry import import_modules

import_modules(__name__, __path__)  # a data set that `flstudy.population` does not list can be named in configs, too
