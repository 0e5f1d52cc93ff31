"""The command line: parsing of arguments only. Torch is imported after the config has passed the schema."""

import argparse
import contextlib
import io
import json
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from flstudy.config.credentials import censored, hide_from_process_list
from flstudy.config.errors import LONGEST, ConfigError, frames_passed, nearest, on_a_line, own_frame
from flstudy.escaping import TerminalStream, for_terminal
from flstudy.user_error import UserError

COMMANDS = {
    "init": "a commented study to start from:  flstudy init [FILE] [--dataset Digits ...]",
    "run": "train one configuration:          flstudy run CONFIG [--algorithm.lr 0.1 ...]",
    "tune": "search hyper-parameters:          flstudy tune CONFIG [--study.trials 32 ...]\n"
    "             on a Ray cluster:                 flstudy tune CONFIG --address HOST:PORT\n"
    "             go on with a study:               flstudy tune --resume STUDY [--study.trials 64]\n"
    "             begin with another's trials:      flstudy tune CONFIG --import-from STUDY",
    "report": "tables, tests and figures:        flstudy report STUDY [STUDY ...] [--json]",
    "studies": "list studies and their state:     flstudy studies [FOLDER] [--json]",
    "show": "one trial of a study:             flstudy show STUDY TRIAL|best [--json]",
    "compare": "runs beside each other:           flstudy compare RUN|STUDY|STUDY/TRIAL ... [--json]",
    "export": "a trained model as a file:        flstudy export STUDY [TRIAL] --to model.pt|.onnx|...",
    "sync": "tell MLflow what it missed:       flstudy sync STUDY... [--store URI]",
    "reproduce": "a paper's studies and tables:     flstudy reproduce flash [--worlds digits-sudden ...]",
    "ui": "browse runs in the MLflow UI:     flstudy ui [--store URI] [--port 5000]",
    "dashboard": "a study in Optuna's dashboard:    flstudy dashboard STUDY [--port 8080]",
    "costs": "what methods send and compute:    flstudy costs CONFIG [--algorithms FedAvg ...]",
    "bench": "time executors beside plain loop: flstudy bench [--workloads mlp cnn --json FILE ...]",
    "data": "prepare and look at data:         flstudy data prepare NAME | describe CONFIG | list",
    "doctor": "is all ready for a study:         flstudy doctor [--address HOST:PORT] [--store URI]",
    "list": "what a config can name:           flstudy list algorithms|datasets|configs|... [NAME]",
    "schema": "the JSON Schema of configs:       flstudy schema [--path | --write]",
    "completion": "what a shell completes on Tab:    flstudy completion bash|zsh|fish",
}
STUDY_PACKAGES = {
    *("yaml", "ray", "optuna", "cmaes", "scipy", "mlflow", "pyarrow", "rich", "matplotlib", "jinja2", "sklearn"),
    *("torchvision", "h5py", "dp_accounting"),
}
"""Modules of the extra ``study``."""
ELSEWHERE = {
    "reproduce": "flstudy.reproduction.command",
    "costs": "flstudy.benchmark.costs",
    "bench": "flstudy.benchmark.command",
    "data": "flstudy.preparation.command",
    "doctor": "flstudy.tuning.doctor",
}


