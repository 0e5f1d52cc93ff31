"""LSTM over sequences of tokens, which predicts each position's successor or the token after the sequence.

The recurrence of an LSTM layer is one operator with its own gradient and its own batching rule.

A loop in Python over time is unrolled by a compiler and costs every mapped operation its dispatch. Here lanes become
a leading dimension of batched products, and to the compiler a layer is two opaque calls, forward and backward.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flstudy.hyper import checked
from flstudy.tasks import kernels
from flstudy.tasks.kernels import folded, maps
from flstudy.tasks.task import Task
from flstudy.user_error import UserError

INPUTS, STORED = (0, 0), (0, 1, 1, 1)  # where the operator's inputs, and its outputs, have their lanes


@torch.compiler.allow_in_graph  # the compiler cannot map an autograd.Function; called as it is, it maps itself
def recurrence(projected: Tensor, weight: Tensor) -> Tensor:
    """Return the hidden states of an LSTM layer (Hochreiter & Schmidhuber 1997, with the forget gate of Gers et al.
    2000) that starts from h_0 = c_0 = 0, with torch.nn.LSTM's order of gates:

        (i_t, f_t, g_t, o_t) = (σ, σ, tanh, σ)(p_t + W h_{t-1})
        c_t = f_t ⊙ c_{t-1} + i_t ⊙ g_t
        h_t = o_t ⊙ tanh(c_t)

    Args:
        projected: p [B, T, 4H], the inputs' projection W_ih x_t + b_ih + b_hh.
        weight: W [4H, H], torch.nn.LSTM's weight_hh.

    Returns:
        h [B, T, H]. It can be differentiated once, mapped by ``torch.vmap`` and compiled, in any order.
    """
    form = kernels.LstmKernel if kernels.compiling(projected) else Recurrence
    return form.apply(projected[None], weight[None])[0][0]


class Recurrence(kernels.KeepsResults):
    """The operators below with their derivative: ``torch.func.grad`` does not take an operator's own one."""

    @staticmethod
    def forward(projected: Tensor, weight: Tensor) -> Any:
        """Return what `lstm_forward` does of projected [L, B, T, 4H] and weight [L, 4H, H]: the hidden states first."""
        return lstm_forward(projected, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Return the gradients of the inputs."""
        if grads[0] is None:  # the hidden states were not used
            return None, None
        return RecurrenceGradient.apply(grads[0], *ctx.saved_tensors)

    @staticmethod
    def vmap(info: Any, mapped: tuple[int | None, ...], *arguments: Tensor) -> Any:
        """Map by making the mapped dimension a part of the lanes."""
        return folded(Recurrence.apply, info.batch_size, mapped, arguments, INPUTS, STORED)


class RecurrenceGradient(torch.autograd.Function):
    """Gradient of `Recurrence`, which cannot be differentiated again."""

    @staticmethod
    def forward(*arguments: Tensor) -> Any:
        """Return the gradients of the inputs."""
        return lstm_backward(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        """Keep nothing."""

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Refuse to differentiate again."""
        raise NotImplementedError("an LSTM's gradient cannot be differentiated again; use torch.nn.LSTM for that")

    @staticmethod
    def vmap(info: Any, mapped: tuple[int | None, ...], *arguments: Tensor) -> Any:
        """Map by making the mapped dimension a part of the lanes."""
        return folded(RecurrenceGradient.apply, info.batch_size, mapped, arguments, (0, *STORED, 0), INPUTS)


@torch.library.custom_op("flstudy::lstm_forward", mutates_args=())
def lstm_forward(projected: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the recurrence on L lanes.

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
    """Backpropagate through time. With z the gates' arguments, γ the loss's own gradient with respect to h, and all
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
def forward_shapes(projected: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return empty tensors of the shapes that `lstm_forward` returns for projected [L, B, T, 4H], weight [L, 4H, H]."""
    lanes, batch, length, _ = projected.shape
    empty, width = projected.new_empty, weight.shape[2]
    first = (length, lanes, batch)
    return empty(lanes, batch, length, width), empty(*first, 4 * width), empty(*first, width), empty(*first, width)


@lstm_backward.register_fake
def backward_shapes(
    grad: Tensor, hidden: Tensor, gates: Tensor, double: Tensor, squashed: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Return empty tensors of the shapes that `lstm_backward` returns, [L, B, T, 4H] and [L, 4H, H]."""
    return hidden.new_empty(*hidden.shape[:3], gates.shape[3]), hidden.new_empty(weight.shape)


maps("flstudy::lstm_forward", INPUTS, STORED)
maps("flstudy::lstm_backward", (0, *STORED, 0), INPUTS)


class LstmLayers(nn.Module):
    """``torch.nn.LSTM(width, hidden, layers, batch_first=True)`` without its states: parameters of the same names,
    layout and initial distribution, and the same outputs, as a few operations that map over devices and compile.

    Args:
        width: size of one position's input.
        hidden: H, width of the layers.
        layers: number of layers.
        biases: bias vectors of a layer: torch's two, of which only the sum matters, or one.
    """

    def __init__(self, width: int, hidden: int, layers: int = 1, biases: int = 2) -> None:
        super().__init__()
        self.hidden, self.layers, self.biases = hidden, layers, ("bias_ih", "bias_hh")[:biases]
        for layer in range(layers):
            shapes = {
                "weight_ih": (4 * hidden, hidden if layer else width),
                "weight_hh": (4 * hidden, hidden),
                **dict.fromkeys(self.biases, (4 * hidden,)),
            }
            for name, shape in shapes.items():
                self.register_parameter(f"{name}_l{layer}", nn.Parameter(torch.empty(shape)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters from U(−1/√H, 1/√H), as torch.nn.LSTM does."""
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(self.hidden**-0.5), self.hidden**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Return the last layer's hidden states [B, T, H] of inputs [B, T, width], from states of zero."""
        for layer in range(self.layers):
            inward, across, bias, *more = (
                getattr(self, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", *self.biases)
            )
            x = recurrence(F.linear(x, inward, bias + more[0] if more else bias), across)
        return x


class Lstm(Task):
    """LSTM language model (Reddi et al. 2021, App. C): an embedding, LSTM layers and a dense layer to the vocabulary.

    With ``biases`` 1, as in Keras, Reddi et al. have embedding 8, hidden 256 and two layers for
    Shakespeare's characters (McMahan et al. 2017; 820,522 parameters with 90 characters), and embedding 96, hidden 670
    and projection 96 for Stack Overflow's words (4,050,748 with 10,004).

    Inputs are integer tokens [B, T]. Labels are the tokens that follow each position [B, T], the one after the whole
    sequence [B], or the classes of texts [B]. Labels below 0 are padding and count nowhere; inputs are tokens
    everywhere.

    Args:
        shape: (sequence length,) of one input; a config leaves it out and gets the data set's.
        classes: size of the vocabulary, of which tokens and labels are 0 … classes − 1; a config leaves it out, too.
        embedding: width of a token's embedding.
        hidden: width of the LSTM layers.
        layers: number of LSTM layers.
        projection: width of a dense layer between the LSTM's and the vocabulary's; null has none.
        biases: bias vectors of an LSTM layer, 1 or 2; two are torch's, and add up.
        tokens: size of the inputs' vocabulary, where labels are others than its tokens; a config leaves it out, too.
    """

    @checked
    def __init__(
        self,
        shape: Sequence[int],
        classes: Annotated[int, "[1, 1e6]"],
        embedding: Annotated[int, "[1, 1e5]"] = 8,
        hidden: Annotated[int, "[1, 1e5]"] = 32,
        layers: Annotated[int, "[1, 1e3]"] = 1,
        projection: Annotated[int | None, "[1, 1e5]"] = None,
        biases: Literal[1, 2] = 2,
        tokens: Annotated[int, "[0, 1e6]"] = 0,
    ) -> None:
        super().__init__()
        if len(shape) != 1 or shape[0] < 1:
            raise UserError(
                f"Lstm: shape must be (sequence length ≥ 1,), got {tuple(shape)}; flatten the inputs, or use Mlp or Cnn"
            )
        self.embedding = nn.Embedding(max(tokens, classes), embedding)
        self.lstm = LstmLayers(embedding, hidden, layers, biases)
        self.head: nn.Module = nn.Linear(hidden, classes)
        if projection is not None:
            self.head = nn.Sequential(nn.Linear(hidden, projection), nn.Linear(projection, classes))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [B, T, classes] of the tokens after each position of x [B, T].

        Raises:
            UserError: x are not integer tokens [B, T].
        """
        return self.head(self._states(x))

    def features(self, x: Tensor) -> Tensor:
        """Return the representations [B, hidden or projection] of sequences x [B, T]: the last position's, which is
        classified."""
        last: Tensor = self._states(x)[:, -1]
        return self.head[0](last) if isinstance(self.head, nn.Sequential) else last

    def example_losses(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return [B]: each example's mean cross-entropy over its real positions; 0 where it has none.

        Raises:
            UserError: for inputs or labels of another form.
        """
        logits, y, real = self._predict(batch)
        losses = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(y.shape)
        return mean_of_real(losses, real)

    def example_correct(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return [B]: the share of each example's real positions where the most likely token is the right one.

        Raises:
            UserError: for inputs or labels of another form.
        """
        logits, y, real = self._predict(batch)
        return mean_of_real((logits.argmax(-1) == y).to(logits.dtype), real)

    def _states(self, x: Tensor) -> Tensor:
        if x.dim() != 2 or x.is_floating_point():
            raise UserError(f"Lstm: inputs must be integer tokens [B, T], got {x.dtype} {list(x.shape)}; use Mlp")
        return self.lstm(self.embedding(x))

    def _predict(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logits [B, P, classes], labels [B, P] and whether they are real [B, P], at the positions that have
        labels."""
        x, y = batch
        states = self._states(x)
        if y.dim() == 1:
            states, y = states[:, -1:], y[:, None]
        if y.shape != states.shape[:2]:
            got = list(batch[1].shape)
            raise UserError(f"Lstm: labels must be [B] or like the inputs, {list(x.shape)}, got {got}")
        return self.head(states), y.clamp(min=0), y >= 0


def mean_of_real(values: Tensor, real: Tensor) -> Tensor:
    """Return [B]: means of values [B, P] over the P positions that are ``real`` [B, P]; 0 where none is."""
    weight = real.to(values.dtype)
    return (values * weight).sum(1) / weight.sum(1).clamp(min=1)
