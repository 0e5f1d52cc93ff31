"""Law: the executors agree. trainer ≡ threads ≡ sequential ≡ vectorised, in float64 to 1e-12 over three rounds."""

import functools
import itertools

import pytest
import torch

from flstudy.algorithms import FedAvg, Flash, Scaffold
from flstudy.execution import programs
from flstudy.population import ClassIntroduction, FeatureShift, FreshDraws, InMemory, Rotation, ScheduledDrift
from flstudy.tasks import Cnn, FastText, Logistic, Lstm, Mlp, Vgg

from ..tiers import in_tiers
from ..worlds import CLASSES, FEATURES, SEEDS, SIZES, difference, drifting, examples, measured, run, state, wide, world
from .cases import settings
from .sides import covering, covering_array, device_side

EXECUTORS = ("sequential", "vectorized", "threads", "trainer")
CASES = settings()
PLAIN = [name for name in CASES if name.endswith("plain")]
EVERY_SIDE = covering(CASES)  # an executor sees the device's part of a method only
EVERY_PLAIN_SIDE = covering({name: CASES[name] for name in PLAIN})
EVERY_METHOD = list(dict.fromkeys([*PLAIN, *EVERY_SIDE]))
ARRAY = covering_array(CASES)
COVERED = {name for name, _ in ARRAY}
IN_TURN = list(itertools.product(EVERY_SIDE, ("threads", "trainer")))
LOCAL = ("train/loss", "fit/steps", "fit/epochs")


def runs(algorithm, executors=EXECUTORS, population=drifting, **more):
    """The same run under several executors: two replicas, ragged devices, half of which drift at round 2."""
    more = {"seeds": (0, 44), "initial": "seeded", **more}
    return [run(algorithm, population=population(), executor=name, **more) for name in executors]


def agree(modules, bound):
    """All of a run's tensors and measurements are the same, whoever carried it out."""
    first, *others = modules
    names = [name for name in first.record.metrics if name.split("/")[0] in ("train", "fit", "server", "traffic")]
    names.remove("fit/lane_utilization")  # how much of the work was not padding, which is an executor's own
    assert {*LOCAL, "server/update_norm", "traffic/up_bytes"} <= set(names)
    for other in others:
        assert difference(state(first), state(other)) <= bound
        assert difference(measured(first, *names), measured(other, *names)) <= bound * 10  # norms add n coordinates
        assert torch.equal(measured(first, "fit/steps"), measured(other, "fit/steps"))


@functools.cache
def specified(name):
    """The case's sequential run, which is what all others are held to."""
    return runs(CASES[name], ["sequential"])[0]


@pytest.mark.parametrize(
    ("name", "executor"), in_tiers([*ARRAY, *((name, "vectorized") for name in EVERY_METHOD), *IN_TURN], ARRAY[::4])
)
def test_executors_agree_in_double_precision(name, executor):
    agree([specified(name), *runs(CASES[name], [executor])], 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", in_tiers(EVERY_PLAIN_SIDE, EVERY_PLAIN_SIDE[:3]))
def test_executors_agree_where_ten_of_thirty_take_part_in_three_replicas(name):
    agree(runs(CASES[name], ("sequential", "vectorized"), wide, seeds=SEEDS), 1e-12)


@pytest.mark.parametrize("name", in_tiers(EVERY_PLAIN_SIDE, EVERY_PLAIN_SIDE[:1]))
def test_executors_agree_in_single_precision(name):
    single = {"precision": "32-true", "seeds": (0,), "population": lambda: drifting(dataset=floats())}
    first, *others = runs(CASES[name], **single)
    assert first.server.x.dtype == torch.float32
    for other in others:
        for a, b in zip(first.server, other.server, strict=True):
            if isinstance(a, torch.Tensor) and a.numel():
                assert difference(a, b) <= 1e-5


def floats():
    """The usual examples in single precision."""
    data = examples()
    data.examples = data.examples._replace(x=data.examples.x.float())
    return data


@pytest.mark.slow
def test_early_stopping_cases_do_stop_some_devices_and_not_others():
    for name in ("FedAvg early stopping", "fedavg uniform, stops by sums", "flash early"):
        module = run(CASES[name], population=drifting(epochs=4), executor="sequential")
        epochs = measured(module, "fit/epochs")
        assert ((epochs > 1) & (epochs < 4)).any(), name
        agree(runs(CASES[name], population=lambda: drifting(epochs=4)), 1e-12)


@pytest.mark.slow
def test_executors_agree_on_exact_steps():
    for steps in (1, 5):  # 5 ends inside an epoch of most devices, and starts a third one on the smallest
        for algorithm in (Scaffold(lr=0.1), Flash(lr=0.1)):
            modules = runs(algorithm, population=lambda steps=steps: drifting(steps=steps))
            agree(modules, 1e-12)
            done = measured(modules[0], "fit/steps")
            assert (done <= steps).all() if isinstance(algorithm, Flash) else (done == steps).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "task",
    [
        lambda: Cnn((1, 6, 6), CLASSES, channels=(2, 3), dense=4),
        lambda: Vgg((1, 6, 6), CLASSES, blocks=((2, 2), (4,)), dense=4),
    ],
    ids=["Cnn", "Vgg"],
)
def test_executors_agree_on_images(task):
    def images():
        return world(dataset=examples((1, 6, 6)), participants=3, epochs=1)

    task = task()
    for algorithm in (FedAvg(lr=0.1, momentum=0.9), Scaffold(lr=0.1)):
        agree(runs(algorithm, population=images, task=task, seeds=(0,)), 1e-12)


