"""How local work is carried out: four executors that agree, the survey, and the bank of client state."""

from flstudy.execution.bank import ClientBank
from flstudy.execution.context import training_context
from flstudy.execution.executor import Executor, Fit, TrainingContext
from flstudy.execution.programs import Compile, Programs
from flstudy.execution.select import ExecutorName, following, make_executor
from flstudy.execution.sequential import Sequential, Threads
from flstudy.execution.survey import Scores, Survey
from flstudy.execution.trainer import PerJobTrainer
from flstudy.execution.vectorized import Vectorized
