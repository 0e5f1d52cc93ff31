"""torch's recurrent layers in a module of anybody's, as operations that ``torch.vmap`` maps over devices.

torch's own LSTM, GRU and RNN have no batching rule. An LSTM that starts from states of zero is `recurrence` here, and
every other layer a loop over time. Packed sequences are left to torch, which trains them one device after another.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from flstudy.tasks.recurrent import recurrence

States = tuple[Tensor, ...]
"""States [B, H] of one layer and direction: h, and an LSTM's c."""


def map_recurrent_layers(module: nn.Module) -> None:
    """Let the recurrent layers of a module compute by operations that can be mapped; subclasses with a ``forward`` of
    their own stay as they are."""
    for part in module.modules():
        if isinstance(part, nn.RNNBase) and type(part).forward in (kind.forward for kind in RUNS):
            part.forward = partial(run_layers, part)


def unmap_recurrent_layers(module: nn.Module) -> None:
    """Let the recurrent layers of a module compute as torch does."""
    for part in module.modules():
        if getattr(vars(part).get("forward"), "func", None) is run_layers:
            del part.forward


def run_layers(layer: nn.RNNBase, x: Any, hx: Any = None) -> tuple[Any, Any]:
    """Return what ``torch.nn.LSTM``, ``GRU`` or ``RNN`` returns: hidden states of all positions, and the last states.

    Args:
        layer: torch's.
        x: inputs [T, B, width]; [B, T, width] where it is ``batch_first``; or [T, width].
        hx: first states [directions · layers, B, H], for an LSTM a pair of them; None: zeros.
    """
    if isinstance(x, PackedSequence):
        return type(layer).forward(layer, x, hx)  # type: ignore[arg-type]
    kind = next(kind for kind in RUNS if isinstance(layer, kind))
    batch = 0 if layer.batch_first else 1
    alone = x.dim() == 2
    firsts = None if hx is None else hx if kind is nn.LSTM else (hx,)
    if alone:
        x, firsts = x.unsqueeze(batch), None if firsts is None else [first.unsqueeze(1) for first in firsts]
    hidden = x if layer.batch_first else x.transpose(0, 1)
    lasts = list[States]()
    suffixes = ("", "_reverse") if layer.bidirectional else ("",)
    for level in range(layer.num_layers):
        if level and layer.dropout:
            hidden = F.dropout(hidden, layer.dropout, layer.training)
        outputs = list[Tensor]()
        for suffix in suffixes:
            first = None if firsts is None else tuple(states[len(lasts)] for states in firsts)
            inputs = hidden.flip(1) if suffix else hidden
            output, last = RUNS[kind](layer, f"l{level}{suffix}", inputs, first)
            outputs.append(output.flip(1) if suffix else output)
            lasts.append(last)
        hidden = torch.cat(outputs, -1)
    if not layer.batch_first:
        hidden = hidden.transpose(0, 1)
    states = [torch.stack(of_levels) for of_levels in zip(*lasts, strict=True)]
    if alone:
        hidden, states = hidden.squeeze(batch), [state.squeeze(1) for state in states]
    return hidden, tuple(states) if kind is nn.LSTM else states[0]


def weights_of(layer: nn.RNNBase, place: str) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return W_ih [G H, width], W_hh [G H, H], b_ih [G H] and b_hh [G H] of one level and direction, with G gates; None
    where it has no biases. With ``proj_size`` W_hh has that width."""
    names = [f"{name}_{place}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    inward, across = (getattr(layer, name) for name in names[:2])
    return inward, across, *((getattr(layer, name) for name in names[2:]) if layer.bias else (None, None))


def project(layer: nn.RNNBase, place: str, x: Tensor) -> Tensor:
    """Return [B, T, G H]: W_ih x_t + b_ih + b_hh of one level and direction, for all positions of x [B, T, width]."""
    inward, _, *biases = weights_of(layer, place)
    return F.linear(x, inward, None if biases[0] is None or biases[1] is None else biases[0] + biases[1])


def run_lstm(layer: nn.RNNBase, place: str, x: Tensor, first: States | None) -> tuple[Tensor, States]:
    """Return the hidden states [B, T, H] and last states of an LSTM's level and direction, of inputs x [B, T,
    width]."""
    projected, across = project(layer, place, x), weights_of(layer, place)[1]
    narrowed = getattr(layer, f"weight_hr_{place}") if layer.proj_size else None
    if first is None and narrowed is None:
        hidden = recurrence(projected, across)
        return hidden, (hidden[:, -1], last_cell(projected, across, hidden))
    h, c = first or (x.new_zeros(len(x), across.shape[1]), x.new_zeros(len(x), layer.hidden_size))
    outputs = list[Tensor]()
    for at_t in projected.unbind(1):
        i, f, g, o = (at_t + F.linear(h, across)).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        h = h if narrowed is None else F.linear(h, narrowed)
        outputs.append(h)
    return torch.stack(outputs, 1), (h, c)


def last_cell(projected: Tensor, across: Tensor, hidden: Tensor) -> Tensor:
    """Return c_T = Σ_t (Π_{s>t} f_s) i_t g_t [B, H] of an LSTM that started from zeros, by its hidden states [B, T, H],
    projected inputs [B, T, 4H] and W_hh, ``across`` [4H, H].

    The kernels of `recurrence` keep c for the gradient only; all gates at once are one product of matrices.
    """
    before = F.pad(hidden[:, :-1], (0, 0, 1, 0))
    i, f, g, _ = (projected + F.linear(before, across)).chunk(4, -1)
    later = F.logsigmoid(f[:, 1:]).flip(1).cumsum(1).flip(1)
    return (torch.exp(F.pad(later, (0, 0, 0, 1))) * torch.sigmoid(i) * torch.tanh(g)).sum(1)


def run_gru(layer: nn.RNNBase, place: str, x: Tensor, first: States | None) -> tuple[Tensor, States]:
    """Return the hidden states [B, T, H] and the last one of a GRU's level and direction, of inputs x [B, T, width]."""
    inward, across, inward_bias, across_bias = weights_of(layer, place)
    (h,) = first or (x.new_zeros(len(x), layer.hidden_size),)
    outputs = list[Tensor]()
    for at_t in F.linear(x, inward, inward_bias).unbind(1):
        (r, z, n), (by_r, by_z, by_n) = at_t.chunk(3, -1), F.linear(h, across, across_bias).chunk(3, -1)
        candidate = torch.tanh(n + torch.sigmoid(r + by_r) * by_n)
        h = torch.lerp(candidate, h, torch.sigmoid(z + by_z))
        outputs.append(h)
    return torch.stack(outputs, 1), (h,)


def run_rnn(layer: nn.RNNBase, place: str, x: Tensor, first: States | None) -> tuple[Tensor, States]:
    """Return the hidden states [B, T, H] and the last one of an Elman RNN's level and direction, of inputs x [B, T,
    width]."""
    across, squash = weights_of(layer, place)[1], torch.tanh if layer.mode == "RNN_TANH" else torch.relu
    (h,) = first or (x.new_zeros(len(x), layer.hidden_size),)
    outputs = list[Tensor]()
    for at_t in project(layer, place, x).unbind(1):
        h = squash(at_t + F.linear(h, across))
        outputs.append(h)
    return torch.stack(outputs, 1), (h,)


RUNS: dict[type[nn.RNNBase], Callable[[nn.RNNBase, str, Tensor, States | None], tuple[Tensor, States]]] = {
    nn.LSTM: run_lstm,
    nn.GRU: run_gru,
    nn.RNN: run_rnn,
}
