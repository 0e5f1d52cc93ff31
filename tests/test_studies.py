"""Studies as objects: what a script or a notebook does with one."""

import contextlib
import io
import sys
import textwrap
import types

import nbformat
import optuna
import pandas as pd
import pytest
import torch
import yaml
from mlflow import MlflowClient
from nbclient import NotebookClient
from rich.console import Console

import flstudy
from flstudy import Population, Study
from flstudy.algorithms import FedAvg
from flstudy.config import ConfigError
from flstudy.config.reading import dotted
from flstudy.population import Digits, Dirichlet, TableFile
from flstudy.reporting.notebook import NotebookDisplay, in_notebook
from flstudy.study import Trial
from flstudy.tasks import Logistic, Task
from flstudy.tuning import RandomSearch
from flstudy.tuning.progress import StudyProgress
from tests.docs.blocks import files_of
from tests.small_study import TWO_METHODS, TWO_METHODS_SEARCH
from tests.tuning.stand_in import StandIn

CONFIG = TWO_METHODS | {"rounds": 4, "evaluate_every": 2, "study": {"trials": 2, "search": TWO_METHODS_SEARCH}}
SEARCH = {"algorithm.lr": {"loguniform": [1e-2, 1.0]}}

SCRIPT = files_of("python.md")["script.py"]


@pytest.fixture(scope="module")
def ran(ray_cluster, tmp_path_factory):
    """The script, run in a folder with its config."""
    folder = tmp_path_factory.mktemp("script")
    (folder / "study.yaml").write_text(yaml.safe_dump({**CONFIG, "store": f"sqlite:///{folder}/mlflow.db"}))
    names, output = {}, io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(output):
        exec(compile(SCRIPT, "script.py", "exec"), names)
        names["study"] = Study.open("study")
        names["study"]._folder.path = names["study"].folder.absolute()
    return names["study"], names["model"], output.getvalue()


def test_a_script_of_twelve_lines_runs_a_study_shows_its_curve_and_loads_its_model(ran):
    study, model, output = ran
    assert len([line for line in SCRIPT.splitlines() if line.strip()]) <= 12
    assert study.best.trial.algorithm in output
    assert "torch.Size([1, 10])" in output
    assert "report.html" in output
    assert isinstance(model, Logistic)
    assert not model.training


def test_trials_and_curves_are_tables(ran):
    study, _, _ = ran
    trials, curves = study.trials, study.curves("test/accuracy")
    assert trials.index.tolist() == [0, 1]
    assert trials["algorithm"].tolist() == ["FedAvg", "FedYogi"]
    assert trials["status"].tolist() == ["finished"] * 2
    assert trials["objective"].tolist() == trials["valid/accuracy"].tolist()
    assert pd.isna(trials.loc[0, "algorithm.tau"])  # which FedAvg has not
    assert curves.index.tolist() == [2, 4]
    assert curves.columns.tolist() == [(0, 0), (0, 44), (1, 0), (1, 44)]
    last = curves.loc[4].groupby("trial").mean()
    assert last.to_dict() == pytest.approx(trials["test/accuracy"].to_dict())
    assert study.best.trial.number == trials["objective"].idxmax()
    with pytest.raises(ValueError, match=r"no curve of 'valid/acuracy'.*did you mean 'valid/accuracy'"):
        study.curves("valid/acuracy")


def test_optuna_gets_the_trials_with_their_distributions(ran):
    study, _, _ = ran
    history = study.to_optuna()
    assert isinstance(history, optuna.Study)
    assert history.best_trial.user_attrs["trial"] == study.best.trial.number
    assert history.best_value == study.best.value
    first = history.trials[0]
    assert first.params == {"algorithm": "FedAvg", "algorithm.lr": 0.1}  # the value given, which holds for every method
    assert first.distributions["algorithm.lr"] == optuna.distributions.FloatDistribution(1e-2, 1.0, log=True)
    assert sorted(first.intermediate_values) == [2, 4]
    history.ask()  # it goes on as any study of Optuna's


