"""Configs of studies in a paper's folder."""

from pathlib import Path

OTHERS = ("reproduction.yaml", "claims.yaml")
"""YAML files of a paper's folder that are no config: its plan and its claims."""


def configs_in(folder: Path) -> list[Path]:
    """Return the configs in a folder and those below it, sorted."""
    return sorted(path for path in folder.glob("**/*.yaml") if path.name not in OTHERS)
