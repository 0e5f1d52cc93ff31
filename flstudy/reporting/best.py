"""The best trial of each algorithm as a config that runs as it stands."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from flstudy.reporting.load import StudyResults
from flstudy.reporting.ranking import Ranking


def write_best(results: StudyResults, ranking: Ranking) -> dict[str, Path]:
    """Writes <study>/best/<Algorithm>.yaml and returns the paths by algorithm; those of an earlier report go."""
    folder = results.folder / "best"
    folder.mkdir(exist_ok=True)
    paths = {}
    for row in ranking.rows:
        path = paths[row.trial.algorithm] = folder / f"{row.trial.algorithm}.yaml"
        heading = f"# The best {row.trial.algorithm} of study {results.name}: trial {row.trial.trial}.\n"
        config = with_values(results.config, row.trial.overrides)
        path.write_text(heading + yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    for stale in set(folder.glob("*.yaml")) - set(paths.values()):
        stale.unlink()
    return paths


def with_values(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A nested config with dotted keys set, without its study. Another class than the config's starts from that
    class's defaults, as on the command line."""
    nested: dict[str, Any] = {key: _copied(value) for key, value in config.items() if key not in ("study", "run")}
    for key, value in sorted(overrides.items(), key=lambda item: item[0].count(".")):  # a class before its parameters
        *parents, name = key.split(".")
        section = nested
        for parent in parents:
            if isinstance(section.get(parent), str):  # a class's short name alone
                section[parent] = {"class_path": section[parent]}
            section = section.setdefault(parent, {})
            if "class_path" in section:
                section = section.setdefault("init_args", {})
        given = section.get(name)
        if isinstance(given, dict) and "class_path" in given and isinstance(value, str):
            if given["class_path"].rpartition(".")[2] != value.rpartition(".")[2]:
                section[name] = {"class_path": value}
        else:
            section[name] = value
    return nested


def _copied(value: Any) -> Any:
    return {key: _copied(part) for key, part in value.items()} if isinstance(value, Mapping) else value
