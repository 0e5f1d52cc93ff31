"""Torch's compiler, behind one interface: the only file that uses names which torch may change without notice.

Tried with torch 2.11 and 2.15. Where another version lacks a name or means something else by it, the function here
raises, and its callers train eagerly: slower, with the same results.
"""

import contextlib
import ctypes
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

HEADERS_PAY = 6  # new libraries of a process
TOGETHER = 64  # calls of one program that may run at the same time


# ---- tracing ---------------------------------------------------------------------------------------------------------


def tracing() -> bool:
    """Return whether operations are being recorded for a compiler."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None


def dispatching() -> bool:
    """Return whether a mode of somebody's sees every operation."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    return _get_current_dispatch_mode() is not None


def mutates(target: Any) -> bool:
    """Return whether what a recording calls is an operator of torch's that writes to its arguments."""
    return isinstance(target, torch._ops.OpOverload) and bool(target._schema.is_mutable)


def acts(node: torch.fx.Node) -> bool:
    """Return whether a recorded call does more than to return its result."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return node.is_impure()
    return mutates(target) or torch.Tag.nondeterministic_seeded in target.tags


def fake_tensors(**options: Any) -> Any:
    """Return a mode in which tensors have shapes and no values; options as of torch's ``FakeTensorMode``."""
    from torch._subclasses import FakeTensorMode

    return FakeTensorMode(**options)


def core_decompositions() -> dict[Any, Any]:
    """Return the decompositions of operators into simpler ones that every backend of the compiler knows."""
    from torch._decomp import core_aten_decompositions

    return dict(core_aten_decompositions())


def decompositions() -> dict[Any, Any]:
    """Return the decompositions of operators into simpler ones by which the compiler of libraries works."""
    import torch._inductor.lowering  # noqa: F401  max_pool2d's decomposition uses it and does not import it
    from torch._inductor.decomposition import select_decomp_table

    table: dict[Any, Any] = select_decomp_table()
    return table


def while_loop() -> Any:
    """Return the operator of a loop that is compiled as one."""
    from torch._higher_order_ops.while_loop import while_loop_op

    return while_loop_op


def gave_up(error: BaseException) -> bool:
    """Return whether an exception is the compiler's, which could not compile a function."""
    from torch._dynamo.exc import TorchDynamoException  # seconds of imports, which compiling has done by now

    return isinstance(error, TorchDynamoException)


# ---- compiling -------------------------------------------------------------------------------------------------------


def use_one_process() -> None:
    """Let the compiler of this process, which is a fork, start no processes of its own."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    if "torch._inductor.config" in sys.modules:
        sys.modules["torch._inductor.config"].compile_threads = 1  # type: ignore[attr-defined]


def compile_library(graph: torch.fx.GraphModule, inputs: Sequence[Any], shims: dict[Any, list[str]]) -> str:
    """Compile a graph into a library with its program, and return the library's path.

    Args:
        graph: the program, for any sizes.
        inputs: fake tensors.
        shims: declarations by which C++ calls operators that are not torch's.
    """
    import torch._inductor

    # One thread each: lanes are what cores share. Torch 2.11 does not have all of what hastens.
    options = {"cpp.threads": 1, "aot_inductor.custom_ops_to_c_shims": shims}
    hastening = {"aot_inductor.enable_line_tables": False, "aot_inductor.precompile_headers": headers_pay()}
    options |= {name: value for name, value in hastening.items() if hasattr(torch._inductor.config, name)}
    if torch.__version__ < "2.15":  # whose estimate of what is worth reusing takes a loop's lines for those around it
        options["allow_buffer_reuse"] = False
    with side_by_side():
        path: str = trusting(lambda: torch._inductor.aot_compile(graph, tuple(inputs), options=options))
    return path


def load_source(source: str) -> None:
    """Compile C++ with the compiler and into the cache that torch's own programs use, and load it."""
    from torch._inductor.codecache import CppCodeCache  # seconds of imports, which tracing has done by now

    library = trusting(lambda: CppCodeCache.load(source))
    ctypes.CDLL(library._name, mode=ctypes.RTLD_GLOBAL)  # for programs that call a kernel by its shim


def trusting(compile: Callable[[], Any]) -> Any:
    """Return the result of a call of torch's compiler, which takes for granted that the C++ compiler knows the
    processor's instructions. Otherwise torch compiles and runs an example of each kind, which takes longer than a
    program; that is done only where the compiler turns out to be older than the processor."""
    from torch._inductor import config, cpu_vec_isa
    from torch._inductor.exc import CppCompileError

    try:
        with config.patch({"cpp.vec_isa_ok": True}), no_examples(cpu_vec_isa.VecISA):
            return compile()
    except CppCompileError:
        cpu_vec_isa.valid_vec_isa_list.cache_clear()
        for kind in (cpu_vec_isa.VecAVX512, cpu_vec_isa.VecAVX512VNNI, cpu_vec_isa.VecAMX):
            for remembered in (kind.__bool__, kind.is_avx512_bf16_supported):
                getattr(remembered, "cache_clear", list)()
        for processor in cpu_vec_isa.supported_vec_isa_list:
            vars(processor).pop("_is_avx512_bf16_supported", None)
        return compile()


