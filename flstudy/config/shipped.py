"""The configs that come with flstudy: ``tune_configs`` here, beside a checkout's package, or in an installed one."""

from pathlib import Path

PACKAGE = Path(__file__).parents[1]
PLACES = (Path("tune_configs"), PACKAGE.parent / "tune_configs", PACKAGE / "tune_configs")
"""Folders that may hold configs, of which the first that exists counts: a user's own before the package's."""


def config_folder() -> Path:
    """The folder of configs; the first place where there is none."""
    return next((folder for folder in PLACES if folder.is_dir()), PLACES[0])


def is_installed(folder: Path) -> bool:
    """Whether a folder is part of an installed package, where nothing is written."""
    return folder.absolute().is_relative_to(PACKAGE / "tune_configs")


def find_config(given: str) -> str:
    """A config's path by its path, or by its name below the folder of configs, such as ``quick`` or ``flash/digits``.

    Any other text comes back unchanged, for its reader to refuse.
    """
    if not given or Path(given).exists():
        return given
    named = [folder / f"{given.removesuffix('.yaml')}.yaml" for folder in PLACES]
    return next((str(path) for path in named if path.is_file()), given)


def configs() -> list[Path]:
    """The study configs, without the papers' plans."""
    return sorted(path for path in config_folder().rglob("*.yaml") if path.name != "reproduction.yaml")
