"""Controllers: two hooks around a round, with explicit state, for any algorithm."""

from flstudy.controllers.controller import Controller, Restart

__all__ = ["Controller", "Restart"]
