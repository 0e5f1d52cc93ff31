"""Processes that tests start in numbers: forked from a server that has imported MLflow's store, which takes seconds,
once for all of them."""

import multiprocessing
from multiprocessing.context import ForkServerContext


def store_writers() -> ForkServerContext:
    """A context whose processes find MLflow imported and share nothing else with their parent."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["mlflow.store.tracking.sqlalchemy_store", "flstudy.tracking.runs"])
    return context
