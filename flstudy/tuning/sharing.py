"""One copy of the data per machine: the examples that a study's trials read lie in Ray's object store.

The driver puts the examples of the config's own world there; workers map them into their memory without a copy, and
keep them for their later trials. A trial whose data set, number of devices or seeds differ loads its own.
"""

import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from flstudy.population import dataset_cache
from flstudy.population.dataset_cache import CachedDataset, DatasetCache

log = logging.getLogger(__name__)

_study: str | None = None  # id of the study whose data this process takes from the store


def share(examples: Mapping[str, CachedDataset]) -> dict[str, Any]:
    """Put loaded examples into the object store; returns Ray's references under the same keys."""
    import ray

    references = {}
    for key, loads in examples.items():
        try:
            parts = [None if part is None else part.numpy() for part in (loads.x, loads.y, loads.owner, loads.split)]
            references[key] = ray.put((parts, loads.starts, loads.stops))
        except Exception as error:  # a type that numpy lacks, a store that is too small: every worker loads its own
            log.info("the trials load their data themselves: %s", error)
    return references


def receive(study: str, references: Mapping[str, Any]) -> None:
    """Let this process take its data sets from the object store, for all trials of a study that it runs."""
    global _study
    if study == _study:
        return
    _study = study
    dataset_cache.install(DatasetCache(lambda key: fetch(references[key]) if key in references else None))


def fetch(reference: Any) -> CachedDataset:
    """Return the examples behind a reference, in the store's own memory, which cannot be written to."""
    import ray

    return map_examples(*ray.get(reference))


def map_examples(parts: Sequence[Any], starts: tuple[int, ...], stops: tuple[int, ...]) -> CachedDataset:
    """Return the examples whose x, y, owner and split are read-only arrays, without copying them."""
    with warnings.catch_warnings():
        # torch warns that writing to such a tensor is undefined; nothing in flstudy writes to examples.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        x, y = (torch.from_numpy(part) for part in parts[:2])
        owner, split = (None if part is None else torch.from_numpy(part) for part in parts[2:])
    return CachedDataset(x, y, owner, starts, stops, split)
