"""Registry of every metric that a run can log: its unit, which way is better, what it says, when and under which
condition it is measured. Imports neither torch nor numpy, so that a config's first look and a report need neither.

A class of a user's own names its further metrics in its ``measures`` and may describe them with `register`.
"""

import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from flstudy.user_error import UserError

FRACTION = "fraction"
SERVERS = "global_"
"""Beginning of the last part of a metric's name, where it is of the server's models whatever devices use."""
MANY = 8  # names in a sentence
Better = Literal["max", "min"] | None

NEEDS: Mapping[str, str] = {
    "correctness": "example_correct, predict_step or a loss that is forward's cross-entropy",
    "losses": "a task with example_losses, or with a training_step that returns its loss",
    "rule": "devices that step by the method's own rule (local_optimizer: rule)",
    "drift": "a drift within the rounds (population.drift)",
    "sessions": "a second session within the rounds (population.availability)",
    "wireless": "a radio cell (wireless)",
    "regret": "the rounds' optima to be solved for (regret)",
    "clip": "a bound on uploads (privacy.clip)",
    "noise": "noise on uploads (privacy.noise or privacy.solve)",
    "panel": "a panel of devices that evaluations ask (evaluation)",
    "detector": "a controller that detects drifts, such as MasterFL",
    "own": "an algorithm, a controller or a measure that tells it",
}
"""Conditions of metrics, each as what a run must have."""


@dataclass(frozen=True)
class Metric:
    """Metric: a name under which runs log a value per replica."""

    name: str
    title: str
    """Heading of a column or an axis, without its unit."""
    unit: str
    """``fraction`` (shown in percent), ``bytes``, ``bits``, ``s``, ``J``, ``rounds``, ``epochs``; empty: a number."""
    better: Better
    """Direction that is better; None: neither."""
    sentence: str
    measured: Literal["round", "evaluation", "run"] = "round"
    """In every round, in rounds that are evaluated, or once for a whole run."""
    needs: tuple[str, ...] = ()
    """Conditions (`NEEDS`), all of which must hold."""

    @property
    def is_fraction(self) -> bool:
        """Return whether it is shown in percent."""
        return self.unit == FRACTION

    @property
    def worst(self) -> float:
        """Value for a trial that has none: the end of its range, ± infinity where it has no end."""
        if self.better == "max":
            return 0.0 if self.is_fraction else -math.inf
        return 1.0 if self.is_fraction else math.inf


Row = tuple[str, str, str, Better, str]
"""Name, title, unit, better and sentence."""


def _rows(measured: Literal["round", "evaluation", "run"], needs: tuple[str, ...], *rows: Row) -> Iterator[Metric]:
    return (Metric(*row, measured, needs) for row in rows)


ROW = "of recovery.window evaluations in a row"


def _of_split(split: str, where: str, label: str) -> Iterator[Metric]:
    yield from _of_models(f"{split}/", f"{where}, of the model each uses", label)
    of = f"{where}, of the server's model or the one of them that a device chooses"
    yield from _of_models(f"{split}/{SERVERS}", of, f", server's model{label}")


