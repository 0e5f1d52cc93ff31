"""What chooses and what limits: `executor: auto`, `max_lanes`, and memory that runs out. None of it changes results."""

import subprocess
from pathlib import Path

import pytest
import torch

from flstudy.algorithms import FedAvg, Flash, Scaffold
from flstudy.execution import loops, programs, select, vectorized
from flstudy.tasks import Cnn, compiler

from ..worlds import CLASSES, difference, drifting, examples, measured, run, state, world

TWICE = {"seeds": (0, 44), "initial": "seeded"}


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 3, 7])
@pytest.mark.parametrize(
    "algorithm", [Scaffold(lr=0.1, clip_norm=1.0), Flash(lr=0.1, gamma=0.3)], ids=["Scaffold", "Flash"]
)
def test_chunks_of_lanes_are_all_lanes_at_once(algorithm, most):
    whole = run(algorithm, population=drifting(epochs=4), **TWICE)
    chunked = run(algorithm, population=drifting(epochs=4), max_lanes=most, **TWICE)
    assert difference(state(whole), state(chunked)) <= 1e-12
    assert torch.equal(measured(whole, "fit/steps"), measured(chunked, "fit/steps"))


@pytest.mark.slow
@pytest.mark.usefixtures("without_compiler")
def test_chunks_of_compiled_lanes_are_all_lanes_at_once():
    whole = run(Flash(lr=0.1), population=drifting(), **TWICE)
    chunked = run(Flash(lr=0.1), population=drifting(), max_lanes=3, compile=True, **TWICE)
    assert difference(state(whole), state(chunked)) <= 1e-12


def test_memory_that_runs_out_halves_the_lanes_with_a_warning(monkeypatch):
    train, tried = vectorized.Vectorized._train, []

    def small_memory(self, algorithm, msg, client, work):
        tried.append(len(work.steps))
        if len(work.steps) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return train(self, algorithm, msg, client, work)

    whole = run(Scaffold(lr=0.1), population=drifting(), **TWICE)
    monkeypatch.setattr(vectorized.Vectorized, "_train", small_memory)
    halved = run(Scaffold(lr=0.1), population=drifting(), **TWICE)
    assert tried[:5] == [8, 4, 2, 2, 2]  # and two lanes from then on
    assert set(tried[5:]) == {2}
    assert halved.executor.choices()["max_lanes"] == 2
    assert difference(state(whole), state(halved)) <= 1e-12


class Raising(FedAvg):
    """Devices that cannot train, for the reason given."""

    def local_step(self, *_):
        raise REASON[self.lr]


REASON = {
    0.1: torch.OutOfMemoryError("out of memory"),
    0.2: RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
}


def test_the_warning_names_the_lanes():
    executor = run(FedAvg(lr=0.1), 1).executor
    cohort = world().settle((0,)).cohort(1)
    servers = FedAvg(lr=0.1).server_init(torch.zeros(1, executor.task_function.layout.n), executor.task_function.layout)
    with (
        pytest.warns(UserWarning, match="out of memory with 6 lanes at once: going on with max_lanes 3"),
        pytest.raises(torch.OutOfMemoryError),  # not even one lane fits
    ):
        executor.fit(Raising(lr=0.1), servers, (), cohort.jobs, cohort.batches)


def beyond(*_):
    raise RuntimeError("this module is beyond me\nand more lines")


