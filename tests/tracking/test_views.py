"""The view of a study's runs, as MLflow's pages read it."""

import base64
import json
import zlib

import pytest

from flstudy.config import Objective, StudySection
from flstudy.tracking.store import open_store
from flstudy.tracking.views import log_views, studies_view, study_view

STUDY_ID = "0123456789abcdef" * 2
LONG = {f"task.backbone.blocks.init_args.a_rather_long_name_of_an_argument_{place}": {} for place in range(60)}


def read(tags):
    ((_, text),) = tags.items()
    kind, _, packed = text.partition(";")
    assert kind == "deflate"
    return json.loads(zlib.decompress(base64.b64decode(packed)))


def test_a_study_s_view_is_about_what_the_study_is_about():
    study = StudySection(
        trials=2,
        objective=Objective(metric="valid/loss", mode="min"),
        objectives=[Objective(metric="traffic/bits", mode="min")],
        constraints={"valid/dip": {"min": 0.2}},
        search={"algorithm": {}, "algorithm.lr": {}, "population.epochs": {}},
    )
    view = read(study_view(study, STUDY_ID))
    assert view["searchFilter"] == f"tags.`flstudy.study_id` = '{STUDY_ID}'"
    assert (view["orderByKey"], view["orderByAsc"]) == ("metrics.`valid/loss`", True)
    columns = ["metrics.`valid/loss`", "metrics.`traffic/bits`", "metrics.`valid/dip`", "params.`algorithm.lr`"]
    assert {*columns, "params.`population.epochs`", "tags.`algorithm`"} <= {*view["selectedColumns"]}
    assert view["runsHiddenMode"] == "FIRST_20_RUNS"
    drawn = {chart["uuid"]: chart for chart in view["compareRunCharts"]}
    assert drawn["valid/loss"]["type"] == "LINE"
    assert "valid/dip" not in drawn  # one value of a run
    assert drawn["search"]["selectedParams"] == ["algorithm.lr", "population.epochs"]


@pytest.mark.slow
def test_a_store_takes_the_view_of_a_large_search(tmp_path):
    store = open_store(f"sqlite:///{tmp_path}/mlflow.db")
    views = {**studies_view(), **study_view(StudySection(trials=2, search=LONG), STUDY_ID)}
    log_views(store, views)
    assert views.items() <= store.client.get_experiment(store.experiment_id).tags.items()
