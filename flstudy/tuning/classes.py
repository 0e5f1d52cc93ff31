"""Objects of a user's own classes, by their paths."""

import inspect
from collections.abc import Mapping
from typing import Any

from flstudy.config import ConfigError
from flstudy.config.registry import import_class


def build_user_object(key: str, path: str, base: type, arguments: Mapping[str, Any], offered: Mapping[str, Any]) -> Any:
    """Return an object of the class at a path.

    Args:
        key: of the config, for messages.
        path: ``module.Class``.
        base: class of which it must be a subclass.
        arguments: of its constructor.
        offered: further arguments, passed where the constructor names them and they are not None.

    Raises:
        ConfigError: for a class that cannot be imported, is of another kind, or refuses its arguments.
    """
    resolved_class = import_class(key, path)
    if not issubclass(resolved_class, base):
        raise ConfigError(f"{key} must name a {base.__module__}.{base.__name__}, got {path!r}, which is none")
    taken = inspect.signature(resolved_class).parameters
    more = {name: value for name, value in offered.items() if name in taken and value is not None}
    try:
        return resolved_class(**{**more, **arguments})
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{key}: {path} refuses its init_args: {error}") from error
