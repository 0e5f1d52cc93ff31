"""Search of a study: samplers that propose trials, schedulers that stop them, one trial, and the driver of all."""

from flstudy.config import Sampler, Scheduler
from flstudy.tuning.samplers import CmaEs, GaussianProcess, GridSearch, Nsga2, OptunaSampler, RandomSearch, Tpe
from flstudy.tuning.schedulers import Asha, HyperBand, MedianStopping, Pbt, RayScheduler
from flstudy.tuning.two_step import TwoStep

__all__ = [
    "Asha",
    "CmaEs",
    "GaussianProcess",
    "GridSearch",
    "HyperBand",
    "MedianStopping",
    "Nsga2",
    "OptunaSampler",
    "Pbt",
    "RandomSearch",
    "RayScheduler",
    "Sampler",
    "Scheduler",
    "Tpe",
    "TwoStep",
]
