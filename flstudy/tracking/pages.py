"""Addresses of MLflow's pages on its server, as links that begin with ``#``."""

FRAME = "workflowType=machine_learning"
"""Without it a browser that sees MLflow for the first time shows the pages of language models, whatever the experiment
says of itself: https://github.com/mlflow/mlflow/issues/24498 (MLflow 3.14 to 3.17)."""
STUDIES = "studies"
"""Key of the view of all studies."""


def study_key(study_id: str) -> str:
    """Return the key of a study's view."""
    return f"study-{study_id[:12]}"


def table_page(experiment: str, key: str = STUDIES) -> str:
    """Return the page with the table of a view's runs."""
    return f"#/experiments/{experiment}/runs?{FRAME}&viewStateShareKey={key}"


def charts_page(experiment: str, key: str) -> str:
    """Return the page with the charts of a view's runs."""
    return f"{table_page(experiment, key)}&compareRunsMode=CHART"


def run_page(experiment: str, run: str, part: str = "") -> str:
    """Return the page of a run, or of a ``part`` of it such as ``artifacts/report``."""
    return f"#/experiments/{experiment}/runs/{run}{f'/{part}' if part else ''}?{FRAME}"


def absolute(address: str, page: str) -> str:
    """Return the whole address of a page on a server."""
    return f"{address.rstrip('/')}/{page}"
