"""Forms of a method's functions, tried before the first round: what they take and return, and that they can be mapped.

What is wrong in a method is told in its own words, before anything trains.
"""

import traceback
from typing import Any, NoReturn

import torch
from torch import Tensor

from flstudy.algorithms import Algorithm, Batch, Inbox, Job, Layout
from flstudy.algorithms.parts.signatures import Round
from flstudy.execution.trees import leaves, names_of, stack, take
from flstudy.user_error import UserError

JOBS = 2  # of the round that is tried, both of one device
UNMAPPABLE = {
    ".item()": "asks a tensor for its number, as float() does: keep to torch's functions of tensors",
    "control flow": "branches on a tensor: use torch.where",
    "have storage": "hands a tensor to numpy: keep to torch's functions of tensors",
    "randomness error": "draws torch's random numbers: draw by a key, as of a job, with normal or uniform of "
    "flstudy.algorithms",
}
"""Reasons why a function cannot be mapped over devices and replicas, by words in torch's error."""


class MethodForms:
    """Trial of a method's functions.

    Args:
        algorithm: the method.
        layout: of the model.
        batch: of any device.
        maps: whether the executor maps the method's device functions by ``torch.vmap``. If not, they may use operations
            that cannot be mapped.
    """

    def __init__(self, algorithm: Algorithm, layout: Layout, batch: Batch, maps: bool) -> None:
        self.algorithm, self.layout, self.batch, self.maps = algorithm, layout, batch, maps

    def check(self, x: Tensor) -> None:
        """Try a round on a fresh model x [n], or [M, n] where the method starts with several.

        Raises:
            UserError: for a function that returns another form than a round needs, or that cannot be mapped.
        """
        server, row = torch.vmap(self.ready)(x[None])
        upload = torch.vmap(self.fit)(server, row) if self.maps else stack([self.fit(*take((server, row), 0))])
        torch.vmap(self.end)(server, upload)

    def ready(self, x: Tensor) -> tuple[Any, Any]:
        """Return the server's state before the round, and a device's row.

        Args:
            x: [n], or [M, n] where the method starts with several.

        Raises:
            UserError: for a ``server_init``, ``client_init`` or ``prepare`` that returns another form.
        """
        server = self.call_for_tensors("server_init", x, self.layout)
        if not (hasattr(server, "_replace") and hasattr(server, "x")):
            self.refuse("server_init", f"must return a NamedTuple with a field x, got {type(server).__name__}")
        first = server.x.reshape(-1, server.x.shape[-1])[0]
        row = self.call_for_tensors("client_init", first)
        zeros = server.x.new_zeros(JOBS, dtype=torch.int64)
        jobs, rows = Job(zeros, zeros, zeros + 1, zeros), stack([row] * JOBS)
        answer_shape = {"gradient": (1, len(first)), None: None}.get(self.algorithm.asks, (len(server.x),))
        survey = None if answer_shape is None else server.x.new_ones(JOBS, *answer_shape)
        arguments = server, rows, survey, jobs, self.first_round(server)
        prepared, _, _ = self.call_for_parts("prepare", "(server, rows, models)", *arguments)
        self.refuse_other_fields("prepare", prepared, server)
        return prepared, row

    def fit(self, server: Any, row: Any) -> Any:
        """Return the upload of one job, given one replica's server and one device's row.

        Raises:
            UserError: for a device function that returns another form.
        """
        zero = server.x.new_zeros((), dtype=torch.int64)
        msg = self.call_for_tensors("broadcast", server, Job(zero, zero, zero + 1, zero))
        local = self.call("local_start", msg, row, self.layout)
        if not isinstance(getattr(local, "y", None), Tensor):
            self.refuse("local_start", f"must return a NamedTuple with a field y, the model, got {shown_type(local)}")
        self.refuse_other_shape("correct", local.y, torch.ones_like(local.y), local.y, msg, row)
        if not self.algorithm.steps_by_torch:
            local, loss = self.call_for_parts("local_step", "(local, loss)", local, self.batch, self.gradient, msg, row)
            if not isinstance(loss, Tensor) or loss.dim():
                self.refuse("local_step", f"must return a loss [], got {shown_type(loss)}")
        model = self.call_for_tensors("in_training", local)
        upload, after = self.call_for_parts("local_end", "(upload, row)", local, msg, row)
        self.refuse_others("local_end", upload)
        self.refuse_other_fields("local_end", after, row, "client_init")
        self.refuse_other_shape("local_model", model, local, after)
        if self.algorithm.personalized:
            self.refuse_other_shape("deployed", model, server, after)
        return upload

    def end(self, server: Any, upload: Any) -> Tensor:
        """Return the server's x, [n] or [M, n], after a round in which `JOBS` jobs sent the same upload.

        Raises:
            UserError: for a ``weights``, ``server_step`` or ``diagnostics`` that returns another form.
        """
        weights = self.call_for_tensors("weights", server.x.new_ones(JOBS))
        model = server.x.new_zeros(JOBS, dtype=torch.int64)
        inbox = Inbox(stack([upload] * JOBS), weights, model)
        after = self.call("server_step", server, inbox, self.first_round(server))
        self.refuse_other_fields("server_step", after, server)
        diagnostics = self.call("diagnostics", server, after, inbox)
        names = [name.removeprefix("server/") for name in self.algorithm.measures]
        if type(diagnostics) is not dict or not {*diagnostics} >= {*names}:
            got = ", ".join(diagnostics) if type(diagnostics) is dict else shown_type(diagnostics)
            self.refuse("diagnostics", f"must return a dict with what measures names ({', '.join(names)}), got {got}")
        for name, value in diagnostics.items():
            if not isinstance(value, Tensor) or value.dim():
                self.refuse("diagnostics", f"must return numbers [], got {shown_type(value)} as {name}")
        return after.x  # type: ignore[no-any-return]

    def gradient(self, y: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return ones shaped like y [n] as the gradient, and a loss [] of one: only their form matters here."""
        return torch.ones_like(y), y.new_ones(())

    def first_round(self, server: Any) -> Round:
        """Return the first round, in which all data are of concept 0."""
        first = server.x.new_ones((), dtype=torch.int64)
        return Round(first, first, first - 1, first.new_zeros(JOBS) if self.algorithm.oracle else None)

    # ---- what is refused -------------------------------------------------------------------------------------------

    def call(self, function: str, *arguments: Any) -> Any:
        """Call one of the method's functions.

        Raises:
            UserError: where it cannot be mapped, or returns None.
        """
        try:
            result = getattr(self.algorithm, function)(*arguments)
        except RuntimeError as error:
            for words, sentence in UNMAPPABLE.items():
                if words in str(error):
                    self.refuse(self.innermost(error) or function, sentence, error)
            raise
        if result is None:
            self.refuse(function, "returns None: a return is missing")
        return result

    def innermost(self, error: Exception) -> str | None:
        """Return the last of the method's functions that were at work when an error was raised, as ``correct`` within
        ``local_step``."""
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        names = [frame.f_code.co_name for frame in frames if frame.f_locals.get("self") is self.algorithm]
        return names[-1] if names else None

    def call_for_tensors(self, function: str, *arguments: Any) -> Any:
        """Call a function that returns a tree of tensors.

        Raises:
            UserError: for other leaves.
        """
        result = self.call(function, *arguments)
        self.refuse_others(function, result)
        return result

    def refuse_other_shape(self, function: str, like: Tensor, *arguments: Any) -> None:
        """Raise UserError for a function that returns no vector such as ``like`` [n]."""
        result = self.call_for_tensors(function, *arguments)
        if not isinstance(result, Tensor) or result.shape != like.shape:
            self.refuse(function, f"must return a vector {list(like.shape)}, got {shown_type(result)}")

    def call_for_parts(self, function: str, parts: str, *arguments: Any) -> Any:
        """Call a function that returns as many parts as are named; UserError where it returns others."""
        result = self.call(function, *arguments)
        if type(result) is not tuple or len(result) != len(parts.split(",")):
            self.refuse(function, f"must return {parts}, got {shown_type(result)}")
        return result

    def refuse_others(self, function: str, tree: Any) -> None:
        """Raise UserError for leaves that are not tensors."""
        for name, leaf in zip(names_of(tree), leaves(tree), strict=True):
            if not isinstance(leaf, Tensor):
                hint = "return () to keep nothing" if leaf is None else "use torch.as_tensor, or x.new_zeros(())"
                where = f" at {name}" if name else ""
                self.refuse(function, f"must return tensors, got {shown_type(leaf)}{where}: {hint}")

    def refuse_other_fields(self, function: str, after: Any, before: Any, origin: str = "server_init") -> None:
        """Raise UserError for a state whose fields, shapes, or kinds of numbers are not those with which it began."""
        fields, expected = names_of(after), names_of(before)
        if fields != expected:
            self.refuse(
                function, f"must return the fields of {origin} ({', '.join(expected)}), got {', '.join(fields) or '()'}"
            )
        self.refuse_others(function, after)
        for name, new, old in zip(fields, leaves(after), leaves(before), strict=True):
            if new.shape != old.shape or new.is_floating_point() != old.is_floating_point():
                self.refuse(function, f"must return {name} as {origin} does ({shown_type(old)}), got {shown_type(new)}")

    def refuse(self, function: str, sentence: str, cause: Exception | None = None) -> NoReturn:
        """Raise UserError about a function."""
        raise UserError(f"algorithm: {type(self.algorithm).__name__}.{function} {sentence}") from cause


def shown_type(value: Any) -> str:
    """Return the type of a value, of tensors with their shape."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return type(value).__name__
