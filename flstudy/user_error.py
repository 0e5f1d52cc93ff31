"""The error that tells a user what to mend."""


class UserError(ValueError):
    """Something that a user has given and can mend; the message is a sentence with name, domain, value and next step.

    All that flstudy raises on purpose is of this class. Any other exception is of a user's own code, of the machine, or
    a mistake of flstudy's.
    """

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython and notebooks show in place of a traceback: the sentence."""
        return [f"{type(self).__name__}: {self}"]
