"""Compiled programs are the process's: trials that differ in values share them, those that differ in kind do not."""

import threading

import pytest
import torch

from flstudy.algorithms import FedAda2, FedAvg, FedProx, Flash, Scaffold
from flstudy.execution import loops, programs, vectorized
from flstudy.execution.compile_policy import CompilePolicy
from flstudy.tasks import Mlp, compiler

from ..worlds import CLASSES, FEATURES, difference, drifting, run

LANES = 6  # one for each device


def widths(algorithm, task=None) -> int:
    """Programs that a short run makes."""
    before = programs.compilations()
    run(algorithm, 2, compile=True, **({} if task is None else {"task": task}))
    return programs.compilations() - before


@pytest.mark.slow
@pytest.mark.usefixtures("without_compiler")
def test_values_share_programs_and_kinds_do_not():
    assert widths(FedProx(lr=0.1, mu=0.5)) >= 1
    assert widths(FedProx(lr=0.3, mu=0.1, server_lr=0.2)) == 0
    assert widths(FedProx(lr=0.3, mu=0.0)) >= 1  # its term is switched off
    assert widths(FedAda2(lr=0.1, client_optimizer="sm3_adam", warmup=5)) >= 1
    assert widths(FedAda2(lr=0.3, client_optimizer="sm3_adam", warmup=5, eps=0.1, client_beta2=0.5, tau=0.1)) == 0
    assert widths(FedAda2(lr=0.3, client_optimizer="sm3_adam", warmup=5, client_beta1=0.0)) >= 1
    assert widths(FedAvg(lr=0.1)) >= 1
    assert widths(FedAvg(lr=0.1, clip_norm=1.0)) >= 1
    assert widths(FedAvg(lr=0.1), Mlp((FEATURES,), CLASSES, hidden=6)) >= 1


@pytest.mark.slow
@pytest.mark.usefixtures("without_compiler")
def test_tasks_that_start_elsewhere_share_programs_and_keep_their_start():
    torch.manual_seed(1)
    first_task, second_task = Mlp((FEATURES,), CLASSES, hidden=5), Mlp((FEATURES,), CLASSES, hidden=5)
    eager = [run(Scaffold(lr=0.1), 2, task=task_like(task)) for task in (first_task, second_task)]
    shared = [run(Scaffold(lr=0.1), 2, task=task_like(first_task), compile=True)]
    compilations = programs.compilations()
    shared.append(run(Scaffold(lr=0.1), 2, task=task_like(second_task), compile=True))
    assert programs.compilations() == compilations
    for plain, compiled in zip(eager, shared, strict=True):
        assert difference(plain.server, compiled.server) <= 1e-12
    assert difference(eager[0].server, eager[1].server) > 1e-3


@pytest.mark.slow
@pytest.mark.usefixtures("without_compiler")
def test_a_program_is_one_of_any_number_of_lanes_and_steps():
    """Made once: cohorts and fits of other sizes, and new values of all hyper-parameters, make none."""
    run(Flash(lr=0.1), 2, compile=True, population=drifting())
    assert programs.compilations() == 2  # one trains, one validates
    run(Flash(lr=0.2, server_lr=0.3, tau=0.1, beta1=0.5, weight_decay=0.0), 2, compile=True, population=drifting())
    run(Flash(lr=0.1), 2, compile=True, population=drifting(participants=5, epochs=3))
    assert programs.compilations() == 2


@pytest.mark.slow
@pytest.mark.skipif(not programs.has_compiler(), reason="no C++ compiler")
def test_a_compiled_program_is_found_again_whole_or_not_at_all(monkeypatch, forget_programs, tmp_path):
    """On disk, by what it computes; a damaged file is compiled anew."""
    monkeypatch.setattr(compiler, "cache_folder", lambda: tmp_path)
    libraries, compiled = [], loops.compiled

    def counted(*arguments):
        # The same arguments make the same library.
        libraries.append(libraries[0] if libraries else compiled(*arguments))
        return libraries[-1]

    monkeypatch.setattr(loops, "compiled", counted)

    def after_a_run():
        forget_programs()
        return run(FedAvg(lr=0.1), 2, compile=True)

    first, again = after_a_run(), after_a_run()
    assert len(libraries) == 1
    assert difference(first.server, again.server) == 0
    (library,) = tmp_path.glob("*.so")
    whole = library.read_bytes()
    library.unlink()  # another file: this process has that one loaded
    library.write_bytes(whole[:-1000])
    assert difference(after_a_run().server, first.server) == 0
    assert len(libraries) == 2


def test_files_of_a_library_are_compiled_side_by_side_and_awaited_by_the_linker(monkeypatch):
    from torch._inductor.cpp_builder import CppBuilder

    done, both = [], threading.Barrier(2, timeout=300)

    class Builder(CppBuilder):
        def __init__(self, file):
            self.file = file

        def get_target_file_path(self):
            return self.file

    def build(builder):
        if builder.file.endswith(".o"):
            both.wait()
        if "broken" in builder.file:
            raise RuntimeError("no C++")
        done.append(builder.file)

    def compiled(*files):
        with compiler.side_by_side():
            for file in files:
                Builder(file).build()

    monkeypatch.setattr(CppBuilder, "build", build)
    compiled("a.wrapper.o", "a.kernel.o", "a.so")
    assert sorted(done[:2]) == ["a.kernel.o", "a.wrapper.o"]
    assert done[2] == "a.so"
    with pytest.raises(RuntimeError, match="no C"):
        compiled("broken.wrapper.o", "b.kernel.o", "b.so")
    assert CppBuilder.build is build
    assert "b.so" not in done


