"""Where each named tensor lies in the flat vector that the methods see."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor


class Layout(NamedTuple):
    """Names, shapes and sizes of a model's tensors, in the order in which they are concatenated to x ∈ R^n."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, tensors: Iterable[tuple[str, Tensor]]) -> "Layout":
        """The layout of named tensors, such as ``module.named_parameters()``."""
        named = list(tensors)
        return cls(
            tuple(name for name, _ in named),
            tuple(tensor.shape for _, tensor in named),
            tuple(tensor.numel() for _, tensor in named),
        )

    @property
    def n(self) -> int:
        """Number of parameters."""
        return sum(self.sizes)

    def split(self, x: Tensor) -> dict[str, Tensor]:
        """The named tensors of the flat vector x [n], as views."""
        parts = torch.split(x, list(self.sizes))
        return {name: part.view(shape) for name, part, shape in zip(self.names, parts, self.shapes, strict=True)}

    def flat(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The flat vector [n] of named tensors."""
        return torch.cat([tensors[name].reshape(-1) for name in self.names])

    def segments(self, device: torch.device | None = None) -> Tensor:
        """[n]: the number of the tensor to which each coordinate belongs."""
        return torch.repeat_interleave(
            torch.arange(len(self.sizes), device=device), torch.tensor(self.sizes, device=device)
        )
