"""torch's recurrent layers as operations that can be mapped: torch's own are the reference."""

import copy
import itertools

import pytest
import torch
from torch import nn

from flstudy.tasks.recurrent_layers import map_recurrent_layers, unmap_recurrent_layers

WIDTH, HIDDEN, LENGTH, BATCH = 3, 4, 7, 5
KINDS = [
    (nn.LSTM, {}), (nn.LSTM, {"proj_size": 2}), (nn.GRU, {}), (nn.RNN, {}), (nn.RNN, {"nonlinearity": "relu"}),
]  # fmt: skip
SETTINGS = list(itertools.product((1, 2), (False, True), (False, True), (True, False), ("zeros", "given", "alone")))


def layer_of(kind, more, layers, both, batch_first, bias):
    return kind(WIDTH, HIDDEN, layers, bidirectional=both, batch_first=batch_first, bias=bias, **more).double()


def mapped(layer):
    """A copy of the layer whose operations can be mapped, with the same parameters."""
    layer = copy.deepcopy(layer)
    map_recurrent_layers(layer)
    return layer


def inputs_of(layer, first):
    """Inputs and first states."""
    shape = (BATCH, LENGTH) if layer.batch_first else (LENGTH, BATCH)
    x = torch.randn(*((LENGTH,) if first == "alone" else shape), WIDTH, dtype=torch.float64)
    if first != "given":
        return (x,)
    of_all = layer.num_layers * (2 if layer.bidirectional else 1)
    h = torch.randn(of_all, BATCH, getattr(layer, "proj_size", 0) or HIDDEN, dtype=torch.float64)
    return (x, (h, torch.randn(of_all, BATCH, HIDDEN, dtype=torch.float64)) if isinstance(layer, nn.LSTM) else h)


def flat(results):
    """All tensors of a layer's results."""
    output, last = results
    return [output, *(last if isinstance(last, tuple) else [last])]


@pytest.mark.parametrize(("kind", "more"), KINDS)
def test_results_and_gradients_are_torch_s(kind, more):
    torch.manual_seed(0)
    for *settings, first in SETTINGS:
        layer = layer_of(kind, more, *settings)
        arguments = inputs_of(layer, first)
        outcomes = []
        for variant in (layer, mapped(layer)):
            x = arguments[0].clone().requires_grad_()
            results = flat(variant(x, *arguments[1:]))
            weights = [torch.cos(torch.arange(part.numel(), dtype=part.dtype)).view(part.shape) for part in results]
            total = sum((part * weight).sum() for part, weight in zip(results, weights, strict=True))
            outcomes.append([*results, *torch.autograd.grad(total, [x, *variant.parameters()])])
        for expected, value in zip(*outcomes, strict=True):
            assert value.shape == expected.shape
            bound = 1e-12 * (1 + float(expected.detach().abs().max()))
            assert float((value - expected).detach().abs().max()) <= bound, (settings, first)


@pytest.mark.parametrize(("kind", "more"), KINDS)
def test_gradients_of_models_are_mapped(kind, more):
    torch.manual_seed(0)
    models = [layer_of(kind, more, 2, True, True, True) for _ in range(3)]
    x = torch.randn(3, BATCH, LENGTH, WIDTH, dtype=torch.float64)
    module = mapped(models[0])

    def loss(parameters, x):
        return sum(part.square().sum() for part in flat(torch.func.functional_call(module, parameters, (x,))))

    parameters = {name: torch.stack([dict(model.named_parameters())[name].detach() for model in models])
                  for name, _ in module.named_parameters()}  # fmt: skip
    gradients = torch.vmap(torch.func.grad(loss))(parameters, x)
    for lane, model in enumerate(models):
        total = sum(part.square().sum() for part in flat(model(x[lane])))
        expected = torch.autograd.grad(total, list(model.parameters()))
        for name, value in zip(parameters, expected, strict=True):
            bound = 1e-12 * (1 + float(value.abs().max()))
            assert float((gradients[name][lane] - value).abs().max()) <= bound, name


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_dropout_lies_between_layers_of_a_model_that_trains(kind):
    torch.manual_seed(0)
    layer = kind(WIDTH, HIDDEN, 2, dropout=1.0, batch_first=True)
    x, mapped_layer = torch.randn(BATCH, LENGTH, WIDTH), mapped(layer)
    torch.testing.assert_close(mapped_layer(x)[0], layer(x)[0])
    assert not torch.allclose(mapped_layer(x)[0], mapped_layer.eval()(x)[0])
    torch.testing.assert_close(mapped_layer(x)[0], layer.eval()(x)[0])


def test_packed_sequences_and_layers_with_a_forward_of_their_own_stay_torch_s():
    class Doubled(nn.LSTM):
        def forward(self, x, hx=None):
            return super().forward(2 * x, hx)

    torch.manual_seed(0)
    layer, x = nn.LSTM(WIDTH, HIDDEN, batch_first=True), torch.randn(2, LENGTH, WIDTH)
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([7, 4]), batch_first=True)
    assert torch.equal(mapped(layer)(packed)[0].data, layer(packed)[0].data)
    network = mapped(nn.Sequential(layer, Doubled(WIDTH, HIDDEN)))
    assert "forward" in vars(network[0])
    assert "forward" not in vars(network[1])
    unmap_recurrent_layers(network)
    assert "forward" not in vars(network[0])
    assert torch.equal(network[0](x)[0], layer(x)[0])
