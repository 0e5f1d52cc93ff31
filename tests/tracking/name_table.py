"""Table of the characters and lengths that loggers and stores take for names and values, and of what flstudy sends.

python -m tests.tracking.name_table
"""

import csv
import logging
import tempfile
import unicodedata
import warnings
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from flstudy.tracking.content import TEXT_LENGTH
from flstudy.tracking.names import mlflow_name, mlflow_text
from flstudy.tracking.store import open_store

LENGTHS = (1, 250, 251, 500, 501, 1000, 5000, 6000, 6001, 8000, 8001, 65_536, 1_000_000)


def characters() -> dict[str, str]:
    """Characters by what they are: all of ASCII, and the first three of each category of Unicode's beyond it."""
    every = {repr(chr(code)) if 32 < code < 127 else f"U+{code:04X}": chr(code) for code in range(128)}
    per_category: dict[str, list[str]] = {}
    for code in range(128, 0x110000):
        of_category = per_category.setdefault(unicodedata.category(chr(code)), [])
        if len(of_category) < 3:
            of_category.append(chr(code))
    beyond = (character for of_category in per_category.values() for character in of_category)
    return every | {f"U+{ord(character):04X} ({unicodedata.category(character)})": character for character in beyond}


def takers(folder: Path) -> dict[str, Callable[[str], object]]:
    """Functions by store and kind that write a text as a name, or as a value, and raise where it is not taken or does
    not come back."""
    store = open_store(f"sqlite:///{folder}/mlflow.db")

    def run() -> str:
        return str(store.client.create_run(store.experiment_id).info.run_id)

    def same(returned: object, text: object) -> None:
        if returned != text:
            raise ValueError(f"{returned!r} came back")

    def metric(text: str) -> None:
        run_id = run()
        store.client.log_metric(run_id, text, 1.0)
        same(list(store.client.get_run(run_id).data.metrics), [text])

    def parameter(text: str) -> None:
        run_id = run()
        store.client.log_param(run_id, text, "v")
        same(list(store.client.get_run(run_id).data.params), [text])

    def parameter_value(text: str) -> None:
        run_id = run()
        store.client.log_param(run_id, "p", text)
        same(store.client.get_run(run_id).data.params["p"], text)

    def tag_value(text: str) -> None:
        run_id = run()
        store.client.set_tag(run_id, "t", text)
        same(store.client.get_run(run_id).data.tags["t"], text)

    def of_logger(kind: type[CSVLogger] | type[TensorBoardLogger]) -> Callable[[str], None]:
        def write(text: str) -> None:
            with tempfile.TemporaryDirectory() as place:
                logger = kind(place)
                logger.log_metrics({text: 1.0}, step=1)
                logger.save()
                logger.finalize("success")
                if isinstance(logger, CSVLogger):
                    with (Path(logger.log_dir) / "metrics.csv").open(encoding="utf-8", newline="") as lines:
                        same(text in next(csv.reader(lines)), True)

        return write

    def parquet(text: str) -> None:
        path = folder / "one.parquet"
        pq.write_table(pa.table({text: [1.0]}), path)
        same(pq.read_table(path).column_names, [text])

    def parquet_value(text: str) -> None:
        path = folder / "one.parquet"
        pq.write_table(pa.table({"v": [text]}), path)
        same(pq.read_table(path)["v"].to_pylist(), [text])

    return {
        "MLflow metric": metric,
        "MLflow parameter": parameter,
        "MLflow parameter's value": parameter_value,
        "MLflow tag's value": tag_value,
        "flstudy's metric in MLflow": lambda text: metric(mlflow_name(text)),
        "flstudy's value in MLflow": lambda text: tag_value(mlflow_text(text)[:TEXT_LENGTH]),
        "CSVLogger": of_logger(CSVLogger),
        "TensorBoardLogger": of_logger(TensorBoardLogger),
        "Parquet column (flstudy's records)": parquet,
        "Parquet value": parquet_value,
    }


def refused(write: Callable[[str], object], texts: dict[str, str]) -> list[str]:
    """Names of the texts that are not taken."""
    names = []
    for name, text in texts.items():
        try:
            write(text)
        except Exception:  # each store raises its own
            names.append(name)
    return names


def main() -> None:
    """Print the table."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    inside = {name: f"a{character}b" for name, character in characters().items()}
    print(f"{len(inside)} characters, each between two letters; lengths: {', '.join(map(str, LENGTHS))}.\n")
    print("| | characters that are refused or changed | longest that is taken |\n|---|---|--:|")
    with tempfile.TemporaryDirectory() as folder:
        for name, write in takers(Path(folder)).items():
            lost = refused(write, inside)
            long = refused(write, {str(length): "x" * length for length in LENGTHS})
            longest = max(length for length in LENGTHS if str(length) not in long)
            print(f"| {name} | {len(lost)}: {', '.join(lost) or 'none'} | {longest:,} |", flush=True)


if __name__ == "__main__":
    main()
