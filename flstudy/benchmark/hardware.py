"""The machine and the packages that were measured."""

import os
import platform
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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


def machine(device: str) -> dict[str, Any]:
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

    packages = {name: version(name) for name in ("torch", "lightning", "numpy")}
    return {"python": platform.python_version(), "flstudy": __version__, **packages}


def busy() -> float | None:
    """Average number of busy processes over the last minute; None where the system does not say."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None
