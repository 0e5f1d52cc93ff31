"""The command line: arguments only. Torch is imported after the config has passed its first look."""

import json
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from flstudy.config.names import nearest
from flstudy.config.precheck import ROOTS, precheck
from flstudy.config.sections import ConfigError
from flstudy.config.studies import named_study, resumed

COMMANDS = {
    "run": "train one configuration:           flstudy run CONFIG [--algorithm Flash --algorithm.tau 1e-3 ...]",
    "tune": "search hyper-parameters:           flstudy tune CONFIG [--study.trials 32 ...]\n"
    "          go on with a study:             flstudy tune --resume STUDY [--study.trials 64]\n"
    "          begin with another one's trials: flstudy tune CONFIG --known STUDY",
    "report": "tables, tests, figures of studies: flstudy report STUDY [STUDY ...] [--json]",
    "studies": "list studies and their state:     flstudy studies [FOLDER] [--json]",
    "show": "one trial of a study:             flstudy show STUDY TRIAL|best [--json]",
    "sync": "tell MLflow what it missed:       flstudy sync STUDY... [--store URI]",
    "reproduce": "a paper's studies and tables: flstudy reproduce flash [--worlds digits-sudden ...]",
    "ui": "browse runs in the MLflow UI:      flstudy ui [--store URI] [--port 5000]",
    "costs": "what methods send, keep and compute: flstudy costs CONFIG [--algorithms FedAvg FedAda2 ...]",
    "bench": "time executors beside plain loop:  flstudy bench [--workloads mlp cnn --json FILE ...]",
    "list": "what a config can name:            flstudy list algorithms|datasets|samplers|configs|...",
}
KINDS = {
    "algorithms": "algorithm",
    "datasets": "population.dataset",
    "tasks": "task",
    "partitions": "population.partition",
    "drifts": "population.drift",
    "availabilities": "population.availability",
    "data-streams": "population.data_stream",
    "changes": "population.drift.change",
    "controllers": "controller",
    "schedules": "schedule",
    "samplers": "study.sampler",
    "schedulers": "study.scheduler",
}
assert set(KINDS.values()) == set(ROOTS)
ELSEWHERE = {
    "reproduce": "flstudy.reproduction.command",
    "costs": "flstudy.benchmark.costs",
    "bench": "flstudy.benchmark.command",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status: 0 done, 2 for what the user can mend, 130 after Ctrl-C."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: flstudy COMMAND ...\n\nHyper-parameter studies of federated learning in a moving world.\n")
        print("\n".join(f"  {name:<9} {text}" for name, text in COMMANDS.items()))
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
        commands = {
            "run": train,
            "tune": train,
            "report": report,
            "studies": studies,
            "show": show,
            "sync": sync,
            "ui": ui,
            **dict.fromkeys(ELSEWHERE, elsewhere),
            "list": list_names,
        }
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
    known = named_study(arguments, "--known") if command == "tune" else None
    resume = resumed(arguments) if command == "tune" else None
    if resume is not None and known is not None:
        raise ConfigError("--known is for a new study, --resume for one that stopped: leave out one of the two")
    as_json = command == "tune" and "--json" in arguments
    if as_json:
        arguments.remove("--json")
    path = str(resume / "study.yaml") if resume is not None else None
    path = path or (arguments.pop(0) if arguments and not arguments[0].startswith("-") else None)
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
        from flstudy.run import run_once

        run_once(config)
        return 0
    if not config.study.search:
        raise ConfigError(
            f"{path} has nothing to search: give study.search, such as {{algorithm.lr: {{loguniform: [1e-3, 1]}}}}"
        )
    from flstudy.tuning.study import run_study

    return run_study(config, resume=resume, known=known, as_json=as_json)


def report(command: str, arguments: list[str]) -> int:
    """``flstudy report``."""
    as_json, rest = "--json" in arguments, [argument for argument in arguments if argument != "--json"]
    if not rest or any(argument.startswith("-") for argument in rest):
        print(
            "usage: flstudy report STUDY [STUDY ...] [--json]\n\n"
            "STUDY is a study's folder, or its name under studies/; several studies get a common report."
        )
        return 0 if "-h" in rest or "--help" in rest else 2
    from flstudy.reporting import report as make_report

    given = [Path(argument) for argument in rest]
    written = make_report(*(path if path.is_dir() else Path("studies") / path for path in given))
    if as_json:
        print(json.dumps({**written.values, "page": str(written.page_path)}, indent=2))
    else:
        written.print()
    return 0


