"""On what was measured."""

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from flstudy.benchmark.options import cores


def device(accelerator: str) -> str:
    """cpu or cuda.

    Raises:
        ValueError: if there is no GPU where one is asked for.
    """
    if accelerator == "cpu":
        return "cpu"
    import torch

    found = torch.cuda.is_available()
    if accelerator == "cuda" and not found:
        raise ValueError("--accelerator cuda: torch sees no GPU here; use --accelerator cpu")
    return "cuda" if found else "cpu"


def describe(device: str) -> dict[str, Any]:
    """Names of CPU and GPU, and cores that may be used."""
    gpu = None
    if device == "cuda":
        import torch

        gpu = torch.cuda.get_device_name()
    return {"cpu": cpu(), "cores": cores(), "gpu": gpu}


def cpu() -> str:
    """The processor's name."""
    try:
        names = re.findall(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Of Python and the packages that matter for speed."""
    from flstudy import __version__

    found = {"python": platform.python_version(), "flstudy": __version__}
    for package in ("torch", "lightning", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # lightning's two parts can be installed alone
            found[package] = "unknown"
    return found


def load() -> float | None:
    """Average number of busy processes over the last minute; None where the system does not say."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None
