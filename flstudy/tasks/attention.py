"""Attention of devices that are mapped together, on processors whose fused kernel cannot be."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


def mappable_attention(device: torch.device) -> AbstractContextManager[None]:
    """Let `scaled_dot_product_attention` take plain operations on a CPU for a while: torch.func calls the fused kernel
    there once for each lane, with a warning. Accelerators' kernels are mapped as they are."""
    return sdpa_kernel(SDPBackend.MATH) if device.type == "cpu" else nullcontext()