def sequences():
    """A drifting world of tokens, each position labelled by what follows; some labels are padding."""
    rng = torch.Generator().manual_seed(5)
    text = torch.randint(0, CLASSES, (sum(SIZES), 6), generator=rng)
    following = text[:, 1:].clone()
    following[::3, 3:] = -1
    return drifting(dataset=InMemory((text[:, :-1], following)), participants=3)


def texts():
    """A drifting world of texts of different lengths, some of them empty, each with a label."""
    rng = torch.Generator().manual_seed(6)
    words = torch.randint(1, 9, (sum(SIZES), 6), generator=rng)
    labels = words[:, 0] % CLASSES
    lengths = torch.randint(0, 7, (sum(SIZES), 1), generator=rng)
    return drifting(dataset=InMemory((torch.where(torch.arange(6) < lengths, words, 0), labels)), participants=3)


@pytest.mark.slow
@pytest.mark.usefixtures("without_compiler")
@pytest.mark.parametrize("algorithm", [FedAvg(lr=0.1, momentum=0.9), Scaffold(lr=0.1)])
def test_executors_agree_on_texts(algorithm):
    task = {"population": texts, "task": FastText((6,), CLASSES, tokens=9, embedding=4)}
    agree([*runs(algorithm, **task), *runs(algorithm, ["vectorized"], compile=True, **task)], 1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("without_compiler")
@pytest.mark.parametrize("algorithm", [FedAvg(lr=0.1, momentum=0.9), Scaffold(lr=0.1)])
def test_executors_agree_on_sequences(algorithm):
    task = {"population": sequences, "task": Lstm((5,), CLASSES, embedding=3, hidden=4, layers=2)}
    plain = runs(algorithm, **task)
    masked = runs(algorithm, ["vectorized"], compile=True, **task)
    agree([*plain, *masked], 1e-12)
    assert masked[0].executor.programs.compiled


@pytest.mark.slow
@pytest.mark.usefixtures("without_compiler")
@pytest.mark.parametrize("change", [FeatureShift(size=0.5), Rotation()], ids=lambda change: type(change).__name__)
def test_executors_agree_when_inputs_change(change):
    """Three concepts, met by different devices at different rounds."""
    drift = ScheduledDrift(schedule={0: [(1, 1)], 1: [(2, 2), (3, 0)], 4: [(2, 1)]}, change=change)

    def images(drift=drift):
        return world(dataset=examples((1, 4, 4)), drift=drift)

    network = {"task": Mlp((1, 4, 4), CLASSES, hidden=3), "population": images}
    plain = runs(FedAvg(lr=0.1, gamma=0.05), **network)
    masked = runs(FedAvg(lr=0.1, gamma=0.05), ["vectorized"], compile=True, **network)
    agree([*plain, *masked], 1e-12)
    still = runs(FedAvg(lr=0.1, gamma=0.05), ["sequential"], **{**network, "population": lambda: images(None)})
    assert difference(state(plain[0]), state(still[0])) > 1e-3


@pytest.mark.usefixtures("without_compiler")
@pytest.mark.parametrize(
    ("name", "loops"),
    in_tiers(
        [*((name, True) for name in EVERY_METHOD), *((name, False) for name in EVERY_PLAIN_SIDE)],
        [(name, number % 3 > 0) for number, name in enumerate(EVERY_PLAIN_SIDE[1::3])],
    ),
)
def test_programs_as_they_are_compiled_agree(name, loops, monkeypatch):
    """All of the compiled path but the compiler: finished lanes that are masked until half of them are done,
    hyper-parameters as tensors; for CPUs a loop, for GPUs fixed numbers of steps."""
    monkeypatch.setattr(programs.Programs, "looped", loops)
    plain, *masked = specified(name), *runs(CASES[name], ["vectorized"], compile=True)
    agree([plain, *masked], 1e-12)
    assert masked[0].executor.programs.compiled
    assert programs.compilations() >= 1
    assert measured(masked[0], "fit/lane_utilization").max() < 1 == measured(plain, "fit/lane_utilization").min()


@pytest.mark.slow
@pytest.mark.skipif(not programs.has_compiler(), reason="no C++ compiler")
@pytest.mark.parametrize(
    "algorithm", [Scaffold(lr=0.1, weight_decay=0.02), CASES["blended with delays"]], ids=["correction", "rules"]
)
def test_compiled_steps_agree_with_eager_ones(algorithm):
    """Ragged devices, so that of three lanes one is masked for a while before they leave; with a correction, and with a
    choice of rules, one of which has SM3's many vectors; under a penalty."""
    task = Mlp((FEATURES,), CLASSES, hidden=5, l1=0.01, l2=0.1)
    world = {"population": lambda: drifting(participants=3), "task": task}
    eager, compiled = (runs(algorithm, ["vectorized"], compile=on, seeds=(0,), **world)[0] for on in (False, True))
    agree([eager, compiled], 1e-12)
    assert compiled.executor.programs.compiled


def arriving(**changes):
    """A world whose classes come one after another, with fresh draws of a ragged size in every round."""
    drift = ClassIntroduction(rounds=[2, 3], groups=[[0, 2], [3], [1]])
    usual = {"drift": drift, "data_stream": FreshDraws(mean=9, deviation=4), "participants": 4}
    return world(**{**usual, **changes})


@pytest.mark.slow
@pytest.mark.usefixtures("without_compiler")
@pytest.mark.parametrize(
    ("algorithm", "penalty"),
    [(FedAvg(lr=0.1, momentum=0.9, gamma=0.05), {"l1": 0.02}), (Scaffold(lr=0.1), {"l1": 0.01, "l2": 0.1})],
    ids=["l1", "both"],
)
def test_executors_agree_on_arrivals_of_new_classes_under_a_penalty(algorithm, penalty):
    task = {"population": arriving, "seeds": SEEDS, "task": Logistic((FEATURES,), CLASSES, **penalty)}
    plain = runs(algorithm, **task)
    masked = runs(algorithm, ["vectorized"], compile=True, **task)
    agree([*plain, *masked], 1e-12)
    assert masked[0].executor.programs.compiled
    free = runs(algorithm, ["sequential"], **{**task, "task": Logistic((FEATURES,), CLASSES)})
    assert difference(state(plain[0]), state(free[0])) > 1e-3


def test_every_method_and_every_device_rule_is_among_the_cases():
    """What `covering` chooses, told for a few whose answer is known: methods that differ on the server alone share
    one place, each of those with a device's part of its own has one."""
    sides = {name: device_side(algorithm) for name, algorithm in CASES.items()}
    assert sides["FedAvg plain"] == sides["FedAdam plain"] == sides["fedyogi corrected"]
    for method, other in [("FedProx", "FedAvg"), ("Scaffold", "FedAvg"), ("Moon", "FedAvg"), ("Mime", "MimeLite")]:
        assert sides[f"{method} plain"] - sides[f"{other} plain"], method
    for how in ("decay and clipping", "early stopping", "momentum"):
        assert sides[f"FedAvg {how}"] - sides["FedAvg plain"], how
    chosen = set().union(*(sides[name] for name in EVERY_SIDE))
    assert all(side <= chosen for side in sides.values())
