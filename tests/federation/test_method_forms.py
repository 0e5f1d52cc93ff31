"""What is wrong in the form of a method of one's own is told before the first round, by its function's name, and by
`check_algorithm` in the same words."""

import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from flstudy.algorithms import FedAvg, Upload
from flstudy.testing import check_algorithm
from flstudy.user_error import UserError

from ..laws.cases import steady
from ..worlds import drifting, play, shipped


def method(function, name="Mine"):
    """A method that differs from FedAvg in a function."""
    return dataclass(frozen=True, kw_only=True)(type(name, (FedAvg,), {function.__name__: function}))


def forgets(name):
    """A function that returns nothing."""

    def function(self, *arguments):
        getattr(FedAvg, name)(self, *arguments)

    function.__name__ = name
    return function


def diagnostics_with(name, value):
    """A function of that name which tells ``value`` of the states beside the usual diagnostics."""

    def diagnostics(self, before, after, inbox):
        return {**FedAvg.diagnostics(self, before, after, inbox), name: value(before, after)}

    return diagnostics


def row_of_none(self, x):
    return (x, None)


def dict_of_x(self, x, layout):
    return {"x": x}


def upload_alone(self, local, msg, client):
    return Upload(local.y - msg.x)


def number_uploaded(self, local, msg, client):
    return 3.0, client


def row_that_grows(self, local, msg, client):
    return Upload(local.y - msg.x), (local.y,)


def loss_of_a_vector(self, local, batch, grad, msg, client):
    return local, local.y


def line(self, g, y, msg, client):
    return g.view(1, -1)


def shrunk(self, server, inbox, round):
    return server._replace(x=inbox.mean().delta.mean())


def number_asked(self, g, y, msg, client):
    return g * (2.0 if g.norm().item() > 1 else 1.0)


def branched(self, g, y, msg, client):
    return 2 * g if g.norm() > 1 else g


def to_numpy(self, g, y, msg, client):
    return torch.from_numpy(np.sign(g.numpy()))


def server_number(self, server, inbox, round):
    delta = inbox.mean().delta
    return server._replace(x=server.x + min(1.0, float(delta.norm())) * delta)


def server_noise(self, server, inbox, round):
    return server._replace(x=server.x + torch.randn_like(server.x))


def noise(self, g, y, msg, client):
    return g + torch.randn_like(g)


def named(function, name):
    """A function as if it had been written under a method's name."""
    function.__name__, function.__code__ = name, function.__code__.replace(co_name=name)
    return function


FORGOTTEN = (
    *("server_init", "server_step", "diagnostics", "weights", "prepare", "client_init", "broadcast", "local_start"),
    *("correct", "local_step", "local_end", "in_training", "local_model"),
)
NUMBERS = r"must return numbers \[\], got"
FORMS = {
    "a row of None": (named(row_of_none, "client_init"), "must return tensors, got NoneType at 1: return ()"),
    "a dict": (named(dict_of_x, "server_init"), "must return a NamedTuple with a field x, got dict"),
    "an upload alone": (named(upload_alone, "local_end"), r"must return \(upload, row\), got Upload"),
    "a number": (named(number_uploaded, "local_end"), "must return tensors, got float: use torch.as_tensor"),
    "another row": (named(row_that_grows, "local_end"), r"must return the fields of client_init \(\), got 0"),
    "a loss of many": (named(loss_of_a_vector, "local_step"), r"must return a loss \[\], got float64 \[\d+\]"),
    "another shape": (named(line, "correct"), r"must return a vector \[(\d+)\], got float64 \[1, \1\]"),
    "a smaller server": (named(shrunk, "server_step"), r"must return Server.x as server_init does \(float64 \["),
    "a vector": (
        diagnostics_with("update_norm", lambda a, b: b.x),
        rf"{NUMBERS} float64 \[\d+\] as update_norm",
    ),
    "a vector of one's own": (diagnostics_with("mine", lambda a, b: b.x), rf"{NUMBERS} float64 \[\d+\] as mine"),
    "a Python number": (diagnostics_with("mine", lambda a, b: 3.0), f"{NUMBERS} float as mine"),
}
UNMAPPABLE = {
    "item": (named(number_asked, "correct"), "asks a tensor for its number, as float"),
    "a branch": (named(branched, "correct"), "branches on a tensor: use torch.where"),
    "numpy": (named(to_numpy, "correct"), "hands a tensor to numpy"),
    "random numbers": (named(noise, "correct"), "draws torch's random numbers: draw by a key"),
}
OF_SERVERS = {
    "item": (named(server_number, "server_step"), "asks a tensor for its number"),
    "random numbers": (named(server_noise, "server_step"), "draws torch's random numbers: draw by a key"),
}


def refused(function, sentence, executor):
    """Check that neither a run nor the laws take the method, and that nothing was trained."""
    mine = method(function)(lr=0.1)
    with pytest.raises(UserError, match=f"algorithm: Mine.{function.__name__} {sentence}"):
        play(mine, 0, population=drifting(), executor=executor)
    with pytest.raises(AssertionError, match=f"form: Mine.{function.__name__} {sentence}"):
        check_algorithm(mine)


@pytest.mark.parametrize("name", FORGOTTEN)
def test_a_forgotten_return_is_told(name):
    refused(forgets(name), "returns None: a return is missing", "sequential")


@pytest.mark.parametrize("name", FORMS)
def test_another_form_is_told(name):
    refused(*FORMS[name], "sequential")


@pytest.mark.parametrize("name", UNMAPPABLE)
def test_what_cannot_be_mapped_is_told_where_devices_are_mapped(name):
    function, sentence = UNMAPPABLE[name]
    refused(function, sentence, "vectorized")
    play(method(function)(lr=0.1), 1, population=drifting(), executor="sequential")


@pytest.mark.parametrize("name", OF_SERVERS)
def test_servers_are_always_mapped(name):
    refused(*OF_SERVERS[name], "sequential")


def test_a_field_that_becomes_real_is_told():
    """The bank would cut it back to integers."""

    def client_init(self, x):
        return (torch.tensor(0),)

    def local_end(self, local, msg, client):
        return Upload(local.y - msg.x), (client[0] + 0.5,)

    mine = dataclass(frozen=True)(type("Mine", (FedAvg,), {"client_init": client_init, "local_end": local_end}))
    with pytest.raises(UserError, match=r"must return 0 as client_init does \(int64 \[\]\), got float64 \[\]"):
        play(mine(), 0, population=drifting())


def shuffled(self, g, y, msg, client):
    return g * random.random()


def in_place(self, local, batch, grad, msg, client):
    g, loss = grad(local.y, batch)
    local.y.sub_(self.lr * g)
    return local, loss


def misspelt(self, g, y, msg, client):
    return g + self.nu * y


@pytest.mark.parametrize(
    ("function", "name", "message"),
    [
        (shuffled, "correct", "purity: correct returns another result when called again: it draws random numbers"),
        (in_place, "local_step", "purity: local_step changes its arguments: return new tensors"),
        (misspelt, "correct", "raises AttributeError: 'Mine' object has no attribute 'nu'"),
    ],
)
def test_the_laws_name_the_function(function, name, message):
    with pytest.raises(AssertionError, match=f"^Mine:? {message}"):
        check_algorithm(method(named(function, name)))


@pytest.mark.parametrize("name", shipped())
def test_shipped_methods_have_the_form_that_rounds_count_on(name):
    play(steady(name), 0, population=drifting(), seeds=(0, 44))
