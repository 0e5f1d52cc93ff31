"""The settings under which the laws are tried: some that every method has, some of its own."""

from functools import partial
from typing import Any

import torch

from flstudy.algorithms import (
    AdaptiveFedAvg,
    Algorithm,
    Apfl,
    Continuous,
    DirectJointAdaptivity,
    Ditto,
    FedAcg,
    FedAda2,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedBlended,
    FedDC,
    FedDyn,
    FedOpt,
    FedProx,
    FedYogi,
    Flash,
    JointAdaptivity,
    Mime,
    MimeLite,
    Moon,
    Scaffold,
    Strategy,
)

from ..worlds import shipped, taken

# A method that is added to the package is tried under all of these without a word here.
EVERYBODY: dict[str, dict[str, Any]] = {
    "plain": {},
    "decay and clipping": {"weight_decay": 0.02, "clip_norm": 0.8, "server_lr": 0.5},
    "early stopping": {"gamma": 0.05, "first_epoch": "eval_received"},
}
# What is kept of a run takes five forms: one model, rows, several last models, several models, what devices are asked.
FORMS = ("Flash", "Scaffold", "Moon", "FedDrift", "Mime")
MOMENTUM = {"momentum": 0.9, "weight_decay": 0.02}
# Line 21 of FLASH as printed divides by what may be next to 0, where it magnifies rounding; a large τ keeps it away.
STEADY: dict[str, dict[str, Any]] = {
    "Flash": {"tau": 0.5},
    "FedBabu": {"personal": ("*bias",)},  # which all tasks have
    "FedRep": {"personal": ("*bias",)},
    "LgFedAvg": {"shared": ("*bias",)},
}
OWN: dict[str, Algorithm] = {
    "fedavg uniform, stops by sums": FedAvg(lr=0.1, weighting="uniform", gamma=0.3, valid_loss="sum"),
    "fedavgm nesterov": FedAvgM(lr=0.1, beta=0.7, nesterov=True),
    "fedprox": FedProx(lr=0.1, mu=0.5),
    "fedadam corrected": FedAdam(lr=0.1, v_init="zero", bias_correction=True, weighting="examples"),
    "fedyogi corrected": FedYogi(lr=0.1, v_init="zero", bias_correction=True),
    "flash clamped": Flash(lr=0.1, clamp=0.1),
    "flash of all epochs": Flash(lr=0.1, tau=0.5, gamma=None),
    "flash per tensor": Flash(lr=0.1, beta3_granularity="tensor", clamp=0.0, tau=0.02),
    "flash early": Flash(lr=0.1, v_init="zero", gamma=0.3, first_epoch="eval_received", valid_loss="sum"),
    "fedacg strong": FedAcg(lr=0.1, lam=0.5, beta=0.3, weighting="examples", momentum=0.5, server_lr=0.7),
    "feddyn strong": FedDyn(lr=0.1, alpha=0.3, weighting="examples"),
    "feddc strong": FedDC(lr=0.1, alpha=0.3, weighting="examples"),
    "ditto apart": Ditto(lr=0.1, lam=2.0, personal_lr=0.05, momentum=0.5),
    "apfl adaptive": Apfl(lr=0.1, alpha=0.6, adaptive=True, momentum=0.5),
    "adaptive fedavg with a floor": AdaptiveFedAvg(lr=0.1, floor=0.9, momentum=0.5, weight_decay=0.02),
    "continuous by relations": Continuous(lr=0.1, distillation="glfc_rd", classes=4, momentum=0.5),
    "moon strong": Moon(lr=0.1, mu=5.0, tau=0.2, weight_decay=0.02),
    "moon with two last models": Moon(lr=0.1, buffer=2, momentum=0.5, weighting="uniform", gamma=0.05),
    "joint adam, corrected": JointAdaptivity(
        lr=0.1, server_optimizer="adam", client_optimizer="adam", client_bias_correction=True, bias_correction=True
    ),
    "mime adam": Mime(lr=0.1, base="adam", clip_norm=0.8, weighting="examples"),
    "mimelite adagrad": MimeLite(lr=0.1, base="adagrad", gamma=0.05),
    "blended with delays": FedBlended(
        lr=0.1,
        strategies=(
            Strategy("sm3_adam", steps=3),
            Strategy("sgd", epochs=1, weight=0.5),
            Strategy("adagrad", delay=2),
            Strategy("adagrad", delay=2, scale=0.5),
        ),
        delay_unit="epoch",
        eps=0.1,
        gamma=0.05,
    ),
    "joint by epochs": JointAdaptivity(
        lr=0.1, client_optimizer="sm3_adam", delay=2, delay_unit="epoch", client_bias_correction=True, weight_decay=0.02
    ),
    "direct to sm3, delayed": DirectJointAdaptivity(
        lr=0.1, client_optimizer="sm3_adam", delay=3, eps=0.1, v_init="zero", weighting="examples"
    ),
    "fedada2 of the first kind": FedAda2(lr=0.1, sm3="I", eps=0.1, delay=2, warmup=4, eps_s=0.5, gamma=0.05),
    "fedopt, adam that falls": FedOpt(
        lr=0.1,
        optimizer=partial(torch.optim.Adam, lr=0.05, weight_decay=0.01),
        lr_scheduler=partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=5),
    ),
    "fedopt of shapes": FedOpt(lr=0.1, optimizer=torch.optim.Adafactor, weighting="uniform", momentum=0.5),
    "scaffold by examples": Scaffold(lr=0.1, weighting="examples", server_lr=0.7, gamma=0.05),
}


def takes_momentum(cls: type[Algorithm]) -> bool:
    """Whether a method allows momentum on its devices."""
    try:
        cls(**MOMENTUM)
    except ValueError:
        return False
    return True


def settings() -> dict[str, Algorithm]:
    """All cases by name."""
    cases = {f"{name} {how}": steady(name, **values) for name in shipped() for how, values in EVERYBODY.items()}
    cases |= {
        f"{name} momentum": steady(name, lr=0.05, **MOMENTUM) for name, cls in shipped().items() if takes_momentum(cls)
    }
    return cases | OWN


def plain() -> dict[str, Algorithm]:
    """Every method once."""
    return {name: steady(name) for name in shipped()}


def steady(name: str, **values: Any) -> Algorithm:
    """A shipped method under which rounding stays small."""
    return shipped()[name](**taken(shipped()[name], {"lr": 0.1, **STEADY.get(name, {}), **values}))
