"""Views of MLflow's table of runs: columns and charts of what a study is about, best first.

A view is a tag of the experiment (MLflow calls it a shared view), which a link names. It cannot open the trials below a
study: MLflow 3.17 leaves that to whoever looks. So a study's own view is flat, ordered by its objective.
"""

import base64
import json
import zlib
from typing import TYPE_CHECKING, Any

from flstudy.metrics.registry import METRICS
from flstudy.study.best import decisive_metrics
from flstudy.study.objectives import objectives_of
from flstudy.tracking.content import REACHED, STUDY_ID
from flstudy.tracking.names import mlflow_name
from flstudy.tracking.pages import STUDIES, study_key

if TYPE_CHECKING:
    from flstudy.config import StudySection
    from flstudy.tracking.store import Store

TAG = "mlflow.sharedViewState."
_SEARCHED = 40  # columns of searched keys at most
_RUNS = 20  # whose curves a chart shows


def studies_view() -> dict[str, str]:
    """Return the tag with the view of all studies: the newest first, each with what its best trial reached."""
    columns = [*(f"metrics.`{name}`" for name in REACHED), "tags.`algorithm`", "tags.`best.algorithm`"]
    view = {"orderByKey": "attributes.start_time", "orderByAsc": False, "selectedColumns": columns}
    return {TAG + STUDIES: _packed(view)}


def study_view(study: "StudySection", study_id: str) -> dict[str, str]:
    """Return the tag with the view of a study: its trials and itself, the best first, with curves and the search."""
    objectives = objectives_of(study)
    names = [*decisive_metrics(objectives, study.constraints), *REACHED]
    metrics = [mlflow_name(name) for name in dict.fromkeys(names)]
    searched = [mlflow_name(key) for key in study.search if key != "algorithm"][:_SEARCHED]
    columns = [*(f"metrics.`{name}`" for name in metrics), *(f"params.`{key}`" for key in searched)]
    objective = mlflow_name(objectives[0].metric)
    by_round = [name for name in metrics if name not in METRICS or METRICS[name].measured != "run"]
    search = {"selectedParams": searched, "selectedMetrics": [objective], "showAllRuns": True}
    view: dict[str, Any] = {
        "searchFilter": f"tags.`{STUDY_ID}` = '{study_id}'",
        "orderByKey": f"metrics.`{objective}`",
        "orderByAsc": not objectives[0].higher,
        "selectedColumns": [*columns, "tags.`algorithm`"],
        "runsHiddenMode": f"FIRST_{_RUNS}_RUNS",  # MLflow knows 10 and 20
        "isAccordionReordered": True,  # else MLflow's own sections, one for each prefix of a metric, come first
        "compareRunSections": [_section("curves", "By round"), _section("search", "What was searched")],
        "compareRunCharts": [
            *(_chart("LINE", name, "curves", metricKey=name, selectedMetricKeys=[name]) for name in by_round),
            *([_chart("PARALLEL", "search", "search", **search)] if searched else []),
        ],
    }
    return {TAG + study_key(study_id): _packed(view)}


def _packed(view: dict[str, Any]) -> str:
    """Return a view as MLflow packs it, since a tag of an experiment has 5000 characters at most."""
    return f"deflate;{base64.b64encode(zlib.compress(json.dumps(view).encode(), 9)).decode()}"


def _section(key: str, name: str) -> dict[str, Any]:
    return {"uuid": key, "name": name, "display": True, "isReordered": False}


def _chart(kind: str, key: str, section: str, **more: Any) -> dict[str, Any]:
    chart = {"type": kind, "uuid": key, "metricSectionId": section, "deleted": False, "isGenerated": False}
    return {**chart, "runsCountToCompare": _RUNS, "xAxisKey": "step", "scaleType": "linear", **more}


def log_views(store: "Store", tags: dict[str, str]) -> None:
    """Set the tags of views where the experiment does not have them so."""
    there = store.client.get_experiment(store.experiment_id).tags
    for name, view in tags.items():
        if there.get(name) != view:
            store.client.set_experiment_tag(store.experiment_id, name, view)
