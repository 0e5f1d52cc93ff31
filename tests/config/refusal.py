"""What every refusal of a config has in common."""

from pathlib import Path
from typing import Any

import pytest

from flstudy.config import ConfigError
from flstudy.config.config import load


def assert_refused(path: Path, overrides: dict[str, Any], sentence: str) -> None:
    """Loading it raises, in one line that holds the sentence."""
    with pytest.raises(ConfigError) as refusal:
        load(path, overrides)
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)
