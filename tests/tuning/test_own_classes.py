"""A scheduler of Ray's kind and a sampler of Optuna's kind, in a file beside the YAML as docs/own.md has them, drive a
study."""

import io

import pytest
import yaml
from rich.console import Console

from flstudy.config.config import load
from flstudy.tuning import OptunaSampler, RayScheduler
from flstudy.tuning.driver import carry_out

from ..docs.blocks import files_of


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_classes_beside_the_config_drive_a_study(tmp_path):
    files = files_of("own.md")
    (tmp_path / "mysearch.py").write_text(files["mysearch.py"])
    content = yaml.safe_load(files["search.yaml"]) | {"store": f"sqlite:///{tmp_path}/mlflow.db"}
    content["study"]["folder"] = str(tmp_path / "studies")
    path = tmp_path / "search.yaml"
    path.write_text(yaml.safe_dump(content))
    config = load(path, command="tune")
    assert isinstance(config.study.sampler, OptunaSampler)
    assert isinstance(config.study.scheduler, RayScheduler)
    result = carry_out(config, Console(file=io.StringIO()), report=False)
    # The first trial is the algorithm's own, 0.1; the sampler counts it.
    assert [trial.overrides["algorithm.lr"] for trial in result.trials[1:]] == pytest.approx([0.3, 0.5, 0.7])
    assert [(trial.status, trial.rounds) for trial in result.trials] == [
        *[("finished", 4), ("pruned", 2)],
        *[("finished", 4), ("pruned", 2)],
    ]
    again = load(result.folder.config, options=["--study.trials", "5"], command="tune")
    more = carry_out(again, Console(file=io.StringIO()), resume=result.folder.path, report=False)
    assert [trial.status for trial in more.trials][4:] == ["finished"]
