"""How local work is carried out: three executors that agree, the survey, and the bank of client state."""

from flstudy.execution.bank import ClientBank
from flstudy.execution.executor import Executor, Fit, Ground
from flstudy.execution.programs import Programs
from flstudy.execution.sequential import Sequential
from flstudy.execution.survey import Scores, Survey
from flstudy.execution.trainer import PerJobTrainer
from flstudy.execution.vectorized import Vectorized

__all__ = [
    "ClientBank",
    "Executor",
    "Fit",
    "Ground",
    "PerJobTrainer",
    "Programs",
    "Scores",
    "Sequential",
    "Survey",
    "Vectorized",
]