class Parser(argparse.ArgumentParser):
    """Parser of one command's arguments; a mistake is reported in one sentence."""

    def __init__(self, command: str, description: str) -> None:
        super().__init__(prog=f"flstudy {command}", description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Refuse the arguments."""
        raise ConfigError(f"{self.prog}: {message}: see {self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Return the entry point; returns the exit status: 0 done, 1 for what failed on the way, 2 for what the user typed,
    130 after Ctrl-C. An exception is printed in a line or two, with ``--traceback`` in full."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: flstudy COMMAND ...\n\nHyper-parameter studies of federated learning in a moving world.\n")
        print("\n".join(f"  {name:<10} {text}" for name, text in COMMANDS.items()))
        print("\n`flstudy run --help` and `flstudy tune --help` list every key of a config.")
        print("Every command takes --traceback, which shows all of an error.")
        print(f"\nNext: {next_step()}")
        return 0
    if arguments[0] == "--version":
        import flstudy

        print(f"flstudy {flstudy.__version__}")
        return 0
    command, *rest = arguments
    whole = "--traceback" in rest
    try:
        if argv is None:
            sys.stderr = TerminalStream(sys.stderr)  # type: ignore[assignment]  # all but the type of a file
            hide_from_process_list(rest)
        rest = [argument for argument in rest if argument != "--traceback"]
        if command not in COMMANDS:
            raise ConfigError(f"unknown command {command!r}{nearest(command, list(COMMANDS))}")
        if command in ELSEWHERE:
            code: int = import_module(ELSEWHERE[command]).main(rest)
            return code
        if command == "tune" and argv is None:
            return train(command, rest, ahead=True)
        handlers = {"run": train, "tune": train, "list": list_names, "schema": show_schema, "compare": compare_runs}
        return (handlers.get(command) or globals()[command])(command, rest)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and own_frame(error) is None:
            raise  # argparse has printed its help
        if whole:
            print(censored("".join(traceback.format_exception(error))), file=sys.stderr)
        status, *lines = what_went_wrong(error)
        print(f"flstudy: {censored(chr(10).join(lines))}", file=sys.stderr)
        return status


def what_went_wrong(error: BaseException) -> tuple[int, *tuple[str, ...]]:
    """Return the exit status and the lines for the terminal: a sentence; the last line of the user's own that raised,
    if one did; for a bug of flstudy its place."""
    message = "; ".join([str(error), *getattr(error, "__notes__", ())])
    message = message if isinstance(error, ConfigError) else on_a_line(message, LONGEST)
    kind, frame = type(error).__name__, None if isinstance(error, ConfigError) else own_frame(error)
    missing = (error.name or "").split(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if missing in STUDY_PACKAGES:
        return 2, f"error: this needs {missing!r}, which the engine does without: pip install 'flstudy[study]'"
    if frame is not None:
        where = f"  {frame.filename}:{frame.lineno}, in {frame.name}"
        return 1, f"error: {kind}: {message}", where, f"    {frame.line}", "  (--traceback shows all)"
    if isinstance(error, UserError):
        return 2, f"error: {message}"
    if isinstance(error, OSError | MemoryError):
        return 1, f"error: {kind}: {message} (--traceback shows where)"
    last = frames_passed(error)[-1]
    where = f"{Path(last.filename).name}:{last.lineno}"
    return 1, f"unexpected {kind} in {where}: {message}: run again with --traceback and report it as a bug of flstudy"


FLAGS = ("-h", "--help", "--json", "--print_config", "--trust")
"""Flags of `train`, beside the config's keys."""


def train(command: str, arguments: list[str], *, ahead: bool = False) -> int:
    """Run ``flstudy run`` or ``flstudy tune``, whose workers may be prepared ahead of the rest."""
    address = _taken("--address", arguments) if command == "tune" else None
    if address is not None:
        from flstudy.tuning.address import VARIABLE, check_address

        check_address(address)
        os.environ[VARIABLE] = address
    source = study_after("--import-from", arguments) if command == "tune" else None
    resume = resumed(arguments) if command == "tune" else None
    if resume is not None and source is not None:
        raise ConfigError("--import-from is for a new study, --resume for one that stopped: leave out one of the two")
    flags = {flag: flag in arguments for flag in FLAGS}
    arguments = [argument for argument in arguments if argument not in flags]
    path, text = None if resume is None else str(resume / "study.yaml"), None
    if resume is not None:
        from flstudy.study import StudyFolder

        text = StudyFolder(resume).read_config()
    if path is None and arguments and not arguments[0].startswith("-"):
        path = arguments.pop(0)
    path = path or _taken("--config", arguments)
    if path is not None and resume is None:
        from flstudy.config.shipped import find_config

        path = find_config(path)
    if path is not None and resume is None and _lies_in_study(path):
        from flstudy.study.consent import require_consent_to_config
        from flstudy.tracking.trust import check_config_store

        require_consent_to_config(path, trust=flags["--trust"])
        if not any(argument.partition("=")[0] == "--store" for argument in arguments):
            check_config_store(path)
    if flags["-h"] or flags["--help"]:
        from flstudy.config.help import print_help

        print_help(command, path, arguments)
        return 0
    if path is None:
        raise ConfigError(
            f"flstudy {command} needs a config file, such as tune_configs/quick.yaml: see flstudy list configs, or "
            "flstudy init"
        )
    from flstudy.config.composition import quick_check
    from flstudy.config.values import check_bounds

    values = quick_check(path, arguments, text)
    if command == "tune":
        check_bounds(values, study=True)
    if flags["--print_config"]:
        print_config(command, path, arguments, text)
        return 0
    with _ray_ahead(values) if ahead else contextlib.nullcontext():
        if not flags["--json"]:
            announce(command, values, path, resume)
        return _trained(command, path, arguments, resume, source, text, as_json=flags["--json"])


def _lies_in_study(path: str) -> bool:
    """Return whether a config is a file of a study's folder, which may be somebody else's."""
    from flstudy.config.reading import study_of_config

    return Path(path).is_file() and study_of_config(path) is not None


def print_config(command: str, path: str, arguments: list[str], text: str | None) -> None:
    """Print the complete values of a run, or of a study with those of its arms; classes of the user's are imported for
    their defaults."""
    import yaml

    from flstudy.config.composition import composed, modules_of, whole_study
    from flstudy.config.reading import content_of, parse_options
    from flstudy.config.registry import add_to_path
    from flstudy.config.values import completed

    content, edits = content_of(path, text), parse_options(arguments)
    add_to_path(modules_of(path, edits, content), [content, dict(edits)])
    if command == "tune":
        values = whole_study(content, edits, imports=True)
    else:
        values = completed(composed(content, edits, imports=True), imports=True)
        values["study"] |= {"search": {}, "arms": {}, "presets": {}}
    print(yaml.safe_dump(values, sort_keys=False, allow_unicode=True), end="")


def announce(command: str, values: Mapping[str, Any], path: str, resume: Path | None) -> None:
    """Print what will happen; errors are left to the code that makes it happen."""
    from flstudy.study.announcement import run_announcement, study_announcement
    from flstudy.tracking.store import for_people

    with contextlib.suppress(ValueError, OSError):
        recorded = None
        if resume is not None:
            from flstudy.study import StudyFolder

            recorded = StudyFolder(resume).state().get("store")
        store = for_people(recorded or values["store"])
        lines = run_announcement(values, path, store)
        if command == "tune":
            searched = bool(values["study"]["search"])
            lines = study_announcement(values, path, store, resume, _search_size(values)) if searched else []
        print("\n".join(lines), flush=True)


def _search_size(values: Mapping[str, Any]) -> tuple[int | None, bool] | None:
    """Return the number of trials that the sampler makes, where it knows its points."""
    from flstudy.study import Space
    from flstudy.study.outline import ConfigOutline
    from flstudy.tuning.samplers import SearchSize, search_size

    try:
        return search_size(Space.of_study(values["study"]), ConfigOutline(values))
    except ConfigError:  # of a class of the user's, which is imported later
        return SearchSize(values["study"]["trials"], exactly=False)


def _ray_ahead(values: Mapping[str, Any]) -> contextlib.AbstractContextManager[None]:
    """Start a Ray while this process imports what a study needs."""
    study = values.get("study") or {}
    if not study.get("search"):
        return contextlib.nullcontext()
    from flstudy.config import Resources
    from flstudy.tuning.cluster import start_ray_ahead

    return start_ray_ahead(Resources(**(study.get("resources") or {})))


def _trained(
    command: str,
    path: str,
    arguments: list[str],
    resume: Path | None,
    source: Path | None,
    text: str | None,
    *,
    as_json: bool,
) -> int:
    from flstudy.config.config import load

    config = load(path, options=arguments, command=command, text=text)
    if command == "run":
        config.rehearse()
        from flstudy.run import DivergedError, run_once

        reserved: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if config.settings.num_nodes > 1:
            from flstudy.tuning.cluster import cluster

            reserved = cluster(config.study.resources)
        try:
            with reserved:
                run_once(config)
        except DivergedError as error:
            print(f"flstudy: error: {error}", file=sys.stderr)
            return 1
        return 0
    from flstudy.tuning.driver import run_study

    return run_study(config, resume=resume, import_from=source, as_json=as_json)


def resumed(arguments: list[str]) -> Path | None:
    """Return the folder of the study after ``--resume``, which is taken out of the arguments."""
    folder = study_after("--resume", arguments)
    if folder is None:
        return None
    from flstudy.config.reading import Given, parse_options
    from flstudy.config.reading import arguments as options

    if arguments and not arguments[0].startswith("-"):
        raise ConfigError(f"--resume takes the study's own config, so leave out {arguments[0]!r}")
    from flstudy.study import StudyFolder
    from flstudy.study.resuming import add_modules_to_path, check_changes

    edits = parse_options([argument for argument in arguments if argument not in FLAGS])
    requested = {key: value.value if isinstance(value, Given) else value for key, value in edits}
    changes = check_changes(StudyFolder(folder), requested, "--resume")
    arguments += options({key: value for key, value in changes.items() if key not in requested})
    add_modules_to_path(StudyFolder(folder), trust="--trust" in arguments)
    return folder


def study_after(option: str, arguments: list[str]) -> Path | None:
    """Return the folder of the study after an option, both of which are taken out of the arguments."""
    value = _taken(option, arguments)
    if value is None:
        return None
    folder = _study(value, "models")
    if value and (folder / "state.json").is_file() and not (folder / "study.yaml").is_file():
        raise ConfigError(f"{option}: {folder / 'study.yaml'} is missing: copy it from the study's run in MLflow")
    if not value or not (folder / "study.yaml").is_file():
        raise ConfigError(f"{option}: there is no study {value!r}: see flstudy studies")
    return folder


def _taken(option: str, arguments: list[str]) -> str | None:
    """Return the value of an option, both of which are taken out of the arguments."""
    for place, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == option:
            value = value if equals else (arguments[place + 1] if place + 1 < len(arguments) else "")
            del arguments[place : place + (1 if equals else 2)]
            return value
    return None


def _study(name: str, *beside: str) -> Path:
    """Return a study's folder by its path, or by its name under studies/, or the copy of one by its URI with what is
    wanted ``beside`` (`StudyFolder.fetch`); a folder of another kind, such as the data set that a study is named
    after, hides none."""
    from flstudy.remote import is_uri
    from flstudy.study.folder import HOME, StudyFolder

    if is_uri(name):
        return StudyFolder.fetch(name, *beside).path
    named, path = Path(HOME) / name, Path(name)
    return path if name and path.is_dir() and (StudyFolder(path).is_study or not named.is_dir()) else named


def next_step() -> str:
    """Return the command to run next: for the study that was written to last, or for a first one."""
    first = "flstudy tune quick   runs a first study, in a few minutes; flstudy init writes one of your own"
    try:
        from flstudy.study.folder import HOME, StudyFolder
    except ModuleNotFoundError:  # the engine alone
        return first
    studies = [folder for folder in map(StudyFolder, Path(HOME).glob("*")) if folder.state_file.is_file()]
    if not studies:
        return first
    last = max(studies, key=lambda folder: folder.state_file.stat().st_mtime)
    name, state = last.name, last.state().get("state")
    if state == "finished":
        return f"flstudy report {name}   draws your last study; flstudy ui shows it in MLflow"
    return f"flstudy studies   says how {name}, your last study, stands; flstudy tune --resume {name} goes on with it"


def report(command: str, arguments: list[str]) -> int:
    """Run ``flstudy report``."""
    parser = Parser(command, "Ranking, tests, figures, a page, LaTeX and BibTeX, from the files of studies.")
    parser.add_argument("studies", nargs="+", metavar="STUDY", help="a folder or URI, or a name under studies/")
    parser.add_argument("--json", action="store_true", help="print everything that was found as JSON")
    options = parser.parse_args(arguments)
    from flstudy.reporting import write_report

    written = write_report(*map(_study, options.studies))
    if options.json:
        print(json.dumps({**written.values, "page": str(written.page_path)}, indent=2))
    else:
        written.print()
    return 0


def studies(command: str, arguments: list[str]) -> int:
    """Run ``flstudy studies``."""
    parser = Parser(command, "All studies of a folder with their state and best trial.")
    parser.add_argument("folder", nargs="?", default="studies", help="a folder of studies, or its URI")
    parser.add_argument("--json", action="store_true", help="print them as JSON")
    options = parser.parse_args(arguments)
    from flstudy.reporting.listing import studies_cells
    from flstudy.reporting.report import terminal
    from flstudy.study.results import list_studies

    entries = list_studies(options.folder)
    if options.json:
        print(json.dumps(entries, indent=2))
    elif entries:
        terminal().print(studies_cells(entries, options.folder))
        for entry in entries:
            for reason in entry["damage"]:
                print(f"{entry['study']}: {reason}", file=sys.stderr)
    else:
        print(f"{options.folder} holds no study yet: start one with 'flstudy tune CONFIG'")
    return 0


def show(command: str, arguments: list[str]) -> int:
    """Run ``flstudy show``."""
    parser = Parser(command, "One trial: what it chose, its curve, its last values.")
    parser.add_argument("study", metavar="STUDY", help="a folder or URI, or a name under studies/")
    parser.add_argument("trial", metavar="TRIAL", help="a trial's number, or best")
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    options = parser.parse_args(arguments)
    from flstudy.reporting.listing import trial_cells, trial_entry
    from flstudy.reporting.report import terminal
    from flstudy.study import load_study

    results = load_study(_study(options.study))
    trial = results.find(options.trial)
    for reason in filter(None, [*results.damage, results.damage_of(trial)]):
        print(reason, file=sys.stderr)
    entry = trial_entry(results, trial)
    if options.json:
        print(json.dumps(entry, indent=2, default=str))
        return 0
    console = terminal()
    for cells in trial_cells(entry):
        console.print(cells)
    if entry["error"]:
        console.print(for_terminal(entry["error"]), style="red", markup=False, highlight=False)
    return 0


def compare_runs(command: str, arguments: list[str]) -> int:
    """Run ``flstudy compare``."""
    parser = Parser(command, "Runs and trials beside each other: their best, last and mean values over seeds.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run's folder, a study, or STUDY/TRIAL")
    parser.add_argument("--metrics", nargs="+", default=[], metavar="METRIC", help="default: accuracies and losses")
    parser.add_argument("--json", action="store_true", help="print every seed's values as JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="a PNG file for the curves")
    options = parser.parse_args(arguments)
    from flstudy.reporting.report import terminal
    from flstudy.reporting.run_comparison import measures, read_run, run_cells, runs_figure, runs_json

    by_metric = measures([read_run(run) for run in options.runs], options.metrics)
    if options.plot is not None:
        if options.plot.suffix != ".png" or not options.plot.absolute().parent.is_dir():
            raise ConfigError(f"--plot must be a .png file in a folder that exists, got {str(options.plot)!r}")
        from flstudy.reporting.style import to_png

        to_png(runs_figure(by_metric), options.plot)
    if options.json:
        print(json.dumps(runs_json(by_metric), indent=2))
        return 0
    for metric, measured in by_metric.items():
        terminal().print(run_cells(metric, measured))
    return 0


def export(command: str, arguments: list[str]) -> int:
    """Run ``flstudy export``."""
    parser = Parser(command, "The trained model of a study as a file for other programs, of its trial's first seed.")
    parser.add_argument("study", metavar="STUDY", help="a folder or URI, or a name under studies/")
    parser.add_argument("trial", metavar="TRIAL", nargs="?", default="best", help="a trial's number; default: best")
    parser.add_argument("--to", required=True, type=Path, metavar="FILE", help="model.pt, .onnx or .safetensors")
    parser.add_argument("--trust", action="store_true", help="for .onnx: agree to the code that the study names")
    options = parser.parse_args(arguments)
    from flstudy.study import load_study
    from flstudy.tracking.export import export_model

    results = load_study(_study(options.study, "models"))
    trial = results.find(options.trial)
    reader = export_model(results, trial, options.to, trust=options.trust)
    line = f"{options.to}: trial {trial.number} of {results.name}, {trial.algorithm}; read it with {reader}"
    print(for_terminal(line))
    return 0


def sync(command: str, arguments: list[str]) -> int:
    """Run ``flstudy sync``."""
    parser = Parser(
        command,
        "Tell MLflow what it has missed of studies, from their folders: runs, parameters, rounds, reports; and their "
        "bucket, of studies by URI. Doing it twice changes nothing.",
    )
    parser.add_argument("studies", nargs="+", metavar="STUDY", help="a folder or URI, or a name under studies/")
    parser.add_argument("--store", help="MLflow tracking URI; default: the study's own")
    options = parser.parse_args(arguments)
    from flstudy.remote import RemoteError, is_uri
    from flstudy.study import StudyFolder
    from flstudy.study.mirror import BucketMirror
    from flstudy.tracking.store import one_line, open_store
    from flstudy.tracking.sync import sync_study
    from flstudy.tracking.trust import agreed_store, remember_store

    for folder in map(StudyFolder.named, options.studies):
        state = folder.state()
        if "damage" in state:
            raise ConfigError(f"{state['damage']}, so the study cannot be delivered: see flstudy report {folder.name}")
        if not folder.config.is_file() or "study_id" not in state:
            raise ConfigError(f"there is no study {str(folder.path)!r} that was started: see flstudy studies")
        if busy := folder.busy_message():  # a study that runs tells MLflow by itself
            raise ConfigError(busy)
        store = open_store(agreed_store(folder.name, state.get("store"), options.store))
        if options.store is not None:
            remember_store(store.uri)
        try:
            with folder.claim():
                if is_uri(folder.name_or_uri):
                    mirror = BucketMirror(folder)
                    mirror.send()
                    print(for_terminal(f"{folder.name}: {mirror.sent_files} files ({folder.name_or_uri})"))
                delivery = sync_study(folder, store)
                for line in (f"{folder.name}: {delivery} ({store.uri})", *delivery.remarks):
                    print(for_terminal(line))
                if is_uri(folder.name_or_uri):
                    mirror.send()  # the list of trials says what MLflow has
        except (ConfigError, RemoteError) as error:
            raise ConfigError(str(error)) from error
        except Exception as error:  # MLflow, SQLAlchemy and requests each have their own
            raise ConfigError(f"{store.uri} went away ({one_line(error)}): start it and do this again") from error
    return 0


def ui(command: str, arguments: list[str]) -> int:
    """Run ``flstudy ui``."""
    parser = Parser(command, "Serve the MLflow UI on 127.0.0.1.")
    parser.add_argument("--store", help="MLflow tracking URI; default mlflow_tracking/")
    parser.add_argument("--port", type=int, default=5000, help="port on 127.0.0.1")
    options = parser.parse_args(arguments)
    from flstudy.tracking.ui import serve_ui

    serve_ui(options.store, options.port, say=lambda line: print(line, flush=True))  # a log shows the address, too
    return 0


def dashboard(command: str, arguments: list[str]) -> int:
    """Run ``flstudy dashboard``."""
    parser = Parser(command, "Show a study's search in Optuna's dashboard, on 127.0.0.1; it cannot change the study.")
    parser.add_argument("study", metavar="STUDY", help="a folder or URI, or a name under studies/")
    parser.add_argument("--port", type=int, default=8080, help="port on 127.0.0.1")
    options = parser.parse_args(arguments)
    from flstudy.study import StudyFolder
    from flstudy.tuning.dashboard import serve_dashboard

    serve_dashboard(StudyFolder(_study(options.study, "optuna.journal")), options.port)
    return 0


def list_names(command: str, arguments: list[str]) -> int:
    """Run ``flstudy list``."""
    from flstudy.config.help import KINDS, print_list

    kinds = [*KINDS, "configs"]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: flstudy list {'|'.join(kinds)} [NAME]\n\nWith a NAME: its arguments.")
        return 0 if arguments else 2
    if arguments[0] not in kinds:
        raise ConfigError(f"flstudy list knows no {arguments[0]!r}{nearest(arguments[0], kinds)}")
    print_list(*arguments[:2])
    return 0


def init(command: str, arguments: list[str]) -> int:
    """Run ``flstudy init``."""
    parser = Parser(
        command,
        "Write a commented study to start from. On a terminal, and without options, it asks for data set, methods and "
        "drift.",
    )
    parser.add_argument("file", nargs="?", type=Path, default=Path("study.yaml"), help="default: study.yaml")
    parser.add_argument("--dataset", metavar="NAME", help="one of flstudy list datasets; default: Digits")
    parser.add_argument(
        "--algorithms",
        nargs="+",
        metavar="NAME",
        help="algorithms to compare, of flstudy list algorithms; default: Flash FedYogi FedAvg",
    )
    parser.add_argument("--drift", metavar="NAME", help="one of flstudy list drifts, or none; default: SuddenDrift")
    parser.add_argument(
        "--sessions", action="store_true", default=None, help="two groups of devices take turns; no drift then"
    )
    parser.add_argument(
        "--arms",
        action="store_true",
        default=None,
        help="each method with ranges of its own, and a variant of the first",
    )
    parser.add_argument("--rounds", type=int, help="rounds of a trial; default: 60, or 200 of data in files")
    parser.add_argument("--trials", type=int, help="trials of all methods together; default: five or more of each")
    options = parser.parse_args(arguments)
    path: Path = options.file
    if path.exists():
        raise ConfigError(f"there is a file {str(path)!r} already: name another one")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"there is no folder {str(path.parent)!r}: make it first")
    from flstudy.config import starter

    chosen = {name: value for name, value in vars(options).items() if name != "file" and value is not None}
    asks = not chosen and sys.stdin.isatty() and sys.stdout.isatty()
    choice = starter.ask_choice() if asks else starter.Choice(**chosen)
    path.write_text(starter.starter(choice), encoding="utf-8")
    print(f"{path}: try it with 'flstudy tune {path}'")
    return 0


def completion(command: str, arguments: list[str]) -> int:
    """Run ``flstudy completion``."""
    from flstudy.config.completion import KEYED, SHELLS, script

    parser = Parser(
        command,
        "Print a script that completes commands, options, keys of configs with their values, configs and studies. "
        "bash: flstudy completion bash > ~/.local/share/bash-completion/completions/flstudy; "
        "zsh: flstudy completion zsh > a folder of $fpath/_flstudy; "
        "fish: flstudy completion fish > ~/.config/fish/completions/flstudy.fish",
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell to write for")
    shell = parser.parse_args(arguments).shell
    helps = {}
    for name in COMMANDS:
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
            if name not in KEYED:
                main([name, "--help"])
        helps[name] = output.getvalue()
    print(script(shell, {name: text.split(":")[0] for name, text in COMMANDS.items()}, helps), end="")
    return 0


def show_schema(command: str, arguments: list[str]) -> int:
    """Run ``flstudy schema``."""
    parser = Parser(command, "Print the JSON Schema of configs, for editors and scripts.")
    parser.add_argument("--path", action="store_true", help="print only where its file is")
    parser.add_argument("--write", action="store_true", help="make the file anew from the classes, after a change")
    options = parser.parse_args(arguments)
    from flstudy.config.schema import PATH, text

    if options.write:
        PATH.write_text(text(), encoding="utf-8")
    print(
        PATH if options.path or options.write else PATH.read_text(encoding="utf-8"),
        end="\n" if options.path or options.write else "",
    )
    if not (options.path or options.write):
        print(f"# {PATH}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
