"""Results by device on disk: what was kept, what was not, what is damaged."""

import numpy as np
import pytest

from flstudy import Study
from flstudy.study.device_results import write_device_results

from ..tracking.test_models import study_folder, trained, trial  # noqa: F401

COLUMNS = {"seed": np.array([0, 0, 1]), "device": np.array([0, 1, 0]), "test/accuracy": np.array([0.5, 0.25, 1.0])}


@pytest.mark.slow
def test_a_study_shows_the_results_by_device_that_it_kept(trained, tmp_path):  # noqa: F811
    folder = study_folder(tmp_path / "digits", trained, trial(4, 0.1))
    write_device_results(COLUMNS, folder.by_device(3))
    study = Study.open(folder.path)
    for table in (study.devices(), study.devices(3)):
        assert {name: table[name].tolist() for name in table} == {name: list(line) for name, line in COLUMNS.items()}
    with pytest.raises(ValueError, match="kept no results by device of trial 4, only of each algorithm's best: 3"):
        study.devices(4)
    content = folder.by_device(3).read_bytes()
    folder.by_device(3).write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"3\.parquet is damaged"):
        study.devices()