def failing(*_):
    raise subprocess.CalledProcessError(1, "g++")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "part", "broken", "sentence"),
    [
        (loops, "loaded", beyond, "RuntimeError: this module is beyond me"),
        (loops, "compiled", failing, "CalledProcessError: Command 'g++' returned non-zero exit status 1."),
        (compiler, "cache_folder", lambda: Path(__file__) / "x", "NotADirectoryError: [Errno 20] Not a directory"),
    ],
    ids=["a program that is refused", "a compiler that fails", "a folder that cannot be written"],
)
def test_what_cannot_be_compiled_runs_eagerly_with_one_warning(
    owner, part, broken, sentence, monkeypatch, forget_programs, tmp_path
):
    plain = run(Scaffold(lr=0.1), population=drifting(), **TWICE)
    forget_programs()
    monkeypatch.setattr(programs, "has_compiler", lambda: True)
    monkeypatch.setattr(compiler, "cache_folder", lambda: tmp_path)  # where nobody's program is found
    monkeypatch.setattr(loops, "compiled", lambda *_: __file__)
    monkeypatch.setattr(owner, part, broken)
    messages = []
    monkeypatch.setattr(vectorized.warnings, "warn", lambda sentence, **_: messages.append(str(sentence)))
    eager = run(Scaffold(lr=0.1), population=drifting(), compile=True, **TWICE)
    (heard,) = [sentence for sentence in messages if "eagerly" in sentence]
    assert f"could not compile them: {sentence}" in heard
    assert eager.executor.choices()["compile"] is False
    assert difference(state(plain), state(eager)) == 0


def test_without_a_compiler_steps_run_eagerly_with_one_warning(monkeypatch):
    plain = run(Scaffold(lr=0.1), population=drifting(), **TWICE)
    monkeypatch.setattr(programs.shutil, "which", lambda name: None)
    monkeypatch.setattr(programs.torch.cuda, "is_available", lambda: False)
    messages = []
    monkeypatch.setattr(programs.warnings, "warn", lambda sentence, **_: messages.append(str(sentence)))
    eager = run(Scaffold(lr=0.1), population=drifting(), compile=True, **TWICE)
    (heard,) = [sentence for sentence in messages if "eagerly" in sentence]
    assert heard == "no C++ compiler found: local steps run eagerly; install g++ for compiled ones"
    assert eager.executor.choices()["compile"] is False
    assert difference(state(plain), state(eager)) == 0


def test_other_errors_pass_at_once():
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        run(Raising(lr=0.2), 1)


@pytest.fixture
def as_measured(monkeypatch):
    """A function that says what `auto` measures: the clocks of a busy machine should decide no test."""

    def say(**seconds):
        def measure(auto, *_):
            auto.seconds = {name: seconds[name] for name in (*auto.executors, "compiled") if name in seconds}

        monkeypatch.setattr(select.Auto, "_measure", measure)

    return say


@pytest.mark.parametrize("fastest", ["vectorized", "sequential", "threads"])
def test_auto_takes_the_fastest_and_computes_the_same(fastest, as_measured):
    as_measured(**{"vectorized": 2.0, "sequential": 2.0, "threads": 2.0, "compiled": 2.0, fastest: 1.0})
    plain = run(Scaffold(lr=0.1), population=drifting(), **TWICE)
    chosen = run(Scaffold(lr=0.1), population=drifting(), executor="auto", **TWICE)
    if fastest not in chosen.executor.executors:
        pytest.skip("threads need two cores")
    assert chosen.executor.choices()["executor"] == fastest
    assert difference(state(plain), state(chosen)) <= 1e-12


def test_auto_measures_without_a_trace():
    """The probes train, but nothing of them stays: masks, states and steps are those of the run alone."""
    task = Cnn((1, 6, 6), CLASSES, channels=(2, 3), dense=4)
    images = {
        "population": world(dataset=examples((1, 6, 6)), participants=3, epochs=1),
        "task": task,
        "initial": "seeded",
    }
    chosen = run(Flash(lr=0.1, gamma=0.05), executor="auto", **images)
    plain = run(Flash(lr=0.1, gamma=0.05), executor="sequential", **images)
    assert difference(state(plain), state(chosen)) <= 1e-12
    choices = chosen.executor.choices()
    assert choices["executor"] in chosen.executor.executors
    assert {"vectorized", "compiled", "sequential"} <= set(choices["seconds"])
    assert all(seconds > 0 for seconds in choices["seconds"].values())


def test_auto_compiles_only_if_the_rounds_ahead_pay_for_it(as_measured, monkeypatch):
    as_measured(vectorized=1.0, compiled=0.25, sequential=2.0, threads=2.0)
    monkeypatch.setattr(vectorized.Vectorized, "cost_s", lambda self: 3.0)

    def decide(self, compile):
        decided.append(compile)
        self.undecided = False

    monkeypatch.setattr(select.Programs, "decide", decide)
    for rounds, expected in ((3, []), (8, [True])):
        decided: list[bool] = []
        run(FedAvg(lr=0.1), rounds, executor="auto")
        assert decided == expected


