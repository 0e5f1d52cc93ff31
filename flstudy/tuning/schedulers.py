"""Ray Tune's schedulers by the settings of ``study.scheduler``."""

import functools
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flstudy.config import Asha, ConfigError, HyperBand, MedianStopping, Pbt, RandomSearch
from flstudy.study.space import Space
from flstudy.tuning.trial import algorithm_of

if TYPE_CHECKING:
    from flstudy.config import Config
    from flstudy.tuning.past import Past


def make_scheduler(config: "Config", past: "Sequence[Past]" = ()) -> Any:
    """The scheduler of the config's study: one for each algorithm, or one for all (`Alike`). ``past``: trials that
    ended before, with which the new ones are compared as if they had run beside them."""
    from ray.tune.schedulers import FIFOScheduler

    from flstudy.tuning.alike import Alike

    if config.study.scheduler is None:
        return FIFOScheduler()

    def kind(proposal: dict[str, Any]) -> str | None:
        if proposal["stage"] == "confirm":
            return None
        return algorithm_of(config, proposal["overrides"]) if config.study.allocation == "equal" else "all"

    scheduler = Alike(lambda proposal: _scheduler(config, proposal), kind)
    for trial in () if isinstance(config.study.scheduler, Pbt) else past:  # its trials change while they train
        scheduler.recall(trial)
    return scheduler


def _population(config: "Config", settings: Pbt, proposal: dict[str, Any]) -> Any:
    from ray.tune.schedulers import FIFOScheduler

    from flstudy.tuning.alike import Population

    keys = [key for key in settings.keys if key in proposal["overrides"]]
    if not keys:  # an algorithm without them
        return FIFOScheduler()
    domains = Space.parse(config.study.search).domains
    rng = random.Random(config.study.sampler.seed)

    def keep(overrides: dict[str, Any]) -> dict[str, Any]:
        return {key: domains[key].nearest(value) if key in keys else value for key, value in overrides.items()}

    return Population(
        {key: functools.partial(domains[key].draw, rng) for key in keys},
        keep,
        time_attr="round",
        metric="objective",
        mode=config.study.objective.mode,
        perturbation_interval=settings.every,
        quantile_fraction=settings.quantile,
        resample_probability=settings.resample,
        synch=False,
    )


def _scheduler(config: "Config", proposal: dict[str, Any]) -> Any:
    """One for the trials of the proposal's kind."""
    from ray.tune.schedulers import ASHAScheduler, MedianStoppingRule

    settings, mode = config.study.scheduler, config.study.objective.mode
    if isinstance(settings, Pbt):
        return _population(config, settings, proposal)
    if isinstance(settings, Asha | HyperBand):
        return ASHAScheduler(
            time_attr="round",
            metric="objective",
            mode=mode,
            max_t=config.rounds,
            grace_period=settings.grace_rounds,
            reduction_factor=settings.reduction_factor,
            brackets=getattr(settings, "brackets", 1),
            stop_last_trials=False,  # a trial ends by itself, with a last report
        )
    assert isinstance(settings, MedianStopping)
    return MedianStoppingRule(
        time_attr="round",
        metric="objective",
        mode=mode,
        grace_period=settings.grace_rounds,
        min_samples_required=settings.startup_trials,
        min_time_slice=0,
        hard_stop=True,
    )


def rungs(config: "Config") -> list[float]:
    """Rounds at which the scheduler decides: at the first report at or after each."""
    settings, found = config.study.scheduler, []
    if settings is None:
        return []
    rung = float(settings.grace_rounds)  # type: ignore[attr-defined]
    while rung <= config.rounds:
        found.append(rung)
        factor = getattr(settings, "reduction_factor", None)
        rung = rung * factor if factor else rung + getattr(settings, "every", 1)
    return found


def check_scheduler(config: "Config") -> None:
    """Raise ConfigError for a setting outside its domain."""
    settings, where = config.study.scheduler, "study.scheduler"
    if settings is None:
        return
    if not isinstance(settings, Asha | HyperBand | MedianStopping | Pbt):
        raise ConfigError(
            f"{where} must be one of flstudy's, got {type(settings).__name__}: see flstudy list schedulers"
        )
    if isinstance(settings, Pbt):
        _check_population(config, settings)
    elif not 1 <= settings.grace_rounds <= config.rounds:
        raise ConfigError(
            f"{where}.grace_rounds must lie in [1, {config.rounds}], the config's rounds, got {settings.grace_rounds}: "
            f"lower it or train longer"
        )
    if isinstance(settings, Asha | HyperBand) and not settings.reduction_factor > 1:
        raise ConfigError(f"{where}.reduction_factor must be > 1, got {settings.reduction_factor:g}: 3 is usual")
    for name in ("brackets", "every", "startup_trials"):
        value = getattr(settings, name, 1)
        if value < 1:
            raise ConfigError(f"{where}.{name} must be >= 1, got {value}: {1 if name == 'brackets' else 5} is usual")


def _check_population(config: "Config", settings: Pbt) -> None:
    where, study = "study.scheduler", config.study
    if not settings.keys:
        raise ConfigError(f"{where}.keys must name at least one searched key, got []: algorithm.server_lr is usual")
    for key in settings.keys:
        written = study.search.get(key)
        if written is None or "choice" in written:
            what = "is not searched" if written is None else "is a choice"
            raise ConfigError(
                f"{where}.keys must be searched keys with a numeric range, got {key!r}, which {what}: give it a "
                f"distribution in study.search, such as {{loguniform: [1.0e-3, 1.0]}}"
            )
    if not 1 <= settings.every < config.rounds:
        raise ConfigError(f"{where}.every must lie in [1, {config.rounds - 1}], got {settings.every}: 10 is usual")
    if not 0 < settings.quantile <= 0.5:
        raise ConfigError(f"{where}.quantile must lie in (0, 0.5], got {settings.quantile:g}: 0.25 is usual")
    if not 0 <= settings.resample <= 1:
        raise ConfigError(f"{where}.resample must lie in [0, 1], got {settings.resample:g}: 0.25 is usual")
    if not isinstance(study.sampler, RandomSearch):
        raise ConfigError(
            f"study.sampler must be RandomSearch with Pbt, got {type(study.sampler).__name__}: the values of its "
            "trials change while they train, so no model can learn from how they began"
        )
    if study.trials is None:
        raise ConfigError("study.trials must be given with Pbt, got null: it is the size of the populations together")
