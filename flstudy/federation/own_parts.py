"""Parts of a task's model that devices keep: those that a method names, and BatchNorm's under ``buffers: local``."""

from flstudy.algorithms import Algorithm
from flstudy.algorithms.parts.buffers import with_buffers
from flstudy.algorithms.parts.personal import Split, kept_names, with_kept
from flstudy.run_settings import BufferMode
from flstudy.tasks import TaskFunction
from flstudy.user_error import UserError


def with_own_parts(algorithm: Algorithm, task: TaskFunction, mode: BufferMode) -> Algorithm:
    """Return the method with a task's buffers in its states, whose devices keep parts of the model.

    Raises:
        UserError: where the method's parts are not the task's, or devices cannot keep any: they train several models,
            or tell their gradient at the global one.
    """
    names = kept_names(algorithm, task.layout, task.buffers.layout)
    if names:
        refuse_several(algorithm, f"algorithm.{algorithm.names_parts}", "leave it out")
    if mode == "local" and (normalised := task.buffers.of_normalisation()):
        refuse_several(algorithm, "buffers: local", "use average or freeze")
        names += normalised
    if algorithm.newcomers == "mean" and not names:
        raise UserError("algorithm.newcomers: mean is of parts that devices keep, but they keep none: set personal")
    parameters, buffers = (Split.of(layout, names) for layout in (task.layout, task.buffers.layout))
    return with_kept(with_buffers(algorithm, task.buffers.first()), parameters, buffers)


def refuse_copies_without_buffers(algorithm: Algorithm) -> None:
    """Raise UserError for a method whose server copies models, where these have buffers, which it would not copy."""
    if algorithm.copies_models and algorithm.has_buffers:
        raise UserError(
            f"buffers: {type(algorithm).__name__} copies the server's models, not the buffers that training changes, "
            "such as BatchNorm's statistics: set buffers: freeze, or use a task without them"
        )


def trains_several(algorithm: Algorithm) -> bool:
    """Return whether the devices train several models, or one of several that the server has."""
    return algorithm.jobs_per_device > 1 or "models" in vars(algorithm)


def refuse_several(algorithm: Algorithm, key: str, instead: str) -> None:
    """Raise UserError, naming a key, for a method whose devices have no model of which they could keep parts."""
    several = trains_several(algorithm)
    if several or algorithm.asks == "gradient":
        what = "the devices train several models" if several else "the devices tell gradients at the global model"
        raise UserError(f"{key} makes no sense for {type(algorithm).__name__}, where {what}; {instead}")