def studies(command: str, arguments: list[str]) -> int:
    """``flstudy studies``."""
    as_json, rest = "--json" in arguments, [argument for argument in arguments if argument != "--json"]
    if len(rest) > 1 or (rest and rest[0].startswith("-")):
        print("usage: flstudy studies [FOLDER] [--json]\n\nFOLDER holds study folders; default: studies.")
        return 0 if rest[0] in ("-h", "--help") else 2
    folder = Path(rest[0] if rest else "studies")
    from flstudy.reporting.listing import studies as list_studies
    from flstudy.reporting.listing import studies_cells
    from flstudy.reporting.report import terminal

    entries = list_studies(folder)
    if as_json:
        print(json.dumps(entries, indent=2))
    elif entries:
        terminal().print(studies_cells(entries, folder).rich())
    else:
        print(f"{folder} holds no study yet: start one with 'flstudy tune CONFIG'")
    return 0


def show(command: str, arguments: list[str]) -> int:
    """``flstudy show``."""
    as_json, rest = "--json" in arguments, [argument for argument in arguments if argument != "--json"]
    if len(rest) != 2 or rest[0].startswith("-"):
        print("usage: flstudy show STUDY TRIAL [--json]\n\nTRIAL is a trial's number, or best.")
        return 0 if rest and rest[0] in ("-h", "--help") else 2
    from flstudy.reporting.listing import find_trial, trial_cells, trial_entry
    from flstudy.reporting.load import load_study
    from flstudy.reporting.report import terminal

    given = Path(rest[0])
    results = load_study(given if given.is_dir() else Path("studies") / given)
    entry = trial_entry(results, find_trial(results, rest[1]))
    if as_json:
        print(json.dumps(entry, indent=2, default=str))
        return 0
    console = terminal()
    for cells in trial_cells(entry):
        console.print(cells.rich())
    if entry["error"]:
        console.print(entry["error"], style="red", markup=False, highlight=False)
    return 0


def sync(command: str, arguments: list[str]) -> int:
    """``flstudy sync``."""
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(
        prog="flstudy sync",
        description="Tell MLflow what it has missed of studies, from their folders: runs, parameters, rounds, reports. "
        "Doing it twice changes nothing.",
    )
    parser.add_argument("studies", nargs="+", help="Study folders, or their names under studies/.")
    parser.add_argument("--store", type=str | None, default=None, help="MLflow tracking URI; default: the study's own.")
    options = parser.parse_args(arguments)
    folders = [given if given.is_dir() else Path("studies") / given for given in map(Path, options.studies)]
    from flstudy.reporting.listing import standing
    from flstudy.tracking.store import open_store, without_password
    from flstudy.tracking.sync import sync_study

    for folder in folders:
        state = standing(folder)
        if not (folder / "study.yaml").is_file() or "study_id" not in state:
            raise ConfigError(f"there is no study {str(folder)!r} that was started: see flstudy studies")
        if state["state"] == "running":
            raise ConfigError(
                f"study {folder.name} is running in process {state['pid']} and tells MLflow by itself: wait for its end"
            )
        store = open_store(options.store or state.get("store"))
        shown = without_password(store.uri)
        try:
            print(f"{folder.name}: {sync_study(folder, store)} ({shown})")
        except ConfigError:
            raise
        except Exception as error:  # MLflow, SQLAlchemy and requests each have their own
            raise ConfigError(f"{shown} went away ({error}): start it and do this again") from error
    return 0


def ui(command: str, arguments: list[str]) -> int:
    """``flstudy ui``."""
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(prog="flstudy ui", description="Serve the MLflow UI on 127.0.0.1.")
    parser.add_argument("--store", type=str | None, default=None, help="MLflow tracking URI; default mlflow_tracking/.")
    parser.add_argument("--port", type=int, default=5000, help="Port on 127.0.0.1.")
    options = parser.parse_args(arguments)
    from flstudy.tracking.ui import serve_ui

    serve_ui(options.store, options.port)
    return 0


def elsewhere(command: str, arguments: list[str]) -> int:
    """A command that parses its own arguments."""
    code: int = import_module(ELSEWHERE[command]).main(arguments)
    return code


def list_names(command: str, arguments: list[str]) -> int:
    """``flstudy list``."""
    from flstudy.config import catalogue

    kinds = [*KINDS, "configs"]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: flstudy list {'|'.join(kinds)}")
        return 0 if arguments else 2
    if arguments[0] not in kinds:
        raise ConfigError(f"flstudy list knows no {arguments[0]!r}{nearest(arguments[0], kinds)}")
    catalogue.show(KINDS.get(arguments[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