@pytest.mark.slow
def test_a_study_goes_on_and_is_opened_by_its_folder(ran):
    study, _, _ = ran
    opened = Study.open(study.folder)
    with pytest.raises(ConfigError, match="rounds cannot change"):
        opened.resume(rounds=9)
    with pytest.raises(ConfigError, match="has been run"):
        opened.run()
    assert "finished, 2 finished" in repr(opened)
    page = opened._repr_html_()
    assert "FedYogi" in page
    assert "accuracy, mean over devices (%)" in page  # the axis of the curves
    opened.resume(quiet=True, study={"trials": 3})
    assert len(opened.trials) == 3
    assert "3 finished" in repr(study)


METERS = """
import lightning as L, torch
from torch.nn import functional as F

class Regression(L.LightningModule):
    def __init__(self, shape):
        super().__init__()
        self.line = torch.nn.Linear(shape[0], 1)

    def training_step(self, batch, batch_idx):
        loss = F.mse_loss(self.line(batch[0]).squeeze(-1), batch[1])
        self.log("fit_mse", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("mse", F.mse_loss(self.line(batch[0]).squeeze(-1), batch[1]))

    test_step = validation_step
"""


@pytest.mark.slow
def test_a_study_by_a_metric_of_the_modules_own_knows_no_accuracy(ray_cluster, tmp_path, monkeypatch):
    x = torch.randn(80, 2, generator=torch.Generator().manual_seed(1))
    table = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": x[:, 0] - x[:, 1] / 2, "client": torch.arange(80) % 4})
    table.to_csv(tmp_path / "meters.csv", index=False)
    (tmp_path / "lab_of_meters.py").write_text(METERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    table = TableFile(file="meters.csv", root=str(tmp_path), label="y")
    population = Population(table, clients=4, participants=4, batch_size=8)
    study = Study(
        "./lab_of_meters.py:Regression", population, "FedAvg", {"algorithm.lr": {"loguniform": [0.01, 0.3]}},
        name="meters", rounds=4, evaluate_every=2, compile=False, store=f"sqlite:///{tmp_path}/mlflow.db",
        study={"trials": 2, "objective": {"metric": "valid/mse", "mode": "min"}},
    ).run(quiet=True)  # fmt: skip
    assert [trial.reason for trial in study.results.trials] == ["", ""]
    best = study.best
    assert best.value == study.trials["valid/mse"].min() == study.trials["objective"].min()
    assert list(study.curves().index) == [2, 4]
    assert list(study.curves("fit_mse").index) == [1, 2, 3, 4]
    page = study.report().read_text()
    assert "accuracy" not in page.lower()
    assert "test/mse" in page
    final = f"{best.trial.metrics['test/mse']:.3g}"
    assert f"{final} test/mse at the end" in page
    assert "test/mse" in study._repr_html_()
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    (experiment,) = [candidate for candidate in client.search_experiments() if candidate.name != "Default"]
    logged = {name for run in client.search_runs([experiment.experiment_id]) for name in run.data.metrics}
    assert {"valid/mse", "valid/mse_spread", "test/mse", "fit_mse", "valid/loss"} <= logged
    assert not any("accuracy" in name for name in logged)
    sys.modules.pop("lab_of_meters", None)


def test_a_study_is_made_of_objects():
    population = Population(Digits(), clients=4, participants=2, partition=Dirichlet(alpha=0.5))
    study = Study(
        Logistic([1, 8, 8], 10, l2=0.1), population, FedAvg(lr=0.2), SEARCH, name="mine", rounds=3,
        study={"trials": 5, "sampler": RandomSearch(seed=3)}, **{"study.concurrent": 1},
    )  # fmt: skip
    flat, section = study.config.flat(), study.config.study
    assert (flat["task"], flat["task.l2"], flat["algorithm.lr"], flat["rounds"]) == ("Logistic", 0.1, 0.2, 3)
    assert flat["population.partition.alpha"] == 0.5
    assert (section.trials, section.concurrent, section.sampler) == (5, 1, RandomSearch(seed=3))
    assert section.search == SEARCH
    assert study.name == "mine"
    assert repr(study) == "<Study mine: not run yet>"
    assert "not run yet" in study._repr_html_()
    with pytest.raises(ConfigError, match=r"has not been run: call run\(\)"):
        study.trials  # noqa: B018


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"population": (torch.zeros(30, 2), torch.zeros(30).long())}, "population must not hold its examples"),
        ({"task": type("Net", (Task,), {"__module__": "__main__"})()}, "task must be of a class that workers can"),
        ({"settings": {"study": {"trails": 3}}}, "did you mean 'study.trials'"),
        ({"search": {"algorithm.lr": {"uniform": [-1.0, 1.0]}}}, "study.search.algorithm.lr must hold only values"),
        ({"search": {}}, "has nothing to search"),
        ({"algorithm": object()}, "algorithm must be something that a config can name"),
    ],
)
def test_what_no_worker_could_make_is_refused_in_a_sentence(changed, message):
    parts = {"task": "Logistic", "population": {"dataset": "Digits"}, "algorithm": "FedAvg", "search": SEARCH}
    settings = changed.pop("settings", {})
    with pytest.raises(ConfigError, match=message):
        Study(**parts | changed, **settings).run()