def _of_models(prefix: str, where: str, label: str) -> Iterator[Metric]:
    name, right = f"{prefix}accuracy", ("correctness",)
    loss = f"Mean over devices of the mean loss on {where}."
    yield Metric(f"{prefix}loss", f"Loss{label}", "", "min", loss, "evaluation", ("losses",))
    yield from _rows(
        "evaluation",
        right,
        (name, f"Accuracy{label}", FRACTION, "max", f"Mean over devices on {where}."),
        (f"{name}_spread", f"Spread over devices{label}", FRACTION, "min", f"Deviation of {name} over devices."),
    )
    for metric, title, unit, needs in (
        (f"{prefix}loss", "Loss", "", ("losses",)),
        (name, "Accuracy", FRACTION, right),
    ):
        row: Row = f"{metric}_se", f"{title}'s error{label}", unit, "min", f"Standard error of {metric} over a panel."
        yield Metric(*row, "evaluation", (*needs, "panel"))
    yield from _rows(
        "run",
        right,
        (f"{prefix}mean_accuracy", f"Mean accuracy{label}", FRACTION, "max", f"Mean of {name} over all evaluations."),
    )
    yield from _rows(
        "run",
        (*right, "drift"),
        (f"{prefix}dip", f"Lowest accuracy{label}", FRACTION, "max", f"Least {name} from the first drift to the end."),
        (f"{prefix}dip_window", f"Lowest windowed accuracy{label}", FRACTION, "max", f"{prefix}dip of means {ROW}."),
        (
            f"{prefix}recovery",
            f"Rounds to recovery{label}",
            "rounds",
            "min",
            f"Last drift until {name} is back or steady.",
        ),
    )
    worst = f"Mean {name} of the share of the devices that have the least."
    yield Metric(f"{prefix}worst_accuracy", f"Worst devices{label}", FRACTION, "max", worst, "evaluation", ("own",))
    first = f"Mean {name} in the ten rounds with which a session begins, over all sessions but the first."
    name = f"{prefix}initial_accuracy"
    yield Metric(name, f"Sessions' first ten rounds{label}", FRACTION, "max", first, "run", (*right, "sessions"))


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        *_of_split("test", "devices' test data", ""),
        *_of_split("valid", "devices' validation data", " (validation)"),
        *_rows(
            "evaluation",
            ("correctness",),
            ("test/personal_accuracy", "Personalised accuracy", FRACTION, "max", "Accuracy of participants' models."),
            ("test/personal_accuracy_spread", "Its spread", FRACTION, "min", "Deviation over participants."),
        ),
        *_rows("evaluation", (), ("time/evaluation_s", "Evaluation", "s", "min", "Time of the round's evaluation.")),
        *_rows(
            "round",
            (),
            ("train/loss", "Training loss", "", "min", "Mean loss of the participants' local steps."),
            ("fit/steps", "Local steps", "", None, "Steps of a job, mean over jobs."),
            ("fit/epochs", "Local epochs", "", None, "Epochs of a job, mean over jobs."),
            ("fit/total_epochs", "Local epochs of all jobs", "", None, "Epochs of the round's jobs together."),
            ("fit/lane_utilization", "Lane utilization", FRACTION, "max", "Executed lane steps but padding, a share."),
            ("traffic/down_bytes", "Downlink", "bytes", "min", "Received by the round's devices, surveys included."),
            ("traffic/up_bytes", "Uplink", "bytes", "min", "Sent by the round's devices."),
            ("time/fit_s", "Local fits", "s", "min", "Time of the round's local fits."),
            ("time/server_s", "Server", "s", "min", "Time of the server's step."),
            ("time/round_s", "Round", "s", "min", "Time of the round, its evaluation not included."),
        ),
        *_rows(
            "round",
            ("rule",),
            ("train/lr", "Local learning rate", "", None, "η_ℓ of the round, as the schedule has it."),
        ),
        *_rows(
            "run",
            (),
            ("traffic/bits", "Traffic", "bits", "min", "Down and up, all devices, whole run."),
            ("time/total_s", "All rounds", "s", "min", "Time of all rounds, evaluations not included."),
        ),
        *_rows(
            "run",
            ("drift",),
            ("fit/drift_epochs", "Local epochs after the drift", "epochs", "min", "Epochs of a job, mean over rounds."),
        ),
        *_rows(
            "round",
            ("wireless",),
            ("wireless/latency_s", "Latency", "s", "min", "Time of the slowest device in the radio cell."),
            ("wireless/energy_j", "Energy", "J", "min", "Energy of all devices in the radio cell."),
            ("wireless/initialization_s", "Latency of probe rounds", "s", "min", "Charged to the round or not."),
            ("wireless/initialization_j", "Energy of probe rounds", "J", "min", "Charged to the round or not."),
        ),
        *_rows(
            "run",
            ("wireless",),
            ("wireless/total_s", "Latency of all rounds", "s", "min", "Sum of wireless/latency_s."),
            ("energy/joules", "Energy of all rounds", "J", "min", "Sum of wireless/energy_j."),
        ),
        *_rows(
            "round",
            ("regret",),
            ("regret/round", "Regret of the round", "", "min", "F_t(x_t) - min F_t."),
            ("regret/dynamic", "Dynamic regret", "", "min", "Sum of regret/round since round 1."),
            ("world/variation", "Variation", "", None, "Lower bound of Δ_t: most that a loss changes between rounds."),
            ("world/drift", "Cumulative drift", "", None, "Lower bound of Δ: sum of world/variation since round 1."),
        ),
        *_rows(
            "round",
            ("clip",),
            ("privacy/clip", "Clipping bound", "", None, "Largest norm that an upload keeps."),
            ("privacy/clipped_share", "Clipped", FRACTION, None, "Share of uploads that the bound shortened."),
        ),
        *_rows(
            "round",
            ("noise",),
            ("privacy/noise", "Noise multiplier", "", None, "σ, relative to the clipping bound."),
            ("privacy/epsilon", "ε", "", "min", "Spent so far, at the run's δ."),
        ),
        *_rows(
            "round",
            ("own",),
            ("server/update_norm", "Norm of the update", "", None, "Length of the server's step."),
            ("server/effective_lr", "Effective learning rate", "", None, "η_g, its mean by divisor, or ‖step‖/‖Δ‖."),
            ("server/gradient_disparity", "Gradient disparity", "", None, "‖Δ² - v‖ (FLASH, Fig. 2)."),
            ("server/beta3", "Mean β₃", "", None, "FLASH's β₃, mean over coordinates."),
            ("server/reversed", "Reversed", FRACTION, None, "Share of coordinates that step against FLASH's momentum."),
            ("server/clamped", "Clamped", FRACTION, None, "Share of coordinates whose divisor FLASH's clamp holds."),
            ("server/boost", "Boost", "", None, "How many times as long FLASH's step is as without the drift term d."),
            ("server/models", "Models", "", None, "Global models in use."),
            ("server/lr_scale", "Scale of η_ℓ", "", None, "Factor by which the server multiplies the devices' η_ℓ."),
            ("controller/block_order", "Order of the block", "", None, "m: Master-FL's block lasts 2^m rounds."),
            ("controller/instance_order", "Order of the instance", "", None, "k of Master-FL's instance that runs."),
            ("controller/loss", "F", "", "min", "The round's loss in [0, 1], as Master-FL tests it."),
            ("controller/reachable", "F̃", "", None, "Loss that Master-FL's running instance says can be reached."),
            ("controller/best", "U", "", None, "Largest F̃ since Master-FL's block began."),
        ),
        *_rows(
            "round",
            ("detector",),
            ("detector/detected", "Detection", "", None, "0: no drift was detected; other numbers say how."),
            ("detector/restarted", "Restart", "", None, "In the round: 0 none, 1 by schedule, 2 after a detection."),
        ),
        *_rows(
            "run",
            ("detector",),
            ("detector/detections", "Detections", "", None, "Detections of a drift and of none."),
            ("detector/false_alarms", "False alarms", "", "min", "Detections of no drift."),
            ("detector/restarts_detection", "Restarts after detections", "", None, "In the whole run."),
            ("detector/restarts_block", "Restarts after whole blocks", "", None, "By schedule, in the whole run."),
        ),
        *_rows(
            "run",
            ("detector", "drift"),
            ("detector/delay", "Rounds to detection", "rounds", "min", "Mean over detected drifts; NaN without any."),
        ),
    )
}
"""By name, in the order in which reports and docs list them."""


