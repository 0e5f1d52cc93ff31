"""Imports that wait: what the lean way leaves out, and that nobody who asks for it notices."""

import subprocess
import sys
import textwrap


def told(code: str) -> list[str]:
    """The lines that a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_lightning_without_what_nobody_asks_for():
    lines = told("""
        import sys
        from flstudy.lean import import_lightning
        import_lightning()
        import flstudy.config.config
        print(sorted({"torchvision", "scipy", "sympy", "torch._dynamo", "torchmetrics.functional"} & set(sys.modules)))
        import torchmetrics
        from lightning.pytorch.utilities.types import Metric
        print(torchmetrics.Metric is Metric, torchmetrics.__version__ > "1", hasattr(torchmetrics, "nothing"))
        print(torchmetrics.Accuracy.__name__, torchmetrics.Metric is Metric, issubclass(torchmetrics.Accuracy, Metric))
    """)
    assert lines == ["[]", "True True False", "Accuracy True True"]


def test_the_compiler_hears_of_opaque_functions_and_lightning_knows_compiled_modules():
    lines = told("""
        import sys, torch
        from flstudy.lean import import_lightning
        import_lightning()
        from flstudy.tasks.recurrent import recurrence
        print("torch._dynamo" in sys.modules)
        import torch._dynamo
        from torch._dynamo.trace_rules import is_callable_allowed
        print(is_callable_allowed(recurrence))
        from lightning.fabric import wrappers
        module = torch.compile(torch.nn.Linear(2, 2))
        print(isinstance(module, wrappers.OptimizedModule), isinstance(module._orig_mod, wrappers.OptimizedModule))
        print(type(wrappers._unwrap_compiled(module)[0]).__name__)
    """)
    assert lines == ["False", "True", "True False", "Linear"]


def test_another_lightning_that_wants_more_is_imported_as_usual():
    lines = told("""
        import flstudy.lean as lean
        lean._CLASSES.clear()
        lean.import_lightning()
        import lightning, torchmetrics
        print(lightning.Trainer.__name__, torchmetrics.Metric.__name__, type(torchmetrics).__name__)
    """)
    assert lines[0].startswith("Trainer Metric")