@contextlib.contextmanager
def no_examples(kind: Any) -> Iterator[None]:
    """Skip torch's examples of rarer instructions, a second each to compile and run: the processor tells that it has
    the instructions."""
    probe = vars(kind).get("check_build")
    if probe is None or probe is granted:  # another version, or another thread is here
        yield
        return
    kind.check_build = granted
    try:
        yield
    finally:
        kind.check_build = probe


def granted(kind: Any, code: str) -> bool:
    """Stand in for the result of an example that is not compiled: it succeeds."""
    return True


_asked = itertools.count()  # new libraries asked for in this process


def headers_pay() -> bool:
    """Return whether a new library takes torch's headers from a file in which they are compiled already. That file
    takes as long to make as some six programs gain by it."""
    from torch._inductor import codecache

    there = any(Path(getattr(codecache, "_HEADER_DIR", "")).rglob("*.gch"))
    return next(_asked) >= HEADERS_PAY or there


@contextlib.contextmanager
def side_by_side() -> Iterator[None]:
    """Compile the two files of a library at the same time, which torch does one after the other, and wait for them only
    when they are linked."""
    from torch._inductor.cpp_builder import CppBuilder

    build, running = CppBuilder.build, list[Future[None]]()

    def begun(builder: Any) -> None:
        if str(builder.get_target_file_path()).endswith((".wrapper.o", ".kernel.o")):
            running.append(compilers.submit(build, builder))
            return
        while running:
            running.pop().result()
        build(builder)

    with ThreadPoolExecutor(2, "compiler") as compilers:
        CppBuilder.build = begun  # type: ignore[assignment, method-assign]
        try:
            yield
        finally:
            CppBuilder.build = build  # type: ignore[method-assign]


def cache_folder() -> Path:
    """Return the folder of the compiled libraries, beside the cache of torch's compiler."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Path(cache_dir()) / "flstudy"


# ---- running ---------------------------------------------------------------------------------------------------------


def binding_of(path: Path) -> Callable[[list[Tensor]], list[Tensor]]:
    """Return the program of a library by torch's own binding, which knows operators that are not torch's."""
    runner: Any = torch._C._aoti.AOTIModelContainerRunnerCpu(str(path), 1)
    return lambda inputs: runner.run(inputs)


class LibraryFailed(RuntimeError):
    """Error of a library's program, which says no more than that."""


class Library:
    """The program of a library. Python's own binding of it would hold Python's lock while it runs.

    Args:
        path: of the library.
        before: called before each run, which leaves Python.

    Raises:
        OSError: if it cannot be loaded.
    """

    def __init__(self, path: Path, before: Callable[[], None]) -> None:
        self._before = before
        self._library, handle, count = ctypes.CDLL(str(path)), ctypes.c_void_p(), ctypes.c_size_t()
        create = self._library.AOTInductorModelContainerCreateWithDevice
        create.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_char_p]
        outputs = self._library.AOTInductorModelContainerGetNumOutputs
        outputs.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        if create(ctypes.byref(handle), TOGETHER, b"cpu", None) or outputs(handle, ctypes.byref(count)):
            raise OSError(f"{path} cannot be loaded")
        self._handle, self._outputs = handle, count.value
        self._run = self._library.AOTInductorModelContainerRun
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        self._run.argtypes = [pointer, pointer, size, pointer, size, pointer, pointer]

    def __call__(self, inputs: list[Tensor]) -> list[Tensor]:
        """Return the outputs of the program.

        Raises:
            LibraryFailed: if it fails.
        """
        binding: Any = torch._C._aoti
        capsules = binding.unsafe_alloc_void_ptrs_from_tensors(inputs)
        handles = (ctypes.c_void_p * len(inputs))(*(address(capsule, None) for capsule in capsules))
        results = (ctypes.c_void_p * self._outputs)()
        self._before()
        if self._run(self._handle, handles, len(inputs), results, self._outputs, None, None):
            raise LibraryFailed("a compiled loop failed; the lines above it say where")
        stolen = [wrapped(result, None, None) for result in results]
        outputs: list[Tensor] = binding.alloc_tensors_by_stealing_from_void_ptrs(stolen)
        return outputs


address = ctypes.pythonapi.PyCapsule_GetPointer
address.restype, address.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
wrapped = ctypes.pythonapi.PyCapsule_New
wrapped.restype, wrapped.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