def register(metric: Metric) -> Metric:
    """Describe a metric of a class of a user's own; the class names it in its ``measures``.

    Raises:
        UserError: if the name is taken by another one.
    """
    if METRICS.setdefault(metric.name, metric) != metric:
        raise UserError(f"metric {metric.name!r} is already described: give yours another name")
    return metric


def find(name: str) -> Metric:
    """Return the metric of that name.

    Raises:
        UserError: for an unknown name, with the nearest known one.
    """
    if name not in METRICS:
        raise UserError(f"unknown metric {name!r}: {_hint(name, METRICS)}")
    return METRICS[name]


def is_fraction(name: str) -> bool:
    """Return whether a metric, known or not, is shown in percent."""
    return name in METRICS and METRICS[name].is_fraction


def title(name: str) -> str:
    """Return the heading of a metric; its name where nobody has described it."""
    return METRICS[name].title if name in METRICS else name


def measured_by(has: Collection[str], extra: Collection[str] = ()) -> list[str]:
    """Return the names of the metrics that a run measures.

    Args:
        has: the conditions (`NEEDS`) that it meets.
        extra: what its algorithm, its controllers and its measure name as ``measures``.
    """
    met, named = {*has} - {"own"}, dict.fromkeys(extra)
    described = [name for name, metric in METRICS.items() if name in named or met.issuperset(metric.needs)]
    return [*described, *(name for name in named if name not in METRICS)]


