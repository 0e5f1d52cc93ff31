"""Execution of local work: four executors that agree, the evaluator of models, and the bank of client state."""

from flstudy.execution.bank import ClientBank
from flstudy.execution.context import TrainingContext, training_context
from flstudy.execution.executor import Executor, Fit
from flstudy.execution.model_evaluator import ModelEvaluator, Scores
from flstudy.execution.programs import Programs
from flstudy.execution.select import following, make_executor
from flstudy.execution.sequential import Sequential, Threads
from flstudy.execution.trainer import PerJobTrainer
from flstudy.execution.vectorized import Vectorized
