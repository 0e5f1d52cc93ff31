"""The recurrence of an LSTM layer as one operator with its own gradient and its own batching rule.

A loop in Python over time is unrolled by a compiler and costs every mapped operation its dispatch. Here lanes become
a leading dimension of batched products, and to the compiler a layer is two opaque calls, forward and backward.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

INPUTS, STORED = (0, 0), (0, 1, 1, 1)  # where the operator's inputs, and its outputs, have their lanes


def recurrence(projected: Tensor, weight: Tensor) -> Tensor:
    """The hidden states of an LSTM layer (Hochreiter & Schmidhuber 1997, with the forget gate of Gers et al. 2000) that
    starts from h_0 = c_0 = 0, with torch.nn.LSTM's order of gates:

        (i_t, f_t, g_t, o_t) = (σ, σ, tanh, σ)(p_t + W h_{t-1})
        c_t = f_t ⊙ c_{t-1} + i_t ⊙ g_t
        h_t = o_t ⊙ tanh(c_t)

    Args:
        projected: p [B, T, 4H], the inputs' projection W_ih x_t + b_ih + b_hh.
        weight: W [4H, H], torch.nn.LSTM's weight_hh.

    Returns:
        h [B, T, H]. It can be differentiated once, mapped by ``torch.vmap`` and compiled, in any order.
    """
    hidden: Tensor = _graphed(projected, weight)
    return hidden


@torch.compiler.allow_in_graph  # the compiler cannot map an autograd.Function; called as it is, it maps itself
def _graphed(projected: Tensor, weight: Tensor) -> Any:
    return Recurrence.apply(projected[None], weight[None])[0][0]


class Recurrence(torch.autograd.Function):
    """The operators below with their derivative: ``torch.func.grad`` does not take an operator's own one."""

    @staticmethod
    def forward(projected: Tensor, weight: Tensor) -> Any:
        """Hidden states and what the gradient needs."""
        return lstm_forward(projected, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        """Keep everything that was computed."""
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*output, inputs[1])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Gradients of the inputs."""
        if grads[0] is None:  # the hidden states were not used
            return None, None
        return Gradient.apply(grads[0], *ctx.saved_tensors)

    @staticmethod
    def vmap(info: Any, mapped: tuple[int | None, ...], *arguments: Tensor) -> Any:
        """The mapped dimension becomes part of the lanes."""
        return folded(Recurrence, info.batch_size, mapped, arguments, INPUTS, STORED)


class Gradient(torch.autograd.Function):
    """The gradient, which has none itself."""

    @staticmethod
    def forward(*arguments: Tensor) -> Any:
        """Gradients of the inputs."""
        return lstm_backward(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        """Nothing is kept."""

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Refused."""
        raise NotImplementedError("an LSTM's gradient cannot be differentiated again; use torch.nn.LSTM for that")

    @staticmethod
    def vmap(info: Any, mapped: tuple[int | None, ...], *arguments: Tensor) -> Any:
        """The mapped dimension becomes part of the lanes."""
        return folded(Gradient, info.batch_size, mapped, arguments, (0, *STORED, 0), INPUTS)


def folded(
    function: type[torch.autograd.Function],
    size: int,
    mapped: Sequence[int | None],
    arguments: Sequence[Tensor],
    inputs: Sequence[int],
    outputs: Sequence[int],
) -> tuple[tuple[Tensor, ...], Sequence[int]]:
    """A function with mapped arguments as one on more lanes, which its inputs and outputs have at given places."""
    flat = []
    for argument, place, lanes in zip(arguments, mapped, inputs, strict=True):
        shape = argument.shape
        if place is None:
            argument = argument.unsqueeze(lanes).expand(*shape[:lanes], size, *shape[lanes:])
        else:
            argument = argument.movedim(place, lanes)
        flat.append(argument.flatten(lanes, lanes + 1))
    results = zip(function.apply(*flat), outputs, strict=True)
    return tuple(result.unflatten(lanes, (size, -1)) for result, lanes in results), outputs