CNN = {"task": Cnn((1, 6, 6), CLASSES, channels=(2, 3), dense=4), "initial": "seeded"}


@pytest.mark.slow
@pytest.mark.usefixtures("without_compiler")
def test_auto_compiles_a_model_that_is_not_mapped(monkeypatch):
    """Lane by lane, by what the fastest of the eager executors tells; a checkpoint says so."""
    monkeypatch.setattr(programs, "cache_bytes", lambda: 0)
    monkeypatch.setattr(vectorized.Vectorized, "cost_s", lambda self: 0.0)
    images = {"population": world(dataset=examples((1, 6, 6)), participants=3, epochs=1), **CNN}
    chosen = run(FedAvg(lr=0.1), 2, executor="auto", **images)
    seconds = chosen.executor.choices()["seconds"]
    assert seconds["compiled"] == select.ALONE * min(value for name, value in seconds.items() if name != "compiled")
    assert (chosen.executor.choices()["executor"], chosen.executor.choices()["compile"]) == ("vectorized", True)
    assert programs.compilations() == 1
    plain = run(FedAvg(lr=0.1), 2, executor="sequential", **images)
    assert difference(state(plain), state(chosen)) <= 1e-12


@pytest.mark.slow
@pytest.mark.usefixtures("without_compiler")
@pytest.mark.parametrize("faster", [True, False])
def test_auto_goes_back_to_the_executor_that_is_faster_than_its_programs(faster, as_measured, monkeypatch):
    as_measured(vectorized=2.0, compiled=0.5, sequential=1.0)
    took = iter([1.0, 30.0, *[0.1 if faster else 1.5] * 5])
    weigh = select.Auto.weigh
    monkeypatch.setattr(select.Auto, "weigh", lambda self, *_: weigh(self, next(took), 40))
    chosen = run(FedAvg(lr=0.1), 6, executor="auto")
    assert chosen.executor.choices()["executor"] == ("vectorized" if faster else "sequential")
    assert chosen.executor.choices()["compile"] is faster
    assert len(list(took)) == (4 if faster else 2)  # asked no more once that is settled
    assert difference(state(run(FedAvg(lr=0.1), 6, executor="sequential")), state(chosen)) <= 1e-12


@pytest.mark.slow
@pytest.mark.usefixtures("without_compiler")
def test_auto_goes_back_where_torch_cannot_compile(as_measured, monkeypatch):
    def refuse(*_):
        raise RuntimeError("no")

    as_measured(vectorized=2.0, compiled=0.5, sequential=1.0)
    monkeypatch.setattr(vectorized.Vectorized, "cost_s", lambda self: 0.0)
    monkeypatch.setattr(loops, "loaded", refuse)
    messages = []
    monkeypatch.setattr(vectorized.warnings, "warn", lambda sentence, **_: messages.append(str(sentence)))
    chosen = run(FedAvg(lr=0.1), 3, executor="auto")
    assert len([sentence for sentence in messages if "torch could not compile them" in sentence]) == 1
    assert chosen.executor.choices()["executor"] == "sequential"
    assert chosen.executor.choices()["compile"] is False


def test_a_resumed_run_keeps_what_auto_chose(tmp_path, as_measured):
    from lightning.pytorch.callbacks import ModelCheckpoint

    saving = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1, save_on_train_epoch_end=True)
    whole = run(Scaffold(lr=0.1), 3, executor="auto", callbacks=[saving], fit={"enable_checkpointing": True})
    as_measured(vectorized=1.0)  # which has no seconds of the others
    half = run(Scaffold(lr=0.1), 3, executor="auto", ckpt_path=str(tmp_path / "epoch=0.ckpt"))
    assert half.executor.choices() == whole.executor.choices()
    assert torch.equal(whole.server.x, half.server.x)
