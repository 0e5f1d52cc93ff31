"""A trial for others that search: Ray's own Tuner with its own schedulers, and a plain study of Optuna's."""

import os
import signal
from typing import ClassVar

import optuna
import pytest
import yaml
from ray import tune

import flstudy
from flstudy.config import ConfigError, load
from flstudy.study import Space
from flstudy.tasks import Logistic
from flstudy.tune import check_space, overrides_of, param_space
from tests.small_study import TWO_METHODS, TWO_METHODS_SEARCH

CONFIG = TWO_METHODS | {"rounds": 6, "study": {"search": TWO_METHODS_SEARCH}}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A config file."""
    file = tmp_path_factory.mktemp("config") / "small.yaml"
    file.write_text(yaml.safe_dump(CONFIG))
    return file


@pytest.fixture(scope="module")
def config(path):
    """The same, parsed."""
    return load(path, command="tune")


# ---- Ray Tune ----------------------------------------------------------------------------------------------------


class Killer(tune.Callback):
    """Shoots every trial's worker once, when it has reported its second round; notes the rounds of all reports.

    That report has no checkpoint: of a worker that dies while Ray saves one, Ray keeps a decision to stop the trial,
    and carries it out in the restored experiment.
    """

    rounds: ClassVar[dict[str, list[int]]] = {}  # of the class: the restored experiment has a copy of the object
    shot: ClassVar[set[str]] = set()

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.rounds.setdefault(trial.trial_id, []).append(result["round"])
        if result["round"] == 2 and trial.trial_id not in self.shot:
            self.shot.add(trial.trial_id)
            os.kill(result["pid"], signal.SIGKILL)


@pytest.mark.slow
def test_rays_population_based_training_exchanges_states_and_is_restored(path, ray_cluster, tmp_path):
    space = {"algorithm.init_args.lr": tune.uniform(0.01, 0.5), "algorithm": {"server_lr": tune.loguniform(0.01, 0.3)}}
    train = flstudy.tune.trainable(path, space, checkpoint_every=2)
    population = tune.schedulers.PopulationBasedTraining(
        time_attr="round",
        perturbation_interval=3,
        hyperparam_mutations={"algorithm.init_args.lr": tune.uniform(0.01, 0.5)},
        quantile_fraction=0.5,
    )
    settings = {"scheduler": population, "reuse_actors": True, "num_samples": 2}
    tuner = tune.Tuner(
        train,
        param_space=space,
        tune_config=tune.TuneConfig(metric="valid/accuracy", mode="max", **settings),
        run_config=tune.RunConfig(name="mine", storage_path=str(tmp_path), verbose=0, callbacks=[Killer()]),
    )
    assert len(tuner.fit().errors) == 2

    again = tune.Tuner.restore(str(tmp_path / "mine"), trainable=train, resume_errored=True, param_space=space)
    results = again.fit()
    assert isinstance(results, tune.ResultGrid)
    assert [result.error for result in results] == [None, None]
    assert [result.metrics["round"] for result in results] == [6, 6]
    assert [rounds.count(1) for rounds in Killer.rounds.values()] == [1, 1]  # each went on from a checkpoint
    for result in results:
        assert {"valid/accuracy", "test/loss", "traffic/bits"} <= set(result.metrics)
    best = results.get_best_result("valid/accuracy", "max")
    assert best.metrics["valid/accuracy"] == best.metrics["objective"]
    assert isinstance(flstudy.tune.model_of(best), Logistic)


def test_keys_may_be_dotted_long_or_nested_and_those_of_other_classes_are_left_out(config):
    assert overrides_of(config, {"algorithm.init_args.lr": 0.1, "population": {"epochs": 2}}) == {
        "algorithm.lr": 0.1,
        "population.epochs": 2,
    }
    chosen = {"algorithm": "FedAvg", "algorithm.lr": 0.1, "algorithm.tau": 0.01}
    assert overrides_of(config, chosen) == {"algorithm": "FedAvg", "algorithm.lr": 0.1}
    assert overrides_of(config, {**chosen, "algorithm": "Flash"})["algorithm.tau"] == 0.01


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"algorithm.server_rl": tune.uniform(0, 1)}, "unknown key 'algorithm.server_rl': did you mean 'algorithm.s"),
        ({"algorithm.beta3": 0.5}, "param_space: unknown key"),
        ({"study.trials": 3}, "param_space: unknown key 'study.trials'"),
        ({"algorithm.lr": tune.uniform(-1, 1)}, r"param_space: algorithm.lr must lie in .*, got -1"),
        ({"population.participants": tune.randint(1, 9)}, r"participants must be ≤ clients \(4\), got 8"),
        ({"algorithm": tune.choice(["FedAvg", "FedYogy"])}, "did you mean 'FedYogi'"),
        ({"algorithm.lr": tune.grid_search([0.1, "much"])}, "algorithm.lr must be a number, got 'much'"),
    ],
)
def test_a_space_that_no_trial_could_have_is_refused_in_a_sentence(config, space, message):
    with pytest.raises(ConfigError, match=message):
        flstudy.tune.trainable(config, space)


def test_a_space_that_fits_is_taken(config):
    check_space(config, param_space(config))
    check_space(config, {"algorithm.lr": tune.sample_from(lambda spec: -1), "algorithm.server_lr": tune.randn()})


@pytest.mark.parametrize(
    ("bounds", "values"),
    [
        ([0.05, 0.95, 0.1], [0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95]),
        ([0.1, 0.5, 0.2], [0.1, 0.3, 0.5]),
        ([0.3, 1.0, 0.3], [0.3, 0.6, 0.9]),
    ],
)
def test_a_quantized_range_is_the_same_grid_for_rays_searchers(path, bounds, values):
    config = load(path, {"study.search": {"algorithm.lr": {"quniform": bounds}}}, command="tune")
    domain = param_space(config)["algorithm.lr"]
    drawn = {round(domain.sample(), 12) for _ in range(400)}
    assert drawn == set(values)
    assert set(Space.of_study(config.study).domains["algorithm.lr"].values(0)) == drawn


# ---- Optuna ------------------------------------------------------------------------------------------------------


class SecondAfterThree(optuna.pruners.BasePruner):
    """Stops the second trial after three rounds."""

    def prune(self, study, trial):
        return trial.number == 1 and trial.last_step >= 3


@pytest.mark.slow
def test_optunas_threads_find_what_one_finds(path, tmp_path):
    loss = {"objective": {"metric": "valid/loss", "mode": "min"}}  # the module says nothing of what is correct
    config = CONFIG | {"task": "tests.laws.test_side_by_side.Drops", "rounds": 4, "study": CONFIG["study"] | loss}
    (tmp_path / "drops.yaml").write_text(yaml.safe_dump(config))
    values_by_jobs = []
    for jobs in (1, 3):
        study = optuna.create_study(direction="minimize", pruner=optuna.pruners.NopPruner())
        for lr in (0.1, 0.3, 0.5):
            study.enqueue_trial({"algorithm": "FedAvg", "algorithm.lr": lr})
        study.optimize(flstudy.objective(tmp_path / "drops.yaml"), n_trials=3, n_jobs=jobs)
        values_by_jobs.append({trial.params["algorithm.lr"]: trial.value for trial in study.trials})
    assert values_by_jobs[0] == values_by_jobs[1]


@pytest.mark.slow
def test_optuna_optimises_and_prunes(path):
    study = optuna.create_study(
        direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0), pruner=SecondAfterThree()
    )
    study.enqueue_trial({"algorithm": "FedAvg", "algorithm.lr": 0.5})
    study.enqueue_trial({"algorithm": "FedYogi", "algorithm.lr": 0.01, "algorithm.tau": 0.001})
    objective = flstudy.objective(path)
    study.optimize(objective, n_trials=2)
    good, bad = study.trials
    assert good.state is optuna.trial.TrialState.COMPLETE
    assert good.params == {"algorithm": "FedAvg", "algorithm.lr": 0.5}  # which has no tau
    assert sorted(good.intermediate_values) == [1, 2, 3, 4, 5]
    assert good.user_attrs["valid/accuracy"] == good.value > 0.2
    assert (good.user_attrs["status"], good.user_attrs["rounds"]) == ("finished", 6)
    assert study.best_trial.number == good.number
    assert bad.state is optuna.trial.TrialState.PRUNED
    assert sorted(bad.intermediate_values) == [1, 2, 3]
    assert (bad.user_attrs["status"], bad.user_attrs["rounds"]) == ("pruned", 3)


def test_an_optuna_study_of_another_direction_is_refused(config):
    study = optuna.create_study(direction="minimize")
    with pytest.raises(ConfigError, match="directions must be \\['maximize'\\]"):
        study.optimize(flstudy.objective(config), n_trials=1)
