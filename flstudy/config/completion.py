"""Completion scripts for shells, made of the commands' help and the schema, so that pressing Tab starts no Python.

They complete commands and their options, the keys of a config with the classes and words that may follow, configs by
name and file, and the studies of the current folder.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flstudy.config.errors import spelled
from flstudy.config.help import KINDS
from flstudy.config.reading import SEARCH
from flstudy.config.schema import class_names, config_schema, types_of
from flstudy.config.shipped import config_folder, configs
from flstudy.config.values import dereferenced

SHELLS = ("bash", "zsh", "fish")
KEYED = ("run", "tune")
"""Commands whose options are the keys of a config; their help has more than a script needs."""
ALWAYS = ("--traceback", "--help")
TEMPLATE = Path(__file__).with_name("completion.bash")


def script(shell: str, commands: Mapping[str, str], helps: Mapping[str, str]) -> str:
    """Return the script for a shell.

    Args:
        shell: one of `SHELLS`.
        commands: every command with its sentence.
        helps: the text of ``--help``, by command, except for those of `KEYED`.
    """
    return _fish(commands, helps) if shell == "fish" else _bash(shell, commands, helps)


# ---- words to complete -----------------------------------------------------------------------------------------------


def options_in(text: str) -> list[str]:
    """Return the options that a command's help names."""
    matches = re.findall(r"^\s+(?:-\w, )?(--[a-z][\w-]*)|\[(--[a-z][\w-]*)", text, re.MULTILINE)
    return list(dict.fromkeys([*(listed or other for listed, other in matches), *ALWAYS]))


def option_keys() -> dict[str, list[str]]:
    """Return the keys that are options of ``flstudy run`` and ``flstudy tune``, each with the words that may follow it;
    no words where anything may."""
    options = dict(_keys_below(config_schema()["properties"], ""))
    searched = config_schema()["$defs"]["StudySection"]["properties"]["search"]["properties"]
    return options | {f"{SEARCH}.{key}": [] for key in searched}


def _keys_below(properties: Mapping[str, Any], at: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the dotted keys of some properties and of all below them, with the words that each may have as its
    value."""
    for name, node in properties.items():
        key = f"{at}.{name}" if at else name
        parts = [dereferenced(branch) for branch in (node, *dereferenced(node).get("anyOf", ()))]
        yield key, list(dict.fromkeys(word for part in parts for word in _words_of(part)))
        below: dict[str, list[str]] = {}
        for part in parts:
            classes = [config_schema()["$defs"][class_name] for class_name in part.get("x-classes", ())]
            for definition in [*classes, *([part] if "x-class" in part else [])]:
                for inner, words in _keys_below(definition["properties"], key):
                    below[inner] = list(dict.fromkeys([*below.get(inner, ()), *words]))
        yield from below.items()


def _words_of(node: Mapping[str, Any]) -> list[str]:
    if "x-root" in node:
        return class_names(node["x-root"])
    if "enum" in node:
        return [spelled(choice) for choice in node["enum"]]
    if any("const" in branch for branch in node.get("anyOf", ())):
        return [str(branch["const"]) for branch in node["anyOf"] if "const" in branch]
    return ["true", "false"] if "boolean" in types_of(node) else []


def argument_words(command: str, text: str) -> tuple[list[str], bool]:
    """Return the words that may follow a command beside options and files, and whether studies may follow it."""
    if command in KEYED or re.search(r"\b(CONFIG|config)\b", text.partition("\n\n")[0]):
        folder, parts = config_folder(), re.findall(rf"flstudy {command} ([a-z]+)", text)
        return [*parts, *(str(path.relative_to(folder).with_suffix("")) for path in configs())], False
    if command == "list":
        return [*KINDS, "configs"], False
    if command == "reproduce":
        return sorted(path.parent.name for path in config_folder().glob("*/reproduction.yaml")), False
    usage = re.sub(r"\[--[^]]*\]", "", text.partition("\n\n")[0])
    choices = re.search(r"\{([\w,-]+)\}", usage)
    return choices[1].split(",") if choices else [], bool(re.search(r"\b(STUDY|RUN)\b", usage))


# ---- bash, and zsh, which reads bash's -------------------------------------------------------------------------------


def _bash(shell: str, commands: Mapping[str, str], helps: Mapping[str, str]) -> str:
    """Return the completion script of bash or zsh, for commands with their help texts."""
    keys, also = option_keys(), " ".join(("--print_config", "--trust", *ALWAYS))
    values = [f"    --{key}) echo {' '.join(words)} ;;" for key, words in keys.items() if words]
    spoken = {command: options_in(text) for command, text in helps.items() if command not in KEYED}
    options = [f"    {command}) echo {' '.join(option_names)} ;;" for command, option_names in spoken.items()]
    options.append(f"    run) echo {also} {' '.join(f'--{key}' for key in keys)} ;;")
    options.append("    tune) echo --address --resume --import-from --json && _flstudy_options run ;;")
    words = []
    for command in commands:
        choices, studies = argument_words(command, helps.get(command, ""))
        echo = f"echo {' '.join(choices)}" if choices else ""
        says = " && ".join(filter(None, [echo, "_flstudy_studies" if studies else ""]))
        words += [f"    {command}) {says} ;;"] if says else []
    text = TEMPLATE.read_text(encoding="utf-8")
    for name, lines in (("VALUES", values), ("OPTIONS", options), ("WORDS", words), ("COMMANDS", [" ".join(commands)])):
        text = text.replace(f"@{name}@", "\n".join(lines))
    text = text.replace("@SHELL@", shell)
    return f"#compdef flstudy\nautoload -U +X bashcompinit && bashcompinit\n{text}" if shell == "zsh" else text


# ---- fish ------------------------------------------------------------------------------------------------------------


def _fish(commands: Mapping[str, str], helps: Mapping[str, str]) -> str:
    """Return the completion script of fish, for commands with their help texts."""
    lines = [
        "# fish completion of flstudy, made by `flstudy completion fish`: to be made anew after an upgrade.",
        "function __flstudy_studies",
        "    for state in studies/*/state.json; basename (dirname $state); end",
        "end",
    ]
    for command, sentence in commands.items():
        quoted = sentence.replace("'", r"\'")
        lines.append(f"complete -c flstudy -n __fish_use_subcommand -a {command} -d '{quoted}'")
        within = f"complete -c flstudy -n '__fish_seen_subcommand_from {command}'"
        choices, studies = argument_words(command, helps.get(command, ""))
        words = [*choices, *(["(__flstudy_studies)"] if studies else [])]
        lines += [f"{within} -a '{' '.join(words)}'"] if words else []
        lines += [f"{within} -l {option[2:]}" for option in options_in(helps.get(command, ""))]
    within = f"complete -c flstudy -n '__fish_seen_subcommand_from {' '.join(KEYED)}'"
    lines += [
        f"{within} -l {key} -x" + (f" -a '{' '.join(words)}'" if words else "") for key, words in option_keys().items()
    ]
    tune = "complete -c flstudy -n '__fish_seen_subcommand_from tune'"
    lines += [f"{tune} -l {option} -x -a '(__flstudy_studies)'" for option in ("resume", "import-from")]
    lines.append(f"{tune} -l address -x -a auto")
    return "\n".join(lines) + "\n"
