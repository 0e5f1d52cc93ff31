"""The configs that come with flstudy: ``tune_configs`` here, beside a checkout's package, or in an installed one."""

from pathlib import Path

PACKAGE = Path(__file__).parents[1]
PLACES = (Path("tune_configs"), PACKAGE.parent / "tune_configs", PACKAGE / "tune_configs")
"""Folders that may hold configs, of which the first that exists counts: a user's own before the package's."""
NO_STUDIES = ("reproduction", "claims")
"""Names of a paper's files that are no configs: its plan and what its pages claim."""


def config_folder() -> Path:
    """Return the folder of configs; the first place where there is none."""
    return next((folder for folder in PLACES if folder.is_dir()), PLACES[0])


def is_installed(folder: Path) -> bool:
    """Return whether a folder is part of an installed package, where nothing is written."""
    return folder.absolute().is_relative_to(PACKAGE / "tune_configs")


def find_config(name: str) -> str:
    """Return a config's path by its path, or by its name below the folder of configs, such as ``quick`` or
    ``flash/digits``.

    Any other text comes back unchanged, for its reader to refuse.
    """
    if not name or Path(name).exists():
        return name
    named = [folder / f"{name.removesuffix('.yaml')}.yaml" for folder in PLACES]
    return next((str(path) for path in named if path.is_file()), name)


def configs() -> list[Path]:
    """Return the study configs, without the papers' plans and claims."""
    return sorted(path for path in config_folder().rglob("*.yaml") if path.stem not in NO_STUDIES)
