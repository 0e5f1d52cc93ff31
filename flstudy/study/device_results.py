"""Results of a trained model on single devices in Parquet: a row for each replica and device of its last evaluation."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from flstudy.study.damage import DamageError, reason_of


def write_device_results(columns: Mapping[str, NDArray[Any]], path: Path) -> None:
    """Write columns [R], by name, to a file."""
    pq.write_table(pa.table(dict(columns)), path, compression="zstd", write_page_checksum=True)


def read_device_results(path: Path) -> pa.Table:
    """Return what `write_device_results` wrote; DamageError where it is damaged."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            return file.read()
    except (OSError, pa.ArrowException) as error:
        raise DamageError(f"{path} is damaged ({reason_of(error)})") from error


def device_results_damage(path: Path) -> str | None:
    """Return a sentence on a file that is damaged; None for another, or where there is none."""
    try:
        if path.is_file():
            read_device_results(path)
    except DamageError as error:
        return str(error)
    return None
