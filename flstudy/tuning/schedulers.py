"""Ray Tune's schedulers by the settings of ``study.scheduler``."""

from typing import TYPE_CHECKING, Any

from flstudy.config import Asha, ConfigError, MedianStopping

if TYPE_CHECKING:
    from flstudy.config import Config


def make_scheduler(config: "Config") -> Any:
    """The scheduler of the config's study."""
    from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, MedianStoppingRule

    settings, mode = config.study.scheduler, config.study.objective.mode
    if isinstance(settings, Asha):
        return ASHAScheduler(
            time_attr="round",
            metric="objective",
            mode=mode,
            max_t=config.rounds,
            grace_period=settings.grace_rounds,
            reduction_factor=settings.reduction_factor,
            brackets=settings.brackets,
            stop_last_trials=False,  # a trial ends by itself, with a last report
        )
    if isinstance(settings, MedianStopping):
        return MedianStoppingRule(
            time_attr="round",
            metric="objective",
            mode=mode,
            grace_period=settings.grace_rounds,
            min_samples_required=settings.startup_trials,
            min_time_slice=0,
            hard_stop=True,
        )
    return FIFOScheduler()


def rungs(config: "Config") -> list[float]:
    """Rounds at which the scheduler decides: at the first report at or after each."""
    settings, found = config.study.scheduler, []
    if settings is None:
        return []
    rung = float(settings.grace_rounds)
    while rung <= config.rounds:
        found.append(rung)
        rung = rung * settings.reduction_factor if isinstance(settings, Asha) else rung + getattr(settings, "every", 1)
    return found


def check_scheduler(config: "Config") -> None:
    """Raise ConfigError for a setting outside its domain."""
    settings, where = config.study.scheduler, "study.scheduler"
    if settings is None:
        return
    if not isinstance(settings, Asha | MedianStopping):
        raise ConfigError(
            f"{where} must be one of flstudy's, got {type(settings).__name__}: see flstudy list schedulers"
        )
    if not 1 <= settings.grace_rounds <= config.rounds:
        raise ConfigError(
            f"{where}.grace_rounds must lie in [1, {config.rounds}], the config's rounds, got {settings.grace_rounds}: "
            f"lower it or train longer"
        )
    if isinstance(settings, Asha) and not settings.reduction_factor > 1:
        raise ConfigError(f"{where}.reduction_factor must be > 1, got {settings.reduction_factor:g}: 3 is usual")
    for name in ("brackets", "every", "startup_trials"):
        value = getattr(settings, name, 1)
        if value < 1:
            raise ConfigError(f"{where}.{name} must be >= 1, got {value}: {1 if name == 'brackets' else 5} is usual")
