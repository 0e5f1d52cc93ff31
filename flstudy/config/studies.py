"""Studies that a command line names, beside the config."""

from pathlib import Path

from flstudy.config.precheck import pairs
from flstudy.config.sections import ConfigError

CHANGEABLE = (
    *("study.trials", "study.budget.rounds", "study.budget.hours", "study.confirm.top", "study.confirm.seeds"),
    *("study.failures.retries", "study.failures.round_timeout_s", "study.failures.most", "study.concurrent"),
    *("study.resources.cpu", "study.resources.gpu", "study.register"),
)


def resumed(arguments: list[str]) -> Path | None:
    """The folder of the study after ``--resume``, which is taken out of the arguments."""
    folder = named_study(arguments, "--resume")
    if folder is None:
        return None
    for key, _ in pairs(arguments):
        if key not in CHANGEABLE:
            raise ConfigError(
                f"--resume: a study goes on as it began; {key} cannot change, only {', '.join(CHANGEABLE)}"
            )
    if arguments and not arguments[0].startswith("-"):
        raise ConfigError(f"--resume takes the study's own config, so leave out {arguments[0]!r}")
    return folder


def named_study(arguments: list[str], wanted: str) -> Path | None:
    """The folder of the study after an option, both of which are taken out of the arguments."""
    for place, option in enumerate(arguments):
        name, given, value = option.partition("=")
        if name != wanted:
            continue
        value = value if given else (arguments[place + 1] if place + 1 < len(arguments) else "")
        del arguments[place : place + (1 if given else 2)]
        folder = Path(value) if Path(value).is_dir() and value else Path("studies") / value
        if not value or not (folder / "study.yaml").is_file():
            raise ConfigError(f"{wanted}: there is no study {value!r}: see flstudy studies")
        return folder
    return None