def test_nested_and_dotted_keys_say_the_same():
    assert dotted({"study": {"trials": 8, "budget": {"rounds": 5}}, "rounds": 3}) == dotted(
        {"study.trials": 8, "study.budget.rounds": 5, "rounds": 3}
    )
    algorithm = {"class_path": "FedYogi", "init_args": {"lr": 0.1}}
    assert dotted({"algorithm": algorithm, "study": {"search": {"algorithm.lr": {}}}}) == {
        "algorithm": algorithm,
        "study.search": {"algorithm.lr": {}},
    }
    assert dotted({"algorithm.init_args.lr": 0.1, "task.class_path": "Mlp"}) == {"algorithm.lr": 0.1, "task": "Mlp"}


def test_a_notebook_draws_in_one_place(monkeypatch):
    drawn = []

    class Handle:
        def update(self, page):
            drawn.append(page)

    display = types.SimpleNamespace(HTML=str, display=lambda page, display_id: (drawn.append(page), Handle())[1])
    shell = types.SimpleNamespace(kernel=object())
    assert not in_notebook()
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    assert in_notebook()
    place = NotebookDisplay()
    place.show("first <b>")
    place.show("too soon")
    place.show("last", now=True)
    assert [("first &lt;b&gt;" in page, "last" in page) for page in drawn] == [(True, False), (False, True)]
    output = io.StringIO()
    with StudyProgress(Console(file=output), name="small", config=StandIn()) as progress:
        progress.update(Trial(number=0, algorithm="FedYogi"))
    assert "FedYogi" in drawn[-1]
    assert output.getvalue() == ""  # the table stands for the lines


@pytest.mark.slow
def test_in_a_notebook_the_live_table_stays_and_an_error_is_one_sentence(tmp_path):
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({**CONFIG, "store": f"sqlite:///{tmp_path}/mlflow.db"}))
    cells = ['import flstudy\nflstudy.Study.from_yaml("study.yaml").run()', 'flstudy.Study.open("nothing")']
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, kernel_name="python3", timeout=600, resources=where, allow_errors=True).execute()
    runs, fails = (cell.outputs for cell in notebook.cells)
    pages = ["".join(output.data.get("text/html", "")) for output in runs if "data" in output]
    assert any("2/2 trials, 100% of rounds" in page for page in pages)  # Ray Tune's own reporter would clear it
    assert "FedYogi" in pages[-1]
    assert [line for output in fails for line in output.traceback] == [
        "UserError: no study 'nothing' in studies: it holds study"
    ]


def test_the_front_door_names_studies():
    assert {"Study", "objective", "tune"} <= set(flstudy.__all__)
    assert textwrap.dedent(flstudy.Study.__doc__).startswith("A hyper-parameter study")