def refuse_unmeasured(name: str, measured: Collection[str], where: str = "metric") -> None:
    """Raise UserError, before anything is trained, for a metric that a run will not measure.

    Args:
        name: of the metric.
        measured: what the run measures (`measured_by`).
        where: the key that names it, such as ``study.objective.metric``.
    """
    if name in measured:
        return
    needs = [NEEDS[need] for need in METRICS[name].needs] if name in METRICS else []
    why = f", which needs {' and '.join(needs)}" if needs else ""
    raise UserError(f"{where} must be a metric that this run measures, got {name!r}{why}: {_hint(name, measured)}")


def _hint(name: str, names: Collection[str]) -> str:
    near = get_close_matches(name, names, 1)
    return f"did you mean {near[0]!r}?" if near else f"name one of {', '.join(sorted(_shown(names))) or 'none'}"


def _shown(names: Collection[str]) -> Collection[str]:
    """Return the names, or of many those of evaluations' and users' own metrics, which judge models, without deviations
    and twins of the server's models."""
    about = [name for name in names if name not in METRICS or METRICS[name].measured == "evaluation"]
    twins = {of_server(name) for name in names}
    about = [name for name in about if name not in twins]
    about = [name for name in about if not name.endswith(("_spread", "_s", "_se"))]
    return about if about and len(names) > MANY else names


Deployed = Literal["own", "chosen", "global"]
JUDGED: dict[Deployed, str] = {
    "own": "each device's own model",
    "chosen": "the server's model that a device chooses",
    "global": "the server's model",
}
"""Which models devices use, and so by which a method is judged, in words."""


OF_MODELS = {"correctness", "losses", "own"}
"""Conditions of metrics that are of models."""


def judged_by(deployed: Deployed | None, metric: str) -> str:
    """Return the models that a metric is of, in words; '' where that is not known, or the metric is of none.

    Args:
        deployed: a key of `JUDGED`, or None.
        metric: its name.
    """
    described = METRICS.get(metric)
    of_models = described is None or (described.measured != "round" and {*described.needs} & OF_MODELS)
    if deployed is None or not of_models or "personal_" in metric:
        return ""
    return JUDGED["global" if deployed == "own" and is_of_server(metric) else deployed]


def of_server(name: str) -> str:
    """Return the name of a metric where it is of the server's models: ``valid/global_loss`` for ``valid/loss``."""
    split, slash, what = name.rpartition("/")
    return f"{split}{slash}{SERVERS}{what}"


def is_of_server(name: str) -> bool:
    """Return whether a metric is of the server's models, whatever devices use."""
    return name.rpartition("/")[2].startswith(SERVERS)


# ---- values over replicas ----------------------------------------------------------------------------------------


def mean_over_replicas(values: Sequence[float]) -> float:
    """Return the mean, correctly rounded; NaN or infinite if one of the values is."""
    return math.fsum(values) / len(values) if all(map(math.isfinite, values)) else float(sum(values))


def deviation_over_replicas(values: Sequence[float]) -> float:
    """Return the sample's standard deviation; NaN if one of the values is not finite, of which Python 3.11 makes an
    error."""
    return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan


def replica_means(metrics: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the mean of every metric of a round."""
    return {name: mean_over_replicas(values) for name, values in metrics.items()}
