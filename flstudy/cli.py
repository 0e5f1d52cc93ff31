"""The command line: arguments only. Torch is imported after the config has passed its first look."""

import sys
from collections.abc import Sequence
from pathlib import Path

from flstudy.config.names import nearest
from flstudy.config.precheck import PACKAGE, ROOTS, classes, names, precheck
from flstudy.config.sections import ConfigError

COMMANDS = {
    "run": "train one configuration:           flstudy run CONFIG [--algorithm Flash --algorithm.tau 1e-3 ...]",
    "tune": "search hyper-parameters:           flstudy tune CONFIG [--study.trials 32 ...]",
    "report": "table and curves of a study:       flstudy report STUDY",
    "ui": "browse runs in the MLflow UI:      flstudy ui [--store URI] [--port 5000]",
    "bench": "time executors beside plain loop:  flstudy bench [--workloads mlp cnn --json FILE ...]",
    "list": "what a config can name:            flstudy list algorithms|datasets|tasks|partitions|drifts|configs",
}
KINDS = {
    "algorithms": "algorithm",
    "datasets": "population.dataset",
    "tasks": "task",
    "partitions": "population.partition",
    "drifts": "population.drift",
}
assert set(KINDS.values()) == set(ROOTS)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status: 0 done, 2 for what the user can mend, 130 after Ctrl-C."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: flstudy COMMAND ...\n\nHyper-parameter studies of federated learning in a moving world.\n")
        print("\n".join(f"  {name:<7} {text}" for name, text in COMMANDS.items()))
        print("\n`flstudy run --help` and `flstudy tune --help` list every key of a config.")
        return 0
    if arguments[0] == "--version":
        import flstudy

        print(f"flstudy {flstudy.__version__}")
        return 0
    command, *rest = arguments
    try:
        if command not in COMMANDS:
            raise ConfigError(f"unknown command {command!r}{nearest(command, list(COMMANDS))}")
        commands = {"run": train, "tune": train, "report": report, "ui": ui, "bench": bench, "list": list_names}
        return commands[command](command, rest)
    except (ConfigError, ValueError) as error:
        if not isinstance(error, ConfigError) and type(error) is not ValueError:
            raise
        print(f"flstudy: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def train(command: str, arguments: list[str]) -> int:
    """``flstudy run`` and ``flstudy tune``."""
    path = arguments.pop(0) if arguments and not arguments[0].startswith("-") else None
    for place, option in enumerate(arguments):
        if path is None and option.startswith("--config"):
            path = option.partition("=")[2] or (arguments[place + 1] if place + 1 < len(arguments) else "")
            del arguments[place : place + (1 if "=" in option else 2)]
            break
    asks = [option for option in arguments if option in ("-h", "--help") or option.startswith("--print_config")]
    if path is None and not asks:
        raise ConfigError(
            f"flstudy {command} needs a config file, such as tune_configs/quick.yaml: see flstudy list configs"
        )
    if path is not None:
        if not Path(path).is_file():
            raise ConfigError(f"there is no config file {path!r}: see flstudy list configs")
        precheck(path, arguments)
    from flstudy.config.config import load
    from flstudy.config.parser import build_parser, command_line, parse

    if asks:
        parse(build_parser(command), command_line(Path(path).read_text(), arguments) if path else arguments)
        return 0
    assert path is not None
    config = load(path, options=arguments, command=command)
    if command == "run":
        config.rehearse()
        from flstudy.tuning.single import run_once

        run_once(config)
        return 0
    if not config.study.search:
        raise ConfigError(
            f"{path} has nothing to search: give study.search, such as {{algorithm.lr: {{loguniform: [1e-3, 1]}}}}"
        )
    from flstudy.tuning.study import run_study

    return run_study(config)


def report(command: str, arguments: list[str]) -> int:
    """``flstudy report``."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: flstudy report STUDY\n\nSTUDY is a study's folder, or its name under studies/.")
        return 0 if arguments and arguments[0] in ("-h", "--help") else 2
    from flstudy.reporting import report as make_report

    given = Path(arguments[0])
    make_report(given if given.is_dir() else Path("studies") / given).print()
    return 0


def ui(command: str, arguments: list[str]) -> int:
    """``flstudy ui``."""
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(prog="flstudy ui", description="Serve the MLflow UI on 127.0.0.1.")
    parser.add_argument("--store", type=str | None, default=None, help="MLflow tracking URI; default mlflow_tracking/.")
    parser.add_argument("--port", type=int, default=5000, help="Port on 127.0.0.1.")
    options = parser.parse_args(arguments)
    from flstudy.tracking.ui import serve

    serve(options.store, options.port)
    return 0


def bench(command: str, arguments: list[str]) -> int:
    """``flstudy bench``."""
    from flstudy.benchmark.command import main as measure

    return measure(arguments)


def list_names(command: str, arguments: list[str]) -> int:
    """``flstudy list``."""
    kinds = [*KINDS, "configs"]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: flstudy list {'|'.join(kinds)}")
        return 0 if arguments else 2
    if arguments[0] not in kinds:
        raise ConfigError(f"flstudy list knows no {arguments[0]!r}{nearest(arguments[0], kinds)}")
    if arguments[0] == "configs":
        rows = {str(path): heading(path) for path in configs()}
    else:
        rows = {name: classes()[name].summary for name in names(KINDS[arguments[0]])}
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for name, summary in rows.items():
        table.add_row(name, summary)
    Console().print(table)
    return 0


def configs() -> list[Path]:
    """Study configs here, or those beside the package."""
    for folder in (Path("tune_configs"), PACKAGE.parent / "tune_configs"):
        if folder.is_dir():
            return sorted(folder.rglob("*.yaml"))
    return []


def heading(path: Path) -> str:
    """The first comment of a YAML file."""
    lines = path.read_text().splitlines()
    return lines[0].lstrip("# ") if lines and lines[0].startswith("#") else ""


if __name__ == "__main__":
    sys.exit(main())