@pytest.mark.slow
@pytest.mark.usefixtures("without_compiler")
@pytest.mark.parametrize("algorithm", [Scaffold(lr=0.1), FedAvg(lr=0.1, gamma=0.05)], ids=["steps", "early stopping"])
def test_parts_on_threads_are_one_part_to_rounding(algorithm, monkeypatch):
    monkeypatch.setattr(programs, "ENTRY", 1)
    before, runs = torch.get_num_threads(), []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            runs.append(run(algorithm, 3, compile=True))
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(before)
    assert [module.executor.choices()["part_lanes"] for module in runs] == [LANES, -(-LANES // 3)]
    assert difference(*(module.server for module in runs)) <= 1e-12


@pytest.mark.slow
@pytest.mark.usefixtures("without_compiler")
@pytest.mark.parametrize("algorithm", [Scaffold(lr=0.1), FedAvg(lr=0.1, gamma=0.05)], ids=["steps", "early stopping"])
def test_lanes_that_fit_into_no_cache_are_alone_in_their_programs(algorithm, monkeypatch):
    eager = run(algorithm, 3)
    monkeypatch.setattr(programs, "cache_bytes", lambda: 0)
    alone = run(algorithm, 3, compile=True)
    assert difference(eager.server, alone.server) <= 1e-12
    assert difference(eager.bank.rows, alone.bank.rows) <= 1e-12
    assert programs.compilations() == (1 if algorithm.gamma is None else 2)


@pytest.mark.slow
@pytest.mark.usefixtures("without_compiler")
def test_only_lanes_that_are_at_work_are_in_a_program(monkeypatch):
    """Down to a single one, of a program that was made for several."""
    seen = set()
    monkeypatch.setattr(programs, "ENTRY", 1)
    monkeypatch.setattr(loops.LoopProgram, "__call__", counting_lanes(loops.LoopProgram.__call__, seen))
    compiled = run(FedAvg(lr=0.1), 2, compile=True, population=drifting())
    assert 1 in seen
    assert difference(compiled.server, run(FedAvg(lr=0.1), 2, population=drifting()).server) <= 1e-12


def test_lanes_leave_where_waiting_would_cost_more_than_a_call():
    assert programs.cuts([5, 5, 5]) == [(3, 5)]
    assert programs.cuts([100, 2]) == [(2, 2), (1, 100)]
    assert programs.cuts([100, 99, 98]) == [(3, 100)]
    assert programs.cuts([9, 0]) == [(2, 9)]


def counting_lanes(call, seen):
    """The call of a program, which notes how many lanes it is given."""

    def counted(self, carried, begin, rows, *others):
        seen.add(len(rows))
        return call(self, carried, begin, rows, *others)

    return counted


def task_like(task: Mlp) -> Mlp:
    """A copy that a run may train."""
    copy = Mlp((FEATURES,), CLASSES, hidden=5)
    copy.load_state_dict(task.state_dict())
    return copy


@pytest.mark.slow
@pytest.mark.usefixtures("without_compiler")
def test_auto_compiles_if_the_rounds_ahead_pay_for_it(monkeypatch):
    short = run(FedAvg(lr=0.1), 3, compile="auto")
    assert not short.executor.programs.compiled
    assert short.executor.choices()["compile"] is None
    monkeypatch.setattr(vectorized, "COST_S", 0.0)
    long = run(FedAvg(lr=0.1), 3, compile="auto")
    assert long.executor.choices()["compile"] is True
    assert programs.compilations() > 0
    assert difference(short.server, long.server) <= 1e-12
    last = run(FedAvg(lr=0.1), 1, compile="auto")  # nothing is ahead after the only round
    assert last.executor.choices()["compile"] is None


@pytest.mark.usefixtures("without_compiler")
@pytest.mark.parametrize("faster", [True, False])
def test_auto_compiles_when_rounds_become_longer_and_stays_with_what_is_faster(faster):
    executor = run(FedAvg(lr=0.1), 1, compile="auto").executor
    cost = executor.cost_s()
    executor._policy = CompilePolicy()  # the run had one round, which was told, too
    assert not executor.weigh(seconds=cost / 1000, rounds_left=100)
    assert not executor.weigh(seconds=cost / 900, rounds_left=99)
    assert not executor.programs.compiled
    assert not executor.weigh(seconds=cost / 10, rounds_left=98)
    assert executor.programs.compiled
    assert not executor.weigh(seconds=2 * cost, rounds_left=97)  # which compiled
    if not faster:
        assert [executor.weigh(seconds=cost / 500, rounds_left=left) for left in (96, 95)] == [False, False]
    assert executor.weigh(seconds=cost / (2000 if faster else 500), rounds_left=94)
    assert executor.programs.compiled is faster
    assert executor.choices()["compile"] is faster


@pytest.mark.usefixtures("without_compiler")
def test_a_resumed_run_keeps_what_auto_chose(monkeypatch):
    run_once = run(FedAvg(lr=0.1), 1, compile="auto")
    executor = run_once.executor
    executor.programs.undecided = True
    assert executor.choices() == {"compile": None, "max_lanes": None, "part_lanes": None}
    executor.choose({"compile": None, "max_lanes": 3, "part_lanes": None})
    assert executor.max_lanes == 3
    assert executor.programs.undecided
    executor.choose({"compile": True, "max_lanes": None, "part_lanes": None})
    assert executor.programs.compiled
    executor.weigh(seconds=0.0, rounds_left=10)
    assert executor.programs.compiled  # decided is decided
