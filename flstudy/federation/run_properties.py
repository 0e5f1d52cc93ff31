"""Properties of an object with a federated ``run``, by which the run's parts and state are its own."""

from typing import Any


def of_run(name: str) -> Any:
    """Return a property that reads the attribute ``name`` of the object's ``run``."""
    return property(lambda self: getattr(self.run, name), doc=f"``run.{name}``, of the federated run.")


def of_state(name: str) -> Any:
    """Return a property that reads the attribute ``name`` of ``run.state``; it is None before the run has begun."""
    return property(
        lambda self: getattr(self.run.state, name) if self.run.begun else None,
        doc=f"``run.state.{name}``; None before the run has begun.",
    )