@torch.library.custom_op("flstudy::lstm_forward", mutates_args=())
def lstm_forward(projected: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The recurrence on L lanes.

    A tanh costs several times a σ on a CPU, so tanh(z) = 2 σ(2z) − 1 everywhere, and what is carried from step to step
    are 2c and h/2: the factors 2 then fall on the weights and on whole arrays, not on single steps.

    Args:
        projected: [L, B, T, 4H].
        weight: [L, 4H, H].

    Returns:
        h [L, B, T, H] and, first by time: σ of all gates [T, L, B, 4H], 2c [T, L, B, H] and σ(2c) [T, L, B, H].
    """
    width = weight.shape[2]
    gates = projected.permute(2, 0, 1, 3).clone(memory_format=torch.contiguous_format)
    gates[..., 2 * width : 3 * width].mul_(2)
    across = (2 * weight).transpose(1, 2).contiguous()
    across[..., 2 * width : 3 * width].mul_(2)
    i, f, g, o = gates.unflatten(-1, (4, width)).unbind(-2)
    double, squashed, half = (torch.empty_like(o, memory_format=torch.contiguous_format) for _ in range(3))
    centred, middle = torch.empty_like(half[0]), gates.new_tensor(0.5)  # a number would be made a tensor at each step
    k, h = torch.zeros_like(centred), torch.zeros_like(centred)
    for gate, i_t, f_t, g_t, o_t, k_t, u_t, h_t in zip(gates, i, f, g, o, double, squashed, half, strict=True):
        gate.baddbmm_(h, across).sigmoid_()
        torch.sub(g_t, middle, out=centred)
        torch.mul(f_t, k, out=k_t).addcmul_(i_t, centred, value=4)
        torch.sigmoid(k_t, out=u_t)
        torch.sub(u_t, middle, out=h_t).mul_(o_t)
        k, h = k_t, h_t
    return (2 * half).permute(1, 2, 0, 3).contiguous(), gates, double, squashed


@torch.library.custom_op("flstudy::lstm_backward", mutates_args=())
def lstm_backward(
    grad: Tensor, hidden: Tensor, gates: Tensor, double: Tensor, squashed: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Backpropagation through time. With z the gates' arguments, γ the loss's own gradient with respect to h, and all
    factors that do not depend on later steps computed for all steps at once:

        ∂h_t = γ_t + Wᵀ ∂z_{t+1}
        ∂c_t = ∂c_{t+1} ⊙ f_{t+1} + ∂h_t ⊙ o_t (1 − tanh² c_t)
        ∂z_t = (∂c_t ⊙ g_t i_t (1 − i_t),  ∂c_t ⊙ c_{t-1} f_t (1 − f_t),  ∂c_t ⊙ i_t (1 − g_t²),
                ∂h_t ⊙ tanh(c_t) o_t (1 − o_t))

    Args:
        grad: γ [L, B, T, H].
        hidden: as the forward operator returned it, like all that follow.
        gates: [T, L, B, 4H].
        double: [T, L, B, H].
        squashed: [T, L, B, H].
        weight: [L, 4H, H].

    Returns:
        ∂p = ∂z [L, B, T, 4H] and ∂W = Σ_t ∂z_t h_{t-1}ᵀ [L, 4H, H].
    """
    width = weight.shape[2]
    i, f, g, o = gates.unflatten(-1, (4, width)).unbind(-2)
    dz = torch.addcmul(gates, gates, gates, value=-1)
    split = dz.unflatten(-1, (4, width))
    split[..., 0, :].mul_(2 * g - 1)
    split[0, ..., 1, :] = 0
    split[1:, ..., 1, :].mul_(double[:-1] / 2)
    split[..., 2, :].mul_(4 * i)
    split[..., 3, :].mul_(2 * squashed - 1)
    slope = torch.addcmul(squashed, squashed, squashed, value=-1).mul_(o).mul_(4)
    dh = grad.permute(2, 0, 1, 3).clone(memory_format=torch.contiguous_format)
    dc = torch.zeros_like(dh[0])
    every = dc.unsqueeze(-2)
    steps = list(zip(dh, slope, split[..., :3, :], split[..., 3, :], f, dz, strict=True))
    for t in reversed(range(len(steps))):
        dh_t, slope_t, by_cell, by_output, f_t, dz_t = steps[t]
        dc.addcmul_(dh_t, slope_t)
        by_cell.mul_(every)
        by_output.mul_(dh_t)
        if t > 0:
            dc.mul_(f_t)
            dh[t - 1].baddbmm_(dz_t, weight)
    projected = dz.permute(1, 2, 0, 3).contiguous()
    after, before = projected[:, :, 1:].flatten(1, 2), hidden[:, :, :-1].flatten(1, 2)
    return projected, torch.bmm(after.transpose(1, 2), before)


@lstm_forward.register_fake
def _(projected: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    lanes, batch, length, _ = projected.shape
    empty, width = projected.new_empty, weight.shape[2]
    first = (length, lanes, batch)
    return empty(lanes, batch, length, width), empty(*first, 4 * width), empty(*first, width), empty(*first, width)


@lstm_backward.register_fake
def _(
    grad: Tensor, hidden: Tensor, gates: Tensor, double: Tensor, squashed: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    return hidden.new_empty(*hidden.shape[:3], gates.shape[3]), hidden.new_empty(weight.shape)
